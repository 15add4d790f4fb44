//! Ranks on two AMD GPUs, with a collectives library that is opened and looked up: on the stand-in for AMD's runtime, without
//! collectives, and on AMD's real runtime over the stand-in for `ROCr`, with collectives that wait for each other.

#[allow(dead_code, reason = "other tests use the rest of this module")]
mod environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod hip_environment;
mod job_ranks;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod ledger;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod rocm_environment;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod skipped;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod test_program;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use environment::{TestEnvironment, built_program, wait_until};
use hip_environment::{HipEnvironment, hip_build, stdout_of};
use job_ranks::{hold_with_competitors, tasks, wait_for_new_lines, wait_for_state};
use ledger::{Ledger, Packet};
use rocm_environment::{Rocm, with_level};
use test_program::TestProgram;
use xsched_ipc::protocol::TaskState;

/// Builds the program and the library. Returns their paths.
fn program_and_library() -> &'static [String; 2] {
    static BUILT: OnceLock<[String; 2]> = OnceLock::new();
    BUILT.get_or_init(build)
}

fn build() -> [String; 2] {
    let runtime = hip_build().runtime.join("libamdhip64.so.6").display().to_string();
    let library = built_program("rccl_standin", &["-shared", "-fPIC", "-Wl,-soname,librccl.so.1"]);
    let program = built_program("rccl_rank", &[&runtime, "-ldl"]);
    [program, library].map(|path| path.display().to_string())
}

/// The program that uses two copies of the library; the copies; and two libraries, each linked to one of them.
struct Copies {
    program: String,
    libraries: [String; 2],
    consumers: [String; 2],
}

fn copies() -> &'static Copies {
    static BUILT: OnceLock<Copies> = OnceLock::new();
    BUILT.get_or_init(|| {
        // Under a name of its own: the same file is not loaded twice. Other tests use the original.
        let copy = |path: PathBuf, name: &str| {
            let (draft, to) =
                (path.with_file_name(format!("{name}.{}", std::process::id())), path.with_file_name(name));
            std::fs::copy(path, &draft).unwrap();
            std::fs::rename(draft, &to).unwrap();
            to.display().to_string()
        };
        program_and_library();
        let libraries = ["librccl-a.so", "librccl-b.so"].map(|name| {
            let soname = format!("-Wl,-soname,{name}");
            copy(built_program("rccl_standin", &["-shared", "-fPIC", &soname]), name)
        });
        let consumer = |library: &str, name: &str| {
            let options = ["-DCONSUMER", "-shared", "-fPIC", library];
            copy(built_program("rccl_copies", &options), name)
        };
        let consumers =
            [consumer(&libraries[0], "libconsumer-a.so"), consumer(&libraries[1], "libconsumer-b.so")];
        let program = built_program("rccl_copies", &["-ldl"]).display().to_string();
        Copies { program, libraries, consumers }
    })
}

/// Ranks with files in which their communicators meet.
struct Ranks {
    machine: HipEnvironment,
    files: tempfile::TempDir,
}

impl Ranks {
    fn new() -> Self {
        let env = TestEnvironment::with_service();
        let machine = HipEnvironment::new(env).with("HIP_STANDIN_DEVICES", "2");
        Self { machine, files: tempfile::tempdir().unwrap() }
    }

    fn spawn(&self, file: &str, options: &[&str], rank: &str, more: &[&str]) -> TestProgram {
        let [program, library] = program_and_library();
        let words = [&[program.as_str(), library, rank, "300"], more].concat();
        let mut command = self.machine.run(options, &words);
        command.env("NCCL_STANDIN_FILE", self.files.path().join(file));
        let rank = TestProgram::spawn(command);
        rank.next_line();
        rank
    }

    fn job(&self, program: &TestProgram) -> Option<String> {
        tasks(&self.machine.env, &[program])[0].job.clone()
    }
}

#[test]
fn ranks_of_a_communicator_are_held_together() {
    let ranks = Ranks::new();
    let (first, second) = (ranks.spawn("a", &[], "0", &[]), ranks.spawn("a", &[], "1", &[]));
    // A communicator of other ranks is another job.
    let mut high = ranks.spawn("b", &["--priority", "high"], "0", &[]);
    wait_for_state(&ranks.machine.env, &[&first, &second], TaskState::Held);
    let job = ranks.job(&first);
    assert!(job.as_ref().is_some_and(|label| label.starts_with("comm-")), "{job:?}");
    assert_eq!(job, ranks.job(&second));
    assert_ne!(job, ranks.job(&high));
    high.kill();
    wait_for_new_lines(&second, 20);
}

#[test]
fn rank_that_destroyed_its_communicator_is_scheduled_by_itself() {
    let ranks = Ranks::new();
    let (first, second) = (ranks.spawn("a", &[], "0", &["1"]), ranks.spawn("a", &[], "1", &["1"]));
    wait_until("no rank has a job", || ranks.job(&first).is_none() && ranks.job(&second).is_none());
    let _high = ranks.spawn("b", &["--priority", "high"], "0", &[]);
    wait_for_state(&ranks.machine.env, &[&first], TaskState::Held);
    wait_for_new_lines(&second, 20);
}

/// The kernels of a rank whose names contain `name`, in the order of the stream.
fn kernels<'a>(ledger: &'a Ledger, name: &str) -> Vec<&'a Packet> {
    let mut kernels: Vec<_> = ledger.kernels().filter(|packet| packet.kernel.contains(name)).collect();
    kernels.sort_by_key(|packet| packet.id.position);
    kernels
}

