//! Level Zero programs as real processes: the real loader, which loads the stand-in for a driver. Kernels run on the simulated device.
//!
//! The programs are in C and contain no XSched code, except the one that tests the C interface.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod c_program;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use environment::{TestEnvironment, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use skipped::skip;
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

/// Many times the length of a step. A program that makes no step in this time is held.
const HELD_AFTER: Duration = Duration::from_millis(200);

/// The directory of the programs, built once. Skips the test if the loader is not installed.
fn programs() -> Option<&'static Path> {
    static PROGRAMS: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PROGRAMS.get_or_init(build) {
        Ok(directory) => Some(directory),
        Err(why) => {
            skip(&format!("{why} (Debian: libze1, libze-dev)"));
            None
        }
    }
}

fn build() -> Result<PathBuf, String> {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("levelzero");
    std::fs::create_dir_all(&directory).unwrap();
    let env = TestEnvironment::without_service();
    let target = Path::new(&env.library("libxsched.so")).parent().unwrap().to_owned();
    let profile = target.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "-p", "xsched-standin-levelzero", "--profile"]).arg(profile);
    cargo.arg("--target-dir").arg(target.parent().unwrap());
    assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    let libraries = c_program::libraries(&env);
    let interface = [
        "-lpreempt".to_owned(),
        format!("-L{}", libraries.display()),
        format!("-Wl,-rpath,{}", libraries.display()),
    ];
    for name in ["compute", "requests", "signals", "cost", "capi"] {
        let more: &[String] = if name == "capi" { &interface } else { &[] };
        compile(&directory, name, name, more)?;
    }
    compile(&directory, "compute", "compute_opened", &["-DOPENED".to_owned()])?;
    Ok(directory)
}

fn compile(directory: &Path, from: &str, to: &str, more: &[String]) -> Result<(), String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/levelzero/{from}.c"));
    // Renamed atomically below: another test process may be running the old file.
    let draft = directory.join(format!("{to}.{}", std::process::id()));
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"]).arg(c_program::root().join("include"));
    compiler.arg("-o").arg(&draft).arg(source).args(more);
    if to == from {
        compiler.arg("-lze_loader");
    }
    let output = compiler.arg("-ldl").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        std::fs::rename(draft, directory.join(to)).unwrap();
        return Ok(());
    }
    assert!(errors.contains("level_zero/") || errors.contains("-lze_loader"), "{from}: {errors}");
    Err("no Level Zero loader to compile with".to_owned())
}

/// A program on the stand-in.
struct Level0 {
    env: TestEnvironment,
    programs: &'static Path,
}

impl Level0 {
    fn new(env: TestEnvironment) -> Option<Self> {
        Some(Self { env, programs: programs()? })
    }

    fn with_service() -> Option<Self> {
        Self::new(TestEnvironment::with_service())
    }

    fn command<'a>(&self, program: &'a str, arguments: &[&'a str]) -> Vec<String> {
        let program = self.programs.join(program).display().to_string();
        [program].into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
    }

    fn on_standin(&self, mut command: Command) -> Command {
        command.env("ZE_ENABLE_ALT_DRIVERS", self.env.library("libstandin_levelzero.so"));
        command
    }

