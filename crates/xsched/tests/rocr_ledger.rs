//! What AMD's real HIP runtimes execute on a simulated device, with and without `XSched`.
//!
//! The stand-in for `ROCr` records every packet. The ledger shows that each kernel was executed once, in the order that the
//! program prescribed, and that `XSched` changed nothing but times.

mod beside_leader;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
mod ledger;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use beside_leader::{Background, BesideLeader, LEADER_KERNEL_NS, LEADER_KERNELS, is_held, line_count};
use environment::wait_until;
use ledger::compare::{same_dependencies, same_queues, same_work};
use ledger::{DeclaredOrder, Kind, Ledger, Packet};
use measured::{require, retry_comparison};
use rocm_environment::{Rocm, RocmEnvironment, with_level as environment};

const HIGH: [&str; 2] = ["--priority", "high"];
const LOW: [&str; 2] = ["--priority", "low"];

/// How many queues the runtime shares among the streams of one priority; its default is 4.
const MAX_QUEUES: &str = "GPU_MAX_HW_QUEUES";
/// More than the streams of each program.
const MANY_QUEUES: &str = "40";
/// How many kernels of 1 ms a leader executes while the runtime could bring the first launch of a process to the device: it takes 0.1 to
/// 0.5 s of a processor, in which it creates a queue and loads code.
const KERNELS_DURING_FIRST_LAUNCH: usize = 2_000;
/// How many launches of a program with one thread may follow an order that stops it: one that had passed the gate and was inside the
/// runtime.
const IN_THE_RUNTIME: usize = 1;

/// A program's results.
struct Run {
    output: String,
    declared: DeclaredOrder,
    ledger: Ledger,
}

/// A program with a ledger and a list of host functions of its own.
struct Program<'a> {
    words: &'a [&'a str],
    file: PathBuf,
    host_file: PathBuf,
}

impl<'a> Program<'a> {
    fn new(environment: &RocmEnvironment, name: &str, words: &'a [&'a str]) -> Self {
        let file = |suffix: &str| environment.directory().join(format!("{name}.{suffix}"));
        Self { words, file: file("ledger"), host_file: file("host") }
    }

    fn words<'b>(&'b self, program: &'b str) -> Vec<&'b str> {
        let host_file = self.host_file.to_str().expect("the path is text");
        let needs_host_file = matches!(self.words[0], "order" | "graph");
        let mut words = vec![program];
        words.extend(self.words);
        words.extend(needs_host_file.then_some(host_file));
        words
    }

    /// Runs the program, which must exit with 0 and report nothing; checks its ledger.
    fn run(&self, mut command: Command) -> Run {
        let output = command.env("ROCR_STANDIN_LEDGER", &self.file).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && errors.is_empty(),
            "{:?}: {}, {errors}",
            self.words,
            output.status
        );
        let output = String::from_utf8(output.stdout).unwrap();
        let declared =
            DeclaredOrder::read(&output, &std::fs::read_to_string(&self.host_file).unwrap_or_default());
        let ledger = Ledger::of_one_process(&self.file);
        ledger.check().unwrap_or_else(|error| panic!("{:?}: {error}", self.words));
        if declared.len() > 0 {
            declared.check(&ledger).unwrap_or_else(|error| panic!("{:?}: {error}", self.words));
        }
        Run { output, declared, ledger }
    }
}

/// How many kernels a program has completed that may still run.
fn kernel_count(ledger: &Path) -> usize {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().filter(|line| line.split(' ').nth(3) == Some("kernel")).count()
}

/// The programs of the comparisons.
const PROGRAMS: [&[&str]; 3] = [&["order", "7", "400", "1"], &["order", "8", "120", "4"], &["graph", "30"]];

