//! Checks on a thread of its own whether the control groups of grants still exist.
//!
//! A pass checks at most [`MAX_GROUPS_PER_PASS`] grants; the next pass continues after them. The service does not wait for it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::Grants;
use super::cgroups::GroupDirectories;
use crate::notifier::Notifier;

/// How many grants are checked in one pass.
const MAX_GROUPS_PER_PASS: usize = 1_024;

/// The name of a grant and the directories of its control group.
type Group = (Arc<str>, Arc<GroupDirectories>);

/// Has groups checked and returns those that have gone. One request at a time.
pub(in super::super) struct GroupWatcher {
    requests: mpsc::Sender<Vec<Group>>,
    /// The groups of the last request that have gone, when it was handled.
    results: Arc<Mutex<Option<Vec<Group>>>>,
    notifier: Arc<Notifier>,
    is_pending: bool,
    /// The name of the last grant that was checked.
    position: Arc<str>,
}

impl GroupWatcher {
    /// Starts the thread. It exits when this value is dropped.
    pub(in super::super) fn start() -> std::io::Result<Self> {
        let (requests, received) = mpsc::channel::<Vec<Group>>();
        let (results, notifier) = (Arc::new(Mutex::new(None)), Arc::new(Notifier::new()?));
        let (finished, ready) = (Arc::clone(&results), Arc::clone(&notifier));
        std::thread::Builder::new().name("xsched-grants".to_owned()).spawn(move || {
            for mut groups in received {
                groups.retain(|(_, directories)| !directories.exist());
                *finished.lock().unwrap_or_else(PoisonError::into_inner) = Some(groups);
                ready.notify();
            }
        })?;
        Ok(Self { requests, results, notifier, is_pending: false, position: "".into() })
    }

    /// Has the next grants checked, unless the thread still checks the last ones.
    pub(super) fn request(&mut self, grants: &Grants) {
        if self.is_pending {
            return;
        }
        let (groups, position) = next_groups(grants, &self.position, MAX_GROUPS_PER_PASS);
        self.position = position;
        self.is_pending = !groups.is_empty() && self.requests.send(groups).is_ok();
    }

    /// The grants whose control groups have gone.
    pub(super) fn take_results(&mut self) -> Vec<Group> {
        self.notifier.acknowledge();
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.is_pending &= results.is_none();
        results.unwrap_or_default()
    }
}

impl AsFd for GroupWatcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

/// The groups of up to `count` grants after the one named `position`, and the next position.
fn next_groups(grants: &Grants, position: &str, count: usize) -> (Vec<Group>, Arc<str>) {
    let mut entries = grants.after(position).take(count).peekable();
    let mut groups = Vec::new();
    let mut next: Arc<str> = "".into();
    while let Some(entry) = entries.next() {
        if entry.grant.cgroup.is_some() {
            groups.push((Arc::clone(&entry.name), Arc::clone(&entry.directories)));
        }
        if entries.peek().is_none() && grants.after(&entry.name).next().is_some() {
            next = Arc::clone(&entry.name);
        }
    }
    (groups, next)
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::entry;
    use super::*;
    use crate::protocol::Grant;

    #[test]
    fn passes_are_limited_and_every_grant_is_checked() {
        let mut grants = Grants::default();
        for number in 0..10 {
            let (cgroup, name) = (Some(format!("/{number}")), format!("grant-{number}"));
            let added = entry(&mut grants, Grant { name, cgroup, ..Grant::default() });
            grants.insert(added);
        }
        let (mut position, mut checked) = (Arc::from(""), Vec::new());
        for pass in 0..4 {
            let (groups, next) = next_groups(&grants, &position, 3);
            assert_eq!(groups.len(), [3, 3, 3, 1][pass]);
            checked.extend(groups.into_iter().map(|(name, _)| name));
            position = next;
        }
        assert_eq!((checked.len(), &*position), (10, ""), "the next pass begins again");
        checked.sort();
        checked.dedup();
        assert_eq!(checked.len(), 10);
    }
}
