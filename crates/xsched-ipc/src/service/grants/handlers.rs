//! Gives, revokes and suspends grants, and ends those whose control group or process has gone.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use xsched_core::Nanos;

use super::super::peer::Peer;
use super::super::{AWAITED, Service, process};
use super::cgroups::normalize;
use super::store::Change;
use super::table::{AwaitedProcess, MAX_GRANTS};
use super::{Entry, TokenHash};
use crate::protocol::{Grant, Reply};

/// How often the control groups of grants are checked.
pub(super) const GROUP_CHECK_INTERVAL: Nanos = Nanos::from_secs(1);

/// The user for whom descriptors of grants are counted: not root, which could use the last ones.
pub(super) const DESCRIPTOR_USER: u32 = u32::MAX;

impl Service {
    /// Whether this peer may give and revoke grants.
    pub(in super::super) fn may_give_grants(&self, peer: Peer) -> bool {
        let is_in_group = |group: u32| peer.is_in_group(group);
        self.is_administrator(peer)
            || (peer.is_unconfined() && self.options.grants.group.is_some_and(is_in_group))
    }

    fn require_grant_right(&self, peer: Peer, operation: &str) -> Result<(), String> {
        if self.may_give_grants(peer) { Ok(()) } else { self.require_administrator(peer, operation) }
    }

    /// Gives a grant, or replaces the one of the same name.
    pub(in super::super) fn give_grant(
        &mut self,
        peer: Peer,
        grant: Grant,
        now: Nanos,
    ) -> Result<Reply, String> {
        self.require_grant_right(peer, "give a grant")?;
        grant.validate()?;
        if self.grants.named(&grant.name).is_none() && self.grants.len() >= MAX_GRANTS {
            return Err(format!(
                "this service has {MAX_GRANTS} grants, which is the maximum: revoke some with `xsched revoke`"
            ));
        }
        let (entry, pidfd) = self.new_entry(grant)?;
        let (id, name, token, group) =
            (entry.id, Arc::clone(&entry.name), entry.token, entry.grant.cgroup.clone());
        let replaced = self.grants.insert(entry);
        if let Err(why) = self.save(Change::Set(&name)) {
            if pidfd.is_some() {
                self.usages.remove_descriptor();
            }
            match replaced {
                Some(replaced) => drop(self.grants.insert(replaced)),
                None => drop(self.grants.remove(&name)),
            }
            return Err(format!("{why}: nothing was changed"));
        }
        if let Some(replaced) = replaced {
            self.forget_awaited(&replaced);
        }
        self.watch_awaited(&name, pidfd);
        self.reassign(
            |process| {
                process.grant == Some(id)
                    || (token.is_some() && process.token == token)
                    || group.as_ref().is_some_and(|group| process.groups.are_within(group))
            },
            now,
        );
        self.schedule_group_check(now);
        Ok(Reply::Done)
    }

    /// An entry for a valid grant, and the process whose exit ends it.
    fn new_entry(&mut self, mut grant: Grant) -> Result<(Entry, Option<OwnedFd>), String> {
        let token = grant.token.take().map(|token| TokenHash::of(&token));
        let other = token.and_then(|token| self.grants.with_token(token));
        if let Some(other) = other.filter(|other| *other.name != *grant.name) {
            return Err(format!("grant {} has the same token: use another token for each grant", other.name));
        }
        let mut directories = Arc::default();
        if let Some(path) = &mut grant.cgroup {
            *path = normalize(path)
                .ok_or_else(|| format!("control group {path}: this is not a path as in /proc/PID/cgroup"))?;
            directories = Arc::new(self.group_mounts.find(path));
            if directories.is_empty() {
                return Err(format!(
                    "control group {path} does not exist on the machine of the service: create it first, a grant ends with it"
                ));
            }
        }
        let (mut awaited, mut pidfd) = (None, None);
        if let Some(pid) = grant.until_exit_of {
            let gone = || format!("process {pid} does not exist: the grant would end at once");
            pidfd = Some(process::pidfd(pid).ok_or_else(gone)?);
            let start_time = process::start_time(pid).ok_or_else(gone)?;
            self.last_awaited = self.last_awaited.wrapping_add(1);
            awaited = Some(AwaitedProcess { number: self.last_awaited, start_time });
            self.usages.add_descriptor(DESCRIPTOR_USER)?;
        }
        let is_suspended = self.grants.named(&grant.name).is_some_and(|entry| entry.is_suspended);
        let (id, name) = (self.grants.id_for(&grant.name), grant.name.as_str().into());
        Ok((Entry { id, grant, name, token, is_suspended, directories, awaited }, pidfd))
    }

