//! A process joins: its grant, its hints and its page.

use std::os::fd::AsFd as _;

use xsched_core::{Hints, Nanos, Process, ProcessId};

use super::grants::{Confinement, TokenHash};
use super::memory_groups::ProcessMemory;
use super::peer::Peer;
use super::requests::{HandlerResult, VERSION};
use super::session::{JoinedProcess, Role, Session};
use super::{Service, process};
use crate::environment::validate_name;
use crate::memory::MemoryLimit;
use crate::page::Page;
use crate::protocol::{HintRequest, PROTOCOL, Reply};

/// The fields of [`Request::Join`].
pub(super) struct JoinRequest {
    pub(super) protocol: u32,
    pub(super) version: String,
    pub(super) name: Option<String>,
    pub(super) hint_request: HintRequest,
    pub(super) token: Option<TokenHash>,
    pub(super) memory_group: Option<Box<str>>,
}

/// The refusal of a process whose exit the service would not notice.
const INVISIBLE_PROCESS: &str = "this process is not visible from the container of the service, and the kernel is older than \
    Linux 6.5: run the service on the host, or its container in the process namespace of the host (--pid=host)";

/// What a process with an unknown token is told.
const UNKNOWN_TOKEN: &str = "the token in XSCHED_GRANT belongs to no grant for this user: the grant was revoked or has ended, or the \
    token was given to another service";

/// The name of an invisible process without a name of its own.
const INVISIBLE_NAME: &str = "(unseen)";

impl Service {
    /// Whether a process of this peer would get the hints that it requests.
    pub(super) fn check(
        &self,
        peer: Peer,
        executable: &str,
        hint_request: &HintRequest,
        token: Option<TokenHash>,
    ) -> HandlerResult {
        let by_token = token.and_then(|token| self.grants.by_token(peer.uid, token));
        let by_group = || match peer.confinement {
            Confinement::Grant(id) => self.grants.get(id),
            _ => None,
        };
        let unknown = token.filter(|_| by_token.is_none()).map(|_| UNKNOWN_TOKEN.to_owned());
        let grant = by_token.or_else(by_group);
        let confinement = grant.map_or(peer.confinement, |entry| Confinement::Grant(entry.id));
        let peer = Peer { confinement, ..peer };
        let (base, _) = self.base_hints(peer, executable);
        let (_, clamped) = self.granted_hints(peer, base, hint_request, grant)?;
        match joined_notes([clamped, unknown]) {
            None => Ok(Reply::Done),
            Some(note) => Err(note),
        }
    }

    pub(super) fn join(
        &mut self,
        index: usize,
        peer: Peer,
        joining: JoinRequest,
        now: Nanos,
    ) -> Result<(), String> {
        let JoinRequest { protocol, ref version, .. } = joining;
        if protocol != PROTOCOL {
            return Err(format!(
                "the library in this process (xsched {}) uses protocol {protocol}, the service (xsched {VERSION}) uses protocol \
                 {PROTOCOL}: install the same version of both, and restart the service and the program",
                process::clean(version)
            ));
        }
        if !matches!(self.sessions.get(index), Some(Session { role: Role::Tool, .. })) {
            return Err("this connection has already joined: a process joins once on a connection".to_owned());
        }
        self.usages.add_process(peer.uid)?;
        self.add_process(index, peer, joining, now).inspect_err(|_| self.usages.remove_process(peer.uid))
    }

    fn add_process(
        &mut self,
        index: usize,
        peer: Peer,
        joining: JoinRequest,
        now: Nanos,
    ) -> Result<(), String> {
        let JoinRequest { name, hint_request, token, memory_group, .. } = joining;
        let pidfd = self.pidfd(index, peer);
        if pidfd.is_none() && peer.is_invisible() {
            return Err(INVISIBLE_PROCESS.to_owned());
        }
        let executable = process::executable(peer.pid);
        let (groups, confinement) = self.groups_and_confinement(index, peer);
        self.end_stale_grant_of(peer.uid, &groups, now);
        let grant = self.grant_of(peer.uid, token, &groups);
        let peer =
            Peer { confinement: grant.map_or(confinement, |entry| Confinement::Grant(entry.id)), ..peer };
        let is_unknown = token.is_some_and(|token| self.grants.by_token(peer.uid, token).is_none());
        let (base, memory) = self.base_hints(peer, &executable);
        let (hints, clamped) = self.granted_hints(peer, base, &hint_request, grant)?;
        let note = joined_notes([clamped, is_unknown.then(|| UNKNOWN_TOKEN.to_owned())]);
        let (page, fd) = Page::create_to_pass_on().map_err(|error| error.to_string())?;
        if self.options.samples_utilization {
            page.set_sample_interval(crate::sampler::SAMPLE_INTERVAL);
        }
        let is_watched = pidfd.as_ref().is_none_or(|pidfd| self.watch_process(index, pidfd));
        if !is_watched || !self.watch_as_process(index) {
            return Err("the service cannot watch this process: it has reached a limit of the kernel, such as fs.epoll.max_user_watches".to_owned());
        }
        let nice = if self.coordinator.policy().needs.nice { process::nice(peer.pid) } else { None };
        let identity = Process {
            id: ProcessId(peer.pid),
            nice: nice.unwrap_or(0),
            focused: self.focus == Some(ProcessId(peer.pid)),
        };
        self.coordinator.set_queue_limit(peer.uid, self.usages.queues(peer.uid));
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
            groups,
            token,
            grant: None,
            base,
            hint_request,
            job_keys: 0,
            memory: ProcessMemory::default(),
            pidfd,
        };
        if let Some(session) = self.sessions.get_mut(index) {
            session.role = Role::Process(joined.into());
            session.peer = peer;
        }
        self.limit_memory(index, peer.uid, memory_group.filter(|group| validate_name(group).is_ok()), memory);
        self.assign(index, now);
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

    /// The hints of a new process without grant and request, and its limit of device memory: those of the first matching rule.
    fn base_hints(&self, peer: Peer, executable: &str) -> (Hints, Option<MemoryLimit>) {
        let cgroup = if self.options.rules.iter().any(|rule| rule.cgroup.is_some()) {
            process::cgroup(peer.pid)
        } else {
            String::new()
        };
        let rule = self.options.rules.iter().find(|rule| rule.matches(executable, &cgroup, peer.uid));
        let mut initial = Hints::default();
        initial.share = initial.share.min(self.limit(peer).share);
        (rule.map_or(initial, |rule| rule.applied_to(initial)), rule.and_then(|rule| rule.memory))
    }
}

/// The notes that exist, in one line.
fn joined_notes(notes: [Option<String>; 2]) -> Option<String> {
    let notes: Vec<_> = notes.into_iter().flatten().collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}
