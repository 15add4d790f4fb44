//! Limits of device memory: which processes share one, and what each process is told.
//!
//! ```text
//!   xsched run --memory 20G ─► XSCHED_MEMORY_GROUP of the program and its children ─► one group for each user and run
//!   xsched grant --memory 20G ─► all processes of the grant ─► one group for each grant
//!   a rule with memory = "20G" ─► one process, no group
//! ```

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};

use super::Service;
use super::grants::GrantId;
use super::session::{JoinedProcess, Role, Session};
use crate::memory::MemoryLimit;
use crate::memory::group::MemoryGroup;
use crate::protocol::{MemorySource, MemoryTerms, Reply};

/// What the processes of a group have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum GroupKey {
    /// They are processes of this user and of the same `xsched run`.
    Run(u32, Box<str>),
    /// They have the same grant.
    Grant(GrantId),
}

/// A process's part in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Membership {
    key: GroupKey,
    member: u64,
}

/// The groups of one process.
#[derive(Debug, Default)]
pub(super) struct ProcessMemory {
    run: Option<Membership>,
    /// The group of its grant, and the limit in bytes that the process was told.
    grant: Option<(Membership, u64)>,
}

struct Group {
    memory: MemoryGroup,
    fd: OwnedFd,
    members: usize,
}

/// All groups.
#[derive(Default)]
pub(super) struct MemoryGroups {
    groups: HashMap<GroupKey, Group>,
    last_member: u64,
}

impl MemoryGroups {
    fn add_member(&mut self, key: &GroupKey) -> Membership {
        self.last_member += 1;
        if let Some(group) = self.groups.get_mut(key) {
            group.members += 1;
        }
        Membership { key: key.clone(), member: self.last_member }
    }

    /// Returns whether the group was removed with its last member.
    fn remove_member(&mut self, Membership { key, member }: &Membership) -> bool {
        let Some(group) = self.groups.get_mut(key) else { return false };
        group.memory.remove_member(*member);
        group.members -= 1;
        let is_empty = group.members == 0;
        if is_empty {
            self.groups.remove(key);
        }
        is_empty
    }
}

impl Service {
    /// Adds a joining process to the group of its `xsched run`, and tells it the limit of its rule. What it is told arrives before
    /// the reply to its request.
    pub(super) fn limit_memory(
        &mut self,
        index: usize,
        uid: u32,
        run: Option<Box<str>>,
        rule: Option<MemoryLimit>,
    ) {
        if let Some(limit) = rule {
            let terms = MemoryTerms { source: MemorySource::Rule, limit: Some(limit), member: 0 };
            self.reply(index, &Reply::Memory(terms));
        }
        if let Some(run) = run {
            let membership = self.enter_group(index, uid, &GroupKey::Run(uid, run), MemorySource::Run, None);
            if let Some(process) = self.process_mut(index) {
                process.memory.run = membership;
            }
        }
    }

    /// Has a process share the limit of the grant that it has now.
    pub(super) fn limit_memory_by_grant(&mut self, index: usize) {
        let Some(Session { peer, role: Role::Process(process), .. }) = self.sessions.get(index) else {
            return;
        };
        let uid = peer.uid;
        let entry = process.grant.and_then(|grant| self.grants.get(grant));
        let wanted = entry.and_then(|entry| Some((GroupKey::Grant(entry.id), entry.grant.memory?)));
        let present = process.memory.grant.as_ref().map(|(membership, limit)| (&membership.key, *limit));
        if present == wanted.as_ref().map(|(key, limit)| (key, *limit)) {
            return;
        }
        let previous = self.process_mut(index).and_then(|process| process.memory.grant.take());
        if let Some((key, bytes)) = wanted {
            let limit = Some(MemoryLimit::Bytes(bytes));
            let membership = self.enter_group(index, uid, &key, MemorySource::Grant, limit);
            if let Some(process) = self.process_mut(index) {
                process.memory.grant = membership.map(|membership| (membership, bytes));
            }
        } else {
            let terms = MemoryTerms { source: MemorySource::Grant, limit: None, member: 0 };
            self.reply(index, &Reply::Memory(terms));
        }
        // After it has entered the next one: with a new limit, the group of the grant is the same.
        if let Some((membership, _)) = previous {
            self.leave_group(&membership);
        }
    }

    /// Removes a process from its groups, when its session ends.
    pub(super) fn leave_memory_groups(&mut self, memory: &ProcessMemory) {
        for membership in memory.run.iter().chain(memory.grant.iter().map(|(membership, _)| membership)) {
            self.leave_group(membership);
        }
    }

    fn leave_group(&mut self, membership: &Membership) {
        if self.memory_groups.remove_member(membership) {
            self.usages.remove_descriptor();
        }
    }

    /// Adds a process to a group and passes it the memory of the group. Without that, the limit holds for the process alone.
    fn enter_group(
        &mut self,
        index: usize,
        uid: u32,
        key: &GroupKey,
        source: MemorySource,
        limit: Option<MemoryLimit>,
    ) -> Option<Membership> {
        if !self.memory_groups.groups.contains_key(key) && !self.create_group(uid, key.clone()) {
            if limit.is_some() {
                self.reply(index, &Reply::Memory(MemoryTerms { source, limit, member: 0 }));
            }
            return None;
        }
        let membership = self.memory_groups.add_member(key);
        let terms = Reply::Memory(MemoryTerms { source, limit, member: membership.member });
        // The descriptor is duplicated for the packet: `reply_with` borrows all of the service.
        let fd = self.memory_groups.groups.get(key).and_then(|group| group.fd.try_clone().ok());
        let is_sent = fd.is_some_and(|fd| self.reply_with(index, &terms, Some(fd.as_fd())));
        if !is_sent {
            self.leave_group(&membership);
            return None;
        }
        Some(membership)
    }

    /// Returns whether it was created: the system may have no memory or no descriptor for it.
    fn create_group(&mut self, uid: u32, key: GroupKey) -> bool {
        if self.usages.add_descriptor(uid).is_err() {
            return false;
        }
        let Ok((memory, fd)) = MemoryGroup::create() else {
            self.usages.remove_descriptor();
            return false;
        };
        self.memory_groups.groups.insert(key, Group { memory, fd, members: 0 });
        true
    }

    fn process_mut(&mut self, index: usize) -> Option<&mut JoinedProcess> {
        match self.sessions.get_mut(index).map(|session| &mut session.role) {
            Some(Role::Process(process)) => Some(process),
            _ => None,
        }
    }
}
