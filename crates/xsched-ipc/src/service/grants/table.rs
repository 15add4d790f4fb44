//! The table of grants: found by name, by control group and by token.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use xsched_core::{Hints, Priority, Share};

use super::super::permissions::Limit;
use super::cgroups::{GroupDirectories, with_ancestors};
use super::{ProcessGroups, TokenHash};
use crate::protocol::Grant;

/// The maximum number of grants.
pub(super) const MAX_GRANTS: usize = 4_096;

/// The number of a grant. A grant that replaces another of the same name has its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) struct GrantId(pub(in super::super) u64);

/// A process whose exit ends a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AwaitedProcess {
    /// The number by which epoll identifies its pidfd.
    pub(super) number: u32,
    /// When it was started: another process with its number was started at another time.
    pub(super) start_time: u64,
}

/// A grant in force.
#[derive(Clone, Debug)]
pub(in super::super) struct Entry {
    pub(in super::super) id: GrantId,
    /// The grant, without its token.
    pub(in super::super) grant: Grant,
    pub(in super::super) name: Arc<str>,
    pub(super) token: Option<TokenHash>,
    pub(in super::super) is_suspended: bool,
    /// The directories of its control group.
    pub(super) directories: Arc<GroupDirectories>,
    pub(super) awaited: Option<AwaitedProcess>,
}

impl Entry {
    /// The limit of its processes; `otherwise` is that of their user.
    pub(in super::super) fn limit(&self, otherwise: Limit) -> Limit {
        Limit {
            priority: self.priority().unwrap_or(otherwise.priority),
            share: self.share().unwrap_or(otherwise.share),
        }
    }

    /// The hints of its processes that request none; `otherwise` are those without the grant.
    pub(in super::super) fn hints(&self, mut otherwise: Hints) -> Hints {
        otherwise.priority = self.priority().unwrap_or(otherwise.priority);
        otherwise.share = self.share().unwrap_or(otherwise.share);
        otherwise
    }

    // The values were validated with the grant.
    fn priority(&self) -> Option<Priority> {
        self.grant.priority.and_then(|priority| Priority::new(priority).ok())
    }

    fn share(&self) -> Option<Share> {
        self.grant.share.and_then(|share| Share::new(share).ok())
    }

    fn applies_to(&self, uid: u32) -> bool {
        self.grant.uid.is_none_or(|user| user == uid)
    }
}

/// All grants.
#[derive(Debug, Default)]
pub(in super::super) struct Grants {
    by_name: BTreeMap<Arc<str>, Entry>,
    names: HashMap<GrantId, Arc<str>>,
    /// The grants of each control group.
    by_group: HashMap<String, Vec<Arc<str>>>,
    by_token: HashMap<TokenHash, Arc<str>>,
    last_id: u64,
    /// Incremented with every change that may affect which process has which grant, and is confined to what.
    generation: u64,
}

impl Grants {
    pub(super) fn len(&self) -> usize {
        self.by_name.len()
    }