    /// Has epoll report the exit of the process that a grant depends on.
    pub(super) fn watch_awaited(&mut self, name: &Arc<str>, pidfd: Option<OwnedFd>) {
        let awaited = self.grants.named(name).and_then(|entry| entry.awaited);
        let (Some(AwaitedProcess { number, .. }), Some(pidfd)) = (awaited, pidfd) else { return };
        let token = EventData::new_u64(u64::from(number) << 32 | AWAITED);
        // Fails only at a limit of the kernel. Then the grant ends when it is revoked or its control group has gone.
        let _ = epoll::add(&self.epoll, &pidfd, token, EventFlags::IN);
        self.awaited.insert(number, (Arc::clone(name), pidfd));
    }

    /// The process that a grant depends on does not matter any more.
    fn forget_awaited(&mut self, entry: &Entry) {
        // The descriptor is closed, which removes it from epoll: it has no duplicate.
        if entry.awaited.is_some_and(|awaited| self.awaited.remove(&awaited.number).is_some()) {
            self.usages.remove_descriptor();
        }
    }

    /// A process that a grant depends on has exited.
    pub(in super::super) fn awaited_exited(&mut self, token: u64, now: Nanos) {
        let number = u32::try_from(token >> 32).unwrap_or(0);
        if let Some((name, _)) = self.awaited.get(&number) {
            let name = Arc::clone(name);
            self.end_grant(&name, now);
        }
    }

    /// Revokes a grant.
    pub(in super::super) fn revoke_grant(
        &mut self,
        peer: Peer,
        name: &str,
        now: Nanos,
    ) -> Result<Reply, String> {
        self.require_grant_right(peer, "revoke a grant")?;
        self.require_grant(name)?;
        self.remove_grant(name, now);
        self.save(Change::Remove(name)).map_err(|why| {
            format!("{why}: the grant was revoked, and will be in force again after a restart")
        })?;
        Ok(Reply::Done)
    }

    fn require_grant(&self, name: &str) -> Result<(), String> {
        if self.grants.named(name).is_some() {
            return Ok(());
        }
        Err(format!("this service has no grant named `{}`: see `xsched grants`", process::clean(name)))
    }

    /// Ends a grant whose control group or process has gone.
    pub(super) fn end_grant(&mut self, name: &str, now: Nanos) {
        self.remove_grant(name, now);
        // If it fails, the next service finds again that the group or the process has gone.
        let _ = self.save(Change::Remove(name));
    }

    /// Removes a grant. Its processes have the limits of their users at once.
    fn remove_grant(&mut self, name: &str, now: Nanos) {
        let Some(entry) = self.grants.remove(name) else { return };
        self.forget_awaited(&entry);
        self.reassign(|process| process.grant == Some(entry.id), now);
    }

    /// Suspends or resumes the processes of a grant, also those that join later.
    pub(in super::super) fn suspend_grant(
        &mut self,
        peer: Peer,
        name: &str,
        is_suspended: bool,
        now: Nanos,
    ) -> Result<Reply, String> {
        self.require_grant_right(peer, if is_suspended { "suspend a grant" } else { "resume a grant" })?;
        self.require_grant(name)?;
        let Some(entry) = self.grants.named_mut(name) else { return Ok(Reply::Done) };
        entry.is_suspended = is_suspended;
        let id = entry.id;
        self.reassign(|process| process.grant == Some(id), now);
        self.save(Change::Set(name))
            .map_err(|why| format!("{why}: this has no effect after a restart of the service"))?;
        Ok(Reply::Done)
    }

    /// Ends the grants of a process that joins whose control groups have gone since the last check: a group of the same path is that
    /// of another job.
    pub(in super::super) fn end_stale_grant_of(
        &mut self,
        uid: u32,
        groups: &super::ProcessGroups,
        now: Nanos,
    ) {
        while let Some(entry) = self.grants.by_groups(uid, groups).filter(|entry| !entry.directories.exist())
        {
            let name = Arc::clone(&entry.name);
            self.end_grant(&name, now);
        }
    }

    /// Has the control groups of grants checked, while there are any.
    pub(super) fn schedule_group_check(&mut self, now: Nanos) {
        if self.grants.have_groups() {
            self.group_check_due.get_or_insert(now + GROUP_CHECK_INTERVAL);
        }
    }

    /// Has the thread check the control groups of the next grants.
    pub(in super::super) fn check_groups(&mut self, now: Nanos) {
        self.group_check_due = None;
        self.group_watcher.request(&self.grants);
        self.schedule_group_check(now);
    }

    /// Ends the grants whose control groups have gone.
    pub(in super::super) fn end_grants_of_removed_groups(&mut self, now: Nanos) {
        for (name, directories) in self.group_watcher.take_results() {
            // The grant may have been replaced meanwhile.
            if self.grants.named(&name).is_some_and(|entry| Arc::ptr_eq(&entry.directories, &directories)) {
                self.end_grant(&name, now);
            }
        }
    }
}
