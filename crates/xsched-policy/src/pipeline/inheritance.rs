//! Inheritance of the right to run: a task that a running task waits for runs too.
//!
//! ```text
//!   high:  ── wait(event) ──            has work, so the policy runs it and holds the rest
//!   low:   ── ... record(event) ──      never gets that far, unless it inherits the right to run
//! ```
//!
//! What is inherited is the right to run, not a priority number, so the deadlock ends under every policy, whether it goes by
//! priority, deadline or share. Rights pass along chains and around circles.

use super::Dependency;
use crate::Grant;

/// The memory of this stage, kept for its allocations.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    runs: Vec<bool>,
    /// Tasks that run, and whose dependencies have not been looked at yet.
    pending: Vec<usize>,
}

impl Inheritance {
    /// Returns which tasks run: those that were granted it, and those that they wait for. Sorts the dependencies.
    pub(super) fn extend(&mut self, grants: &[Grant], dependencies: &mut [Dependency]) -> &[bool] {
        self.runs.clear();
        self.runs.extend(grants.iter().map(|grant| grant.runs()));
        dependencies.sort_unstable();
        self.pending.clear();
        let waiters = dependencies.chunk_by(|a, b| a.waiter == b.waiter).map(|edges| edges[0].waiter);
        self.pending.extend(waiters.filter(|&waiter| self.runs.get(waiter) == Some(&true)));
        while let Some(waiter) = self.pending.pop() {
            let begin = dependencies.partition_point(|edge| edge.waiter < waiter);
            for edge in dependencies[begin..].iter().take_while(|edge| edge.waiter == waiter) {
                // Each task is pushed at most once, so the work is bounded by the number of dependencies.
                if let Some(runs) = self.runs.get_mut(edge.holder).filter(|runs| !**runs) {
                    *runs = true;
                    self.pending.push(edge.holder);
                }
            }
        }
        &self.runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Grant::{Hold, Throttled, Unthrottled};

    fn runs(grants: &[Grant], edges: &[(usize, usize)]) -> Vec<bool> {
        let mut edges: Vec<_> = edges.iter().map(|&(waiter, holder)| Dependency { waiter, holder }).collect();
        Inheritance::default().extend(grants, &mut edges).to_vec()
    }

    #[test]
    fn right_to_run_passes_along_a_chain_and_around_a_circle() {
        let circle = [(2, 0), (0, 1), (1, 2)];
        assert_eq!(runs(&[Throttled, Hold, Hold, Hold], &circle), [true, true, true, false]);
        assert_eq!(runs(&[Hold, Hold, Hold, Unthrottled], &circle), [false, false, false, true]);
    }

    #[test]
    fn dependency_of_a_held_task_lets_no_task_run() {
        assert_eq!(runs(&[Hold, Hold, Throttled], &[(0, 1), (2, 2)]), [false, false, true]);
    }

    #[test]
    fn dependencies_outside_the_snapshot_are_ignored() {
        assert_eq!(runs(&[Throttled, Hold], &[(0, 99), (99, 1)]), [true, false]);
    }

    #[test]
    fn several_dependencies_of_one_task_all_count() {
        assert_eq!(
            runs(&[Throttled, Hold, Hold, Hold], &[(0, 3), (0, 1), (3, 0)]),
            [true, true, false, true]
        );
    }
}
