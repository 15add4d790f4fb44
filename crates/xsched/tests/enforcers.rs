//! Two GPUs in one process: a GPU that is slow to stop does not delay the stop of the other. On the stand-in for NVIDIA's
//! driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::time::{Duration, Instant};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, built_program, wait_until};
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// A kernel of 200 ms reaches no stop point within the 10 ms that a GPU is given before its channels are disabled.
const SLOW_KERNEL_US: &str = "200000";
/// Kernels of 0.3 ms reach a stop point about every 1 ms.
const FAST_KERNEL_US: &str = "300";
/// How often the slow process loses both GPUs.
const SWITCHES: usize = 9;
/// How long the slow process runs alone before that: longer than a time slice of 200 ms, so that the next process need not wait for its end.
const TIME_ALONE: Duration = Duration::from_millis(300);
/// How long one switch may take before the test fails.
const SWITCH_TIMEOUT: Duration = Duration::from_secs(60);

/// Builds the program and returns its path.
fn two_gpus() -> String {
    let standin = format!("{}/../../standins/cuda", env!("CARGO_MANIFEST_DIR"));
    let (include, programs) = (format!("-I{standin}"), format!("-I{standin}/tests/programs"));
    let driver = cuda_machine::driver().display().to_string();
    let options = [include.as_str(), &programs, &driver, "-ldl", "-lpthread"];
    built_program("two_gpus", &options).display().to_string()
}

/// A process that has used one GPU and is idle. While it exists, tasks of lower priority are throttled: one process runs at a
/// time, and the next begins when the GPU runs nothing of the last.
fn idle_leader(machine: &CudaMachine, gpu: &str) -> TestProgram {
    let mut command = machine.run(&["--priority", "high"], &["foreground", "stream", "1", "1", "5", "0"]);
    command.env("CUDA_VISIBLE_DEVICES", gpu);
    let leader = TestProgram::spawn(command);
    while leader.next_line() != "idle" {}
    leader
}

/// The states of a process's tasks, the first GPU first.
fn states(machine: &CudaMachine, process: &TestProgram) -> Vec<TaskState> {
    let mut tasks = machine.env.status().tasks;
    tasks.retain(|task| task.pid == process.pid());
    tasks.sort_unstable_by_key(|task| task.device);
    tasks.iter().map(|task| task.state).collect()
}

/// Sends `request` and waits until `process` runs on both GPUs. Returns how long that took on each GPU, in microseconds.
fn switch(machine: &CudaMachine, request: &Request, process: &TestProgram) -> [u64; 2] {
    let mut latencies = [None; 2];
    let began = Instant::now();
    assert_eq!(machine.env.request(request), Reply::Done);
    while latencies.contains(&None) {
        assert!(began.elapsed() < SWITCH_TIMEOUT, "not switched on both GPUs: {latencies:?}");
        for (latency, state) in latencies.iter_mut().zip(states(machine, process)) {
            if state == TaskState::Running {
                latency.get_or_insert(u64::try_from(began.elapsed().as_micros()).unwrap());
            }
        }
    }
    latencies.map(Option::unwrap)
}

/// Resumes a process beside the slow one several times: it has the same priority and has had less, so it starts on each GPU when the slow
/// process has drained. Returns the sorted latencies on each GPU.
fn switch_latencies(program: &str) -> [Vec<u64>; 2] {
    let machine = CudaMachine::with_devices(TestEnvironment::with_service(), "2");
    let _leaders = ["0", "1"].map(|gpu| idle_leader(&machine, gpu));
    let slow =
        TestProgram::spawn(machine.run(&["--priority", "0"], &[program, SLOW_KERNEL_US, FAST_KERNEL_US]));
    slow.next_line();
    let next =
        TestProgram::spawn(machine.run(&["--priority", "0"], &[program, FAST_KERNEL_US, FAST_KERNEL_US]));
    wait_until("both processes use both GPUs", || {
        states(&machine, &slow).len() == 2 && states(&machine, &next).len() == 2
    });
    let next_process = Target::Pid(next.pid());
    let mut latencies = [Vec::new(), Vec::new()];
    for _ in 0..SWITCHES {
        switch(&machine, &Request::Suspend(next_process.clone()), &slow);
        std::thread::sleep(TIME_ALONE);
        let resume = Request::Resume(next_process.clone());
        for (latencies, latency) in latencies.iter_mut().zip(switch(&machine, &resume, &next)) {
            latencies.push(latency);
        }
    }
    for latencies in &mut latencies {
        latencies.sort_unstable();
    }
    latencies
}

#[test]
fn gpu_that_is_slow_to_stop_does_not_delay_the_stop_of_another_gpu() {
    let program = two_gpus();
    retry_comparison(
        || switch_latencies(&program),
        |[first, second]| {
            print_latencies(&[("first GPU, slow kernels", &first), ("second GPU", &second)]);
            let [first, second] = [&first, &second].map(|latencies| percentile(latencies, 50));
            let figures = || format!("the first GPU stopped after {first} us, the second after {second} us");
            require(first >= 10_000, || format!("the first GPU is not slow to stop: {}", figures()))?;
            require(2 * second < first, || format!("the second GPU waited for the first: {}", figures()))
        },
    );
}
