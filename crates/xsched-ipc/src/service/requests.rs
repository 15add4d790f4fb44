//! Handles requests. Every request has one reply; a long reply needs several packets.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use xsched_core::{Hints, Nanos, ProcessId, Timeslice};
use xsched_policy::{Params, PolicyInfo};

use super::grants::{Entry, TokenHash};
use super::join::JoinRequest;
use super::listings::ListingKind;
use super::peer::Peer;
use super::session::{Role, Session};
use super::{EXPECTED, Service, process};
use crate::coordinator::{ClientId, OWN_TASKS_PER_PROGRAM, QueueReport};
use crate::protocol::{Caller, HintRequest, JobKey, MAX_JOB_KEYS, Reply, Request, Settings, Target};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The reply, or the reason of a refusal.
pub(super) type HandlerResult = Result<Reply, String>;

/// The maximum number of processes that have not joined yet and keep an idle service running.
const MAX_EXPECTED_PROCESSES: usize = 1_024;

impl Service {
    /// Handles one request and sends the reply.
    pub(super) fn handle(&mut self, index: usize, request: Request, now: Nanos) {
        self.counters.request();
        self.update_confinement(index);
        let Some(peer) = self.sessions.get(index).map(Session::caller) else { return };
        let result = match request {
            Request::Join { .. } | Request::Trace | Request::Expect | Request::Check { .. }
                if !peer.has_process() =>
            {
                Err("this connection acts for another process: use a connection of its own".to_owned())
            }
            Request::ActFor(caller) => self.act_for(index, peer, caller),
            Request::Join { protocol, version, name, hint_request, grant_token, memory_group } => {
                let token = grant_token.map(|token| TokenHash::of(&token));
                match self.join(
                    index,
                    peer,
                    JoinRequest { protocol, version, name, hint_request, token, memory_group },
                    now,
                ) {
                    // The reply was sent with the page.
                    Ok(()) => return,
                    Err(why) => Err(why),
                }
            }
            Request::Status => return self.request_listing(index, ListingKind::Status),
            Request::Grants => return self.request_listing(index, ListingKind::Grants),
            Request::Metrics => return self.request_listing(index, ListingKind::Metrics),
            Request::Trace => self.start_tracing(index),
            Request::Hint(hint_request) => self.hint(index, peer, &hint_request),
            Request::QueueHint { slot, hint_request } => {
                self.hint_queue(index, peer, slot, &hint_request, now)
            }
            Request::Jobs(keys) => self.set_jobs(index, keys, now),
            Request::Kernels(kernels) => self.note_kernels(index, &kernels, now),
            Request::TraceKernels => self.trace_kernels(index),
            Request::Set { target, hint_request } => self.set(peer, &target, &hint_request),
            Request::SetOwn(hint_request) => self.set_own(peer, &hint_request),
            Request::Suspend(target) => self.suspend(peer, &target, true),
            Request::Resume(target) => self.suspend(peer, &target, false),
            Request::Park(target) => self.park(peer, &target, true, now),
            Request::Unpark(target) => self.park(peer, &target, false, now),
            Request::Parking(target) => self.report_parking(peer, &target),
            Request::Policy { name, timeslice_us, k } => {
                self.policy(peer, name.as_deref(), timeslice_us, k, now)
            }
            Request::SetQueue { queue, hint_request } => self.set_queue(peer, queue, &hint_request, now),
            Request::Configure { queue, settings } => self.configure(peer, queue, settings),
            Request::Focus(pid) => self.focus(peer, pid),
            Request::Expect => {
                self.expect(index, peer);
                Ok(Reply::Done)
            }
            Request::Check { executable, hint_request, grant_token } => {
                let token = grant_token.map(|token| TokenHash::of(&token));
                self.check(peer, &executable, &hint_request, token)
            }
            Request::Grant(grant) => self.give_grant(peer, grant, now),
            Request::Revoke(name) => self.revoke_grant(peer, &name, now),
            Request::SuspendGrant { name, is_suspended } => {
                self.suspend_grant(peer, &name, is_suspended, now)
            }
            Request::Stop => self.require_administrator(peer, "shut the service down").map(|()| {
                self.end = Some(super::End::Requested);
                Reply::Done
            }),
        };
        // The orders that follow from the request are written before the reply is sent.
        self.decide_if_due(now);
        self.reply(index, &result.unwrap_or_else(|why| Reply::Refused { why }));
    }

