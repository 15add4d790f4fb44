//! `xsched run --swap`, `xsched park` and `xsched unpark` with CUDA programs on a machine without a GPU.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::{Command, Output};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, wait_until};
use test_program::TestProgram;
use xsched_ipc::protocol::{ParkingStatus, Reply, Request, Target, TaskState};

/// The memory of the simulated GPU.
const DEVICE_MIB: &str = "512";

/// The ways to find the driver's functions.
const PROGRAMS: [&str; 3] = ["swap", "swap-dlsym", "swap-look-up"];

fn machine() -> CudaMachine {
    CudaMachine::new(TestEnvironment::with_service())
}

fn with_memory(mut command: Command) -> Command {
    command.env("XSCHED_STANDIN_CUDA_MEMORY_MIB", DEVICE_MIB);
    command
}

fn plain(machine: &CudaMachine, program: &[&str]) -> Vec<String> {
    TestProgram::spawn(with_memory(machine.direct(program))).remaining_lines()
}

fn swappable(machine: &CudaMachine, program: &[&str]) -> TestProgram {
    TestProgram::spawn(with_memory(machine.run(&["--swap"], program)))
}

fn xsched(machine: &CudaMachine, arguments: &[&str]) -> Output {
    let command = [&[env!("CARGO_BIN_EXE_xsched")], arguments].concat();
    machine.env.direct(&command).output().unwrap()
}

/// Sends a request about the memory of a program. None if the program is gone.
fn parking(machine: &CudaMachine, request: &Request) -> Option<ParkingStatus> {
    match machine.env.request(request) {
        Reply::Parking(processes) => processes.into_iter().next(),
        _ => None,
    }
}

/// Has a program move its memory, and waits until it has or the program is gone.
fn order(machine: &CudaMachine, pid: u32, parks: bool) -> Option<ParkingStatus> {
    let target = Target::Pid(pid);
    let request = if parks { Request::Park(target.clone()) } else { Request::Unpark(target.clone()) };
    let mut now = parking(machine, &request);
    wait_until("the order is carried out", || {
        if now.as_ref().is_some_and(|status| !status.is_settled) {
            now = parking(machine, &Request::Parking(target.clone()));
        }
        now.as_ref().is_none_or(|status| status.is_settled)
    });
    now
}

/// How many MiB another program can allocate.
fn free_mib(machine: &CudaMachine) -> u64 {
    let command = with_memory(machine.direct(&["memory", "limit"]));
    TestProgram::spawn(command).remaining_lines()[0].parse().unwrap()
}

#[test]
fn answers_about_addresses_are_those_of_plain_memory() {
    let machine = machine();
    for program in PROGRAMS {
        let expected = plain(&machine, &[program, "queries"]);
        assert_eq!(swappable(&machine, &[program, "queries"]).remaining_lines(), expected, "{program}");
    }
}

#[test]
fn program_that_is_parked_again_and_again_has_the_results_of_plain_memory() {
    let machine = machine();
    let mut moves = 0;
    for (program, seed) in [("swap", "1"), ("swap-dlsym", "2"), ("swap-look-up", "3")] {
        let words = [program, "random", seed, "100"];
        let expected = plain(&machine, &words);
        let running = swappable(&machine, &words);
        let pid = running.pid();
        let lines = std::thread::scope(|threads| {
            let lines = threads.spawn(|| running.remaining_lines());
            while !lines.is_finished() {
                let parked = order(&machine, pid, true).is_some_and(|status| status.moved_bytes > 0);
                order(&machine, pid, false);
                moves += u32::from(parked);
            }
            lines.join().unwrap()
        });
        assert_eq!(lines, expected, "{words:?}");
    }
    assert!(moves >= 3, "the programs were parked only {moves} times");
    assert_eq!(free_mib(&machine), 512);
}

