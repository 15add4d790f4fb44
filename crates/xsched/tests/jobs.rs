//! Jobs on two GPUs whose collectives wait for each other, on the stand-in for NVIDIA's driver and with a collectives library
//! that exports the names of NCCL and RCCL.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod cuda_machine;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
mod job_ranks;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use cuda_machine::CudaMachine;
use environment::{TestEnvironment, built_program, wait_until};
use job_ranks::{hold_with_competitors, tasks, wait_for_lines, wait_for_new_lines};
use test_program::TestProgram;
use xsched_ipc::protocol::{Event, EventKind, Reply, Request, Target, TaskState, TaskStatus};
use xsched_ipc::socket::Packet;

/// Rounds of a kernel of 0.3 ms and a collective.
const KERNEL_US: &str = "300";
const LEVELS: [&str; 3] = ["1", "2", "3"];
/// Rounds of four kernels of 0.5 ms, without an end.
const BATCH: [&str; 4] = ["load", "batch", "4", "500"];

/// The program, and the directory of the collectives library.
fn rank_program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let standin = format!("{}/../../standins/cuda", env!("CARGO_MANIFEST_DIR"));
        let (include, programs) = (format!("-I{standin}"), format!("-I{standin}/tests/programs"));
        let driver = cuda_machine::driver().display().to_string();
        let shared = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", &include, &driver];
        let library = built_program("nccl_standin", &shared);
        let rpath = format!("-Wl,-rpath,{}", library.parent().unwrap().display());
        let link = library.with_file_name("libnccl.so.2");
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(&library, &link).unwrap();
        let link = link.display().to_string();
        let options = [include.as_str(), &programs, &driver, &link, &rpath, "-ldl", "-lpthread"];
        built_program("nccl_rank", &options).display().to_string()
    })
}

/// Two GPUs and a directory for the files in which ranks meet.
struct Machine {
    cuda: CudaMachine,
    files: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        let cuda = CudaMachine::with_devices(TestEnvironment::with_service(), "2");
        Self { cuda, files: tempfile::tempdir().unwrap() }
    }

    fn command(&self, job: &str, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = self.cuda.run(options, &[&[rank_program()], arguments].concat());
        command.env("NCCL_STANDIN_FILE", self.files.path().join(job));
        command
    }

    /// The two ranks of a job, each on a GPU of its own.
    fn job(&self, job: &str, options: &[&str], rounds: &str) -> [TestProgram; 2] {
        ["0", "1"].map(|rank| TestProgram::spawn(self.command(job, options, &[rank, "2", rounds, KERNEL_US])))
    }

    /// A program without an end on one GPU.
    fn batch(&self, gpu: &str, options: &[&str]) -> TestProgram {
        let mut command = self.cuda.run(options, &BATCH);
        command.env("CUDA_VISIBLE_DEVICES", gpu);
        TestProgram::spawn(command)
    }

    fn tasks(&self, programs: &[&TestProgram]) -> Vec<TaskStatus> {
        tasks(&self.cuda.env, programs)
    }

    fn wait_for_state(&self, programs: &[&TestProgram], state: TaskState) {
        job_ranks::wait_for_state(&self.cuda.env, programs, state);
    }
}

fn finish(program: TestProgram) {
    let lines = program.remaining_lines();
    assert_eq!(lines.last().map(String::as_str), Some("done"), "{lines:?}");
}

#[test]
fn ranks_are_one_job_and_are_held_together_while_a_competitor_has_one_gpu() {
    for level in LEVELS {
        let machine = Machine::new();
        let ranks = machine.job("a", &["--level", level], "0");
        let batch =
            |gpu: &str, priority: &str| machine.batch(gpu, &["--priority", priority, "--level", level]);
        let [mut high, _low] = hold_with_competitors(&machine.cuda.env, &ranks, batch);
        high.kill();
        for rank in &ranks {
            wait_for_new_lines(rank, 40);
        }
    }
}

#[test]
fn two_jobs_of_equal_or_different_priority_finish() {
    for level in LEVELS {
        for priority in ["0", "10"] {
            let machine = Machine::new();
            let first = machine.job("a", &["--level", level], "120");
            let second = machine.job("b", &["--level", level, "--priority", priority], "120");
            first.into_iter().chain(second).for_each(finish);
        }
    }
}

#[test]
fn ranks_in_one_process_are_held_together() {
    let machine = Machine::new();
    let all = TestProgram::spawn(machine.command("a", &["--level", "1"], &["all", "2", "0", KERNEL_US]));
    wait_for_lines(&all, 8);
    let mut high = machine.batch("0", &["--priority", "high"]);
    wait_for_lines(&high, 4);
    machine.wait_for_state(&[&all], TaskState::Held);
    assert_eq!(machine.tasks(&[&all]).len(), 2, "a task on each GPU");
    high.kill();
    wait_for_new_lines(&all, 20);
}

