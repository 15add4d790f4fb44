//! AMD's own software on a machine without a GPU.
//!
//! A program built by AMD's compiler runs with AMD's runtime, which finds no device: it must exit as it does without XSched.
//! rocRAND runs over the stand-in for the runtime, and rocBLAS, hipBLASLt and `MIOpen` over AMD's own on the stand-in for
//! `ROCr`: they must get as far as their launches. A test is skipped if the software is not installed; `scripts/test`
//! installs it if it can.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};
use std::process::Command;

use environment::TestEnvironment;
use hip_environment::{HipEnvironment, hip_build, output_of};
use rocm_environment::{Rocm, RocmEnvironment, rocr_standins};
use skipped::record_skipped;
use test_program::TestProgram;

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hip").join(name)
}

#[test]
fn program_of_amds_compiler_exits_with_amds_runtime_as_unscheduled() {
    let env = TestEnvironment::with_service();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("vector");
    let mut compile = Command::new("hipcc");
    compile.args(["--offload-arch=gfx90a", "-O1", "-o"]).arg(&program).arg(source("vector.hip"));
    let Ok(compiled) = compile.output() else {
        return record_skipped("hipcc is not installed (apt-get install hipcc libamdhip64-dev)");
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let words = [program.to_str().unwrap()];
    let direct = output_of(&mut env.direct(&words));
    assert!(String::from_utf8_lossy(&direct.stdout).contains("launch: "), "{direct:?}");
    let scheduled = output_of(env.run(&["--priority", "high"], &words).env("XLOG_LEVEL", "WARN"));
    assert_eq!(String::from_utf8_lossy(&scheduled.stdout), String::from_utf8_lossy(&direct.stdout));
    assert_eq!(scheduled.status, direct.status);
    let log = String::from_utf8_lossy(&scheduled.stderr);
    // On a machine with a device there is no warning.
    let no_device = String::from_utf8_lossy(&direct.stdout).contains("0 devices");
    assert_eq!(
        log.lines().filter(|line| line.contains("HIP runs unscheduled")).count(),
        usize::from(no_device),
        "{log}"
    );
}

/// A program, started with the C library in `root`, with AMD's runtime in another directory.
fn with_loader_of(root: &Path, runtime: &Path, env: &TestEnvironment, words: &[&str]) -> Command {
    let loader = root.join("ld-linux-x86-64.so.2");
    let path = format!("{}:{}", runtime.display(), root.display());
    env.direct(&[&[loader.to_str().unwrap(), "--library-path", &path], words].concat())
}

/// The directory of `rocprofiler-register` and a new `ROCr`. Skips the test without them.
fn register() -> Option<PathBuf> {
    let root = std::env::var_os("XSCHED_ROCM_REGISTER")
        .map(|path| PathBuf::from(path).join("root/usr/lib/x86_64-linux-gnu"));
    let root = root.filter(|root| root.join("librocprofiler-register.so.0").exists());
    if root.is_none() {
        record_skipped("no rocprofiler-register (scripts/rocm-root register, and XSCHED_ROCM_REGISTER)");
    }
    root
}

#[test]
fn rocprofiler_register_passes_the_table_to_the_library_and_to_a_profiler() {
    const WORK: [&str; 4] = ["work", "3", "7", "100"];
    let Some(root) = register() else { return };
    let (profiler, interface) =
        (hip_build().programs.join("libprofiler.so"), "HIP is scheduled by the runtime's own table");
    // Neither library, XSched, a profiler, both; and XSched by its variable, without a preload.
    for (has_xsched, has_profiler, is_named) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
    ] {
        let hip = HipEnvironment::new(TestEnvironment::with_service());
        let library = hip.env.library("libxsched.so");
        let program = hip_build().programs.join("opened");
        let words = [&[program.to_str().unwrap()], &WORK[..]].concat();
        let mut command = hip.set_variables(with_loader_of(&root, &hip_build().runtime, &hip.env, &words));
        let preload = [
            has_xsched.then_some(library.as_str()),
            has_profiler.then_some(profiler.to_str().unwrap()),
            hip_build().driver.to_str(),
        ];
        let preload: Vec<_> = preload.into_iter().flatten().collect();
        command.env("LD_PRELOAD", preload.join(":")).env("XLOG_LEVEL", "INFO");
        command.env("HIP_STANDIN_REGISTER", root.join("librocprofiler-register.so.0"));
        command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        if is_named {
            command.env("ROCPROFILER_REGISTER_LIBRARY", &library);
        }
        let output = output_of(&mut command);
        let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let case = format!("{has_xsched}, {has_profiler}, {is_named}: {out}{log}");
        let last = if has_profiler { "profiled 21 launches\n" } else { "" };
        assert_eq!(out, format!("round 0\nround 1\nround 2\n{last}"), "{case}");
        assert_eq!(log.contains(interface), has_xsched || is_named, "{case}");
    }
}

