//! Handles requests. Every request has one reply; a long reply needs several packets.

use std::os::fd::{AsFd as _, OwnedFd};

use xsched_core::{Hints, Nanos, Process, ProcessId, Timeslice};
use xsched_policy::{Params, PolicyInfo};

use super::peer::Peer;
use super::session::{JoinedProcess, Role, Session};
use super::{Service, process};
use crate::coordinator::{ClientId, OWN_TASKS_PER_PROGRAM, QueueReport};
use crate::metrics;
use crate::page::Page;
use crate::protocol::{HintRequest, PROTOCOL, Reply, Request, Settings, Target};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The reply, or the reason of a refusal.
type HandlerResult = Result<Reply, String>;

/// The fields of [`Request::Join`].
struct JoinRequest {
    protocol: u32,
    version: String,
    name: Option<String>,
    hint_request: HintRequest,
}

/// The refusal of a process whose exit the service would not notice.
const INVISIBLE_PROCESS: &str = "this process is not visible from the container of the service, and the kernel is older than \
    Linux 6.5: run the service on the host, or its container in the process namespace of the host (--pid=host)";

/// The name of an invisible process without a name of its own.
const INVISIBLE_NAME: &str = "(unseen)";

/// The maximum number of processes that have not joined yet and keep an idle service running.
const MAX_EXPECTED_PROCESSES: usize = 1_024;

impl Service {
    /// Handles one request and sends the reply.
    pub(super) fn handle(&mut self, index: usize, request: Request, now: Nanos) {
        self.counters.request();
        let Some(peer) = self.sessions.get(index).map(|session| session.peer) else { return };
        let result = match request {
            Request::Join { protocol, version, name, hint_request } => {
                match self.join(index, peer, JoinRequest { protocol, version, name, hint_request }) {
                    // The reply was sent with the page.
                    Ok(()) => return,
                    Err(why) => Err(why),
                }
            }
            Request::Status => return self.send_status(index, peer, now),
            Request::Metrics => return self.send_metrics(index, peer, now),
            Request::Trace => self.start_tracing(index),
            Request::Hint(hint_request) => self.hint(index, peer, &hint_request),
            Request::QueueHint { slot, hint_request } => {
                self.hint_queue(index, peer, slot, &hint_request, now)
            }
            Request::Set { target, hint_request } => self.set(peer, &target, &hint_request),
            Request::SetOwn(hint_request) => self.set_own(peer, &hint_request),
            Request::Suspend(target) => self.suspend(peer, &target, true),
            Request::Resume(target) => self.suspend(peer, &target, false),
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
            Request::Stop => self.require_administrator(peer, "shut the service down").map(|()| {
                self.end = Some(super::End::Requested);
                Reply::Done
            }),
        };
        // The orders that follow from the request are written before the reply is sent.
        self.decide_if_due(now);
        self.reply(index, &result.unwrap_or_else(|why| Reply::Refused { why }));
    }

    /// Records a process that will join.
    fn expect(&mut self, index: usize, peer: Peer) {
        self.expected.retain(process::exists);
        if self.expected.len() < MAX_EXPECTED_PROCESSES {
            self.expected.extend(self.pidfd(index, peer));
        }
    }

    /// A pidfd of the process at the other end of a connection.
    fn pidfd(&self, index: usize, peer: Peer) -> Option<OwnedFd> {
        peer.pidfd(self.sessions.get(index)?.connection.as_fd())
    }

    fn join(&mut self, index: usize, peer: Peer, joining: JoinRequest) -> Result<(), String> {
        let JoinRequest { protocol, version, name, hint_request } = joining;
        if protocol != PROTOCOL {
            return Err(format!(
                "the library in this process (xsched {}) uses protocol {protocol}, the service (xsched {VERSION}) uses protocol \
                 {PROTOCOL}: install the same version of both, and restart the service and the program",
                process::clean(&version)
            ));
        }
        if !matches!(self.sessions.get(index), Some(Session { role: Role::Tool, .. })) {
            return Err("this connection has already joined: a process joins once on a connection".to_owned());
        }
        let pidfd = self.pidfd(index, peer);
        if pidfd.is_none() && peer.is_invisible() {
            return Err(INVISIBLE_PROCESS.to_owned());
        }
        let executable = process::executable(peer.pid);
        let (hints, note) = self.initial_hints(peer, &executable, &hint_request)?;
        let (page, fd) = Page::create_to_pass_on().map_err(|error| error.to_string())?;
        if let Some(pidfd) = &pidfd
            && !self.watch_process(index, pidfd)
        {
            return Err("the service cannot watch this process: it has reached a limit of the kernel, such as fs.epoll.max_user_watches".to_owned());
        }
        let nice = if self.coordinator.policy().needs.nice { process::nice(peer.pid) } else { None };
        let identity = Process {
            id: ProcessId(peer.pid),
            nice: nice.unwrap_or(0),
            focused: self.focus == Some(ProcessId(peer.pid)),
        };
        let client = self.coordinator.add_client_of(peer.uid, identity, page, hints);
        let joined = JoinedProcess {
            client,
            pid: peer.pid,
            given_name: name.map(|name| process::clean(&name)).filter(|name| !name.is_empty()),
            file_name: match executable.rsplit('/').next() {
                Some(name) if !name.is_empty() => name.to_owned(),
                _ if peer.is_invisible() => INVISIBLE_NAME.to_owned(),
                _ => String::new(),
            },
            command_line: String::new(),
            pidfd,
        };
        if let Some(session) = self.sessions.get_mut(index) {
            session.role = Role::Process(joined);
        }
        self.request_command_line(index, peer.pid);
        self.sessions.process_count += 1;
        self.counters.join();
        self.is_decision_due = true;
        if self.needs_nice_values() {
            self.nice_due.get_or_insert(Nanos::now() + super::NICE_POLL_INTERVAL);
        }
        let welcome = Reply::Welcome { version: VERSION.to_owned(), note };
        if !self.reply_with(index, &welcome, Some(fd.as_fd())) {
            self.close(index);
        }
        Ok(())
    }