#[test]
fn rank_that_dies_leaves_the_other_to_itself() {
    let machine = Machine::new();
    let [mut dies, stays] = machine.job("a", &[], "0");
    wait_for_lines(&stays, 8);
    let high = machine.batch("0", &["--priority", "high"]);
    wait_for_lines(&high, 4);
    machine.wait_for_state(&[&dies, &stays], TaskState::Held);
    dies.kill();
    // The competitor on the first GPU does not concern it any more.
    machine.wait_for_state(&[&stays], TaskState::Running);
}

#[test]
fn programs_with_the_same_job_name_are_held_together() {
    let machine = Machine::new();
    let first = machine.batch("0", &["--job", "training"]);
    let second = machine.batch("1", &["--job", "training"]);
    let other = machine.batch("1", &["--job", "other"]);
    for program in [&first, &second, &other] {
        wait_for_lines(program, 2);
    }
    let high = machine.batch("0", &["--priority", "high"]);
    wait_for_lines(&high, 2);
    machine.wait_for_state(&[&first, &second], TaskState::Held);
    wait_for_new_lines(&other, 10);
    let labels = machine.tasks(&[&first, &second]).into_iter().map(|task| task.job);
    assert!(labels.into_iter().all(|job| job.as_deref() == Some("training")));
}

#[test]
fn suspending_one_rank_holds_the_job() {
    let machine = Machine::new();
    let [first, second] = machine.job("a", &[], "0");
    wait_for_lines(&second, 8);
    assert_eq!(machine.cuda.env.request(&Request::Suspend(Target::Pid(first.pid()))), Reply::Done);
    machine.wait_for_state(&[&second], TaskState::Held);
    assert_eq!(machine.cuda.env.request(&Request::Resume(Target::Pid(first.pid()))), Reply::Done);
    wait_for_new_lines(&second, 20);
}

#[test]
fn trace_shows_the_job_and_that_its_ranks_are_held_and_resumed_together() {
    let machine = Machine::new();
    let trace = Tracer::start(&machine);
    let [first, second] = machine.job("a", &["--level", "1"], "0");
    wait_for_lines(&second, 8);
    let mut high = machine.batch("0", &["--priority", "high"]);
    wait_for_lines(&high, 4);
    machine.wait_for_state(&[&first, &second], TaskState::Held);
    high.kill();
    machine.wait_for_state(&[&first, &second], TaskState::Running);
    let pids = [first.pid(), second.pid()];
    wait_until("the trace shows both ranks held, then both running", || {
        let events = trace.events();
        let held = both_in(&events, pids, &EventKind::Held, 0);
        held.and_then(|held| both_in(&events, pids, &EventKind::Running, held)).is_some()
    });
    let events = trace.events();
    let job = |rank: &TestProgram| {
        let of_rank = events.iter().filter(|event| event.pid == rank.pid());
        let mut jobs = of_rank.filter_map(|event| match &event.kind {
            EventKind::JobChanged(job) => Some(job.clone()),
            _ => None,
        });
        jobs.next_back().unwrap()
    };
    assert!(job(&first).starts_with("comm-") && job(&first) == job(&second), "{}", job(&first));
}

/// The number of the first event from `start` on after which the last order of both processes is of this kind. The two orders
/// may stem from different decisions: a handover ends on each GPU for itself.
fn both_in(events: &[Event], pids: [u32; 2], kind: &EventKind, start: usize) -> Option<usize> {
    let mut is_in = [false; 2];
    events.iter().enumerate().find_map(|(index, event)| {
        if let Some(rank) = pids.iter().position(|&pid| pid == event.pid)
            && matches!(event.kind, EventKind::Held | EventKind::Running)
        {
            is_in[rank] = event.kind == *kind;
        }
        (index >= start && is_in == [true; 2]).then_some(index)
    })
}

/// Receives the events of the service on a thread, which ends with the connection.
struct Tracer {
    events: Arc<Mutex<Vec<Event>>>,
}

impl Tracer {
    fn start(machine: &Machine) -> Self {
        let connection = machine.cuda.env.connect();
        connection.send(&Request::Trace, None, true).unwrap();
        let events = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&events);
        std::thread::spawn(move || {
            while let Ok(Some(packet)) = connection.receive(true) {
                if let Packet::Message(Reply::Events { events, .. }, _) = packet {
                    received.lock().unwrap().extend(events);
                }
            }
        });
        Self { events }
    }

    fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}
