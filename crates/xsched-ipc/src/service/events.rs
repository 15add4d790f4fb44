//! Sends the scheduler's events to tracers. The service does not wait for a tracer: events that do not fit its socket are lost.

use std::collections::HashMap;

use rustix::net::sockopt::set_socket_send_buffer_size;
use xsched_core::Nanos;

use super::Service;
use super::listings::MetricsView;
use super::session::{Role, Session};
use crate::protocol::{Event, EventKind, KernelLaunches, MAX_KERNELS, Reply};

/// How long events are collected before they are sent.
const EVENT_SEND_DELAY: Nanos = Nanos::from_millis(10);
/// The number of events that fit a packet, however long their names are.
const MAX_EVENTS_PER_PACKET: usize = 80;
/// As how many events one with labels counts: labels are longer than names.
const EVENTS_PER_LABELS: usize = 8;
/// The kernel's buffer for events that a tracer has not received.
const TRACER_BUFFER_SIZE: usize = 208 * 1024;
/// The maximum number of events that wait to be sent.
const MAX_PENDING_EVENTS: usize = 16_384;
/// The most tracers of one user, root included: the scheduling thread sends each of them all events.
const MAX_TRACERS: usize = 16;

impl Service {
    /// Sends events on this connection from now on.
    pub(super) fn start_tracing(&mut self, index: usize) -> Result<Reply, String> {
        let uid = self.sessions.get(index).map(|session| session.peer.uid);
        let tracers = self.tracers();
        let is_of_user = |other: &&usize| self.sessions.get(**other).map(|session| session.peer.uid) == uid;
        if !tracers.contains(&index) && tracers.iter().filter(is_of_user).count() >= MAX_TRACERS {
            return Err(format!(
                "user {} already has {MAX_TRACERS} tracers, which is the maximum: end some of them",
                uid.unwrap_or(0)
            ));
        }
        match self.sessions.get_mut(index) {
            Some(session) if session.process().is_none() => {
                session.role = Role::Tracer { lost: 0, names_kernels: false };
            }
            _ => {
                return Err("this connection has joined as a scheduled process: trace on another connection"
                    .to_owned());
            }
        }
        if let Some(session) = self.sessions.get(index) {
            // Events that do not fit are lost, unlike other replies.
            let _ = set_socket_send_buffer_size(&session.connection, TRACER_BUFFER_SIZE);
        }
        self.coordinator.set_tracing(true);
        // While tracing all pages are polled: the next decision sets when.
        self.is_decision_due = true;
        Ok(Reply::Done)
    }

    /// Also sends the names of kernels on the connection of a tracer.
    pub(super) fn trace_kernels(&mut self, index: usize) -> Result<Reply, String> {
        match self.sessions.get_mut(index).map(|session| &mut session.role) {
            Some(Role::Tracer { names_kernels, .. }) => *names_kernels = true,
            _ => return Err("this connection does not trace: start a trace first".to_owned()),
        }
        self.coordinator.set_naming_kernels(true);
        Ok(Reply::Done)
    }

    /// A joined process reports the kernels that it has launched.
    pub(super) fn note_kernels(
        &mut self,
        index: usize,
        kernels: &[KernelLaunches],
        now: Nanos,
    ) -> Result<Reply, String> {
        let client = self.joined(index)?;
        if kernels.len() > MAX_KERNELS {
            return Err(format!("a request has at most {MAX_KERNELS} kernels, not {}", kernels.len()));
        }
        for kernel in kernels {
            self.coordinator.note_kernel(client, kernel, now);
        }
        self.is_decision_due |= self.coordinator.is_tracing();
        Ok(Reply::Done)
    }

    /// A tracer has closed its connection.
    pub(super) fn stop_tracing(&mut self) {
        let names_kernels =
            |session: &Session| matches!(session.role, Role::Tracer { names_kernels: true, .. });
        self.coordinator.set_naming_kernels(self.sessions.iter().any(names_kernels));
        if !self.sessions.iter().any(|session| matches!(session.role, Role::Tracer { .. })) {
            self.coordinator.set_tracing(false);
            self.events.clear();
            self.events_due = None;
        }
    }

    /// Collects the events of the last decision.
    pub(super) fn collect_events(&mut self, began: Nanos, took: Nanos) {
        if !self.coordinator.is_tracing() {
            return;
        }
        self.coordinator.note_round(began, took);
        let before = self.events.len();
        let lost = self.coordinator.take_events(&mut self.events);
        // The name of a new process is looked up while its session exists.
        for event in &mut self.events[before..] {
            if let EventKind::GrantChanged { name, labels } = &mut event.kind
                && let Some(entry) = self.grants.named(name)
            {
                labels.clone_from(&entry.grant.labels);
            }
            if let EventKind::TaskAdded(name) = &mut event.kind {
                let mut processes = self.sessions.iter().filter_map(|session| session.process());
                let process = processes.find(|process| process.pid == event.pid);
                *name = process.map_or_else(String::new, |process| process.name().to_owned());
            }
        }
        let excess = self.events.len().saturating_sub(MAX_PENDING_EVENTS);
        self.events.truncate(MAX_PENDING_EVENTS);
        self.count_lost(lost + excess as u64);
        self.events_due.get_or_insert(began + EVENT_SEND_DELAY);
    }

