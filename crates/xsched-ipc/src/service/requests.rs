//! What is asked of the service, and its answers. Every request has one answer; a long one comes in several packets.

use std::os::fd::{AsFd as _, OwnedFd};

use xsched_core::{Hints, Nanos, Process, ProcessId, Timeslice};
use xsched_policy::{Params, PolicyInfo};

use super::peer::Peer;
use super::session::{Program, Role, Session};
use super::{Service, process};
use crate::coordinator::{ClientId, OWN_TASKS_PER_PROGRAM, QueueReport};
use crate::metrics;
use crate::page::Page;
use crate::protocol::{HintRequest, PROTOCOL, Reply, Request, Settings, Target};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What was done, or why not.
type Answer = Result<Reply, String>;

/// What a program said when it joined.
struct Joining {
    protocol: u32,
    version: String,
    name: Option<String>,
    hint_request: HintRequest,
}

/// Why a program is refused whose end would not be seen.
const NOT_SEEN: &str = "the program's process cannot be seen from the container that the scheduler runs in: that needs \
    Linux 6.5; run the scheduler on the host, or its container with the host's process numbers (--pid=host)";

/// What a program is called that was given no name, and whose executable cannot be seen either.
const UNSEEN: &str = "(unseen)";

/// How many processes that have not joined can keep a service that nobody uses.
const MOST_EXPECTED: usize = 1_024;

impl Service {
    /// Does what is asked and answers.
    pub(super) fn answer(&mut self, place: usize, request: Request, now: Nanos) {
        self.counters.request();
        let Some(peer) = self.sessions.get(place).map(|session| session.peer) else { return };
        let answer = match request {
            Request::Join { protocol, version, name, hint_request } => {
                match self.join(place, peer, Joining { protocol, version, name, hint_request }) {
                    // The answer went with the page.
                    Ok(()) => return,
                    Err(why) => Err(why),
                }
            }
            Request::Status => return self.send_status(place, peer, now),
            Request::Metrics => return self.send_metrics(place, peer, now),
            Request::Trace => self.start_tracing(place),
            Request::Hint(hint_request) => self.hint(place, peer, &hint_request),
            Request::QueueHint { slot, hint_request } => {
                self.hint_queue(place, peer, slot, &hint_request, now)
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
                self.expect(place, peer);
                Ok(Reply::Done)
            }
            Request::Stop => self.masters_only(peer, "end the scheduler").map(|()| {
                self.end = Some(super::End::Asked);
                Reply::Done
            }),
        };
        // Whoever is answered finds the orders that follow from what it asked for already given.
        self.round_if_due(now);
        self.reply(place, &answer.unwrap_or_else(|why| Reply::Refused { why }));
    }

    /// Notes a process that will join.
    fn expect(&mut self, place: usize, peer: Peer) {
        self.expected.retain(process::lives);
        if self.expected.len() < MOST_EXPECTED {
            self.expected.extend(self.pidfd(place, peer));
        }
    }

    /// A handle on the process at the other end of a connection.
    fn pidfd(&self, place: usize, peer: Peer) -> Option<OwnedFd> {
        peer.pidfd(self.sessions.get(place)?.connection.as_fd())
    }

    fn join(&mut self, place: usize, peer: Peer, joining: Joining) -> Result<(), String> {
        let Joining { protocol, version, name, hint_request } = joining;
        if protocol != PROTOCOL {
            return Err(format!(
                "the program's library (xsched {}) speaks protocol {protocol}, this scheduler (xsched {VERSION}) \
                 protocol {PROTOCOL}: update the older of the two",
                process::clean(&version)
            ));
        }
        if !matches!(self.sessions.get(place), Some(Session { role: Role::Asking, .. })) {
            return Err("this connection has joined already: a program joins once".to_owned());
        }
        let pidfd = self.pidfd(place, peer);
        if pidfd.is_none() && peer.is_elsewhere() {
            return Err(NOT_SEEN.to_owned());
        }
        let executable = process::executable(peer.pid);
        let (hints, note) = self.first_hints(peer, &executable, &hint_request)?;
        let (page, fd) = Page::create_to_pass_on().map_err(|error| error.to_string())?;
        if let Some(pidfd) = &pidfd
            && !self.watch_process(place, pidfd)
        {
            return Err("the scheduler cannot watch another process: the system refused".to_owned());
        }
        let nice = if self.coordinator.policy().needs.nice { process::nice(peer.pid) } else { None };
        let identity = Process {
            id: ProcessId(peer.pid),
            nice: nice.unwrap_or(0),
            focused: self.focus == Some(ProcessId(peer.pid)),
        };
        let client = self.coordinator.add_client_of(peer.uid, identity, page, hints);
        let program = Program {
            client,
            process: peer.pid,
            given_name: name.map(|name| process::clean(&name)).filter(|name| !name.is_empty()),
            file_name: match executable.rsplit('/').next() {
                Some(name) if !name.is_empty() => name.to_owned(),
                _ if peer.is_elsewhere() => UNSEEN.to_owned(),
                _ => String::new(),
            },
            command_line: String::new(),
            pidfd,
        };
        if let Some(session) = self.sessions.get_mut(place) {
            session.role = Role::Program(program);
        }
        self.ask_for_name(place, peer.pid);
        self.sessions.programs += 1;
        self.counters.join();
        self.news = true;
        if self.nice_matters() {
            self.nice_due.get_or_insert(Nanos::now() + super::NICE_EVERY);
        }
        let welcome = Reply::Welcome { version: VERSION.to_owned(), note };
        if !self.reply_with(place, &welcome, Some(fd.as_fd())) {
            self.close(place);
        }
        Ok(())
    }

