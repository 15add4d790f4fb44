//! AMD's own software on a machine without a GPU, as far as it goes there.
//!
//! A program built by AMD's compiler meets AMD's runtime, which sees no device: it must end as it does without us. AMD's
//! libraries meet the stand-in for the runtime: they must come through to their launches. What is not installed is said and
//! left out; `scripts/test` installs it where it may.

#[allow(dead_code, reason = "the other tests with these stand-ins use the rest")]
mod hip_stage;
#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::path::{Path, PathBuf};
use std::process::Command;

use hip_stage::{Scene, ended, kit};
use stage::Stage;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(name)
}

#[test]
fn a_program_of_amds_compiler_ends_on_amds_runtime_as_it_does_without_us() {
    let stage = Stage::with_service();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("vector");
    let mut compile = Command::new("hipcc");
    compile.args(["--offload-arch=gfx90a", "-O1", "-o"]).arg(&program).arg(source("vector.hip"));
    let Ok(compiled) = compile.output() else {
        eprintln!("hipcc is not installed: not tested (apt-get install hipcc libamdhip64-dev)");
        return;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let words = [program.to_str().unwrap()];
    let direct = ended(&mut stage.direct(&words));
    assert!(String::from_utf8_lossy(&direct.stdout).contains("launch: "), "{direct:?}");
    let scheduled = ended(stage.run(&["--priority", "high"], &words).env("XLOG_LEVEL", "WARN"));
    assert_eq!(String::from_utf8_lossy(&scheduled.stdout), String::from_utf8_lossy(&direct.stdout));
    assert_eq!(scheduled.status, direct.status);
    let log = String::from_utf8_lossy(&scheduled.stderr);
    // Where there is a device after all, there is nothing to complain about.
    let no_device = String::from_utf8_lossy(&direct.stdout).contains("0 devices");
    assert_eq!(
        log.lines().filter(|line| line.contains("HIP runs unscheduled")).count(),
        usize::from(no_device),
        "{log}"
    );
}

/// A program, started with the C library in `root`, that finds AMD's runtime in another directory.
fn with_loader_of(root: &Path, runtime: &Path, stage: &Stage, words: &[&str]) -> Command {
    let loader = root.join("ld-linux-x86-64.so.2");
    let path = format!("{}:{}", runtime.display(), root.display());
    stage.direct(&[&[loader.to_str().unwrap(), "--library-path", &path], words].concat())
}

/// Where `rocprofiler-register` and a new `ROCr` are; none, with a word about it, if they are not there.
fn register() -> Option<PathBuf> {
    let root = std::env::var_os("XSCHED_ROCM_REGISTER")
        .map(|path| PathBuf::from(path).join("root/usr/lib/x86_64-linux-gnu"));
    let there = root.filter(|root| root.join("librocprofiler-register.so.0").exists());
    if there.is_none() {
        eprintln!(
            "rocprofiler-register is not there: not tested (scripts/rocm-libraries, and XSCHED_ROCM_REGISTER)"
        );
    }
    there
}

#[test]
fn amds_register_hands_the_table_to_us_and_to_a_profiler() {
    const WORK: [&str; 4] = ["work", "3", "7", "100"];
    let Some(root) = register() else { return };
    let (profiler, way) =
        (kit().programs.join("libprofiler.so"), "HIP is scheduled by the runtime's own table");
    // With nobody, with us alone, with a profiler alone, with both; and with us where nothing is preloaded.
    for (ours, theirs, named) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
    ] {
        let scene = Scene::new(Stage::with_service());
        let library = scene.stage.library("libxsched.so");
        let program = kit().programs.join("opened");
        let words = [&[program.to_str().unwrap()], &WORK[..]].concat();
        let mut command = scene.surround(with_loader_of(&root, &kit().runtime, &scene.stage, &words));
        let preload = [
            ours.then_some(library.as_str()),
            theirs.then_some(profiler.to_str().unwrap()),
            kit().driver.to_str(),
        ];
        let preload: Vec<_> = preload.into_iter().flatten().collect();
        command.env("LD_PRELOAD", preload.join(":")).env("XLOG_LEVEL", "INFO");
        command.env("HIP_STANDIN_REGISTER", root.join("librocprofiler-register.so.0"));
        command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        if named {
            command.env("ROCPROFILER_REGISTER_LIBRARY", &library);
        }
        let output = ended(&mut command);
        let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let what = format!("{ours}, {theirs}, {named}: {out}{log}");
        let last = if theirs { "profiled 21 launches\n" } else { "" };
        assert_eq!(out, format!("round 0\nround 1\nround 2\n{last}"), "{what}");
        assert_eq!(log.contains(way), ours || named, "{what}");
    }
}