    fn count_lost(&mut self, lost: u64) {
        if lost > 0 {
            for index in self.tracers() {
                self.count_lost_for(index, lost);
            }
        }
    }

    fn count_lost_for(&mut self, index: usize, lost: u64) {
        self.counters.events_lost(lost);
        let role = self.sessions.get_mut(index).map(|session| &mut session.role);
        if let Some(Role::Tracer { lost: total, .. }) = role {
            *total += lost;
        }
    }

    fn tracers(&self) -> Vec<usize> {
        let tracers =
            self.sessions.enumerate().filter(|(_, session)| matches!(session.role, Role::Tracer { .. }));
        tracers.map(|(index, _)| index).collect()
    }

    /// Sends the collected events.
    pub(super) fn send_events(&mut self) {
        self.events_due = None;
        let mut events = std::mem::take(&mut self.events);
        let tracers = self.tracers();
        for index in &tracers {
            self.update_confinement(*index);
        }
        for part in packets(&events) {
            // Made once for all tracers that see the same.
            let mut made = HashMap::new();
            for index in &tracers {
                let Some(Session { role: Role::Tracer { lost, names_kernels }, peer, .. }) =
                    self.sessions.get(*index)
                else {
                    continue;
                };
                let names_kernels = *names_kernels;
                let (view, lost) = (MetricsView::of(*peer, self.is_administrator(*peer)), *lost);
                let packet = made
                    .entry((view, lost, names_kernels))
                    .or_insert_with(|| self.events_packet(part, view, lost, names_kernels));
                if self.send_packet_if_room(*index, packet) {
                    if let Some(session) = self.sessions.get_mut(*index) {
                        session.role = Role::Tracer { lost: 0, names_kernels };
                    }
                } else {
                    self.count_lost_for(*index, part.len() as u64);
                }
            }
        }
        events.clear();
        self.events = events;
    }

    /// Events as they are sent to tracers that see this, and have lost so many before. Some do not want the names of kernels.
    fn events_packet(&self, events: &[Event], view: MetricsView, lost: u64, names_kernels: bool) -> Vec<u8> {
        let is_wanted = |event: &&Event| names_kernels || !matches!(event.kind, EventKind::Kernel { .. });
        let events = events.iter().filter(is_wanted).cloned().map(|event| self.visible_in(event, view));
        // Every event can be written as JSON.
        serde_json::to_vec(&Reply::Events { events: events.collect(), lost }).unwrap_or_default()
    }

    /// Removes the name of a process or job that the view does not include.
    fn visible_in(&self, mut event: Event, view: MetricsView) -> Event {
        if view != MetricsView::All
            && let EventKind::TaskAdded(name)
            | EventKind::JobChanged(name)
            | EventKind::Kernel { name, .. }
            | EventKind::GrantChanged { name, .. } = &mut event.kind
        {
            let own = self.sessions.iter().any(|session| {
                session.process().is_some_and(|process| process.pid == event.pid)
                    && view.includes(session.peer)
            });
            if !own {
                name.clear();
                if let EventKind::GrantChanged { labels, .. } = &mut event.kind {
                    labels.clear();
                }
            }
        }
        event
    }
}

/// The events of each packet.
fn packets(events: &[Event]) -> Vec<&[Event]> {
    let mut packets = Vec::new();
    let (mut begin, mut count) = (0, 0);
    for (index, event) in events.iter().enumerate() {
        let has_labels = matches!(&event.kind, EventKind::GrantChanged { labels, .. } if !labels.is_empty());
        let size = if has_labels { EVENTS_PER_LABELS } else { 1 };
        if count + size > MAX_EVENTS_PER_PACKET {
            packets.push(&events[begin..index]);
            (begin, count) = (index, 0);
        }
        count += size;
    }
    if begin < events.len() {
        packets.push(&events[begin..]);
    }
    packets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::MAX_PACKET_SIZE;

    #[test]
    fn events_with_the_longest_names_and_labels_fit_their_packets() {
        let labels = (0..16).map(|n| (format!("{}{n:02}", "n".repeat(62)), "\"".repeat(128)));
        let grant = EventKind::GrantChanged { name: "訓".repeat(64), labels: labels.collect() };
        let name = EventKind::TaskAdded("\"".repeat(255));
        let kernel = EventKind::Kernel {
            queue: u64::MAX,
            name: "\"".repeat(255),
            count: u64::MAX,
            began_ns: u64::MAX,
        };
        let kinds = [&grant, &name, &kernel];
        let event = |kind: &EventKind| Event {
            at_ns: u64::MAX,
            task: u64::MAX,
            pid: u32::MAX,
            device: u64::MAX,
            kind: kind.clone(),
        };
        let events: Vec<_> = (0..300).map(|n| event(kinds[n % 3])).collect();
        let packets = packets(&events);
        assert_eq!(packets.concat(), events);
        for packet in packets {
            let reply = Reply::Events { events: packet.to_vec(), lost: u64::MAX };
            assert!(serde_json::to_vec(&reply).unwrap().len() <= MAX_PACKET_SIZE);
        }
    }
}