    pub(in super::super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether a grant gives rights to the processes of a control group.
    pub(super) fn have_groups(&self) -> bool {
        !self.by_group.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.by_name.values()
    }

    /// The configuration has changed which processes are confined.
    pub(super) fn note_other_confinement(&mut self) {
        self.generation += 1;
    }

    /// The grants after that name, in the order of names.
    pub(super) fn after(&self, name: &str) -> impl Iterator<Item = &Entry> {
        use std::ops::Bound::{Excluded, Unbounded};
        self.by_name.range::<str, _>((Excluded(name), Unbounded)).map(|(_, entry)| entry)
    }

    pub(in super::super) fn named(&self, name: &str) -> Option<&Entry> {
        self.by_name.get(name)
    }

    pub(super) fn named_mut(&mut self, name: &str) -> Option<&mut Entry> {
        self.by_name.get_mut(name)
    }

    pub(in super::super) fn get(&self, id: GrantId) -> Option<&Entry> {
        self.by_name.get(self.names.get(&id)?)
    }

    /// The number for a grant of this name: that of the present one, or a new one.
    pub(super) fn id_for(&mut self, name: &str) -> GrantId {
        if let Some(entry) = self.by_name.get(name) {
            return entry.id;
        }
        self.last_id += 1;
        GrantId(self.last_id)
    }

    /// Adds a grant. Returns the one of the same name that it replaces.
    pub(super) fn insert(&mut self, entry: Entry) -> Option<Entry> {
        let replaced = self.remove(&Arc::clone(&entry.name));
        self.last_id = self.last_id.max(entry.id.0);
        self.names.insert(entry.id, Arc::clone(&entry.name));
        if let Some(group) = &entry.grant.cgroup {
            self.by_group.entry(group.clone()).or_default().push(Arc::clone(&entry.name));
        }
        if let Some(token) = entry.token {
            self.by_token.insert(token, Arc::clone(&entry.name));
        }
        self.by_name.insert(Arc::clone(&entry.name), entry);
        self.generation += 1;
        replaced
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Entry> {
        let entry = self.by_name.remove(name)?;
        self.names.remove(&entry.id);
        if let Some(group) = &entry.grant.cgroup
            && let Some(names) = self.by_group.get_mut(group)
        {
            names.retain(|other| **other != *name);
            if names.is_empty() {
                self.by_group.remove(group);
            }
        }
        if let Some(token) = &entry.token {
            self.by_token.remove(token);
        }
        self.generation += 1;
        Some(entry)
    }

    /// The grant with this token, whatever its user.
    pub(super) fn with_token(&self, token: TokenHash) -> Option<&Entry> {
        self.by_name.get(self.by_token.get(&token)?)
    }

    /// The grant with this token, for a process of this user.
    pub(in super::super) fn by_token(&self, uid: u32, token: TokenHash) -> Option<&Entry> {
        self.with_token(token).filter(|entry| entry.applies_to(uid))
    }

    /// The grant of a process of this user by its control groups: that of the longest path. Of several with the same path, one
    /// for this user only takes precedence, then the first by name.
    pub(in super::super) fn by_groups(&self, uid: u32, groups: &ProcessGroups) -> Option<&Entry> {
        let mut found: Option<(&str, &Entry)> = None;
        for path in groups.iter() {
            let longer =
                with_ancestors(path).take_while(|path| found.is_none_or(|(best, _)| path.len() > best.len()));
            let entry = longer.into_iter().find_map(|path| Some((path, self.of_group(uid, path)?)));
            found = entry.or(found);
        }
        found.map(|(_, entry)| entry)
    }

    fn of_group(&self, uid: u32, path: &str) -> Option<&Entry> {
        let names = self.by_group.get(path)?;
        let entries = names.iter().filter_map(|name| self.by_name.get(name));
        entries
            .filter(|entry| entry.applies_to(uid))
            .min_by(|a, b| (a.grant.uid.is_none(), &a.name).cmp(&(b.grant.uid.is_none(), &b.name)))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn entry(grants: &mut Grants, grant: Grant) -> Entry {
        Entry {
            id: grants.id_for(&grant.name),
            name: grant.name.as_str().into(),
            token: grant.token.as_deref().map(TokenHash::of),
            grant: Grant { token: None, ..grant },
            is_suspended: false,
            directories: Arc::default(),
            awaited: None,
        }
    }

    fn add(grants: &mut Grants, name: &str, cgroup: &str, uid: Option<u32>) {
        let grant = Grant { name: name.to_owned(), cgroup: Some(cgroup.to_owned()), uid, ..Grant::default() };
        let entry = entry(grants, grant);
        grants.insert(entry);
    }

    fn groups(paths: &[&str]) -> ProcessGroups {
        let file: String = paths.iter().flat_map(|path| ["1:x:", path, "\n"]).collect();
        ProcessGroups::parse(&file)
    }

    fn name<'a>(grants: &'a Grants, uid: u32, paths: &[&str]) -> Option<&'a str> {
        grants.by_groups(uid, &groups(paths)).map(|entry| &*entry.name)
    }

    #[test]
    fn longest_path_of_any_hierarchy_that_applies_to_the_user_wins() {
        let mut grants = Grants::default();
        add(&mut grants, "node", "/slurm", None);
        add(&mut grants, "job", "/slurm/job_1", Some(7));
        add(&mut grants, "any", "/slurm/job_1", None);
        add(&mut grants, "pod", "/kubepods/pod1", None);
        assert_eq!(name(&grants, 7, &["/slurm/job_1/step_0"]), Some("job"));
        assert_eq!(name(&grants, 8, &["/slurm/job_1/step_0"]), Some("any"));
        assert_eq!(name(&grants, 8, &["/slurm/job_12"]), Some("node"));
        assert_eq!(name(&grants, 8, &["/slurm/job_12", "/kubepods/pod1/c"]), Some("pod"));
        assert_eq!(name(&grants, 8, &["/kubepods/pod1/c", "/slurm/job_12"]), Some("pod"));
        assert_eq!(name(&grants, 8, &["/kubepods", "/slur"]), None);
        grants.remove("any");
        assert_eq!(name(&grants, 8, &["/slurm/job_1"]), Some("node"));
        grants.remove("job");
        grants.remove("node");
        grants.remove("pod");
        assert!(!grants.have_groups() && grants.by_name.is_empty() && grants.names.is_empty());
    }

    #[test]
    fn token_is_found_by_its_hash_and_for_its_user_only() {
        let mut grants = Grants::default();
        let token = "t".repeat(32);
        let grant = Grant { name: "a".into(), token: Some(token.clone()), uid: Some(7), ..Grant::default() };
        let added = entry(&mut grants, grant);
        grants.insert(added);
        let found = |uid, token: &str| grants.by_token(uid, TokenHash::of(token)).is_some();
        assert!(found(7, &token) && !found(8, &token) && !found(7, "other"));
        assert!(!format!("{grants:?}").contains(&token));
    }

    #[test]
    fn replacing_grant_keeps_the_number_and_a_later_one_has_a_new_number() {
        let mut grants = Grants::default();
        add(&mut grants, "a", "/a", None);
        let (first, generation) = (grants.named("a").unwrap().id, grants.generation());
        add(&mut grants, "a", "/b", None);
        assert_eq!(grants.named("a").unwrap().id, first);
        assert!(name(&grants, 7, &["/a"]).is_none() && name(&grants, 7, &["/b"]).is_some());
        assert!(grants.generation() > generation);
        grants.remove("a");
        add(&mut grants, "a", "/a", None);
        assert_ne!(grants.named("a").unwrap().id, first);
    }
}
