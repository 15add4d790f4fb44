//! The names of kernels while a tool traces them, on the stand-ins and on the OpenCL implementation of this machine.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod opencl_environment;
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::collections::HashMap;
use std::process::Command;
use std::time::{Duration, Instant};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use hip_environment::HipEnvironment;
use opencl_environment::{exclusive_cpu, programs};
use test_program::TestProgram;
use xsched_ipc::protocol::{Event, EventKind, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs two instances of a program, so that their launches are counted.
fn two(mut instance: impl FnMut() -> Command) -> [TestProgram; 2] {
    [(); 2].map(|()| TestProgram::spawn(instance()))
}

/// The launches of each kernel by name, until one of each of two processes was received.
fn trace_kernels(env: &TestEnvironment) -> HashMap<String, u64> {
    wait_until("both programs are scheduled", || env.status().tasks.len() == 2);
    let tracer = env.connect();
    for request in [Request::Trace, Request::TraceKernels] {
        tracer.send(&request, None, true).unwrap();
    }
    let (mut launches, mut processes) = (HashMap::new(), Vec::new());
    let began = Instant::now();
    while processes.len() < 2 {
        assert!(began.elapsed() < TIMEOUT, "only from {processes:?}: {launches:?}");
        for Event { pid, kind, .. } in next_events(&tracer) {
            if let EventKind::Kernel { name, count, .. } = kind {
                *launches.entry(name).or_default() += count;
                processes.push(pid);
                processes.sort_unstable();
                processes.dedup();
            }
        }
    }
    launches
}

fn next_events(tracer: &Connection) -> Vec<Event> {
    match tracer.receive(true).unwrap() {
        Some(Packet::Message(Reply::Events { events, .. }, _)) => events,
        Some(Packet::Message(Reply::Done, _)) => Vec::new(),
        packet => panic!("{packet:?}"),
    }
}

fn assert_only(launches: &HashMap<String, u64>, name: &str) {
    assert!(launches.len() == 1 && launches[name] > 0, "{launches:?}");
}

#[test]
fn cuda_kernels_have_names_for_every_way_to_find_functions() {
    let machine = CudaMachine::new(TestEnvironment::with_service());
    let programs = two(|| machine.run(&[], &["load", "batch", "4", "500"]));
    assert_only(&trace_kernels(&machine.env), "spin");
    drop(programs);
    wait_until("both programs have ended", || machine.env.status().tasks.is_empty());
    let programs = two(|| machine.run(&[], &["chain-look-up", "1000000", "200"]));
    let launches = trace_kernels(&machine.env);
    assert!(launches.contains_key("add"), "{launches:?}");
    drop(programs);
}

#[test]
fn hip_kernels_have_names() {
    let hip = HipEnvironment::new(TestEnvironment::with_service());
    let _programs = two(|| hip.run(&[], &["linked", "work", "100000", "6", "500"]));
    assert_only(&trace_kernels(&hip.env), "spin");
}

#[test]
fn opencl_kernels_have_names() {
    let _cpu = exclusive_cpu();
    let Some(programs) = programs() else { return };
    let env = TestEnvironment::with_service();
    let program = programs.path("cl_requests");
    let _programs = two(|| env.run(&[], &[&program, "100000", "1", "1000", "0"]));
    assert_only(&trace_kernels(&env), "spin");
}

#[test]
fn commands_of_the_simulated_device_have_their_lengths_as_names() {
    let env = TestEnvironment::with_service();
    let programs = two(|| env.run(&[], &["work", "1000000000", "4", "500"]));
    assert_only(&trace_kernels(&env), "500 us");
    // Only tools that trace kernels get their names, and without one no program looks them up.
    let tracer = env.connect();
    tracer.send(&Request::Trace, None, true).unwrap();
    let mut launched = 0;
    while launched < 100 {
        for event in next_events(&tracer) {
            assert!(!matches!(event.kind, EventKind::Kernel { .. }), "{event:?}");
            launched += u64::from(matches!(event.kind, EventKind::Launched { .. }));
        }
    }
    drop(programs);
}