    /// The hints of a new process: those of the first matching rule, then the requested ones, clamped to the limit of its user.
    /// Also returns a message if some were clamped.
    fn initial_hints(
        &self,
        peer: Peer,
        executable: &str,
        hint_request: &HintRequest,
    ) -> Result<(Hints, Option<String>), String> {
        let cgroup = if self.options.rules.iter().any(|rule| rule.cgroup.is_some()) {
            process::cgroup(peer.pid)
        } else {
            String::new()
        };
        let rule = self.options.rules.iter().find(|rule| rule.matches(executable, &cgroup));
        let limit = self.limit(peer);
        let mut initial = Hints::default();
        initial.share = initial.share.min(limit.share);
        let initial = rule.map_or(initial, |rule| rule.applied_to(initial));
        let requested = hint_request.applied_to(initial).map_err(|error| error.to_string())?;
        let (granted, clamped) = limit.or_current(initial).clamp(requested, "was granted");
        Ok((granted, clamped.map(|clamped| format!("{clamped}: {}", limit.description(peer.uid)))))
    }

    fn joined(&self, index: usize) -> Result<ClientId, String> {
        let process = self.sessions.get(index).and_then(Session::process);
        process
            .map(|process| process.client)
            .ok_or_else(|| "this connection has not joined: send a join request first".to_owned())
    }

    /// The current hints with the request applied, or the reason why this peer may not request that.
    fn requested_hints(
        &self,
        peer: Peer,
        current: Hints,
        hint_request: &HintRequest,
    ) -> Result<Hints, String> {
        let requested = hint_request.applied_to(current).map_err(|error| error.to_string())?;
        let limit = self.limit(peer);
        match limit.or_current(current).clamp(requested, "is allowed") {
            (granted, None) => Ok(granted),
            (_, Some(excess)) => {
                Err(format!("{excess}, nothing was changed: {}", limit.description(peer.uid)))
            }
        }
    }

    fn hint(&mut self, index: usize, peer: Peer, hint_request: &HintRequest) -> HandlerResult {
        let client = self.joined(index)?;
        let current = self.coordinator.hints(client).unwrap_or_default();
        let hints = self.requested_hints(peer, current, hint_request)?;
        self.coordinator.set_hints(client, hints);
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
        let hints = self.requested_hints(peer, current, hint_request)?;
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
    fn targets(&self, peer: Peer, target: &Target) -> Result<Vec<(ClientId, ProcessId)>, String> {
        let mut targets = Vec::new();
        for session in self.sessions.iter() {
            let Some(joined) = session.process() else { continue };
            let is_target = match target {
                Target::Pid(pid) => joined.pid == *pid,
                Target::Name(name) => joined.given_name.as_ref() == Some(name) || joined.file_name == *name,
            };
            if is_target && (session.peer.uid == peer.uid || self.is_administrator(peer)) {
                targets.push((joined.client, ProcessId(joined.pid)));
            } else if is_target && matches!(target, Target::Pid(_)) {
                self.require_administrator(peer, "change a process of another user")?;
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
            changes.push((client, self.requested_hints(peer, current, hint_request)?));
        }
        for (client, hints) in changes {
            self.coordinator.set_hints(client, hints);
        }
        self.is_decision_due = true;
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
        if owner.peer.uid != peer.uid {
            self.require_administrator(peer, "change a queue of another user")?;
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

    fn send_metrics(&mut self, index: usize, peer: Peer, now: Nanos) {
        let status = self.status(peer, now);
        let text = metrics::render(&status, &self.counters);
        for reply in metrics::replies(&text) {
            self.reply(index, &reply);
        }
    }
}
