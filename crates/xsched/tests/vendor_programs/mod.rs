//! C programs for one vendor's interface, on the stand-in for the vendor's library, as real processes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

use crate::c_program;
use crate::environment::{TestEnvironment, wait_until};
use crate::measured::{percentile, print_latencies, require, retry_comparison};
use crate::test_program::TestProgram;

/// Many times the length of a step. A program that makes no step in this time is held.
pub(crate) const HELD_AFTER: Duration = Duration::from_millis(200);

/// The programs of a platform, in `tests/programs/NAME`.
pub(crate) struct VendorPrograms {
    pub(crate) name: &'static str,
    /// The vendor's libraries: file names, and stand-ins.
    pub(crate) libraries: &'static [(&'static str, &'static str)],
    /// Functions of the stand-ins that the libraries lack.
    pub(crate) lacks: &'static [&'static str],
    /// Linked to the vendor's library.
    pub(crate) linked: &'static [&'static str],
    /// Opens the library with dlopen: built a second time as `NAME_opened`, and as `NAME_missing`, which does not find it.
    pub(crate) opened: Option<&'static str>,
}

/// A test environment in which these programs run.
pub(crate) struct VendorMachine {
    pub(crate) env: TestEnvironment,
    programs: &'static Path,
}

/// The latencies of `requests` and of `batch`, the arguments of the program of this name, are compared.
pub(crate) struct Load<'a> {
    pub(crate) requests: &'a [&'a str],
    pub(crate) batch: &'a [&'a str],
}

