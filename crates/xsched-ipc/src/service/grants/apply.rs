//! Applies a change of the grants to the processes that have joined.

use std::collections::HashMap;
use std::sync::Arc;

use xsched_core::{Hints, Nanos, ProcessId};

use super::super::Service;
use super::super::peer::Peer;
use super::super::permissions::Limit;
use super::super::session::{JoinedProcess, Role, Session};
use super::{Confinement, Entry};
use crate::coordinator::{ClientId, ProgramGrant};
use crate::protocol::HintRequest;

impl Service {
    /// The limit of a process with this grant, for a request of `peer`; and where it is from.
    pub(in super::super) fn limit_with(&self, peer: Peer, grant: Option<&Entry>) -> (Limit, String) {
        let own = self.limit(peer);
        match grant {
            Some(entry) if !self.is_administrator(peer) => {
                let limit = entry.limit(own);
                let description = format!(
                    "grant {} allows at most priority {} and share {} %; an administrator can raise it with `xsched grant`",
                    entry.name,
                    limit.priority,
                    limit.share.percent()
                );
                (limit, description)
            }
            _ => (own, own.description(peer)),
        }
    }

    /// The hints of a process that would have `base` without grant and request. Also returns a message if some were clamped.
    pub(in super::super) fn granted_hints(
        &self,
        peer: Peer,
        base: Hints,
        hint_request: &HintRequest,
        grant: Option<&Entry>,
    ) -> Result<(Hints, Option<String>), String> {
        let (limit, description) = self.limit_with(peer, grant);
        let initial = grant.map_or(base, |entry| entry.hints(base));
        let requested = hint_request.applied_to(initial).map_err(|error| error.to_string())?;
        let (granted, clamped) = limit.or_current(initial).clamp(requested, "was granted");
        Ok((granted, clamped.map(|clamped| format!("{clamped}: {description}"))))
    }

    /// Finds the grant of each affected process again. The orders that follow are due.
    pub(super) fn reassign(&mut self, is_affected: impl Fn(&JoinedProcess) -> bool, now: Nanos) {
        let affected: Vec<usize> = self
            .sessions
            .enumerate()
            .filter(|(_, session)| session.process().is_some_and(&is_affected))
            .map(|(index, _)| index)
            .collect();
        let mut limits = HashMap::new();
        for index in affected {
            limits.extend(self.assign(index, now));
        }
        self.clamp_queues(&limits, now);
    }

    /// Gives a joined process the grant that it has now, or none. Returns the limit of its queues.
    pub(in super::super) fn assign(&mut self, index: usize, now: Nanos) -> Option<(ClientId, Limit)> {
        let Some(Session { peer, role: Role::Process(process), .. }) = self.sessions.get(index) else {
            return None;
        };
        let entry = self.grant_of(peer.uid, process.token, &process.groups);
        let confinement = match entry {
            Some(entry) => Confinement::Grant(entry.id),
            // Whatever confined the process before still does.
            None => peer.confinement,
        };
        let peer = Peer { confinement, ..*peer };
        let (client, pid) = (process.client, ProcessId(process.pid));
        let current = self.coordinator.hints(client).unwrap_or_default();
        // The request was valid when it was made.
        let (hints, _) =
            self.granted_hints(peer, process.base, &process.hint_request, entry).unwrap_or((current, None));
        let limit = self.limit_with(peer, entry).0.or_current(hints);
        let grant = entry.map(|entry| entry.id);
        let is_suspended = entry.is_some_and(|entry| entry.is_suspended);
        let program_grant = entry.map_or_else(ProgramGrant::default, |entry| ProgramGrant {
            number: entry.id.0,
            name: Some(Arc::clone(&entry.name)),
            is_job: entry.grant.is_job,
        });
        self.coordinator.set_hints(client, hints);
        self.coordinator.set_grant(client, program_grant, now);
        self.coordinator.set_suspended_with_grant(pid, is_suspended);
        if let Some(session) = self.sessions.get_mut(index) {
            session.peer = peer;
            if let Role::Process(process) = &mut session.role {
                process.grant = grant;
            }
        }
        self.limit_memory_by_grant(index);
        self.is_decision_due = true;
        Some((client, limit))
    }

    /// Clamps the hints of queues that have hints of their own to the limits of their processes.
    fn clamp_queues(&mut self, limits: &HashMap<ClientId, Limit>, now: Nanos) {
        if limits.is_empty() {
            return;
        }
        let queues: Vec<_> = self
            .coordinator
            .report_queues()
            .filter_map(|queue| Some((queue.client, queue.slot, *limits.get(&queue.client)?)))
            .collect();
        for (client, slot, limit) in queues {
            let Some(hints) = self.coordinator.queue_hints(client, slot) else { continue };
            if let (clamped, Some(_)) = limit.clamp(hints, "") {
                self.coordinator.set_queue_hints(client, slot, clamped, now);
            }
        }
    }
}
