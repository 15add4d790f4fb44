//! Partitions of one GPU, and the driver's queues of each: stand-ins for AMD's runtime and driver, the real `xsched run` and the
//! real service.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use environment::{TestEnvironment, wait_until};
use hip_environment::{HipEnvironment, output_of};
use test_program::TestProgram;
use xsched_core::{DeviceId, DeviceKind};
use xsched_ipc::protocol::{Reply, Request, Target, TaskState};

/// Every compute mode, with a memory mode, and the number of partitions.
const MODES: [(&str, u32); 5] =
    [("SPX/NPS1", 1), ("DPX/NPS2", 2), ("TPX/NPS1", 3), ("QPX/NPS4", 4), ("CPX/NPS8", 8)];

/// The PCI address of the GPU: bus, device and function.
const ADDRESS: u32 = 0xc100;
/// The driver's id of the stand-in's first device.
const FIRST_GPU: u32 = 1000;

/// Where the number of a partition is visible.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Numbering {
    /// In the driver's topology only: the runtime reports one address for all.
    Driver,
    /// In the driver's topology, and as the function number that the runtime reports.
    DriverAndRuntime,
    /// As the function number in both, as with older versions of Linux.
    Functions,
}

fn machine(mode: &str, partitions: u32, numbering: Numbering) -> HipEnvironment {
    let location = |partition: u32| match numbering {
        Numbering::Functions => ADDRESS | partition,
        _ => ADDRESS | (partition << 28),
    };
    let gpus: Vec<_> =
        (0..partitions).map(|partition| (FIRST_GPU + partition, location(partition))).collect();
    let hip = HipEnvironment::new(TestEnvironment::with_service())
        .with("HIP_STANDIN_PARTITIONS", mode)
        .with_topology(&gpus);
    if numbering == Numbering::Driver { hip } else { hip.with("HIP_STANDIN_PARTITION_FUNCTIONS", "1") }
}

/// Starts a program that always has work on the device with this ordinal. Returns it with its device.
fn start(
    hip: &HipEnvironment,
    name: &str,
    visible: Option<(&str, &str)>,
    ordinal: u32,
) -> (TestProgram, DeviceId) {
    let options = ["--name", name];
    let mut command = hip.run(&options, &["linked", "work", "1000000", "6", "500", &ordinal.to_string()]);
    command.envs(visible);
    let program = TestProgram::spawn(command);
    program.next_line();
    let device = || hip.env.status().tasks.into_iter().find(|task| task.name == name).map(|task| task.device);
    wait_until("the program is scheduled", || device().is_some());
    let device = DeviceId(device().unwrap());
    (program, device)
}

/// The ids of a process's queues on a GPU of the driver.
fn queues_on(hip: &HipEnvironment, pid: u32, gpu: u32) -> Vec<String> {
    let (log, prefix) = (hip.driver_log(), format!("{pid} create "));
    let created = log.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(" on "));
    created.filter(|(_, on)| *on == gpu.to_string()).map(|(id, _)| id.to_owned()).collect()
}

/// The ids of the queues of a process that were stopped.
fn stopped_queues(hip: &HipEnvironment, pid: u32) -> Vec<String> {
    let (log, prefix) = (hip.driver_log(), format!("{pid} update "));
    let updates = log.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once(" share 0 "));
    updates.map(|(id, _)| id.to_owned()).collect()
}