impl VendorMachine {
    pub(crate) fn new(env: TestEnvironment, programs: &VendorPrograms) -> Self {
        // One platform for each test program.
        static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
        Self { env, programs: PROGRAMS.get_or_init(|| programs.build()) }
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Vec<String> {
        let program = self.programs.join(program).display().to_string();
        [program].into_iter().chain(arguments.iter().map(|argument| (*argument).to_owned())).collect()
    }

    /// The stand-in for CUDA has a device of its own, which no resource manager controls.
    fn with_device(&self, mut command: Command) -> Command {
        let mut device = self.env.device().as_os_str().to_owned();
        device.push(".cuda");
        command.env("XSCHED_STANDIN_CUDA", device).env("XSCHED_STANDIN_CUDA_WITHOUT", "resource-manager");
        command
    }

    pub(crate) fn direct(&self, program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.with_device(self.env.direct(&command.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    pub(crate) fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        let command = self.command(program, arguments);
        self.with_device(self.env.run(options, &command.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Runs a program directly and under the scheduler. Both runs must print and return the same.
    pub(crate) fn assert_same(
        &self,
        program: &str,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> String {
        let observe = |mut command: Command| {
            let output = command.envs(variables.iter().copied()).stdin(Stdio::null()).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (text(&output.stdout), text(&output.stderr), output.status)
        };
        let direct = observe(self.direct(program, arguments));
        assert_eq!(direct, observe(self.run(&[], program, arguments)), "{program} {arguments:?}");
        direct.0
    }

    /// The program ends as it does without the scheduler if the vendor's library is missing.
    pub(crate) fn assert_runs_without_the_library(&self, program: &str) {
        let mut command = self.run(&[], program, &["1"]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.lines().count()), (Some(69), 1), "{error}");
        assert_eq!(self.assert_same(program, &["1"], &[]), "");
    }

    /// Runs `program`, which prints `steps` correct steps, with a level that it cannot have.
    pub(crate) fn assert_unavailable_level_is_reported(&self, program: &str, steps: usize) {
        let output = self.run(&["--level", "2"], program, &["1"]).stdin(Stdio::null()).output().unwrap();
        let warning = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warning.contains("not 2:"), "{warning}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).matches("correct").count(), steps);
    }

    /// The program `requests` with these arguments makes no step from a suspend until it is resumed.
    pub(crate) fn assert_suspended_program_is_held(&self, name: &str, arguments: &[&str]) {
        let program = TestProgram::spawn(self.run(&["--name", name], "requests", arguments));
        program.next_line();
        // A default stream is known from its first launch on.
        program.next_line();
        let target = Target::Pid(program.pid());
        let its_state =
            || self.env.status().tasks.iter().find(|task| task.name == name).map(|task| task.state);
        wait_until("the program is scheduled", || its_state().is_some());
        assert_eq!(self.env.request(&Request::Suspend(target.clone())), Reply::Done);
        wait_until("the program is suspended", || its_state() == Some(TaskState::Suspended));
        while program.lines.recv_timeout(HELD_AFTER).is_ok() {}
        assert_eq!(self.env.request(&Request::Resume(target)), Reply::Done);
        for _ in 0..20 {
            assert_ne!(program.next_line(), "wrong");
        }
    }

    /// Two copies of `program`, of different priority, compute correctly while they are suspended and resumed in turn.
    pub(crate) fn assert_correct_under_suspends(&self, program: &str) {
        const SUSPENDS: usize = 100;
        let programs = ["low", "high"]
            .map(|priority| TestProgram::spawn(self.run(&["--priority", priority], program, &["1000000"])));
        for program in &programs {
            program.next_line();
        }
        let is_scheduled = |pid| self.env.status().tasks.iter().any(|task| task.pid == pid);
        wait_until("both are scheduled", || programs.iter().all(|program| is_scheduled(program.pid())));
        for n in 0..SUSPENDS {
            let target = Target::Pid(programs[n % 2].pid());
            assert_eq!(self.env.request(&Request::Suspend(target.clone())), Reply::Done);
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(self.env.request(&Request::Resume(target)), Reply::Done);
        }
        for program in &programs {
            // A wrong result would have ended the program.
            program.lines.try_iter().for_each(drop);
            assert!(program.next_line().ends_with("correct"));
        }
    }

    /// The program `waits` completes, whichever of its two queues has precedence, also beside a program that has precedence over both.
    /// `busy` are the arguments of that program, `requests`.
    pub(crate) fn assert_waiting_streams_complete(&self, busy: &[&str], waits: &[&str]) {
        // Under contention every queue is tracked and limited. The contender pauses, so that queues of low priority run too.
        let contender = TestProgram::spawn(self.run(&["--name", "contender"], "requests", busy));
        contender.next_line();
        for high in 0..3 {
            let mut program = TestProgram::spawn(self.run(&["--name", "waits"], "waits", waits));
            assert_eq!(program.next_line(), "ready");
            let pid = program.pid();
            let its_queues = || self.env.status().queues.into_iter().filter(|queue| queue.pid == pid);
            wait_until("the service knows both streams", || its_queues().count() == 2);
            for (n, queue) in its_queues().enumerate() {
                // Both are low in the last run, where the contender has precedence.
                let priority = Some(if n == high { 100 } else { -100 });
                let hint_request = HintRequest { priority, ..HintRequest::default() };
                let set = Request::SetQueue { queue: queue.handle, hint_request };
                assert_eq!(self.env.request(&set), Reply::Done);
            }
            program.send_newline();
            let expected = [0, 1, 2].map(|round| format!("round {round}: correct"));
            assert_eq!(program.remaining_lines(), expected);
        }
    }

    /// Compares the median latency of requests alone, beside a batch, and beside a batch of low priority while the requests have a high one.
    /// `self` has a service, `native` none.
    pub(crate) fn assert_latency_is_close_to_alone(&self, native: &Self, what: &str, load: &Load<'_>) {
        let latencies = |command: Command| {
            let lines = TestProgram::spawn(command).remaining_lines();
            let mut latencies: Vec<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
            assert_eq!(latencies.len().to_string(), load.requests[0], "requests");
            latencies.sort_unstable();
            latencies
        };
        let started = |batch: TestProgram| {
            assert_eq!(batch.next_line(), "ready");
            batch
        };
        let measure = || {
            let alone = latencies(native.direct("requests", load.requests));
            let beside = {
                let _batch = started(TestProgram::spawn(native.direct("requests", load.batch)));
                latencies(native.direct("requests", load.requests))
            };
            let scheduled = {
                let batch =
                    started(TestProgram::spawn(self.run(&["--priority", "low"], "requests", load.batch)));
                let latencies = latencies(self.run(&["--priority", "high"], "requests", load.requests));
                // The batch gets the remaining time.
                batch.next_line();
                latencies
            };
            print_latencies(&[("alone", &alone), ("native", &beside), ("scheduled", &scheduled)]);
            [alone, beside, scheduled].map(|latencies| percentile(&latencies, 50))
        };
        retry_comparison(measure, |[alone, native, scheduled]| {
            let describe =
                || format!("{what}: alone {alone} us, native {native} us, scheduled {scheduled} us");
            require(10 * native > 15 * alone, || {
                format!("the batch does not slow requests: {}", describe())
            })?;
            require(2 * scheduled < alone + native, describe)
        });
    }
}

impl VendorPrograms {
    fn build(&self) -> PathBuf {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-programs", self.name));
        std::fs::create_dir_all(&directory).unwrap();
        let env = TestEnvironment::without_service();
        let target = Path::new(&env.library("libxsched.so")).parent().unwrap().to_owned();
        let profile = target.file_name().filter(|name| *name != "debug").unwrap_or("dev".as_ref());
        for (library, standin) in self.libraries {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "-p"]).arg(format!("xsched-standin-{standin}"));
            cargo.arg("--profile").arg(profile).arg("--target-dir").arg(target.parent().unwrap());
            assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
            // Renamed atomically, here and below: another test process may be using the old file.
            let draft = directory.join(format!("library.{}", std::process::id()));
            let standin = std::fs::read(env.library(&format!("libstandin_{standin}.so"))).unwrap();
            std::fs::write(&draft, self.without_functions(standin)).unwrap();
            std::fs::rename(draft, directory.join(library)).unwrap();
        }
        let rpath = format!("-Wl,-rpath,{}", directory.display());
        let mut link = vec![format!("-L{}", directory.display()), rpath.clone()];
        link.extend(self.libraries.iter().map(|(library, _)| format!("-l:{library}")));
        let libraries = c_program::libraries(&env);
        let interface = [
            "-lpreempt".to_owned(),
            format!("-L{}", libraries.display()),
            format!("-Wl,-rpath,{}", libraries.display()),
        ];
        for name in self.linked {
            let more: &[String] = if *name == "capi" { &interface } else { &[] };
            self.compile(&directory, name, name, &[more, &link].concat());
        }
        if let Some(opened) = self.opened {
            self.compile(&directory, opened, &format!("{opened}_opened"), &["-DOPENED".to_owned(), rpath]);
            self.compile(&directory, opened, &format!("{opened}_missing"), &["-DOPENED".to_owned()]);
        }
        directory
    }

    /// The library without the functions that it lacks: their symbols are hidden, so that the loader finds them for the library itself only.
    fn without_functions(&self, mut library: Vec<u8>) -> Vec<u8> {
        const SYMBOLS: u64 = 11;
        const HIDDEN: u8 = 2;
        let number = |library: &[u8], at: usize, bytes: usize| {
            let mut number = [0; 8];
            number[..bytes].copy_from_slice(&library[at..at + bytes]);
            u64::from_le_bytes(number)
        };
        let at = |number: u64| usize::try_from(number).unwrap();
        let (table, sections) = (at(number(&library, 0x28, 8)), at(number(&library, 0x3c, 2)));
        let section = |n: usize| table + n * 0x40;
        let field = |library: &[u8], section: usize, offset| at(number(library, section + offset, 8));
        let symbols = (0..sections).map(section).find(|at| number(&library, at + 4, 4) == SYMBOLS).unwrap();
        let names = field(&library, section(at(number(&library, symbols + 0x28, 4))), 0x18);
        let (first, size) = (field(&library, symbols, 0x18), field(&library, symbols, 0x20));
        let mut missing = self.lacks.to_vec();
        for symbol in (first..first + size).step_by(24) {
            let name = &library[names + at(number(&library, symbol, 4))..];
            let name = &name[..name.iter().position(|byte| *byte == 0).unwrap()];
            if let Some(lacks) = self.lacks.iter().find(|lacks| lacks.as_bytes() == name) {
                missing.retain(|other| other != lacks);
                library[symbol + 5] = HIDDEN;
            }
        }
        assert!(missing.is_empty(), "the stand-in has no {missing:?}");
        library
    }

    fn compile(&self, directory: &Path, from: &str, to: &str, more: &[String]) {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let source = tests.join(self.name).join(format!("{from}.c"));
        let draft = directory.join(format!("{to}.{}", std::process::id()));
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-std=gnu11", "-O1", "-Wall", "-Werror", "-I"]).arg(c_program::root().join("include"));
        let cuda = c_program::root().join("standins/cuda");
        compiler.arg("-I").arg(&cuda).arg("-I").arg(cuda.join("tests/programs"));
        compiler.arg("-o").arg(&draft).arg(source).args(more);
        let output = compiler.args(["-ldl", "-lpthread"]).output().unwrap();
        assert!(output.status.success(), "{from}: {}", String::from_utf8_lossy(&output.stderr));
        std::fs::rename(draft, directory.join(to)).unwrap();
    }
}