    /// Handles the further requests of a session with the rights of `caller`. A caller that is no administrator cannot return.
    fn act_for(&mut self, index: usize, peer: Peer, caller: Caller) -> HandlerResult {
        self.require_administrator(peer, "act for another user")?;
        if let Some(session @ Session { role: Role::Tool, .. }) = self.sessions.get_mut(index) {
            session.acts_for = Some(Peer::acting_for(caller));
            return Ok(Reply::Done);
        }
        Err("this connection belongs to a scheduled process or a tracer: act for another user on another one"
            .to_owned())
    }

    /// Records a process that will join, if the service would exit for idleness.
    fn expect(&mut self, index: usize, peer: Peer) {
        if self.options.idle_exit.is_none() || self.expected.len() >= MAX_EXPECTED_PROCESSES {
            return;
        }
        let Some(pidfd) = self.pidfd(index, peer) else { return };
        if self.usages.add_descriptor(peer.uid).is_err() {
            return;
        }
        self.last_expected = self.last_expected.wrapping_add(1);
        let token = EventData::new_u64(u64::from(self.last_expected) << 32 | EXPECTED);
        if epoll::add(&self.epoll, &pidfd, token, EventFlags::IN).is_ok() {
            self.expected.insert(self.last_expected, pidfd);
        } else {
            self.usages.remove_descriptor();
        }
    }

    /// A process that was expected to join has exited.
    pub(super) fn forget_expected(&mut self, token: u64) {
        // The descriptor is closed, which removes it from epoll: it has no duplicate.
        if self.expected.remove(&u32::try_from(token >> 32).unwrap_or(0)).is_some() {
            self.usages.remove_descriptor();
        }
    }

    /// A pidfd of the process at the other end of a connection.
    pub(super) fn pidfd(&self, index: usize, peer: Peer) -> Option<OwnedFd> {
        peer.pidfd(self.sessions.get(index)?.connection.as_fd())
    }

    pub(super) fn joined(&self, index: usize) -> Result<ClientId, String> {
        let process = self.sessions.get(index).and_then(Session::process);
        process
            .map(|process| process.client)
            .ok_or_else(|| "this connection has not joined: send a join request first".to_owned())
    }

    /// The grant of a joined process.
    fn grant_of_client(&self, client: ClientId) -> Option<&Entry> {
        let mut processes = self.sessions.iter().filter_map(Session::process);
        self.grants.get(processes.find(|process| process.client == client)?.grant?)
    }

    /// The current hints of a process with the request applied, or the reason why this peer may not request that.
    fn requested_hints(
        &self,
        peer: Peer,
        client: ClientId,
        current: Hints,
        hint_request: &HintRequest,
    ) -> Result<Hints, String> {
        let requested = hint_request.applied_to(current).map_err(|error| error.to_string())?;
        let (limit, description) = self.limit_with(peer, self.grant_of_client(client));
        match limit.or_current(current).clamp(requested, "is allowed") {
            (granted, None) => Ok(granted),
            (_, Some(excess)) => Err(format!("{excess}, nothing was changed: {description}")),
        }
    }

    /// Changes the hints of a process, and records what was requested.
    fn change_hints(&mut self, client: ClientId, hints: Hints, hint_request: &HintRequest) {
        self.coordinator.set_hints(client, hints);
        let of_client = |session: &mut Session| match &mut session.role {
            Role::Process(process) if process.client == client => {
                process.hint_request = std::mem::take(&mut process.hint_request).with(hint_request);
                true
            }
            _ => false,
        };
        self.sessions.iter_mut().any(of_client);
        self.is_decision_due = true;
    }

    fn hint(&mut self, index: usize, peer: Peer, hint_request: &HintRequest) -> HandlerResult {
        let client = self.joined(index)?;
        let current = self.coordinator.hints(client).unwrap_or_default();
        let hints = self.requested_hints(peer, client, current, hint_request)?;
        self.change_hints(client, hints, hint_request);
        Ok(Reply::Done)
    }