fn assert_partitions_are_separate(mode: &str, partitions: u32, numbering: Numbering) {
    let hip = machine(mode, partitions, numbering);
    let last = partitions - 1;
    let (first, first_device) = start(&hip, "first", None, 0);
    let (other, other_device) = start(&hip, "last", None, last);
    let device = |partition: u32| DeviceId::new(DeviceKind::Gpu, ADDRESS | partition);
    assert_eq!((first_device, other_device), (device(0), device(last)), "{mode}, {numbering:?}");
    assert_eq!(hip.env.request(&Request::Suspend(Target::Pid(other.pid()))), Reply::Done);
    let is_suspended = |task: xsched_ipc::protocol::TaskStatus| task.state == TaskState::Suspended;
    let task = || hip.env.status().tasks.into_iter().find(|task| task.name == "last");
    wait_until("the program is suspended", || task().is_some_and(is_suspended));
    wait_until("its queues on the partition are stopped", || {
        let (its, stopped) =
            (queues_on(&hip, other.pid(), FIRST_GPU + last), stopped_queues(&hip, other.pid()));
        // The streams' queues; the one that showed which partition it is was destroyed.
        its.iter().filter(|id| stopped.contains(id)).count() >= 3
    });
    // A program on another partition is not affected.
    assert_eq!(stopped_queues(&hip, first.pid()), [""; 0], "{mode}");
    first.lines.try_iter().for_each(drop);
    first.next_line();
}

#[test]
fn every_partition_is_a_device_of_its_own() {
    for (mode, partitions) in MODES {
        assert_partitions_are_separate(mode, partitions, Numbering::Driver);
    }
}

#[test]
fn partition_is_the_same_device_in_processes_that_number_them_differently() {
    for numbering in [Numbering::Driver, Numbering::DriverAndRuntime] {
        let hip = machine("CPX", 8, numbering);
        for (variable, order) in [("HIP_VISIBLE_DEVICES", "5,0"), ("ROCR_VISIBLE_DEVICES", "7,5,1")] {
            let ordinal = u32::from(variable == "ROCR_VISIBLE_DEVICES");
            let (_program, device) = start(&hip, variable, Some((variable, order)), ordinal);
            assert_eq!(device, DeviceId::new(DeviceKind::Gpu, ADDRESS | 5), "{variable}, {numbering:?}");
        }
    }
}

#[test]
fn partitions_that_the_runtime_reports_as_functions_are_devices_of_their_own() {
    assert_partitions_are_separate("CPX/NPS4", 8, Numbering::DriverAndRuntime);
    assert_partitions_are_separate("QPX/NPS1", 4, Numbering::Functions);
}

#[test]
fn programs_on_different_partitions_do_not_hold_each_other() {
    let hip = machine("DPX", 2, Numbering::Driver);
    let spawn = |priority: &str, device: &str| {
        let name = format!("--name={priority}");
        let options = ["--priority", priority, &name];
        let program =
            TestProgram::spawn(hip.run(&options, &["opened", "work", "1000000", "6", "500", device]));
        program.next_line();
        program
    };
    let (low, _high) = (spawn("-50", "1"), spawn("50", "0"));
    let is_held = || hip.env.status().tasks.iter().any(|task| task.state == TaskState::Held);
    for _ in 0..20 {
        low.next_line();
        assert!(!is_held(), "the program of higher priority is on another partition");
    }
    let _on_the_same = spawn("60", "1");
    wait_until("a program on the same partition holds it", is_held);
}

#[test]
fn partitions_that_cannot_be_told_apart_are_one_device_at_level_1() {
    let hip = machine("DPX", 2, Numbering::Driver).with("XLOG_LEVEL", "WARN");
    // Without a preload, the library does not see on which partition the runtime creates a queue.
    let mut command = hip.direct(&["opened", "work", "2", "2", "100"]);
    command.env("ROCPROFILER_REGISTER_LIBRARY", hip.env.library("libxsched.so"));
    let output = output_of(command.env("XSCHED_SCHEDULER", "GLB").env("XSCHED_AUTO_XQUEUE", "ON"));
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "round 0\nround 1\n", "{log}");
    let line = "HIP is scheduled at level 1: the 2 partitions at 0000:c1:00.0 cannot be told apart, and are one device";
    assert_eq!(log.lines().filter(|text| text.contains(line)).count(), 1, "{log}");
}