/// The driver's description of a machine with a processor and no GPU: enough for AMD's runtime to begin.
fn a_processor(root: &Path) {
    let topology = root.join("sys/devices/virtual/kfd/kfd/topology");
    let bank = topology.join("nodes/0/mem_banks/0");
    std::fs::create_dir_all(&bank).unwrap();
    let write = |name: &str, text: &str| std::fs::write(topology.join(name), text).unwrap();
    write("generation_id", "1\n");
    write("system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n");
    write("nodes/0/gpu_id", "0\n");
    write("nodes/0/name", "\n");
    write(
        "nodes/0/properties",
        "cpu_cores_count 1\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\nio_links_count 0\n",
    );
    std::fs::write(
        bank.join("properties"),
        "heap_type 0\nsize_in_bytes 1073741824\nflags 0\nwidth 64\nmem_clk_max 2666\n",
    )
    .unwrap();
}

/// AMD's `ROCr` in this directory, started on a machine without a GPU: it must show us its table, and work as without us.
fn must_show_its_table(library: &Path, loader: Option<&Path>) {
    let directory = tempfile::tempdir().unwrap();
    a_processor(directory.path());
    let program = directory.path().join("rocr");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wl,--unresolved-symbols=ignore-all", "-o"]);
    let output = compiler.arg(&program).arg(source("rocr.c")).arg(library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let scene = Scene::new(Stage::with_service());
    let run = |preload: &str| {
        let program = program.to_str().unwrap();
        let mut command = match loader {
            Some(root) => with_loader_of(root, root, &scene.stage, &[program]),
            None => scene.stage.direct(&[program]),
        };
        command
            .env("LD_PRELOAD", preload)
            .env("KFD_STANDIN_ROOT", directory.path())
            .env("XLOG_LEVEL", "INFO");
        // As `xsched run` has it.
        if let Some((ours, _)) = preload.split_once(':') {
            command.env("HSA_TOOLS_LIB", ours).env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        }
        let output = ended(&mut command);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let driver = kit().driver.display().to_string();
    let (direct, _) = run(&driver);
    assert!(direct.starts_with("hsa_init 0\n") && direct.ends_with("hsa_shut_down 0\n"), "{direct}");
    let (scheduled, log) = run(&format!("{}:{driver}", scene.stage.library("libxsched.so")));
    assert_eq!(scheduled, direct, "{log}");
    let shown = log.lines().filter(|line| line.contains("ROCr showed us its table")).count();
    assert_eq!(shown, 2, "begun twice: {log}");
}

#[test]
fn amds_runtime_below_hip_shows_us_its_table() {
    let installed = Path::new("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1");
    if installed.exists() {
        must_show_its_table(installed, None);
    } else {
        eprintln!("ROCr is not installed: not tested (apt-get install libhsa-runtime64-1)");
    }
    if let Some(root) = register() {
        must_show_its_table(&root.join("libhsa-runtime64.so.1"), Some(&root));
    }
}

/// The directory with AMD's libraries, the name of its C library's loader in it, and the stand-in under the name that these
/// libraries know; none, with a word about it, if they are not there.
struct Libraries {
    root: PathBuf,
    runtime: PathBuf,
}

impl Libraries {
    fn with(library: &str, runtime: &str) -> Option<Self> {
        let root = std::env::var_os("XSCHED_ROCM_LIBRARIES")
            .map(|path| PathBuf::from(path).join("root/usr/lib/x86_64-linux-gnu"));
        let Some(root) = root.filter(|root| root.join(library).exists()) else {
            eprintln!(
                "{library} is not there: not tested (scripts/rocm-libraries, and XSCHED_ROCM_LIBRARIES)"
            );
            return None;
        };
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().unwrap().join("libhip_standin.a");
        let directory = kit().programs.join(library);
        std::fs::create_dir_all(&directory).unwrap();
        let link = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../standins/hip/link.sh");
        let file = directory.join(runtime);
        assert!(Command::new(link).arg(built).arg(&file).arg(runtime).status().unwrap().success());
        Some(Self { root, runtime: directory })
    }

    fn compile(&self, name: &str, libraries: &[PathBuf]) -> PathBuf {
        let program = self.runtime.join(name);
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wl,--unresolved-symbols=ignore-all", "-o"]);
        compiler.arg(&program).arg(source(&format!("{name}.c"))).args(libraries).arg("-ldl");
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    /// A program, started with the C library that the others were built for.
    fn command(&self, stage: &Stage, program: &Path) -> Command {
        with_loader_of(&self.root, &self.runtime, stage, &[program.to_str().unwrap()])
    }

    /// Runs a program without us, by table, by name. What it says must be
    /// the same, and `kernel` arrive each time.
    fn must_run_alike(&self, program: &Path, kernel: &str) -> String {
        let mut said = Vec::new();
        for way in ["", "the runtime's own table", "the names of its functions"] {
            let scene = Scene::new(Stage::with_service());
            let log = scene.stage.file("kernels", "");
            let mut command = self.command(&scene.stage, program);
            command.env("HIP_STANDIN_LOG", &log).env("XLOG_LEVEL", "INFO");
            if !way.is_empty() {
                let preload = format!("{}:{}", scene.stage.library("libxsched.so"), kit().driver.display());
                command
                    .env("LD_PRELOAD", preload)
                    .env("XSCHED_SCHEDULER", "GLB")
                    .env("XSCHED_AUTO_XQUEUE", "ON");
            }
            if way.starts_with("the names") {
                command.env("HIP_STANDIN_NO_REGISTER", "1");
            }
            let output = ended(&mut command);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{way}: {errors}");
            assert!(
                errors.contains(&format!("HIP is scheduled by {way}")) || way.is_empty(),
                "{way}: {errors}"
            );
            let kernels = std::fs::read_to_string(&log).unwrap();
            assert!(kernels.lines().any(|name| name.contains(kernel)), "{way}: {kernels}");
            said.push(String::from_utf8(output.stdout).unwrap());
        }
        assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
        said.swap_remove(0)
    }
}

#[test]
fn amds_random_numbers_come_through_to_their_launches() {
    // Debian's newest is built for the newer runtime.
    let newest = std::env::var("XSCHED_ROCM_LIBRARIES")
        .is_ok_and(|path| Path::new(&path).join("complete-sid").exists());
    let runtime = if newest { "libamdhip64.so.6" } else { "libamdhip64.so.5" };
    let Some(libraries) = Libraries::with("librocrand.so.1", runtime) else { return };
    let needed = [libraries.root.join("librocrand.so.1"), libraries.runtime.join(runtime)];
    let program = libraries.compile("random", &needed);
    let said = libraries.must_run_alike(&program, "generate");
    assert!(said.ends_with("destroy 0, last error 0\n"), "{said}");
    assert!(said.lines().all(|line| line.ends_with(" 0")), "{said}");
}

#[test]
fn amds_products_and_convolutions_come_through_to_their_launches() {
    let Some(libraries) = Libraries::with("libMIOpen.so.1", "libamdhip64.so.6") else { return };
    let program = libraries.compile("libraries", &[libraries.runtime.join("libamdhip64.so.6")]);
    // Behind a naive interposer the handle is refused, or an error is left that nobody asked for.
    for (fault, seen) in [("copy", "rocblas_sgemm 1\n"), ("call", "last error 801\n")] {
        let stage = Stage::without_service();
        let mut command = libraries.command(&stage, &program);
        command.env("LD_PRELOAD", kit().programs.join("libnaive.so")).env("NAIVE", fault);
        command.env("NAIVE_RUNTIME", kit().other_runtime.join("libamdhip64.so.6"));
        let said = String::from_utf8(ended(&mut command).stdout).unwrap();
        assert!(said.contains(seen), "{fault}: {said}");
    }
    let said = libraries.must_run_alike(&program, "Cijk_");
    let expected = "memory 0\nrocblas_create_handle 0\nrocblas_sgemm 0\nwait 0, last error 0\nhipblasLtCreate 0\n\
                    miopenCreate 0\nlast error 0\n";
    assert_eq!(said, expected);
}
