//! What policies and the pipeline remember: one row per task (or process), aligned with the snapshot.
//!
//! ```text
//!   ledger    1  3  4  7           rows and snapshot are both in ascending order,
//!   snapshot  1     4  7  9        so one pass over the two keeps 1 4 7, drops 3 and adds 9
//! ```
//!
//! Usually no task came or went and the pass is one comparison of two lists. Memory is kept between calls, so that decisions
//! allocate only while the number of tasks grows.

use std::mem;

use xsched_core::{Nanos, TaskId};

use crate::TaskView;

/// One `T` per key, in the order of the keys last aligned with.
#[derive(Debug)]
pub(crate) struct Ledger<K, T> {
    keys: Vec<K>,
    rows: Vec<T>,
    // The previous keys and rows during an alignment; empty between calls.
    old_keys: Vec<K>,
    old_rows: Vec<T>,
}

impl<K, T> Default for Ledger<K, T> {
    fn default() -> Self {
        Self { keys: Vec::new(), rows: Vec::new(), old_keys: Vec::new(), old_rows: Vec::new() }
    }
}

impl<K: Copy + Ord, T: Copy> Ledger<K, T> {
    /// Makes the rows those of `keys`, which ascend: adds missing ones as `fresh`, drops rows of other keys.
    pub(crate) fn align<I>(&mut self, keys: I, fresh: T) -> &mut [T]
    where
        I: ExactSizeIterator<Item = K> + Clone,
    {
        debug_assert!(keys.clone().is_sorted(), "a ledger is aligned with keys in ascending order");
        if self.is_aligned_with(keys.clone()) {
            return &mut self.rows;
        }
        mem::swap(&mut self.keys, &mut self.old_keys);
        mem::swap(&mut self.rows, &mut self.old_rows);
        let mut old = self.old_keys.drain(..).zip(self.old_rows.drain(..)).peekable();
        for key in keys {
            while old.next_if(|&(known, _)| known < key).is_some() {}
            let kept = old.next_if(|&(known, _)| known == key);
            self.keys.push(key);
            self.rows.push(kept.map_or(fresh, |(_, row)| row));
        }
        drop(old);
        &mut self.rows
    }

    /// Whether the rows are those of `keys` already.
    pub(crate) fn is_aligned_with(&self, keys: impl ExactSizeIterator<Item = K>) -> bool {
        keys.len() == self.keys.len() && keys.eq(self.keys.iter().copied())
    }

    /// The row at `index`, in the order of the keys.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.rows.get(index)
    }

    /// The rows as last aligned.
    pub(crate) fn rows(&mut self) -> &mut [T] {
        &mut self.rows
    }

    /// How many rows there are.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }
}

/// Measures how much device time each task had since the last reading.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    last: Ledger<TaskId, Option<Nanos>>,
}

impl Meter {
    /// What each task consumed, in the order of `tasks`. Zero for tasks seen for the first time: what they had before was
    /// granted by another policy.
    pub(crate) fn read<'a>(&'a mut self, tasks: &'a [TaskView]) -> impl Iterator<Item = Nanos> + 'a {
        let last = self.last.align(tasks.iter().map(|task| task.id), None);
        last.iter_mut().zip(tasks).map(|(last, task)| {
            let consumed = last.map_or(Nanos::ZERO, |last| task.used - last);
            *last = Some(last.map_or(task.used, |last| last.max(task.used)));
            consumed
        })
    }

    /// How many tasks it remembers.
    pub(crate) fn len(&self) -> usize {
        self.last.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn align(ledger: &mut Ledger<u32, char>, keys: &[u32]) -> String {
        ledger.align(keys.iter().copied(), '-').iter().collect()
    }

    #[test]
    fn rows_follow_their_keys_when_tasks_come_and_go() {
        let mut ledger = Ledger::default();
        assert_eq!(align(&mut ledger, &[1, 3, 4, 7]), "----");
        ledger.align([1, 3, 4, 7].into_iter(), '-').copy_from_slice(&['a', 'b', 'c', 'd']);
        assert_eq!(align(&mut ledger, &[1, 3, 4, 7]), "abcd");
        assert_eq!(align(&mut ledger, &[0, 1, 4, 5, 7, 9]), "-ac-d-");
        assert_eq!(ledger.len(), 6);
    }

    #[test]
    fn missing_rows_are_forgotten_even_if_their_keys_return() {
        let mut ledger = Ledger::default();
        ledger.align([1, 2].into_iter(), 'x');
        assert_eq!(align(&mut ledger, &[]), "");
        assert_eq!(ledger.len(), 0);
        assert_eq!(align(&mut ledger, &[1, 2]), "--");
    }

    #[test]
    fn tasks_that_come_and_go_need_no_new_memory() {
        let mut ledger = Ledger::default();
        for round in 0..4 {
            ledger.align((round..round + 100).collect::<Vec<u32>>().into_iter(), ' ');
        }
        let before = (ledger.keys.capacity(), ledger.rows.capacity());
        for round in 4..100 {
            ledger.align((round..round + 100).collect::<Vec<u32>>().into_iter(), ' ');
        }
        assert_eq!((ledger.keys.capacity(), ledger.rows.capacity()), before);
    }

    #[test]
    fn meter_returns_differences_and_starts_at_zero() {
        let task = |id, used| TaskView { id: TaskId(id), used: Nanos(used), ..TaskView::default() };
        let mut meter = Meter::default();
        let mut read = |tasks: &[TaskView]| meter.read(tasks).map(|n| n.0).collect::<Vec<_>>();
        assert_eq!(read(&[task(1, 100), task(2, 5)]), [0, 0]);
        assert_eq!(read(&[task(1, 130), task(3, 50)]), [30, 0]);
        assert_eq!(read(&[task(1, 120), task(3, 57)]), [0, 7], "a decreasing count is no consumption");
        assert_eq!(
            read(&[task(1, 135), task(3, 57)]),
            [5, 0],
            "and is not counted twice when it increases again"
        );
    }
}