    /// Sets the jobs of a process. Keys of other users are other keys: a process joins no job of another user.
    fn set_jobs(&mut self, index: usize, keys: Vec<JobKey>, now: Nanos) -> HandlerResult {
        let client = self.joined(index)?;
        if keys.len() > MAX_JOB_KEYS {
            return Err(format!(
                "a process has at most {MAX_JOB_KEYS} jobs and communicators, not {}",
                keys.len()
            ));
        }
        keys.iter().try_for_each(JobKey::validate)?;
        if let Some(Session { peer, role: Role::Process(process), .. }) = self.sessions.get_mut(index) {
            self.usages.replace_job_keys(peer.uid, process.job_keys, keys.len())?;
            process.job_keys = keys.len();
        }
        self.coordinator.set_jobs(client, keys, now);
        self.is_decision_due = true;
        Ok(Reply::Done)
    }

    fn hint_queue(
        &mut self,
        index: usize,
        peer: Peer,
        slot: usize,
        hint_request: &HintRequest,
        now: Nanos,
    ) -> HandlerResult {
        let client = self.joined(index)?;
        self.set_queue_hint_request(peer, client, slot, hint_request, now)
    }

    fn set_queue_hint_request(
        &mut self,
        peer: Peer,
        client: ClientId,
        slot: usize,
        hint_request: &HintRequest,
        now: Nanos,
    ) -> HandlerResult {
        self.coordinator.look_at(client, now);
        let no_queue =
            || format!("this process has no queue in slot {slot}: it was destroyed, or not scheduled");
        let current = self.coordinator.queue_hints(client, slot).ok_or_else(no_queue)?;
        let hints = self.requested_hints(peer, client, current, hint_request)?;
        self.is_decision_due = true;
        if self.coordinator.set_queue_hints(client, slot, hints, now) {
            Ok(Reply::Done)
        } else {
            Err(format!(
                "{OWN_TASKS_PER_PROGRAM} queues of this process have hints of their own, which is the maximum: set hints for the \
                 process instead"
            ))
        }
    }

    /// The processes of a target. Fails if the peer may not change one of them.
    pub(super) fn targets(&self, peer: Peer, target: &Target) -> Result<Vec<(ClientId, ProcessId)>, String> {
        let mut targets = Vec::new();
        for session in self.sessions.iter() {
            let Some(joined) = session.process() else { continue };
            let is_target = match target {
                Target::Pid(pid) => joined.pid == *pid,
                Target::Name(name) => joined.given_name.as_ref() == Some(name) || joined.file_name == *name,
            };
            if is_target && (peer.may_see(session.peer) || self.is_administrator(peer)) {
                targets.push((joined.client, ProcessId(joined.pid)));
            } else if is_target && matches!(target, Target::Pid(_)) {
                self.require_administrator(peer, "change a process of another user or grant")?;
            }
        }
        if targets.is_empty() {
            // Names that other users gave are not revealed.
            return Err(match target {
                Target::Pid(pid) => format!("no process with pid {pid} is scheduled by this service"),
                Target::Name(name) => {
                    format!(
                        "no process of yours named `{}` is scheduled by this service",
                        process::clean(name)
                    )
                }
            });
        }
        Ok(targets)
    }

    fn set(&mut self, peer: Peer, target: &Target, hint_request: &HintRequest) -> HandlerResult {
        let mut changes = Vec::new();
        for (client, _) in self.targets(peer, target)? {
            let current = self.coordinator.hints(client).unwrap_or_default();
            changes.push((client, self.requested_hints(peer, client, current, hint_request)?));
        }
        for (client, hints) in changes {
            self.change_hints(client, hints, hint_request);
        }
        Ok(Reply::Done)
    }

    fn set_own(&mut self, peer: Peer, hint_request: &HintRequest) -> HandlerResult {
        let own = Target::Pid(peer.pid);
        let is_own = |session: &Session| session.process().is_some_and(|own| own.pid == peer.pid);
        let client = self.sessions.iter().find(|session| is_own(session)).and_then(Session::process);
        let Some(client) = client.map(|process| process.client) else {
            // Values out of range are reported before the process joins.
            hint_request.applied_to(Hints::default()).map_err(|error| error.to_string())?;
            return Ok(Reply::PreviousHints(None));
        };
        let current = self.coordinator.hints(client).unwrap_or_default();
        self.set(peer, &own, hint_request)?;
        Ok(Reply::PreviousHints(Some(HintRequest::from_hints(current))))
    }

