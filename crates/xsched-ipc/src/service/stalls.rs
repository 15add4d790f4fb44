//! Has the processes checked that make no progress while other tasks are held for them.

use xsched_core::Nanos;

use super::Service;
use crate::coordinator::{ClientId, STALL_CHECK_INTERVAL};

impl Service {
    /// After a decision: has programs checked if one may be stalled.
    pub(super) fn schedule_stall_check(&mut self, now: Nanos) {
        if self.stall_check_due.is_none() && self.coordinator.needs_stall_checks() {
            self.stall_check_due = Some(now + STALL_CHECK_INTERVAL);
        }
    }

    /// Has the suspects read on another thread, unless that thread still reads those of the last check.
    pub(super) fn check_stalls(&mut self, now: Nanos) {
        self.stall_check_due = None;
        if !self.thread_states.is_pending() {
            let mut suspects = Vec::new();
            self.coordinator.stall_suspects(&mut suspects);
            let is_suspect = |client: ClientId| suspects.binary_search(&client).is_ok();
            let sessions = self.sessions.iter().filter_map(|session| Some((session, session.process()?)));
            let of_suspects = sessions.filter(|(_, process)| is_suspect(process.client));
            let mut processes: Vec<_> =
                of_suspects.map(|(session, _)| (session.peer.uid, session.peer.pid)).collect();
            // A process that has joined several times is read once.
            processes.sort_unstable();
            processes.dedup();
            self.thread_states.request(suspects, &processes);
        }
        self.schedule_stall_check(now);
    }

    /// The thread has read the suspects of the last check, or some of them.
    pub(super) fn store_thread_states(&mut self) {
        let Some((suspects, mut states)) = self.thread_states.take_results() else { return };
        states.sort_unstable();
        let state_of = |pid: u32| {
            let place = states.binary_search_by_key(&pid, |(pid, _)| *pid).ok()?;
            Some(states[place].1)
        };
        let mut found = Vec::new();
        for session in self.sessions.iter() {
            if let Some(process) = session.process()
                && suspects.binary_search(&process.client).is_ok()
                && let Some(is_stopped) = state_of(session.peer.pid)
            {
                found.push((process.client, is_stopped));
            }
        }
        for (client, is_stopped) in found {
            self.is_decision_due |= self.coordinator.set_stopped(client, is_stopped);
        }
    }
}
