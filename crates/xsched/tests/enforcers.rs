//! Two GPUs in one process: a GPU that is slow to stop does not delay the stop of the other. On the stand-in for NVIDIA's
//! driver.

#[allow(dead_code, reason = "other tests use the rest")]
mod actor;
#[allow(dead_code, reason = "other tests use the rest")]
mod machine;
#[allow(dead_code, reason = "other tests use the rest")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest")]
mod stage;

use std::time::{Duration, Instant};

use actor::Actor;
use machine::Machine;
use measured::{claim, measured, percentile, tell};
use stage::{Stage, built_program, eventually};
use xsched_ipc::protocol::{HintRequest, Reply, Request, Target, TaskState};

/// A kernel of 200 ms reaches no stop point within the 10 ms that a GPU is given before its channels are disabled.
const SLOW_KERNEL_US: &str = "200000";
/// Kernels of 0.3 ms reach a stop point about every 1 ms.
const FAST_KERNEL_US: &str = "300";
/// How often the slow process is preempted on both GPUs.
const PREEMPTIONS: usize = 9;
/// How long the slow process runs before it is preempted.
const SETTLE_TIME: Duration = Duration::from_millis(20);
/// How long one switch may take before the test fails.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds the program and returns its path.
fn two_gpus() -> String {
    let standin = format!("{}/../../standins/cuda", env!("CARGO_MANIFEST_DIR"));
    let (include, programs) = (format!("-I{standin}"), format!("-I{standin}/tests/programs"));
    let driver = machine::driver().display().to_string();
    let options = [include.as_str(), &programs, &driver, "-ldl", "-lpthread"];
    built_program("two_gpus", &options).display().to_string()
}

/// A process that has used one GPU and is idle. While it exists, tasks of lower priority are throttled: one process runs at a
/// time, and the next begins when the GPU runs nothing of the last.
fn idle_leader(machine: &Machine, gpu: &str) -> Actor {
    let mut command = machine.run(&["--priority", "high"], &["foreground", "stream", "1", "1", "5", "0"]);
    command.env("CUDA_VISIBLE_DEVICES", gpu);
    let leader = Actor::enter(command);
    while leader.line() != "idle" {}
    leader
}

fn set_priority(machine: &Machine, process: &Actor, priority: i64) {
    let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
    let request = Request::Set { target: Target::Pid(process.pid()), hint_request };
    assert_eq!(machine.stage.ask(&request), Reply::Done);
}

/// The states of a process's tasks, the first GPU first.
fn states(machine: &Machine, process: &Actor) -> Vec<TaskState> {
    let mut tasks = machine.stage.status().tasks;
    tasks.retain(|task| task.pid == process.pid());
    tasks.sort_unstable_by_key(|task| task.device);
    tasks.iter().map(|task| task.state).collect()
}

/// Changes the priority of `process` and waits until `runs` has both GPUs. Returns how long that took on each GPU, in
/// microseconds.
fn switch(machine: &Machine, process: &Actor, priority: i64, runs: &Actor) -> [u64; 2] {
    let mut latencies = [None; 2];
    let began = Instant::now();
    set_priority(machine, process, priority);
    while latencies.contains(&None) {
        assert!(began.elapsed() < SWITCH_TIMEOUT, "not switched on both GPUs: {latencies:?}");
        for (latency, state) in latencies.iter_mut().zip(states(machine, runs)) {
            if state == TaskState::Running {
                latency.get_or_insert(u64::try_from(began.elapsed().as_micros()).unwrap());
            }
        }
    }
    latencies.map(Option::unwrap)
}

#[test]
fn gpu_that_is_slow_to_stop_does_not_delay_the_stop_of_another_gpu() {
    let program = two_gpus();
    measured(|| {
        let machine = Machine::with_devices(Stage::with_service(), "2");
        let _leaders = ["0", "1"].map(|gpu| idle_leader(&machine, gpu));
        // Equal programs but for the kernels on the first GPU.
        let slow =
            Actor::enter(machine.run(&["--priority", "0"], &[&program, SLOW_KERNEL_US, FAST_KERNEL_US]));
        slow.line();
        let next =
            Actor::enter(machine.run(&["--priority", "-10"], &[&program, FAST_KERNEL_US, FAST_KERNEL_US]));
        eventually("both processes use both GPUs", || {
            states(&machine, &slow).len() == 2 && states(&machine, &next).len() == 2
        });
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for _ in 0..PREEMPTIONS {
            switch(&machine, &next, -10, &slow);
            eventually("the next process waits for both GPUs", || {
                states(&machine, &next) == [TaskState::Held; 2]
            });
            // The GPUs are to run kernels of the slow process by now.
            std::thread::sleep(SETTLE_TIME);
            let latencies = switch(&machine, &next, 10, &next);
            first.push(latencies[0]);
            second.push(latencies[1]);
        }
        first.sort_unstable();
        second.sort_unstable();
        tell(&[("first GPU, slow kernels", &first), ("second GPU", &second)]);
        let [first, second] = [&first, &second].map(|latencies| percentile(latencies, 50));
        let figures = || format!("the first GPU stopped after {first} us, the second after {second} us");
        claim(first >= 10_000, || format!("the first GPU is not slow to stop: {}", figures()))?;
        claim(2 * second < first, || format!("the second GPU waited for the first: {}", figures()))
    });
}
