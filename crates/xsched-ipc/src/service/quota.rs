//! What one user can have of the service: connections, scheduled processes, queues, keys of jobs, and replies that no client
//! reads.
//!
//! Root has no limits except the last: programs in containers often run as root. All users together cannot use the last
//! descriptors of the service: root can always connect.

use std::collections::HashMap;

/// The most that one user can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Open connections, of scheduled processes and of tools.
    pub connections: usize,
    /// Scheduled processes; those beyond run unscheduled.
    pub processes: usize,
    /// Scheduled queues; those beyond run unscheduled.
    pub queues: usize,
    /// Keys of jobs and communicators.
    pub job_keys: usize,
    /// Bytes of replies that wait until a client reads them.
    pub unread_bytes: usize,
}

impl Default for Quota {
    fn default() -> Self {
        Self { connections: 1_024, processes: 512, queues: 4_096, job_keys: 1_024, unread_bytes: 8 << 20 }
    }
}

/// What one user has.
#[derive(Debug, Default)]
struct Usage {
    connections: usize,
    processes: usize,
    job_keys: usize,
    unread_bytes: usize,
}

/// Descriptors that only root's connections can use, besides those of the service itself: its files and threads, and its HTTP
/// interface.
const RESERVED_DESCRIPTORS: usize = 256;

/// What each user has. Queues are counted by the coordinator.
#[derive(Debug)]
pub(super) struct Usages {
    quota: Quota,
    by_user: HashMap<u32, Usage>,
    /// The descriptors of all connections and processes.
    descriptors: usize,
    /// How many of them there can be for a user other than root to add one.
    max_descriptors: usize,
}

impl Usages {
    /// Nothing is used yet. The process can have `descriptors`.
    pub(super) fn new(quota: Quota, descriptors: usize) -> Self {
        let max_descriptors = descriptors - RESERVED_DESCRIPTORS.min(descriptors / 2);
        Self { quota, by_user: HashMap::new(), descriptors: 0, max_descriptors }
    }

    /// Changes what one user can have. Users with more keep it.
    pub(super) fn set_quota(&mut self, quota: Quota) {
        self.quota = quota;
    }

    /// Counts a descriptor of a connection or a process, or returns why the user may not have it.
    pub(super) fn add_descriptor(&mut self, uid: u32) -> Result<(), String> {
        if self.descriptors >= self.max_descriptors && uid != 0 {
            return Err(format!(
                "the users of the service together have {} descriptors, which is the maximum: close connections, or raise its \
                 limit of open files (LimitNOFILE in its systemd unit)",
                self.max_descriptors
            ));
        }
        self.descriptors += 1;
        Ok(())
    }

    pub(super) fn remove_descriptor(&mut self) {
        self.descriptors -= 1;
    }

    /// The number of queues that the user may have.
    pub(super) fn queues(&self, uid: u32) -> usize {
        if uid == 0 { usize::MAX } else { self.quota.queues }
    }

    /// Counts a connection, or returns why the user may not have it.
    pub(super) fn add_connection(&mut self, uid: u32) -> Result<(), String> {
        let most = self.quota.connections;
        if self.by_user.get(&uid).is_some_and(|usage| usage.connections >= most) && uid != 0 {
            return Err(format!(
                "user {uid} already has {most} connections to the service, which is the maximum: close some, or have \
                 max_connections in [limits] of the service's configuration raised"
            ));
        }
        self.add_descriptor(uid)?;
        self.by_user.entry(uid).or_default().connections += 1;
        Ok(())
    }

    pub(super) fn remove_connection(&mut self, uid: u32) {
        if let Some(usage) = self.by_user.get_mut(&uid) {
            self.descriptors -= 1;
            usage.connections -= 1;
            if usage.connections == 0 {
                self.by_user.remove(&uid);
            }
        }
    }

