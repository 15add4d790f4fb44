//! Ranks of a job on two GPUs, and programs that compete with them.

use std::collections::BTreeSet;

use xsched_ipc::protocol::{TaskState, TaskStatus};

use crate::environment::{TestEnvironment, wait_until};
use crate::test_program::TestProgram;

/// The tasks of these programs.
pub(crate) fn tasks(env: &TestEnvironment, programs: &[&TestProgram]) -> Vec<TaskStatus> {
    let mut tasks = env.status().tasks;
    tasks.retain(|task| programs.iter().any(|program| program.pid() == task.pid));
    tasks
}

/// Waits until all tasks of the programs have this state at the same time.
pub(crate) fn wait_for_state(env: &TestEnvironment, programs: &[&TestProgram], state: TaskState) {
    wait_until(&format!("all are {state:?}"), || {
        let tasks = tasks(env, programs);
        tasks.len() >= programs.len() && tasks.iter().all(|task| task.state == state)
    });
}

/// Waits until a program has printed so many lines that were not read yet.
pub(crate) fn wait_for_lines(program: &TestProgram, count: usize) {
    for _ in 0..count {
        program.next_line();
    }
}

/// Waits until a program has printed so many lines from now on.
pub(crate) fn wait_for_new_lines(program: &TestProgram, count: usize) {
    program.lines.try_iter().for_each(drop);
    wait_for_lines(program, count);
}

/// Starts a program of high priority on the GPU of the first rank and one of low priority on that of the second: both ranks are
/// held, and the second GPU runs the program of low priority. Returns the program of high priority and the one of low priority.
/// `batch` starts a program that always has work, on a GPU and with a priority.
pub(crate) fn hold_with_competitors(
    env: &TestEnvironment,
    ranks: &[TestProgram; 2],
    batch: impl Fn(&str, &str) -> TestProgram,
) -> [TestProgram; 2] {
    for rank in ranks {
        wait_for_lines(rank, 8);
    }
    let low = batch("1", "low");
    let high = batch("0", "high");
    wait_for_lines(&high, 4);
    let ranks = [&ranks[0], &ranks[1]];
    let jobs: BTreeSet<_> = tasks(env, &ranks).into_iter().map(|task| task.job).collect();
    assert!(jobs.len() == 1 && jobs.iter().all(Option::is_some), "one job: {jobs:?}");
    wait_for_state(env, &ranks, TaskState::Held);
    // The second GPU is not left to a rank that waits for the other: rounds of 2 ms complete there.
    wait_for_new_lines(&low, 50);
    [high, low]
}