/// Every round ran once and in its order on its own GPU, and no rank left a collective before the other one had begun it.
fn assert_all_rounds_ran(ledger: &Path, pids: [u32; 2], rounds: u64) {
    let mut ledgers = ledger::read_all(&std::fs::read_to_string(ledger).unwrap()).unwrap();
    let ledgers = pids.map(|pid| ledgers.remove(&pid).expect("the rank has a ledger"));
    for (agent, ledger) in (0..).zip(&ledgers) {
        ledger.check().unwrap_or_else(|error| panic!("rank {agent}: {error}"));
        assert!(ledger.kernels().all(|packet| packet.agent == agent), "rank {agent} uses its own GPU");
        let labels = kernels(ledger, "spin").into_iter().map(|packet| packet.label);
        assert!(labels.eq((1..=rounds).map(Some)), "rank {agent} ran each round once");
    }
    let [first, second] = [0, 1].map(|rank| kernels(&ledgers[rank], "meet"));
    assert_eq!([first.len() as u64, second.len() as u64], [rounds; 2], "collectives");
    for (round, (first, second)) in (1..).zip(first.into_iter().zip(second)) {
        let is_met = first.end >= second.start && second.end >= first.start;
        assert!(is_met, "round {round}: {first:?} and {second:?}");
    }
}

/// Two ranks on two GPUs are held together while a program of higher priority has one GPU. Then both resume and complete all
/// their collectives.
fn assert_held_together(level: u8) {
    /// More than the ranks run while they are held.
    const MORE_ROUNDS: u64 = 400;
    let Some((rocm, options)) = with_level(Rocm::V6, level) else { return };
    let rocm = rocm.with("ROCR_STANDIN_DEVICES", "2");
    let Some(library) = rocm.compile_library("../rocr/rccl_standin.hip") else { return };
    let Some(program) = rocm.compile("../rocr/rank.hip") else { return };
    let Some(competitor) = rocm.compile("rocr_features.hip") else { return };
    let file = rocm.directory().join("collectives");
    let mut ranks = ["0", "1"].map(|rank| {
        let mut command = rocm.run(&options, &[&program, &library, rank, "2", "0", "300"]);
        command.env("NCCL_STANDIN_FILE", &file);
        TestProgram::spawn(command)
    });
    let batch = |gpu: &str, priority: &str| {
        let options = [&["--priority", priority], &options[..]].concat();
        let mut command = rocm.run(&options, &[&competitor, "work", "4", "500", "1"]);
        // A killed program may leave an incomplete line in its ledger.
        let ledger = rocm.directory().join("ledger of competitors");
        command.env("HIP_VISIBLE_DEVICES", gpu).env("ROCR_STANDIN_LEDGER", ledger);
        TestProgram::spawn(command)
    };
    let [mut high, _low] = hold_with_competitors(&rocm.env, &ranks, batch);
    let levels: Vec<_> = rocm.env.status().queues.iter().map(|queue| queue.level).collect();
    assert!(levels.iter().all(|found| *found == level), "{levels:?}, not {level}");
    let pids = [ranks[0].pid(), ranks[1].pid()];
    let stopped_ranks = || {
        let log = rocm.driver_log();
        let is_stopped = |pid: &&u32| {
            let process = format!("{pid} ");
            log.lines().any(|line| line.starts_with(&process) && line.contains(" share 0 "))
        };
        pids.iter().filter(is_stopped).count()
    };
    if level == 3 {
        wait_until("the driver has stopped queues of both ranks", || stopped_ranks() == 2);
    } else {
        assert_eq!(stopped_ranks(), 0, "level {level} stops no queue in the driver");
    }
    // Both ranks read it before they reach that round, because they are held.
    let printed = ranks[0].lines.try_iter().last().map_or(0, |round| round.parse().unwrap());
    let rounds: u64 = printed + MORE_ROUNDS;
    for rank in &mut ranks {
        writeln!(rank.child.stdin.as_mut().unwrap(), "{rounds}").unwrap();
    }
    high.kill();
    for rank in ranks {
        let lines = rank.remaining_lines();
        assert_eq!(lines.last().map(String::as_str), Some("done"), "{lines:?}");
    }
    assert_all_rounds_ran(&rocm.ledger(), pids, rounds);
    let words = std::fs::read(&file).unwrap();
    let arrived = words.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let expected = (0..).map(|n: u64| if n < rounds { 2 } else { 0 });
    assert!(arrived.zip(expected).all(|(arrived, expected)| arrived == expected), "each rank arrived once");
}

#[test]
fn collectives_of_a_job_are_held_and_complete_at_level_1() {
    assert_held_together(1);
}

#[test]
fn collectives_of_a_job_are_held_and_complete_at_level_2() {
    assert_held_together(2);
}

#[test]
fn collectives_of_a_job_are_held_and_complete_at_level_3() {
    assert_held_together(3);
}

#[test]
fn two_copies_of_the_library_in_one_process_are_not_mixed() {
    let Copies { program, libraries: [first, second], consumers: [by_first, by_second] } = copies();
    let ranks = Ranks::new();
    let words = [program.as_str(), first, second, by_first, by_second];
    for mut command in [ranks.machine.direct(&words), ranks.machine.run(&[], &words)] {
        command.env("NCCL_STANDIN_FILE", ranks.files.path().join("a"));
        assert_eq!(stdout_of(command), "16 communicators\n");
    }
}

#[test]
fn communicators_of_the_second_copy_of_the_library_are_jobs() {
    let mut ranks = Ranks::new();
    ranks.machine = ranks.machine.with("OTHER_LIBRARY", &copies().libraries[0]);
    let rank = ranks.spawn("a", &[], "0", &[]);
    let job = ranks.job(&rank);
    assert!(job.as_ref().is_some_and(|label| label.starts_with("comm-")), "{job:?}");
}
