//! Leaders on a machine whose CPUs are all busy, on the stand-in for NVIDIA's driver.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::{Child, Command, Stdio};

use cuda_machine::CudaMachine;
use environment::TestEnvironment;
use measured::{percentile, print_latencies, require, retry_comparison};
use test_program::TestProgram;

/// Rounds of 0.6 s, so that the batch itself notifies the service rarely.
const BATCH: [&str; 4] = ["load", "batch", "2000", "300"];
const HIGH_PRIORITY: [&str; 2] = ["--priority", "high"];
const LOW_PRIORITY: [&str; 2] = ["--priority", "low"];

/// Any thread that is woken may preempt the launching thread.
#[test]
fn leader_with_requests_in_one_piece_does_not_wake_the_service() {
    const REQUESTS: usize = 60;
    let wake_ups_for = |kernels: &str| {
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let _batch = TestProgram::spawn(machine.run(&LOW_PRIORITY, &BATCH));
        let count = REQUESTS.to_string();
        let requests = ["load", "requests", &count, kernels, "500", "8000"];
        let program = TestProgram::spawn(machine.run(&HIGH_PRIORITY, &requests));
        // The first requests show of which kind they are.
        for _ in 0..10 {
            program.next_line();
        }
        let before = machine.env.service_wake_ups();
        for _ in 10..REQUESTS {
            program.next_line();
        }
        machine.env.service_wake_ups() - before
    };
    let measure = || {
        let (one, many) = (wake_ups_for("1"), wake_ups_for("8"));
        println!("wake-ups of the service: {one} with one kernel per request, {many} with eight");
        (one, many)
    };
    retry_comparison(measure, |(one, many)| {
        require(many > REQUESTS, || {
            format!("{many} wake-ups for {REQUESTS} requests: the scheduler does not hold the batch")
        })?;
        require(4 * one < many, || format!("{one} wake-ups with one kernel per request, {many} with eight"))
    });
}

/// Processes that only compute, five for each core.
struct BusyProcesses(Vec<Child>);

impl BusyProcesses {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let start = |_| {
            let mut shell = Command::new("sh");
            shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null());
            shell.spawn().unwrap()
        };
        Self((0..5 * cores).map(start).collect())
    }
}

impl Drop for BusyProcesses {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn leader_keeps_its_latency_on_busy_cpus() {
    // One kernel of 5 ms every 16 ms. The device's clock shows when it completed.
    const REQUESTS: [&str; 6] = ["load", "requests", "50", "1", "5000", "16000"];
    let measure = || {
        let bare = CudaMachine::new(TestEnvironment::without_service());
        let _busy = BusyProcesses::start();
        let alone = TestProgram::spawn(bare.direct(&REQUESTS)).latencies();
        let native = {
            let _batch = TestProgram::spawn(bare.direct(&BATCH));
            TestProgram::spawn(bare.direct(&REQUESTS)).latencies()
        };
        let machine = CudaMachine::new(TestEnvironment::with_service());
        let _batch = TestProgram::spawn(machine.run(&LOW_PRIORITY, &BATCH));
        let scheduled = TestProgram::spawn(machine.run(&HIGH_PRIORITY, &REQUESTS)).latencies();
        print_latencies(&[("alone", &alone), ("native", &native), ("scheduled", &scheduled)]);
        [alone, native, scheduled]
    };
    retry_comparison(measure, |scenarios| {
        let [alone, native, scheduled] = [0, 1, 2].map(|scenario| percentile(&scenarios[scenario], 50));
        let describe = || format!("p50: alone {alone}, native {native}, scheduled {scheduled} us");
        require(2 * native > 3 * alone, || {
            format!("the batch does not slow native requests: {}", describe())
        })?;
        require(4 * scheduled < 3 * alone + native, || format!("the leader is slowed: {}", describe()))
    });
}
