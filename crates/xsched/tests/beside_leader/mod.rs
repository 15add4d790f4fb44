//! A program of low priority beside one of high priority that has work all the time, and what the ledger says about it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::time::{ClockId, clock_gettime};
use xsched_ipc::protocol::TaskState;

use crate::environment::wait_until;
use crate::ledger::{Ledger, Packet};
use crate::rocm_environment::RocmEnvironment;

/// How many packets the low-priority program completes between the leader's first kernel and its burst: more than it has in flight.
/// What it launched while it was alone has no stop points.
const PACKETS_BEFORE_BURST: usize = 200;
/// The leader's kernels of 1 ms each, which it launches all at once: many more than it executes until the test kills it.
pub(crate) const LEADER_KERNELS: &str = "8000";
pub(crate) const LEADER_KERNEL_NS: &str = "1000000";
/// How many kernels the leader executes before nothing of the other program may start. The other program has at most 40 kernels of
/// 5 ms in flight, which are executed meanwhile even if the device is shared fairly and they are not stopped.
const KERNELS_UNTIL_DRAINED: usize = 500;
/// How many kernels the leader executes while nothing may start.
const CHECKED_KERNELS: usize = 200;

/// A program that is killed with the test.
pub(crate) struct Background {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Background {
    pub(crate) fn spawn(mut command: Command, ledger: &Path) -> Self {
        command.env("ROCR_STANDIN_LEDGER", ledger).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().expect("the output is a pipe"));
        Self { child, output }
    }

    /// Waits until the launches of a burst have returned. Returns when the last one did, in the time of the ledger.
    pub(crate) fn wait_until_launched(&mut self) -> u64 {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        let time = line.trim_end().strip_prefix("launched ").and_then(|time| time.parse().ok());
        time.unwrap_or_else(|| panic!("not the time of the launches: {line:?}"))
    }

    pub(crate) fn wait(&mut self) {
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How many packets a ledger has.
pub(crate) fn line_count(ledger: &Path) -> usize {
    std::fs::read_to_string(ledger).map_or(0, |text| text.lines().count())
}

/// What a program of low priority did beside a leader. All times are those of the ledger, and the leader had work at all of them.
pub(crate) struct BesideLeader {
    pub(crate) low: Ledger,
    /// The preemption level of the queues; none without `XSched`.
    pub(crate) level: Option<u8>,
    /// The service lists the program as held; at level 3 the driver was told to stop its queues.
    pub(crate) held: u64,
    /// What was in flight was executed or is stopped.
    pub(crate) drained: u64,
    /// The last time at which the leader is known to have had work.
    pub(crate) end: u64,
}

impl BesideLeader {
    /// Runs a program until a file exists, which is its first argument after the command: under the scheduler with these options, or
    /// without.
    pub(crate) fn observe(
        environment: &RocmEnvironment,
        program: &str,
        words: &[&str],
        options: Option<&[&str]>,
    ) -> Self {
        let file = |name: &str| environment.directory().join(name);
        let (start, stop) = (file("start"), file("stop"));
        let (low_file, high_file) = (file("low.ledger"), file("high.ledger"));
        for file in [&start, &stop, &low_file, &high_file] {
            let _ = std::fs::remove_file(file);
        }
        let [start_file, stop_file] = [&start, &stop].map(|file| file.to_str().expect("the path is text"));
        let command = |priority: &str, words: &[&str]| {
            let words = [&[program], words].concat();
            match options {
                Some(options) => {
                    let own = ["--priority", priority, "--name", priority];
                    environment.run(&[&own, options].concat(), &words)
                }
                None => environment.direct(&words),
            }
        };
        let words: Vec<_> = [&words[..1], &[stop_file], &words[1..]].concat();
        let mut low = Background::spawn(command("low", &words), &low_file);
        wait_until("the low-priority program has completed packets", || line_count(&low_file) >= 50);
        let words_of_high = ["leader", start_file, LEADER_KERNELS, LEADER_KERNEL_NS];
        let mut high = Background::spawn(command("high", &words_of_high), &high_file);
        wait_until("the leader has completed a packet", || line_count(&high_file) > 0);
        let before = line_count(&low_file);
        wait_until("the low-priority program has completed more packets", || {
            line_count(&low_file) >= before + PACKETS_BEFORE_BURST
        });
        std::fs::write(&start, "").unwrap();
        high.wait_until_launched();
        let level = options.and_then(|_| {
            wait_until("the low-priority program is held", || is_held(environment));
            environment.env.status().queues.iter().map(|queue| queue.level).max()
        });
        // A queue that has no work is not stopped; kernels are always in flight.
        if level == Some(3) && words[0] == "until" {
            wait_until("its queues are inactive", || environment.driver_log().contains(" share 0 "));
        }
        let now = clock_gettime(ClockId::Monotonic);
        let held = u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("the clock is positive");
        let before = line_count(&high_file);
        let last = before + KERNELS_UNTIL_DRAINED + CHECKED_KERNELS;
        wait_until("the leader executes kernels", || line_count(&high_file) > last);
        drop(high);
        std::fs::write(&stop, "").unwrap();
        low.wait();
        let [low, high] = [low_file, high_file].map(|file| Ledger::of_one_process(&file));
        low.check().unwrap();
        high.check().unwrap();
        let drained = high.packets[before + KERNELS_UNTIL_DRAINED].end;
        let end = high.packets[last].end;
        assert!(held < drained && drained < end, "{held}, {drained} and {end} are not in order");
        Self { low, level, held, drained, end }
    }

    /// How many packets satisfy a condition.
    pub(crate) fn count(&self, condition: impl Fn(&Packet) -> bool) -> usize {
        self.low.packets.iter().filter(|packet| condition(packet)).count()
    }
}

/// Whether the service lists the program of low priority as held.
pub(crate) fn is_held(environment: &RocmEnvironment) -> bool {
    let tasks = environment.env.status().tasks;
    tasks.iter().any(|task| task.name == "low" && task.state == TaskState::Held)
}
