//! What the scheduler is for: a program that answers requests, beside one that would have the device to itself.
//!
//! Two programs in C that know nothing of XSched, the real `xsched run`, the real service, one simulated device.

#[allow(dead_code, reason = "the other tests on this stage use the rest")]
mod stage;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stage::{Stage, eventually};
use xsched_ipc::protocol::TaskState;

/// Eight milliseconds of work in every twenty.
const REQUESTS: [&str; 5] = ["requests", "80", "8", "1000", "20"];
/// Work for two minutes without a gap worth the name.
const BATCH: [&str; 4] = ["work", "1200", "50", "2000"];
/// The same in steps of one command, each of which can be seen.
const STEPS: [&str; 4] = ["work", "100000", "1", "2000"];

const IMPORTANT: [&str; 4] = ["--priority", "high", "--name", "high"];
const UNIMPORTANT: [&str; 4] = ["--priority", "low", "--name", "low"];

/// A step that does not come within this time will not come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Many times the length of a step: who makes none in this time is held.
const QUIET: Duration = Duration::from_millis(100);

/// A program that is killed at the end of its scene, however that ends.
struct Actor(Child);

impl Actor {
    fn enter(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map(Result::unwrap)
    }

    /// Tells of every line when it came.
    fn steps(&mut self) -> Receiver<Instant> {
        let (lines, (sender, receiver)) = (self.lines(), channel());
        std::thread::spawn(move || lines.take_while(|_| sender.send(Instant::now()).is_ok()).for_each(drop));
        receiver
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How long requests took, in microseconds, the shortest first.
#[derive(Debug)]
struct Latencies(Vec<u64>);

impl Latencies {
    /// Of all requests of a program that serves [`REQUESTS`].
    fn of(mut program: Actor) -> Self {
        let told = program.lines().take_while(|line| line != "idle").map(|line| line.parse().unwrap());
        let mut all: Vec<u64> = told.collect();
        assert_eq!(all.len(), 80, "requests");
        all.sort_unstable();
        Self(all)
    }

    fn percentile(&self, percent: usize) -> u64 {
        self.0[(self.0.len() * percent / 100).min(self.0.len() - 1)]
    }
}

fn is(stage: &Stage, name: &str, expected: TaskState) -> bool {
    stage.status().tasks.iter().any(|task| task.name == name && task.state == expected)
}

#[test]
fn requests_take_as_long_beside_a_batch_as_alone() {
    let alone = {
        let stage = Stage::without_service();
        Latencies::of(Actor::enter(stage.direct(&REQUESTS)))
    };
    let native = {
        let stage = Stage::without_service();
        let mut batch = Actor::enter(stage.direct(&BATCH));
        let mut rounds = batch.lines();
        rounds.next().expect("it runs");
        Latencies::of(Actor::enter(stage.direct(&REQUESTS)))
    };
    let scheduled = {
        let stage = Stage::with_service();
        let mut batch = Actor::enter(stage.run(&UNIMPORTANT, &BATCH));
        let rounds = batch.steps();
        rounds.recv_timeout(PATIENCE).expect("it runs");
        let latencies = Latencies::of(Actor::enter(stage.run(&IMPORTANT, &REQUESTS)));
        rounds.recv_timeout(PATIENCE).expect("it gets the rest");
        latencies
    };
    let scenes = [("alone", &alone), ("native", &native), ("scheduled", &scheduled)];
    for (name, scene) in scenes {
        println!("{name:>9}: p50 {:>6} us, p99 {:>6} us", scene.percentile(50), scene.percentile(99));
    }
    // The middle, not the end of the distribution: this machine may be busy with other tests.
    let [alone, native, scheduled] = scenes.map(|(_, scene)| scene.percentile(50));
    assert!(2 * native > 3 * alone, "the batch does no harm: {native} us instead of {alone} us");
    assert!(2 * scheduled < alone + native, "no better: {scheduled} us between {alone} us and {native} us");
    assert!(10 * scheduled <= 13 * alone, "{scheduled} us instead of {alone} us");
}

#[test]
fn whoever_is_held_for_a_program_that_is_killed_runs_on() {
    let stage = Stage::with_service();
    let mut low = Actor::enter(stage.run(&UNIMPORTANT, &STEPS));
    let steps = low.steps();
    steps.recv_timeout(PATIENCE).expect("it runs");
    // Busy for twenty seconds without a gap.
    let high = Actor::enter(stage.run(&IMPORTANT, &["work", "1", "1000", "20000"]));
    eventually("it is held", || is(&stage, "low", TaskState::Held));
    loop {
        match steps.recv_timeout(QUIET) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => panic!("it ended"),
        }
    }
    let killed = Instant::now();
    high.signal(Signal::KILL);
    let resumed = steps.recv_timeout(PATIENCE).expect("it is held for a program that is no more");
    println!("{:?} from the kill to the end of the next command of 2 ms", resumed - killed);
    for _ in 0..20 {
        steps.recv_timeout(PATIENCE).expect("it runs on");
    }
    eventually("the killed one is forgotten", || stage.status().tasks.iter().all(|task| task.name == "low"));
}

#[test]
fn a_program_that_is_stopped_while_it_wants_nothing_holds_nobody() {
    let stage = Stage::with_service();
    let mut low = Actor::enter(stage.run(&UNIMPORTANT, &STEPS));
    let steps = low.steps();
    let mut high = Actor::enter(stage.run(&IMPORTANT, &["requests", "5", "8", "1000", "20"]));
    assert!(high.lines().any(|line| line == "idle"), "it ended before its requests did");
    eventually("it is idle", || is(&stage, "high", TaskState::Idle));
    high.signal(Signal::STOP);
    // What was done before it was stopped does not count.
    steps.try_iter().for_each(drop);
    for _ in 0..100 {
        steps.recv_timeout(PATIENCE).expect("it runs on");
    }
    assert!(is(&stage, "high", TaskState::Idle), "{:?}", stage.status().tasks);
    high.signal(Signal::CONT);
}
