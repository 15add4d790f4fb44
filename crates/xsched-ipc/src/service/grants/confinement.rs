//! Peers without the rights of their user, because of their control group: programs in containers run as root, and are no
//! administrators of the machine.

use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::LazyLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::Service;
use super::super::peer::Peer;
use super::super::session::Session;
use super::{Entry, GrantId, ProcessGroups, TokenHash};

/// What a peer is confined to. A confined peer is no administrator, and sees and changes only processes that are confined to the
/// same, of its own user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in super::super) enum Confinement {
    /// It has the rights of its user.
    #[default]
    None,
    /// The processes of a grant.
    Grant(GrantId),
    /// The processes of a control group that the configuration names, by the hash of its path.
    Group(u64),
    /// Its own process: its control groups could not be read.
    Unknown,
}

/// With keys that no process knows.
static PATH_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Service {
    /// Whether the rights of a peer depend on its control group.
    pub(in super::super) fn confines_groups(&self) -> bool {
        self.grants.have_groups() || !self.options.grants.confine.is_empty()
    }

    /// Finds what the peer of a session is confined to, if grants have changed since that was last done. A peer that was confined
    /// stays so until its connection is closed: the end of a grant must not make the root user of a container an administrator.
    pub(in super::super) fn update_confinement(&mut self, index: usize) {
        let generation = self.grants.generation();
        let Some(session) = self.sessions.get(index) else { return };
        if session.confined_at == Some(generation) {
            return;
        }
        let found = match session.process() {
            // What a process with a grant is confined to is set when it joins and when its grant changes.
            Some(process) if process.grant.is_some() => Confinement::None,
            Some(process) => self.confinement_in(session.peer.uid, &process.groups),
            None => self.confinement_of(session.connection.as_fd(), session.peer),
        };
        if let Some(session) = self.sessions.get_mut(index) {
            session.confined_at = Some(generation);
            if found != Confinement::None {
                session.peer.confinement = found;
            }
        }
    }

    /// The configuration confines other control groups: finds again what every peer is confined to. Tools are confined with their next
    /// request, processes now: what they are confined to decides which peers see them.
    pub(in super::super) fn confine_again(&mut self) {
        self.grants.note_other_confinement();
        let is_process = |(index, session): (usize, &Session)| session.process().map(|_| index);
        let processes: Vec<_> = self.sessions.enumerate().filter_map(is_process).collect();
        for index in processes {
            self.update_confinement(index);
        }
    }

    fn confinement_of(&self, socket: BorrowedFd<'_>, peer: Peer) -> Confinement {
        // The HTTP interface connects from this process.
        if !self.confines_groups() || peer.is_invisible() || peer.pid == std::process::id() {
            return Confinement::None;
        }
        match groups_of(socket, peer) {
            Some(groups) => self.confinement_in(peer.uid, &groups),
            None => Confinement::Unknown,
        }
    }

    /// What a process of this user in these control groups is confined to.
    pub(in super::super) fn confinement_in(&self, uid: u32, groups: &ProcessGroups) -> Confinement {
        if let Some(entry) = self.grants.by_groups(uid, groups) {
            return Confinement::Grant(entry.id);
        }
        let is_confined = |path: &str| self.options.grants.confine.iter().any(|glob| glob.matches(path));
        match groups.iter().find(|path| is_confined(path)) {
            Some(_) if is_beside_service(groups, is_confined) => Confinement::None,
            Some(path) => Confinement::Group(PATH_HASHER.hash_one(path)),
            None => Confinement::None,
        }
    }

    /// The control groups of a process that joins. Fails closed: a process whose groups cannot be read has no rights by them, and is
    /// no administrator if such rights exist.
    pub(in super::super) fn groups_and_confinement(
        &self,
        index: usize,
        peer: Peer,
    ) -> (ProcessGroups, Confinement) {
        let Some(session) = self.sessions.get(index) else { return Default::default() };
        if peer.is_invisible() || peer.pid == std::process::id() {
            return (ProcessGroups::default(), peer.confinement);
        }
        // A later grant may name the group of this process, so it is read even if no grant does now.
        match groups_of(session.connection.as_fd(), peer) {
            Some(groups) => {
                let found = self.confinement_in(peer.uid, &groups);
                (groups, if found == Confinement::None { peer.confinement } else { found })
            }
            None if self.confines_groups() => (ProcessGroups::default(), Confinement::Unknown),
            None => (ProcessGroups::default(), peer.confinement),
        }
    }

    /// The grant of a process: by its token, else by its control groups.
    pub(in super::super) fn grant_of(
        &self,
        uid: u32,
        token: Option<TokenHash>,
        groups: &ProcessGroups,
    ) -> Option<&Entry> {
        token
            .and_then(|token| self.grants.by_token(uid, token))
            .or_else(|| self.grants.by_groups(uid, groups))
    }
}

/// Whether these are the groups of a container in the pod of the service: the agent of a cluster manager runs there. The group above
/// that of the service is its pod if it is confined itself.
fn is_beside_service(groups: &ProcessGroups, is_confined: impl Fn(&str) -> bool) -> bool {
    let own = ProcessGroups::of(std::process::id()).unwrap_or_default();
    let pods = own.iter().filter_map(|path| path.rsplit_once('/')).map(|(pod, _)| pod);
    pods.filter(|pod| is_confined(pod)).any(|pod| groups.are_within(pod))
}

/// The control groups of a peer, if it is certain that they are those of the peer.
fn groups_of(socket: BorrowedFd<'_>, peer: Peer) -> Option<ProcessGroups> {
    let pidfd = peer.pidfd(socket)?;
    let groups = ProcessGroups::of(peer.pid)?;
    // Another process can have the number only after the peer has exited.
    let mut exited = [PollFd::new(&pidfd, PollFlags::IN)];
    let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut exited, Some(&no_wait)), Ok(0)).then_some(groups)
}