    fn suspend(&mut self, peer: Peer, target: &Target, suspended: bool) -> HandlerResult {
        for (_, process) in self.targets(peer, target)? {
            self.coordinator.set_suspended(process, suspended);
        }
        self.is_decision_due = true;
        Ok(Reply::Done)
    }

    fn policy(
        &mut self,
        peer: Peer,
        name: Option<&str>,
        timeslice_us: Option<i64>,
        k: Option<usize>,
        now: Nanos,
    ) -> HandlerResult {
        if name.is_some() || timeslice_us.is_some() || k.is_some() {
            self.require_administrator(peer, "change the policy")?;
            let policy = name.map(PolicyInfo::find).transpose().map_err(|error| error.to_string())?;
            let timeslice =
                timeslice_us.map(Timeslice::from_micros).transpose().map_err(|error| error.to_string())?;
            if k == Some(0) {
                return Err("k 0 is out of range: allowed is 1 and more".to_owned());
            }
            self.params = Params {
                timeslice: timeslice.unwrap_or(self.params.timeslice),
                k: k.unwrap_or(self.params.k),
            };
            if let Some(policy) = policy {
                self.coordinator.set_policy(policy);
            }
            self.coordinator.configure(self.params);
            self.coordinator.note_policy(now);
            self.counters.policy_change();
            self.read_nice_values();
            self.is_decision_due = true;
        }
        Ok(Reply::Policy {
            name: self.coordinator.policy().name.to_owned(),
            timeslice_us: self.params.timeslice.get().0 / 1_000,
            k: self.params.k,
        })
    }

    fn configure(&mut self, peer: Peer, queue: u64, settings: Settings) -> HandlerResult {
        let check = |value: Option<i64>, range: std::ops::RangeInclusive<i64>, what: &str| match value {
            Some(n) if !range.contains(&n) => {
                Err(format!("{what} {n} is out of range: allowed is {} to {}", range.start(), range.end()))
            }
            _ => Ok(()),
        };
        check(settings.level, 1..=3, "level")?;
        check(settings.threshold, 1..=i64::from(u32::MAX), "threshold")?;
        check(settings.batch_size, 1..=i64::from(u32::MAX), "batch size")?;
        let (index, queue) = self.queue_to_change(peer, queue)?;
        if let Some(level) = settings.level.filter(|level| self.coordinator.lacks_level(&queue, *level)) {
            return Err(format!(
                "the device of this queue of process {} does not support level {level}: the settings were not changed",
                queue.process.0
            ));
        }
        if self.reply_with(index, &Reply::Configure { slot: queue.slot, settings }, None) {
            Ok(Reply::Done)
        } else {
            Err(format!(
                "process {} does not receive messages (it is stopped, or exiting): the settings were not changed",
                queue.process.0
            ))
        }
    }

    fn set_queue(&mut self, peer: Peer, queue: u64, hint_request: &HintRequest, now: Nanos) -> HandlerResult {
        let (_, queue) = self.queue_to_change(peer, queue)?;
        self.set_queue_hint_request(peer, queue.client, queue.slot, hint_request, now)
    }

    /// A queue that the peer may change, and the index of its process's session.
    fn queue_to_change(&self, peer: Peer, handle: u64) -> Result<(usize, QueueReport), String> {
        let queue = self.coordinator.report_queues().find(|report| report.queue.0 == handle);
        let Some(queue) = queue else {
            return Err(format!(
                "this service has no queue {handle}: it was destroyed, or belongs to another service"
            ));
        };
        let owner = self
            .sessions
            .enumerate()
            .find(|(_, session)| session.process().is_some_and(|process| process.client == queue.client));
        let Some((index, owner)) = owner else {
            return Err(format!("the process of queue {handle} has exited"));
        };
        if !peer.may_see(owner.peer) {
            self.require_administrator(peer, "change a queue of another user or grant")?;
        }
        Ok((index, queue))
    }

    fn focus(&mut self, peer: Peer, pid: Option<u32>) -> HandlerResult {
        self.require_administrator(peer, "set the process with the input focus")?;
        self.focus = pid.map(ProcessId);
        self.coordinator.set_focus(self.focus);
        self.is_decision_due = true;
        Ok(Reply::Done)
    }
}