/// The two runs have the same results and the same ledger, except in time.
///
/// The runtime shares few queues among the streams, and chooses by the addresses of queues, which differ in each run. Only with
/// a queue for each stream are the queues and dependencies comparable.
fn assert_same(words: &[&str], has_own_queues: bool, one: &Run, other: &Run) {
    assert_eq!(one.output, other.output, "{words:?}");
    assert!(one.declared.len() > 100, "{words:?}: the program declares {} executions", one.declared.len());
    let comparison = same_work(&one.ledger, &other.ledger).and_then(|()| {
        if has_own_queues {
            same_queues(&one.ledger, &other.ledger)?;
            same_dependencies(&one.ledger, &other.ledger)?;
        }
        Ok(())
    });
    comparison.unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// The programs without `XSched`.
fn direct_runs(environment: &RocmEnvironment, program: &str) -> Vec<Run> {
    let run = |(n, words): (usize, &&[&str])| {
        let one = Program::new(environment, &format!("direct{n}"), words);
        one.run(environment.direct(&one.words(program)))
    };
    PROGRAMS.iter().enumerate().map(run).collect()
}

#[test]
fn fills_copies_and_stream_operations_give_the_right_bytes() {
    for rocm in Rocm::ALL {
        let Some(environment) = RocmEnvironment::with_service(rocm) else { continue };
        // A stream that waits for a value occupies its queue.
        let environment = environment.with("ROCR_STANDIN_DEVICES", "2").with(MAX_QUEUES, MANY_QUEUES);
        let Some(program) = environment.compile("../rocr/memory.hip") else { continue };
        let output = |command: &mut Command| {
            let output = command.output().unwrap();
            let errors = String::from_utf8_lossy(&output.stderr);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(
                output.status.success() && errors.is_empty(),
                "{rocm:?}: {}, {text}{errors}",
                output.status
            );
            text
        };
        for seed in ["1", "2"] {
            let words = [program.as_str(), seed, "1500"];
            let direct = output(&mut environment.direct(&words));
            assert!(direct.starts_with("1500 operations on 2 devices"), "{direct}");
            assert_eq!(output(&mut environment.run(&HIGH, &words)), direct);
        }
    }
}

#[test]
fn ledger_with_xsched_equals_the_ledger_without() {
    for (rocm, queues) in
        Rocm::ALL.into_iter().flat_map(|rocm| ["4", MANY_QUEUES].map(|queues| (rocm, queues)))
    {
        let Some((environment, _)) = environment(rocm, 3) else { continue };
        let environment = environment.with(MAX_QUEUES, queues);
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        for (words, direct) in PROGRAMS.into_iter().zip(direct_runs(&environment, &program)) {
            let scheduled = Program::new(&environment, &format!("scheduled-{}", words.join("-")), words);
            let scheduled = scheduled.run(environment.run(&HIGH, &scheduled.words(&program)));
            assert_same(words, queues == MANY_QUEUES, &direct, &scheduled);
        }
    }
}

/// Every pair of programs, each with the higher priority once, at each level.
#[test]
fn ledgers_of_two_programs_with_priorities_equal_the_ledgers_alone() {
    for (rocm, level) in Rocm::ALL.into_iter().flat_map(|rocm| [1, 2, 3].map(|level| (rocm, level))) {
        let Some((environment, options)) = environment(rocm, level) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let environment = environment.with(MAX_QUEUES, MANY_QUEUES);
        let direct = direct_runs(&environment, &program);
        for (first, second) in [(0, 2), (2, 1), (1, 0)] {
            let run = |n: usize, priority: &[&str]| {
                let words = PROGRAMS[n];
                let name = format!("{first}{second}-{}", priority.join(""));
                let one = Program::new(&environment, &name, words);
                let options = [priority, &options].concat();
                let scheduled = one.run(environment.run(&options, &one.words(&program)));
                assert_same(words, true, &direct[n], &scheduled);
            };
            std::thread::scope(|scope| {
                let high = scope.spawn(|| run(first, &HIGH));
                run(second, &LOW);
                high.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
        }
    }
}

/// The second half of the time in which the device had work of a program that launched everything at once. The first half is
/// for the preemption of what was in flight; half of the time is far more than it takes.
fn second_half(ledger: &Ledger) -> (u64, u64) {
    let labelled = || ledger.kernels().filter(|kernel| kernel.label.is_some());
    let start = labelled().map(|kernel| kernel.start).min().expect("the program launched kernels");
    let end = labelled().map(|kernel| kernel.end).max().expect("the program launched kernels");
    (start.midpoint(end), end)
}

/// While the device has work of the high-priority program, the other one rings no doorbell, and no kernel of it starts or ends. Without
/// `XSched`, kernels of both start.
#[test]
fn low_priority_program_starts_no_kernel_while_a_high_one_has_work() {
    const LOW_PROGRAM: [&str; 2] = ["until", "5000000"];
    for (rocm, level) in Rocm::ALL.into_iter().flat_map(|rocm| [1, 2, 3].map(|level| (rocm, level))) {
        let Some((environment, options)) = environment(rocm, level) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let seen = BesideLeader::observe(&environment, &program, &LOW_PROGRAM, Some(&options));
        assert_eq!(seen.level, Some(level), "{rocm:?}");
        let is_kernel = |packet: &Packet| packet.kind == Kind::Kernel;
        let launched =
            seen.count(|packet| is_kernel(packet) && (seen.held..seen.end).contains(&packet.submitted));
        assert!(launched <= IN_THE_RUNTIME, "{rocm:?}, level {level}: {launched} kernels were launched");
        let checked = seen.drained..seen.end;
        let ran = seen.count(|packet| {
            is_kernel(packet) && (checked.contains(&packet.start) || checked.contains(&packet.end))
        });
        assert_eq!(ran, 0, "{rocm:?}, level {level}: kernels started or ended");
        if level > 1 {
            let stopped = seen
                .count(|packet| is_kernel(packet) && packet.submitted < seen.held && packet.end > seen.end);
            assert!(stopped > 0, "{rocm:?}, level {level}: nothing that was in flight is stopped");
        }
        if level == 3 {
            let native = BesideLeader::observe(&environment, &program, &LOW_PROGRAM, None);
            let checked = native.drained..native.end;
            let started = native.count(|packet| is_kernel(packet) && checked.contains(&packet.start));
            let launched = native.count(|packet| is_kernel(packet) && checked.contains(&packet.submitted));
            assert!(started > 0 && launched > 0, "without XSched, both programs run: {started}, {launched}");
        }
    }
}

/// How many kernels of a low-priority program reach the device beside a leader that began while the runtime created the queue for the
/// program's first launch.
fn kernels_of_a_late_queue(environment: &RocmEnvironment, options: &[&str], program: &str) -> usize {
    let file = |name: &str| environment.directory().join(name);
    let files = ["queue", "queue.waiting", "low.ledger", "high.ledger", "idle.ledger"].map(file);
    for file in &files {
        let _ = std::fs::remove_file(file);
    }
    let [queue, waiting, low_file, high_file, idle_file] = files;
    let run = |own: &[&str], words: &[&str]| {
        environment.run(&[own, options].concat(), &[&[program], words].concat())
    };
    // Beside this idle program the other ones report their work from the first launch on.
    let never = file("never");
    let idle = run(&LOW, &["leader", never.to_str().expect("the path is text"), "1", "1"]);
    let _idle = Background::spawn(idle, &idle_file);
    wait_until("the idle program has completed its kernel", || line_count(&idle_file) > 0);
    let mut command = run(&[&LOW[..], &["--name", "low"]].concat(), &["burst", "1", "1000"]);
    command.env("ROCR_STANDIN_QUEUE_FILE", &queue);
    let mut low = Background::spawn(command, &low_file);
    wait_until("the low-priority program creates its queue", || waiting.exists());
    let mut high = Background::spawn(run(&HIGH, &["burst", LEADER_KERNELS, LEADER_KERNEL_NS]), &high_file);
    high.wait_until_launched();
    std::fs::write(&queue, "").unwrap();
    wait_until("the low-priority program is held", || is_held(environment));
    let last = line_count(&high_file) + KERNELS_DURING_FIRST_LAUNCH;
    wait_until("the leader executes kernels", || line_count(&high_file) > last);
    let beside_leader = kernel_count(&low_file);
    drop(high);
    low.wait();
    assert_eq!(kernel_count(&low_file), 1, "the low-priority program launched a kernel afterwards");
    beside_leader
}

/// The runtime creates a stream's queue with the first command, which takes long. A launch that did it behind the gate would reach the
/// device long after it was admitted.
#[test]
fn first_launch_is_held_by_a_program_that_began_while_its_queue_was_created() {
    for rocm in Rocm::ALL {
        let Some((environment, options)) = environment(rocm, 1) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let measure = || kernels_of_a_late_queue(&environment, &options, &program);
        retry_comparison(measure, |kernels| {
            require(kernels == 0, || format!("{rocm:?}: {kernels} kernels were launched beside the leader"))
        });
    }
}

/// Fills and small copies are launches: of a program that does nothing else, none reaches the device while the high-priority
/// program has work.
#[test]
fn low_priority_program_fills_and_copies_nothing_while_a_high_one_has_work() {
    for (rocm, level) in Rocm::ALL.into_iter().flat_map(|rocm| [1, 3].map(|level| (rocm, level))) {
        let Some((environment, options)) = environment(rocm, level) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let during = |seen: &BesideLeader| {
            seen.count(|packet| {
                matches!(packet.kind, Kind::Kernel | Kind::Copy)
                    && (seen.held..seen.end).contains(&packet.submitted)
            })
        };
        let seen = BesideLeader::observe(&environment, &program, &["memory"], Some(&options));
        assert_eq!(seen.level, Some(level), "{rocm:?}");
        let launched = during(&seen);
        assert!(
            launched <= IN_THE_RUNTIME,
            "{rocm:?}, level {level}: {launched} operations reached the device"
        );
        if level == 3 {
            let native = BesideLeader::observe(&environment, &program, &["memory"], None);
            assert!(during(&native) > 10, "without XSched, operations reach the device");
        }
    }
}

/// The library holds copies up to this size, or the one that the variable sets, at the gate, because the runtime carries them out with a
/// kernel.
#[test]
fn copies_up_to_16_kib_are_kernels_and_larger_ones_are_not() {
    const SIZES: [&str; 4] = ["64", "16384", "16385", "65536"];
    for rocm in Rocm::ALL {
        for (limit_kib, kernel_sizes) in [(None, 2), (Some("64"), 4)] {
            let Some(mut environment) = RocmEnvironment::without_service(rocm) else { continue };
            if let Some(kib) = limit_kib {
                environment = environment.with("GPU_FORCE_BLIT_COPY_SIZE", kib);
            }
            let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
            let words = [&["copies"], &SIZES[..]].concat();
            let copies = Program::new(&environment, "copies", &words);
            let ledger = copies.run(environment.direct(&copies.words(&program))).ledger;
            let mut labelled: Vec<_> = ledger.kernels().filter(|kernel| kernel.label.is_some()).collect();
            labelled.sort_by_key(|kernel| kernel.submitted);
            assert_eq!(labelled.len(), 4 * SIZES.len() + 1);
            for (n, pair) in labelled.windows(2).enumerate() {
                let between: Vec<_> = ledger
                    .packets
                    .iter()
                    .filter(|packet| {
                        pair[0].submitted < packet.submitted && packet.submitted < pair[1].submitted
                    })
                    .collect();
                let has = |kind| between.iter().any(|packet| packet.kind == kind);
                let is_kernel = n / 4 < kernel_sizes;
                assert_eq!(
                    (has(Kind::Kernel), has(Kind::Copy)),
                    (is_kernel, !is_kernel),
                    "{rocm:?}, limit {limit_kib:?}, {} bytes, copy {}: {between:#?}",
                    SIZES[n / 4],
                    n % 4
                );
            }
        }
    }
}

/// The ledger has the time of the doorbell, although the device accepts only 256 packets at once.
#[test]
fn packets_are_submitted_before_the_launches_return() {
    for rocm in Rocm::ALL {
        let Some(environment) = RocmEnvironment::without_service(rocm) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let file = environment.directory().join("burst.ledger");
        let mut burst = Background::spawn(environment.direct(&[&program, "burst", "600", "100000"]), &file);
        let launched = burst.wait_until_launched();
        burst.wait();
        let ledger = Ledger::of_one_process(&file);
        let submitted =
            || ledger.kernels().filter(|kernel| kernel.label.is_some()).map(|kernel| kernel.submitted);
        assert_eq!(submitted().count(), 600, "{rocm:?}");
        assert!(submitted().max() <= Some(launched), "{rocm:?}: {:?} > {launched}", submitted().max());
    }
}

/// At level 3 a running kernel is preempted: one kernel of 3 s lasts longer by at least as long as a burst beside it.
#[test]
fn running_kernel_does_not_run_while_a_high_priority_program_has_work() {
    const LOW_KERNEL: u64 = 3_000_000_000;
    for rocm in Rocm::ALL {
        let Some((environment, _)) = environment(rocm, 3) else { continue };
        let Some(program) = environment.compile("../rocr/ledger.hip") else { continue };
        let measure = || {
            let (low_file, high_file) =
                (environment.directory().join("low.ledger"), environment.directory().join("high.ledger"));
            let _ = (std::fs::remove_file(&low_file), std::fs::remove_file(&high_file));
            let low = [&program, "burst", "1", &LOW_KERNEL.to_string()];
            let mut background = Background::spawn(environment.run(&LOW, &low), &low_file);
            background.wait_until_launched();
            let high = environment.run(&HIGH, &[&program, "burst", "100", "1000000"]);
            Background::spawn(high, &high_file).wait();
            background.wait();
            let (low, high) = (Ledger::of_one_process(&low_file), Ledger::of_one_process(&high_file));
            let kernel = low.kernels().find(|kernel| kernel.label == Some(1)).expect("the kernel of 3 s");
            ((kernel.start, kernel.end), second_half(&high))
        };
        retry_comparison(measure, |((start, end), (from, to))| {
            require(start < from && to < end, || {
                format!(
                    "{rocm:?}: the second half of the burst, {from} to {to}, is not within the kernel, {start} to {end}"
                )
            })?;
            require(end - start >= LOW_KERNEL + (to - from), || {
                format!("{rocm:?}: the kernel lasted {} ns, the burst {} ns", end - start, 2 * (to - from))
            })
        });
    }
}

#[test]
fn ledger_of_a_killed_program_is_complete() {
    let Some((environment, _)) = environment(Rocm::V6, 3) else { return };
    let Some(program) = environment.compile("../rocr/ledger.hip") else { return };
    let file = environment.directory().join("killed.ledger");
    let never = environment.directory().join("never");
    let words = [program.as_str(), "until", never.to_str().expect("the path is text"), "100000"];
    let background = Background::spawn(environment.run(&HIGH, &words), &file);
    wait_until("the program runs kernels", || line_count(&file) >= 300);
    drop(background);
    let ledger = Ledger::of_one_process(&file);
    ledger.check().unwrap();
    assert!(ledger.packets.len() >= 300);
}
