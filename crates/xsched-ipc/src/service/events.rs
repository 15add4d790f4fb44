//! What happens, for whoever traces. They read it or lose it: nobody waits for them.

use xsched_core::Nanos;

use super::Service;
use super::session::Role;
use crate::protocol::{Event, EventKind, Reply};

/// How long events are gathered before they are sent.
const GATHER: Nanos = Nanos::from_millis(10);
/// So many events fit a packet, however long the names in them are.
const PER_PACKET: usize = 80;
/// How many events are gathered at most.
const KEPT: usize = 16_384;

impl Service {
    /// From now on this connection is sent events.
    pub(super) fn start_tracing(&mut self, place: usize) -> Result<Reply, String> {
        match self.sessions.get_mut(place) {
            Some(session) if session.program().is_none() => session.role = Role::Tracing(0),
            _ => return Err("a program that is scheduled cannot trace: use another connection".to_owned()),
        }
        self.coordinator.set_tracing(true);
        // From now on everybody is looked at now and again: the round says when.
        self.news = true;
        Ok(Reply::Done)
    }

    /// Somebody who traced is gone.
    pub(super) fn stop_tracing(&mut self) {
        if !self.sessions.iter().any(|session| matches!(session.role, Role::Tracing(_))) {
            self.coordinator.set_tracing(false);
            self.events.clear();
            self.events_due = None;
        }
    }

    /// Gathers what the last round brought.
    pub(super) fn note_events(&mut self, began: Nanos, took: Nanos) {
        if !self.coordinator.is_tracing() {
            return;
        }
        self.coordinator.note_round(began, took);
        let before = self.events.len();
        let lost = self.coordinator.take_events(&mut self.events);
        // A program that came is named while it is still here to be asked.
        for event in &mut self.events[before..] {
            if let EventKind::TaskAdded(name) = &mut event.kind {
                let programs = self.sessions.iter().filter_map(|session| session.program());
                let mut whose = programs.filter(|program| program.process == event.pid);
                *name = whose.next().map_or_else(String::new, |program| program.name().to_owned());
            }
        }
        let excess = self.events.len().saturating_sub(KEPT);
        self.events.truncate(KEPT);
        self.lose(lost + excess as u64);
        self.events_due.get_or_insert(began + GATHER);
    }

    fn lose(&mut self, lost: u64) {
        if lost > 0 {
            let tracing: Vec<_> = self.tracing_places();
            for place in tracing {
                self.lose_at(place, lost);
            }
        }
    }

    fn lose_at(&mut self, place: usize, lost: u64) {
        self.counters.events_lost(lost);
        if let Some(Role::Tracing(so_far)) = self.sessions.get_mut(place).map(|session| &mut session.role) {
            *so_far += lost;
        }
    }

    fn tracing_places(&self) -> Vec<usize> {
        let tracing = self.sessions.taken().filter(|(_, session)| matches!(session.role, Role::Tracing(_)));
        tracing.map(|(place, _)| place).collect()
    }

    /// Sends what was gathered.
    pub(super) fn send_events(&mut self) {
        self.events_due = None;
        let events = std::mem::take(&mut self.events);
        for place in self.tracing_places() {
            let Some(peer) = self.sessions.get(place).map(|session| session.peer) else { continue };
            let sees_all = self.is_master(peer);
            for part in events.chunks(PER_PACKET) {
                let Some(Role::Tracing(lost)) = self.sessions.get(place).map(|session| &session.role) else {
                    break;
                };
                let lost = *lost;
                let events = part.iter().cloned().map(|event| self.as_seen_by(event, peer.uid, sees_all));
                let reply = Reply::Events { events: events.collect(), lost };
                if self.send_if_room(place, &reply) {
                    if let Some(session) = self.sessions.get_mut(place) {
                        session.role = Role::Tracing(0);
                    }
                } else {
                    self.lose_at(place, part.len() as u64);
                }
            }
        }
        let mut events = events;
        events.clear();
        self.events = events;
    }

    /// What other users' programs are called is their own affair.
    fn as_seen_by(&self, mut event: Event, uid: u32, sees_all: bool) -> Event {
        if !sees_all && let EventKind::TaskAdded(name) = &mut event.kind {
            let own = self.sessions.iter().any(|session| {
                session.peer.uid == uid
                    && session.program().is_some_and(|program| program.process == event.pid)
            });
            if !own {
                name.clear();
            }
        }
        event
    }
}