#[test]
fn stop_that_reaches_no_queue_is_reported_and_the_gate_holds_the_program() {
    // The driver's topology has another id for the GPU than the queues.
    let hip = HipEnvironment::new(TestEnvironment::with_service())
        .with_topology(&[(7777, ADDRESS)])
        .with("XLOG_LEVEL", "WARN");
    let low = ["--priority", "low", "--name", "low"];
    let mut command = hip.run(&low, &["linked", "work", "1000000", "6", "500"]);
    let log = hip.env.file("log", "");
    command.stderr(std::fs::File::create(&log).unwrap());
    let low = TestProgram::spawn(command);
    low.next_line();
    let high = ["--priority", "high", "--name", "high"];
    let _high = TestProgram::spawn(hip.run(&high, &["opened", "requests", "1000000", "4", "500", "5"]));
    let line =
        "device 0000:c1:00.0 is scheduled at level 1: its queues cannot be stopped: none of the queues";
    let lines = || std::fs::read_to_string(&log).unwrap().lines().filter(|text| text.contains(line)).count();
    wait_until("the failure is reported", || lines() == 1);
    assert!(stopped_queues(&hip, low.pid()).is_empty());
    let is_held =
        || hip.env.status().tasks.iter().any(|task| task.name == "low" && task.state == TaskState::Held);
    wait_until("the gate holds the program", is_held);
    low.lines.try_iter().for_each(drop);
    low.next_line();
    assert_eq!(lines(), 1, "reported once");
}

/// The driver has a process for each call of `open`, and rejects the queues of another one.
#[test]
fn queues_are_stopped_through_the_descriptor_that_created_them() {
    for refused in ["", "second"] {
        let hip = HipEnvironment::new(TestEnvironment::with_service())
            .with("KFD_STANDIN_PROCESSES", "descriptors")
            // As in a sandbox, where the file cannot be opened again.
            .with("KFD_STANDIN_REFUSE", refused);
        let (program, _) = start(&hip, "service", None, 0);
        assert_eq!(hip.env.request(&Request::Suspend(Target::Pid(program.pid()))), Reply::Done);
        wait_until("its queues are stopped", || stopped_queues(&hip, program.pid()).len() >= 3);
        assert!(!hip.driver_log().contains("good false"), "{}", hip.driver_log());
        assert_eq!(hip.env.status().queues[0].level, 3);
    }
}

/// The driver refuses to stop or to resume one of several queues.
#[test]
fn program_continues_after_the_driver_refused_to_stop_or_resume_one_of_its_queues() {
    for (refused, warning) in [
        ("resume 1", "device 0000:c1:00.0 has queues that are still stopped, and are resumed later"),
        (
            "stop 1",
            "device 0000:c1:00.0 is scheduled at level 1 in part: some of its queues cannot be stopped",
        ),
    ] {
        let hip = HipEnvironment::new(TestEnvironment::with_service())
            .with("KFD_STANDIN_REFUSE_ONCE", refused)
            .with("XLOG_LEVEL", "WARN");
        // A program that is suspended between two rounds has no work to stop: its rounds take 100 times as long as the time between.
        let mut command = hip.run(&[], &["linked", "work", "1000000", "6", "10000"]);
        let log = hip.env.file("log", "");
        command.stderr(std::fs::File::create(&log).unwrap());
        let program = TestProgram::spawn(command);
        program.next_line();
        for _ in 0..2 {
            let stopped = stopped_queues(&hip, program.pid()).len();
            assert_eq!(hip.env.request(&Request::Suspend(Target::Pid(program.pid()))), Reply::Done);
            wait_until("queues are stopped", || stopped_queues(&hip, program.pid()).len() >= stopped + 2);
            assert_eq!(hip.env.request(&Request::Resume(Target::Pid(program.pid()))), Reply::Done);
            program.lines.try_iter().for_each(drop);
            // Each round waits for all queues.
            (0..3).for_each(|_| drop(program.next_line()));
        }
        assert!(hip.driver_log().contains(" refused\n"), "{refused}: {}", hip.driver_log());
        let log = std::fs::read_to_string(log).unwrap();
        assert_eq!(log.lines().filter(|line| line.contains(warning)).count(), 1, "{refused}: {log}");
    }
}