#[test]
fn parked_program_gives_its_memory_to_others_and_has_its_data_when_it_is_back() {
    let machine = machine();
    let mut running = swappable(&machine, &["swap", "wait", "300"]);
    assert_eq!(running.next_line(), "ready");
    let pid = running.pid().to_string();
    assert_eq!(free_mib(&machine), 212);
    let parked = xsched(&machine, &["park", &pid]);
    let text = String::from_utf8_lossy(&parked.stdout);
    assert_eq!(text, format!("{pid}: parked, 300M in memory of the host\n"), "{parked:?}");
    assert_eq!(free_mib(&machine), 512);
    let task = || machine.env.status().tasks.swap_remove(0);
    assert_eq!(task().state, TaskState::Parked);
    let listed = xsched(&machine, &["ps"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("parked") && listed.contains("300M (300M out)"), "{listed}");
    // It is held at its first copy.
    running.send_newline();
    wait_until("a thread of the program is held", || {
        machine.env.status().tasks[0].parking.as_ref().is_some_and(|parking| parking.held_threads > 0)
    });
    let back = xsched(&machine, &["unpark", &pid]);
    assert!(back.status.success(), "{back:?}");
    assert_eq!(running.remaining_lines(), ["done"]);
}

#[test]
fn program_stays_parked_while_the_device_is_full_and_resumes_when_there_is_room() {
    let machine = machine();
    let mut first = swappable(&machine, &["swap", "wait", "300"]);
    assert_eq!(first.next_line(), "ready");
    let pid = first.pid();
    order(&machine, pid, true);
    let mut second = swappable(&machine, &["swap", "wait", "300"]);
    assert_eq!(second.next_line(), "ready");
    let refused = xsched(&machine, &["unpark", &pid.to_string()]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("still parked: the device has too little free memory"), "{error}");
    first.send_newline();
    second.send_newline();
    assert_eq!(second.remaining_lines(), ["done"]);
    assert_eq!(first.remaining_lines(), ["done"]);
}

#[test]
fn parked_program_runs_when_its_service_is_killed() {
    let mut machine = machine();
    let mut running = swappable(&machine, &["swap", "wait", "200"]);
    assert_eq!(running.next_line(), "ready");
    assert!(order(&machine, running.pid(), true).is_some_and(|status| status.moved_bytes == 200 << 20));
    running.send_newline();
    machine.env.kill_service();
    assert_eq!(running.remaining_lines(), ["done"]);
}

#[test]
fn killed_program_leaves_no_memory_behind_wherever_it_is() {
    let machine = machine();
    for steps in 0..4 {
        let mut running = swappable(&machine, &["swap", "rounds", "200", "100000"]);
        assert_eq!(running.next_line(), "ready");
        let target = Target::Pid(running.pid());
        parking(&machine, &Request::Park(target.clone()));
        if steps % 2 == 1 {
            order(&machine, running.pid(), true);
            parking(&machine, &Request::Unpark(target.clone()));
        }
        // Killed while it drains, moves or has moved: wherever it is after so many requests.
        for _ in 0..steps * 10 {
            parking(&machine, &Request::Parking(target.clone()));
        }
        running.kill();
        assert_eq!(free_mib(&machine), 512, "after {steps}");
    }
}

#[test]
fn held_and_suspended_programs_complete_their_work_and_are_parked() {
    let machine = machine();
    let running = swappable(&machine, &["swap", "rounds", "20", "200"]);
    assert_eq!(running.next_line(), "ready");
    let pid = running.pid();
    assert_eq!(machine.env.request(&Request::Suspend(Target::Pid(pid))), Reply::Done);
    let status = order(&machine, pid, true).unwrap();
    assert_eq!((status.failure, status.moved_bytes), (None, 20 << 20));
    order(&machine, pid, false);
    assert_eq!(machine.env.request(&Request::Resume(Target::Pid(pid))), Reply::Done);
    assert_eq!(running.remaining_lines(), ["done"]);
}

#[test]
fn requests_that_cannot_be_carried_out_are_one_clear_line() {
    let machine = machine();
    let error_of = |arguments: &[&str]| {
        let output = xsched(&machine, arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let mut usual = TestProgram::spawn(with_memory(machine.run(&[], &["swap", "wait", "4"])));
    let mut running = swappable(&machine, &["swap", "wait", "4"]);
    assert_eq!([usual.next_line(), running.next_line()], ["ready", "ready"]);
    let (without, with) = (usual.pid().to_string(), running.pid().to_string());
    let error = error_of(&["park", &without]);
    assert!(error.contains("it was not started with `xsched run --swap`"), "{error}");
    for pid in [&without, &with] {
        let error = error_of(&["unpark", pid]);
        assert!(error.contains(&format!("process {pid} is not parked")), "{error}");
    }
    assert!(error_of(&["park", "1"]).contains("no process with pid 1"));
    for limit in ["20X", "0", "-5G"] {
        let output = machine.env.run(&["--swap", "--swap-limit", limit], &["true"]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), error.contains("--swap-limit")), (Some(125), true), "{error}");
    }
    usual.send_newline();
    running.send_newline();
    assert_eq!([usual.remaining_lines(), running.remaining_lines()], [["done"], ["done"]]);
}

#[test]
fn program_stays_on_the_device_if_the_host_may_not_hold_its_memory() {
    let machine = machine();
    let mut command = with_memory(machine.run(&["--swap", "--swap-limit", "64M"], &["swap", "wait", "200"]));
    command.env("XLOG_LEVEL", "");
    let mut running = TestProgram::spawn(command);
    assert_eq!(running.next_line(), "ready");
    let refused = xsched(&machine, &["park", &running.pid().to_string()]);
    let error = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(error.contains("was not parked: the host has too little memory"), "{error}");
    running.send_newline();
    assert_eq!(running.remaining_lines(), ["done"]);
}