    fn direct(&self, program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.on_standin(self.env.direct(&command.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.on_standin(self.env.run(options, &command.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Runs a program directly and under the scheduler. Both runs must print and return the same.
    fn assert_same(&self, program: &str, arguments: &[&str], variables: &[(&str, &str)]) -> String {
        let observe = |mut command: Command| {
            let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout), text(&output.stderr), output.status)
        };
        let direct = observe(self.direct(program, arguments));
        assert_eq!(direct, observe(self.run(&[], program, arguments)), "{program} {arguments:?}");
        direct.0
    }
}

#[test]
fn linked_and_opened_programs_run_as_unscheduled() {
    let Some(level0) = Level0::with_service() else { return };
    for name in ["compute", "compute_opened"] {
        let output = level0.assert_same(name, &["5"], &[]);
        assert_eq!(output.matches("correct").count(), 30, "{output}");
        assert!(output.ends_with("no list: 0x78000005\n"), "{output}");
    }
    let output = level0.assert_same("signals", &["3", "40"], &[]);
    assert_eq!(output.matches("correct").count(), 3, "{output}");
    let without_driver = level0.assert_same("compute", &["1"], &[("XSIM_DEVICE", "/no/such/place/device")]);
    assert!(without_driver.starts_with("no driver: error 0x"), "{without_driver}");
}

#[test]
fn queues_and_immediate_lists_are_scheduled_on_the_device_of_the_pci_address() {
    let Some(level0) = Level0::with_service() else { return };
    for (name, queues) in [("compute", 4), ("compute_opened", 4)] {
        let program = TestProgram::spawn(level0.run(&["--name", name], name, &["100000"]));
        program.next_line();
        let its_task = || level0.env.status().tasks.into_iter().find(|task| task.name == name);
        wait_until("the program is scheduled", || its_task().is_some_and(|task| task.queues == queues));
        let device = DeviceId(its_task().unwrap().device);
        assert_eq!(device, DeviceId::new(DeviceKind::Gpu, 2 << 3), "0000:00:02.0, as the stand-in reports");
    }
}

#[test]
fn suspended_program_makes_no_step_until_it_is_resumed() {
    let Some(level0) = Level0::with_service() else { return };
    for kind in ["immediate", "regular"] {
        let forever = ["1000000", "2", "100", "0", kind];
        let program = TestProgram::spawn(level0.run(&["--name", kind], "requests", &forever));
        program.next_line();
        let target = Target::Pid(program.pid());
        assert_eq!(level0.env.request(&Request::Suspend(target.clone())), Reply::Done);
        let its_state =
            || level0.env.status().tasks.iter().find(|task| task.name == kind).map(|task| task.state);
        wait_until("the program is suspended", || its_state() == Some(TaskState::Suspended));
        while program.lines.recv_timeout(HELD_AFTER).is_ok() {}
        assert_eq!(level0.env.request(&Request::Resume(target)), Reply::Done);
        for _ in 0..20 {
            assert_ne!(program.next_line(), "wrong");
        }
    }
}

#[test]
fn results_are_correct_under_suspends_and_resumes() {
    const SUSPENDS: usize = 200;
    let Some(level0) = Level0::with_service() else { return };
    let programs: Vec<_> = ["low", "high"]
        .map(|priority| TestProgram::spawn(level0.run(&["--priority", priority], "compute", &["1000000"])))
        .into_iter()
        .collect();
    for program in &programs {
        program.next_line();
    }
    for n in 0..SUSPENDS {
        let target = Target::Pid(programs[n % 2].pid());
        assert_eq!(level0.env.request(&Request::Suspend(target.clone())), Reply::Done);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(level0.env.request(&Request::Resume(target)), Reply::Done);
    }
    for program in &programs {
        // A wrong result would have ended the program.
        program.lines.try_iter().for_each(drop);
        assert!(program.next_line().ends_with("correct"));
    }
}

/// Work that waits for the program must not hold the thread of the program that completes the wait, whichever queue has precedence.
#[test]
fn queues_that_wait_for_each_other_and_for_the_program_complete() {
    let Some(level0) = Level0::with_service() else { return };
    // Under contention every queue is tracked and limited. The contender pauses, so that queues of low priority run too.
    let busy = ["1000000", "5", "200", "4", "regular"];
    let contender = TestProgram::spawn(level0.run(&["--name", "contender"], "requests", &busy));
    contender.next_line();
    for high in 0..4 {
        let mut program =
            TestProgram::spawn(level0.run(&["--name", "signals"], "signals", &["3", "40", "wait"]));
        assert_eq!(program.next_line(), "ready");
        let pid = program.pid();
        let its_queues = || level0.env.status().queues.into_iter().filter(|queue| queue.pid == pid);
        wait_until("the service knows all queues", || its_queues().count() == 3);
        for (n, queue) in its_queues().enumerate() {
            // All are low in the last run, where the contender has precedence.
            let priority = Some(if n == high { 100 } else { -100 });
            let hint_request = HintRequest { priority, ..HintRequest::default() };
            assert_eq!(
                level0.env.request(&Request::SetQueue { queue: queue.handle, hint_request }),
                Reply::Done
            );
        }
        program.send_newline();
        let expected = [0, 1, 2].map(|round| format!("round {round}: correct"));
        assert_eq!(program.remaining_lines(), expected);
    }
}

#[test]
fn driver_without_fences_or_events_is_reported_and_the_program_runs() {
    let Some(level0) = Level0::with_service() else { return };
    for (lacks, kind) in [("fences", "regular"), ("events", "immediate")] {
        // `requests` needs fences on no kind of queue, but an event for immediate lists.
        let mut command = level0.run(&[], "requests", &["3", "2", "100", "0", kind]);
        let output =
            command.env("XSCHED_STANDIN_LEVELZERO_LACKS", lacks).stdin(Stdio::null()).output().unwrap();
        let (printed, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let lines: Vec<_> = error.lines().filter(|line| line.contains("xsched[")).collect();
        let [line] = lines[..] else { panic!("{error}") };
        assert!(line.contains("a Level Zero queue runs unscheduled: no "), "{line}");
        if kind == "regular" {
            assert!(output.status.success(), "{error}");
            assert_eq!(printed.lines().count(), 4, "{printed}");
        }
    }
}

#[test]
fn unavailable_level_is_reported_and_the_program_runs() {
    let Some(level0) = Level0::with_service() else { return };
    let output = level0.run(&["--level", "2"], "compute", &["1"]).stdin(Stdio::null()).output().unwrap();
    let warning = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && warning.contains("not 2:"), "{warning}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).matches("correct").count(), 6);
}

#[test]
fn c_interface_works_on_a_queue() {
    let Some(level0) = Level0::new(TestEnvironment::without_service()) else { return };
    // Linked to the library: its hooks see the creation of the queue.
    assert_eq!(c_program::printed(&mut level0.direct("capi", &[])), "correct\n");
}

/// Requests of 20 kernels of 0.2 ms, 5 ms apart, beside kernels of 1 ms that never pause.
const REQUESTS: [&str; 4] = ["60", "20", "200", "5"];
const BATCH: [&str; 5] = ["1000000", "20", "1000", "0", "regular"];

#[test]
fn latency_beside_a_batch_is_close_to_alone() {
    let Some(level0) = Level0::with_service() else { return };
    let native = Level0::new(TestEnvironment::without_service()).unwrap();
    let latencies = |mut command: Command| {
        let lines =
            TestProgram::spawn(std::mem::replace(&mut command, Command::new("true"))).remaining_lines();
        let mut latencies: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
        assert_eq!(latencies.len(), 60, "requests");
        latencies.sort_unstable();
        latencies
    };
    let started = |batch: TestProgram| {
        assert_eq!(batch.next_line(), "ready");
        batch
    };
    for kind in ["immediate", "regular"] {
        let requests = [&REQUESTS[..], &[kind]].concat();
        let measure = || {
            let alone = latencies(native.direct("requests", &requests));
            let beside = {
                let _batch = started(TestProgram::spawn(native.direct("requests", &BATCH)));
                latencies(native.direct("requests", &requests))
            };
            let scheduled = {
                let batch =
                    started(TestProgram::spawn(level0.run(&["--priority", "low"], "requests", &BATCH)));
                let latencies = latencies(level0.run(&["--priority", "high"], "requests", &requests));
                // The batch gets the remaining time.
                batch.next_line();
                latencies
            };
            print_latencies(&[("alone", &alone), ("native", &beside), ("scheduled", &scheduled)]);
            [alone, beside, scheduled].map(|latencies| percentile(&latencies, 50))
        };
        retry_comparison(measure, |[alone, native, scheduled]| {
            let describe =
                || format!("{kind}: alone {alone} us, native {native} us, scheduled {scheduled} us");
            require(10 * native > 15 * alone, || {
                format!("the batch does not slow requests: {}", describe())
            })?;
            require(2 * scheduled < alone + native, describe)
        });
    }
}

#[test]
fn launch_of_a_program_alone_costs_little() {
    let Some(level0) = Level0::with_service() else { return };
    // The lowest time of each kind of launch, in nanoseconds.
    let costs = |command: Command| {
        let lines = TestProgram::spawn(command).remaining_lines();
        let rounds = lines.iter().filter(|line| *line != "ready");
        let rounds: Vec<Vec<u64>> =
            rounds.map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect();
        [0, 1, 2].map(|kind| rounds.iter().map(|round| round[kind]).min().unwrap())
    };
    let measure = || {
        let (mut direct, mut scheduled) = ([u64::MAX; 3], [u64::MAX; 3]);
        // Alternate, so that both kinds meet the same load on the machine.
        for _ in 0..3 {
            for (lowest, command) in [
                (&mut direct, level0.direct("cost", &["30"])),
                (&mut scheduled, level0.run(&[], "cost", &["30"])),
            ] {
                for (lowest, cost) in lowest.iter_mut().zip(costs(command)) {
                    *lowest = cost.min(*lowest);
                }
            }
        }
        (direct, scheduled)
    };
    retry_comparison(measure, |(direct, scheduled)| {
        let result = format!(
            "ns for a launch on an immediate list, with events, on a queue: {direct:?} direct, {scheduled:?} scheduled"
        );
        println!("{result}");
        // An unoptimized build has checks that cost a microsecond.
        let is_cheap = direct.iter().zip(scheduled).all(|(direct, scheduled)| scheduled < 2 * direct + 3000);
        require(is_cheap, || result)
    });
}

#[test]
fn doctor_reports_a_missing_driver() {
    let Some(level0) = Level0::new(TestEnvironment::without_service()) else { return };
    let mut doctor = level0.env.xsched(&["doctor"]);
    let output = doctor.env("ZE_ENABLE_ALT_DRIVERS", "/no/such/driver.so").output().unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.contains("ZE_ENABLE_ALT_DRIVERS") && report.contains("/no/such/driver.so"), "{report}");
}