#[test]
fn libraries_are_loaded_while_rocprofiler_register_passes_the_table() {
    let Some(root) = register() else { return };
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    for name in ["modules_linked", "modules_opened"] {
        let program = hip_build().programs.join(name);
        let words = [program.to_str().unwrap()];
        let mut command = hip.set_variables(with_loader_of(&root, &hip_build().runtime, &hip.env, &words));
        let preload = format!("{}:{}", hip.env.library("libxsched.so"), hip_build().driver.display());
        command.env("LD_PRELOAD", preload).env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON");
        command.env("HIP_STANDIN_REGISTER", root.join("librocprofiler-register.so.0"));
        let lines = TestProgram::spawn(command).remaining_lines();
        assert_eq!(lines, ["6 launches arrived, 1 in constructors"], "{name}");
    }
}

/// Writes the driver's description of a machine with a CPU and no GPU, which AMD's runtime needs to start.
fn write_cpu_topology(root: &Path) {
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

/// Starts AMD's `ROCr` on a machine without a GPU: it must pass its table to the library, and work as without it.
fn assert_passes_its_table(library: &Path, loader: Option<&Path>) {
    let directory = tempfile::tempdir().unwrap();
    write_cpu_topology(directory.path());
    let program = directory.path().join("rocr");
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wl,--unresolved-symbols=ignore-all", "-o"]);
    let output = compiler.arg(&program).arg(source("rocr.c")).arg(library).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    let run = |preload: &str| {
        let program = program.to_str().unwrap();
        let mut command = match loader {
            Some(root) => with_loader_of(root, root, &hip.env, &[program]),
            None => hip.env.direct(&[program]),
        };
        command
            .env("LD_PRELOAD", preload)
            .env("KFD_STANDIN_ROOT", directory.path())
            .env("XLOG_LEVEL", "INFO");
        // `xsched run` sets the same variables.
        if let Some((xsched, _)) = preload.split_once(':') {
            command
                .env("HSA_TOOLS_LIB", xsched)
                .env("XSCHED_SCHEDULER", "GLB")
                .env("XSCHED_AUTO_XQUEUE", "ON");
        }
        let output = output_of(&mut command);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let driver = hip_build().driver.display().to_string();
    let (direct, _) = run(&driver);
    assert!(direct.starts_with("hsa_init 0\n") && direct.ends_with("hsa_shut_down 0\n"), "{direct}");
    let (scheduled, log) = run(&format!("{}:{driver}", hip.env.library("libxsched.so")));
    assert_eq!(scheduled, direct, "{log}");
    let tables = log.lines().filter(|line| line.contains("ROCr's API table")).count();
    assert_eq!(tables, 2, "the program calls hsa_init twice: {log}");
}

#[test]
fn rocr_passes_its_table_to_the_library() {
    let installed = Path::new("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1");
    if installed.exists() {
        assert_passes_its_table(installed, None);
    } else {
        record_skipped("ROCr is not installed (apt-get install libhsa-runtime64-1)");
    }
    if let Some(root) = register() {
        assert_passes_its_table(&root.join("libhsa-runtime64.so.1"), Some(&root));
    }
}

/// The directory of AMD's libraries and their C library, and the stand-in by the name that these libraries need.
struct Libraries {
    root: PathBuf,
    runtime: PathBuf,
}

impl Libraries {
    /// Skips the test without the library.
    fn with(library: &str, runtime: &str) -> Option<Self> {
        let root = std::env::var_os("XSCHED_ROCM_LIBRARIES")
            .map(|path| PathBuf::from(path).join("root/usr/lib/x86_64-linux-gnu"));
        let Some(root) = root.filter(|root| root.join(library).exists()) else {
            record_skipped(&format!("no {library} (scripts/rocm-root rocrand, and XSCHED_ROCM_LIBRARIES)"));
            return None;
        };
        let built = Path::new(env!("CARGO_BIN_EXE_xsched")).parent().unwrap().join("libhip_standin.a");
        let directory = hip_build().programs.join(library);
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

    /// A program, started with the C library that AMD's libraries were built for.
    fn command(&self, env: &TestEnvironment, program: &Path) -> Command {
        with_loader_of(&self.root, &self.runtime, env, &[program.to_str().unwrap()])
    }

    /// Runs a program unscheduled, hooked through the table, and hooked by name. Its output must be the same, and
    /// `kernel` must be launched each time.
    fn assert_same_output(&self, program: &Path, kernel: &str) -> String {
        let mut outputs = Vec::new();
        for way in ["", "the runtime's own table", "the names of its functions"] {
            let hip = HipEnvironment::new(TestEnvironment::with_service());
            let log = hip.env.file("kernels", "");
            let mut command = self.command(&hip.env, program);
            command.env("HIP_STANDIN_LOG", &log).env("XLOG_LEVEL", "INFO");
            if !way.is_empty() {
                let preload = format!("{}:{}", hip.env.library("libxsched.so"), hip_build().driver.display());
                command
                    .env("LD_PRELOAD", preload)
                    .env("XSCHED_SCHEDULER", "GLB")
                    .env("XSCHED_AUTO_XQUEUE", "ON");
            }
            if way.starts_with("the names") {
                command.env("HIP_STANDIN_NO_REGISTER", "1");
            }
            let output = output_of(&mut command);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(0), "{way}: {errors}");
            assert!(
                errors.contains(&format!("HIP is scheduled by {way}")) || way.is_empty(),
                "{way}: {errors}"
            );
            let kernels = std::fs::read_to_string(&log).unwrap();
            assert!(kernels.lines().any(|name| name.contains(kernel)), "{way}: {kernels}");
            outputs.push(String::from_utf8(output.stdout).unwrap());
        }
        assert!(outputs.iter().all(|output| *output == outputs[0]), "{outputs:?}");
        outputs.swap_remove(0)
    }
}

#[test]
fn rocrand_launches_its_kernels() {
    // The version in trixie is built for the older runtime.
    let runtime = "libamdhip64.so.5";
    let Some(libraries) = Libraries::with("librocrand.so.1", runtime) else { return };
    let needed = [libraries.root.join("librocrand.so.1"), libraries.runtime.join(runtime)];
    let program = libraries.compile("random", &needed);
    let output = libraries.assert_same_output(&program, "generate");
    assert!(output.ends_with("destroy 0, last error 0\n"), "{output}");
    assert!(output.lines().all(|line| line.ends_with(" 0")), "{output}");
}

/// Compiles a program or library for the C library of a root. Returns its path.
fn compile_in(place: &Path, output: &str, name: &str, options: &[&str]) -> String {
    let program = place.join(output);
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-Wl,--unresolved-symbols=ignore-all", "-o"]);
    let output = compiler.arg(&program).arg(source(name)).args(options).arg("-ldl").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program.display().to_string()
}

#[test]
fn rocblas_and_miopen_launch_their_kernels() {
    let Some(rocm) = RocmEnvironment::with_service(Rocm::V6) else { return };
    let runtime = rocm.root().join("root/usr/lib/x86_64-linux-gnu/libamdhip64.so.6");
    let program = compile_in(rocm.directory(), "libraries", "libraries.c", &[runtime.to_str().unwrap()]);
    // A naive interposer opens a second copy of the runtime, to which the library's kernels are unknown.
    let naive = compile_in(rocm.directory(), "libnaive.so", "naive.c", &["-shared", "-fPIC"]);
    let copy = rocm.directory().join("copy-of-libamdhip64.so.6");
    std::fs::copy(&runtime, &copy).unwrap();
    let preload = format!("LD_PRELOAD={naive}:{}", rocr_standins().join("libkfd_standin.so").display());
    let second = format!("NAIVE_RUNTIME={}", copy.display());
    let failed = output_of(&mut rocm.direct(&["env", &preload, "NAIVE=copy", &second, &program]));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("rocblas_sgemm 1\n"), "{failed:?}");

    let expected = "memory 0\nrocblas_create_handle 0\nrocblas_sgemm 0\nwait 0, last error 0\nhipblasLtCreate 0\n\
                    miopenCreate 0\nlast error 0\n";
    for is_scheduled in [false, true] {
        let _ = std::fs::remove_file(rocm.ledger());
        let mut command = if is_scheduled {
            rocm.run(&["--priority", "high"], &[&program])
        } else {
            rocm.direct(&[&program])
        };
        let output = output_of(command.env("XLOG_LEVEL", "INFO"));
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{log}");
        assert_eq!(log.contains("HIP is scheduled by the names of its functions"), is_scheduled, "{log}");
        let ledger = std::fs::read_to_string(rocm.ledger()).unwrap();
        assert!(
            ledger.lines().any(|packet| packet.contains("Cijk_")),
            "rocBLAS launched no kernel: {ledger}"
        );
    }
}