    /// What a program begins with: what a rule gives it, then its own hint_request as far as its user may have them.
    fn first_hints(
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
        let rule = self.options.rules.iter().find(|rule| rule.fits(executable, &cgroup));
        let limit = self.limit(peer);
        let mut given = Hints::default();
        given.share = given.share.min(limit.share);
        let given = rule.map_or(given, |rule| rule.applied_to(given));
        let desired = hint_request.applied_to(given).map_err(|error| error.to_string())?;
        Ok(limit.or_what_is_had(given).lower(desired))
    }

    fn joined(&self, place: usize) -> Result<ClientId, String> {
        let program = self.sessions.get(place).and_then(Session::program);
        program
            .map(|program| program.client)
            .ok_or_else(|| "this connection has not joined: join first".to_owned())
    }

    /// New hints, or why this peer may not have them.
    fn allowed(&self, peer: Peer, had: Hints, hint_request: &HintRequest) -> Result<Hints, String> {
        let desired = hint_request.applied_to(had).map_err(|error| error.to_string())?;
        let limit = self.limit(peer);
        let (hints, lowered) = limit.or_what_is_had(had).lower(desired);
        if lowered.is_none() {
            return Ok(hints);
        }
        Err(format!(
            "user {} may wish for a priority of at most {} and {} % of the device: {}",
            peer.uid,
            limit.priority,
            limit.share.percent(),
            super::permissions::WHO
        ))
    }

    fn hint(&mut self, place: usize, peer: Peer, hint_request: &HintRequest) -> Answer {
        let client = self.joined(place)?;
        let had = self.coordinator.hints(client).unwrap_or_default();
        let hints = self.allowed(peer, had, hint_request)?;
        self.coordinator.set_hints(client, hints);
        self.news = true;
        Ok(Reply::Done)
    }

    fn hint_queue(
        &mut self,
        place: usize,
        peer: Peer,
        slot: usize,
        hint_request: &HintRequest,
        now: Nanos,
    ) -> Answer {
        let client = self.joined(place)?;
        self.set_queue_hint_request(peer, client, slot, hint_request, now)
    }

    fn set_queue_hint_request(
        &mut self,
        peer: Peer,
        client: ClientId,
        slot: usize,
        hint_request: &HintRequest,
        now: Nanos,
    ) -> Answer {
        self.coordinator.look_at(client, now);
        let no_queue = || format!("there is no queue in slot {slot}");
        let had = self.coordinator.queue_hints(client, slot).ok_or_else(no_queue)?;
        let hints = self.allowed(peer, had, hint_request)?;
        self.news = true;
        if self.coordinator.set_queue_hints(client, slot, hints, now) {
            Ok(Reply::Done)
        } else {
            Err(format!(
                "{OWN_TASKS_PER_PROGRAM} queues of this program have hints of their own: no more can"
            ))
        }
    }

    /// The programs meant, all of which the peer may change.
    fn targets(&self, peer: Peer, target: &Target) -> Result<Vec<(ClientId, ProcessId)>, String> {
        let mut found = Vec::new();
        for session in self.sessions.iter() {
            let Some(program) = session.program() else { continue };
            let meant = match target {
                Target::Pid(pid) => program.process == *pid,
                Target::Name(name) => program.given_name.as_ref() == Some(name) || program.file_name == *name,
            };
            if meant && (session.peer.uid == peer.uid || self.is_master(peer)) {
                found.push((program.client, ProcessId(program.process)));
            } else if meant && matches!(target, Target::Pid(_)) {
                self.masters_only(peer, "change another user's program")?;
            }
        }
        if found.is_empty() {
            // A name another user gave is not told.
            return Err(match target {
                Target::Pid(pid) => format!("no program with pid {pid} is scheduled here"),
                Target::Name(name) => {
                    format!("no program of yours named `{}` is scheduled here", process::clean(name))
                }
            });
        }
        Ok(found)
    }