    /// Counts a scheduled process, or returns why the user may not have it.
    pub(super) fn add_process(&mut self, uid: u32) -> Result<(), String> {
        let usage = self.by_user.entry(uid).or_default();
        let most = self.quota.processes;
        if usage.processes >= most && uid != 0 {
            return Err(format!(
                "user {uid} already has {most} scheduled processes, which is the maximum: this one runs unscheduled until one of \
                 them exits, or have max_processes in [limits] of the service's configuration raised"
            ));
        }
        self.add_descriptor(uid)?;
        self.by_user.entry(uid).or_default().processes += 1;
        Ok(())
    }

    pub(super) fn remove_process(&mut self, uid: u32) {
        if let Some(usage) = self.by_user.get_mut(&uid) {
            self.descriptors -= 1;
            usage.processes -= 1;
        }
    }

    /// A process of the user replaces its keys of jobs, so many by so many. Returns why it may not.
    pub(super) fn replace_job_keys(&mut self, uid: u32, before: usize, after: usize) -> Result<(), String> {
        let usage = self.by_user.entry(uid).or_default();
        let (most, total) = (self.quota.job_keys, usage.job_keys - before + after);
        if total > most && after > before && uid != 0 {
            return Err(format!(
                "the processes of user {uid} would have {total} jobs and communicators, the maximum is {most}: this process keeps \
                 its previous ones; have max_job_keys in [limits] of the service's configuration raised"
            ));
        }
        usage.job_keys = total;
        Ok(())
    }

    /// Counts bytes that wait to be read. Returns false, and counts nothing, if the user may not have so many.
    pub(super) fn add_unread(&mut self, uid: u32, bytes: usize) -> bool {
        let usage = self.by_user.entry(uid).or_default();
        let fits = usage.unread_bytes.saturating_add(bytes) <= self.quota.unread_bytes;
        if fits {
            usage.unread_bytes += bytes;
        }
        fits
    }

    pub(super) fn remove_unread(&mut self, uid: u32, bytes: usize) {
        if let Some(usage) = self.by_user.get_mut(&uid) {
            usage.unread_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usages(descriptors: usize) -> Usages {
        let quota = Quota { connections: 2, processes: 1, queues: 3, job_keys: 5, unread_bytes: 10 };
        Usages::new(quota, descriptors)
    }

    #[test]
    fn users_are_limited_separately_and_root_only_in_unread_bytes() {
        let mut usages = usages(1_024);
        assert_eq!((usages.queues(7), usages.queues(0)), (3, usize::MAX));
        for uid in [7, 8] {
            assert!(usages.add_connection(uid).is_ok() && usages.add_connection(uid).is_ok());
            assert!(usages.add_connection(uid).unwrap_err().contains("max_connections"));
            assert!(usages.add_process(uid).is_ok());
            assert!(usages.add_process(uid).unwrap_err().contains("max_processes"));
            assert!(usages.replace_job_keys(uid, 0, 3).is_ok() && usages.replace_job_keys(uid, 0, 2).is_ok());
            assert!(usages.replace_job_keys(uid, 2, 3).unwrap_err().contains("max_job_keys"));
            assert!(usages.replace_job_keys(uid, 2, 2).is_ok());
        }
        usages.remove_connection(7);
        usages.remove_process(7);
        assert!(usages.add_connection(7).is_ok() && usages.add_process(7).is_ok());
        for _ in 0..3 {
            assert!(usages.add_connection(0).is_ok() && usages.add_process(0).is_ok());
            assert!(usages.replace_job_keys(0, 0, 5).is_ok());
        }
        assert!(usages.add_unread(0, 10) && !usages.add_unread(0, 1) && usages.add_unread(7, 10));
        usages.remove_unread(0, 10);
        assert!(usages.add_unread(0, 1));
    }

    #[test]
    fn last_descriptors_are_reserved_for_root() {
        let mut usages = usages(10);
        let added = (1..100).filter(|uid| usages.add_connection(*uid).is_ok()).count();
        assert_eq!(added, 5);
        assert!(usages.add_connection(100).unwrap_err().contains("LimitNOFILE"));
        assert!(usages.add_connection(0).is_ok());
        for uid in 1..=2 {
            usages.remove_connection(uid);
        }
        assert!(usages.add_connection(100).is_ok());
        assert!(usages.add_process(100).is_err(), "a process needs a descriptor more");
    }
}