    fn set(&mut self, peer: Peer, target: &Target, hint_request: &HintRequest) -> Answer {
        let mut changes = Vec::new();
        for (client, _) in self.targets(peer, target)? {
            let had = self.coordinator.hints(client).unwrap_or_default();
            changes.push((client, self.allowed(peer, had, hint_request)?));
        }
        for (client, hints) in changes {
            self.coordinator.set_hints(client, hints);
        }
        self.news = true;
        Ok(Reply::Done)
    }

    fn set_own(&mut self, peer: Peer, hint_request: &HintRequest) -> Answer {
        let own = Target::Pid(peer.pid);
        let is_own = |session: &Session| session.program().is_some_and(|own| own.process == peer.pid);
        let client = self.sessions.iter().find(|session| is_own(session)).and_then(Session::program);
        let Some(client) = client.map(|program| program.client) else {
            // Still worth saying before there is anybody to give them to.
            hint_request.applied_to(Hints::default()).map_err(|error| error.to_string())?;
            return Ok(Reply::PreviousHints(None));
        };
        let had = self.coordinator.hints(client).unwrap_or_default();
        self.set(peer, &own, hint_request)?;
        Ok(Reply::PreviousHints(Some(HintRequest::from_hints(had))))
    }

    fn suspend(&mut self, peer: Peer, target: &Target, suspended: bool) -> Answer {
        for (_, process) in self.targets(peer, target)? {
            self.coordinator.set_suspended(process, suspended);
        }
        self.news = true;
        Ok(Reply::Done)
    }

    fn policy(
        &mut self,
        peer: Peer,
        name: Option<&str>,
        timeslice_us: Option<i64>,
        k: Option<usize>,
        now: Nanos,
    ) -> Answer {
        if name.is_some() || timeslice_us.is_some() || k.is_some() {
            self.masters_only(peer, "change the policy")?;
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
            self.news = true;
        }
        Ok(Reply::Policy {
            name: self.coordinator.policy().name.to_owned(),
            timeslice_us: self.params.timeslice.get().0 / 1_000,
            k: self.params.k,
        })
    }

    fn configure(&mut self, peer: Peer, queue: u64, settings: Settings) -> Answer {
        let allowed = |value: Option<i64>, range: std::ops::RangeInclusive<i64>, what: &str| match value {
            Some(n) if !range.contains(&n) => {
                Err(format!("{what} {n} is out of range: allowed is {} to {}", range.start(), range.end()))
            }
            _ => Ok(()),
        };
        allowed(settings.level, 1..=3, "level")?;
        allowed(settings.threshold, 1..=i64::from(u32::MAX), "threshold")?;
        allowed(settings.batch_size, 1..=i64::from(u32::MAX), "batch size")?;
        let (place, queue) = self.queue_to_change(peer, queue)?;
        if self.reply_with(place, &Reply::Configure { slot: queue.slot, settings }, None) {
            Ok(Reply::Done)
        } else {
            Err(format!("{} does not read what it is sent", queue.process))
        }
    }

    fn set_queue(&mut self, peer: Peer, queue: u64, hint_request: &HintRequest, now: Nanos) -> Answer {
        let (_, queue) = self.queue_to_change(peer, queue)?;
        self.set_queue_hint_request(peer, queue.client, queue.slot, hint_request, now)
    }

    /// A queue that the peer may change, and the place of its program's session.
    fn queue_to_change(&self, peer: Peer, queue: u64) -> Result<(usize, QueueReport), String> {
        let queue = self.coordinator.report_queues().find(|report| report.queue.0 == queue);
        let Some(queue) = queue else { return Err("there is no such queue".to_owned()) };
        let owner = self
            .sessions
            .taken()
            .find(|(_, session)| session.program().is_some_and(|program| program.client == queue.client));
        let Some((place, owner)) = owner else { return Err("its program is gone".to_owned()) };
        if owner.peer.uid != peer.uid {
            self.masters_only(peer, "change another user's queue")?;
        }
        Ok((place, queue))
    }

    fn focus(&mut self, peer: Peer, pid: Option<u32>) -> Answer {
        self.masters_only(peer, "say which window has the focus")?;
        self.focus = pid.map(ProcessId);
        self.coordinator.set_focus(self.focus);
        self.news = true;
        Ok(Reply::Done)
    }

    fn send_metrics(&mut self, place: usize, peer: Peer, now: Nanos) {
        let status = self.status(peer, now);
        let text = metrics::render(&status, &self.counters);
        for reply in metrics::replies(&text) {
            self.reply(place, &reply);
        }
    }
}
