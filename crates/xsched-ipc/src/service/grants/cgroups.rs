//! Control groups: those of a process, and the directories that show whether a group still exists.
//!
//! A machine can have one hierarchy of version 2 and several of version 1, each mounted at another place. A path names a group in
//! any of them.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::process;

/// The paths of a process's control groups, as the kernel shows them to the service. Without the root groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct ProcessGroups(Box<[Box<str>]>);

impl ProcessGroups {
    /// The groups of a process; none if it has exited.
    pub(in super::super) fn of(pid: u32) -> Option<Self> {
        process::cgroup_file(pid).map(|text| Self::parse(&text))
    }

    /// Parses the text of `/proc/PID/cgroup`: lines of a number, controllers and a path, separated by colons.
    pub(super) fn parse(text: &str) -> Self {
        let mut paths: Vec<Box<str>> = Vec::new();
        // A last line without its end was truncated: the rest of its path is unknown.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let path = line.splitn(3, ':').nth(2).unwrap_or_default();
            if path.len() > 1 && path.starts_with('/') && !paths.iter().any(|known| **known == *path) {
                paths.push(path.into());
            }
        }
        Self(paths.into())
    }

    pub(in super::super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|path| &**path)
    }

    /// Whether one of them is the group at `path`, or below it.
    pub(in super::super) fn are_within(&self, path: &str) -> bool {
        let is_within =
            |own: &str| own.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        self.iter().any(is_within)
    }
}

/// The path of a group and of all groups above it, the longest first, without the root.
pub(super) fn with_ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(parent, _)| parent))
        .take_while(|path| !path.is_empty())
}

/// Brings the path of a group to the form in `/proc/PID/cgroup`. None if no group has this path.
pub(super) fn normalize(path: &str) -> Option<String> {
    let path = path.trim_end_matches('/');
    let parts = path.strip_prefix('/')?;
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    parts.split('/').all(is_name).then(|| path.to_owned())
}

/// Where a hierarchy of control groups is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    /// The group that the mount shows as its root.
    root: String,
    point: PathBuf,
}

/// The mounts of control groups that this process can see.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Mounts(Vec<Mount>);

impl Mounts {
    /// The directories of the group at `path`. The list of mounts, which can be long, is read only if no known mount has the group.
    pub(super) fn find(&mut self, path: &str) -> GroupDirectories {
        let known = self.directories(path);
        if !known.is_empty() {
            return known;
        }
        *self = Self::read();
        self.directories(path)
    }

    fn read() -> Self {
        Self::parse(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    pub(super) fn parse(text: &str) -> Self {
        let mount = |line: &str| {
            let (mount, kind) = line.split_once(" - ")?;
            let mut fields = mount.split(' ').skip(3);
            let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
            let is_cgroup = matches!(kind.split(' ').next()?, "cgroup" | "cgroup2");
            is_cgroup.then(|| Mount { root: root.trim_end_matches('/').to_owned(), point: point.into() })
        };
        Self(text.lines().filter_map(mount).collect())
    }

    /// The directories of the group at `path`, in all hierarchies that have it.
    fn directories(&self, path: &str) -> GroupDirectories {
        let directory = |mount: &Mount| {
            let below = path.strip_prefix(mount.root.as_str()).filter(|below| below.starts_with('/'))?;
            let mut directory = mount.point.as_os_str().to_owned();
            directory.push(below);
            let directory = PathBuf::from(directory);
            inode(&directory).map(|inode| (directory, inode))
        };
        GroupDirectories(self.0.iter().filter_map(directory).collect())
    }
}

/// Spaces and the like are written as three octal digits after a backslash.
fn unescape(field: &str) -> String {
    let (mut text, mut rest) = (String::new(), field);
    while let Some((before, after)) = rest.split_once('\\') {
        text.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            text.push(char::from(code));
            rest = &after[3..];
        } else {
            text.push('\\');
            rest = after;
        }
    }
    text + rest
}

fn inode(directory: &Path) -> Option<u64> {
    let metadata = std::fs::symlink_metadata(directory).ok()?;
    metadata.is_dir().then(|| metadata.ino())
}

/// The directories of a group with their inodes: a later group of the same path has another inode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupDirectories(Vec<(PathBuf, u64)>);

impl GroupDirectories {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the group still exists in one of the hierarchies.
    pub(super) fn exist(&self) -> bool {
        self.0.iter().any(|(directory, number)| inode(directory) == Some(*number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_all_hierarchies_and_a_truncated_line_does_not_count() {
        let text =
            "9:name=systemd:/\n4:memory:/slurm/job_1\n3:cpu,cpuacct:/slurm/job_1/step:0\n0::/slurm/job_12";
        let groups = ProcessGroups::parse(text);
        assert_eq!(groups.iter().collect::<Vec<_>>(), ["/slurm/job_1", "/slurm/job_1/step:0"]);
        assert!(groups.are_within("/slurm") && groups.are_within("/slurm/job_1/step:0"));
        assert!(
            !groups.are_within("/slurm/job_12")
                && !groups.are_within("/slurm/job_")
                && !groups.are_within("/x")
        );
        assert_eq!(ProcessGroups::parse("garbage\n::\n0::relative\n"), ProcessGroups::default());
    }

    #[test]
    fn paths_are_normalized() {
        assert_eq!(normalize("/a/b/").as_deref(), Some("/a/b"));
        for invalid in ["", "/", "//", "a", "/a//b", "/a/../b", "/./a"] {
            assert_eq!(normalize(invalid), None, "{invalid}");
        }
        assert_eq!(with_ancestors("/a/b/c").collect::<Vec<_>>(), ["/a/b/c", "/a/b", "/a"]);
    }

    #[test]
    fn mounts_show_a_group_as_their_root() {
        let text = "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                    32 24 0:28 /pod /sys/fs/my\\040group rw,nosuid shared:9 - cgroup cgroup rw,cpu\n\
                    33 24 0:29 / /proc rw - proc proc rw\nnot a line\n";
        let mount = |root: &str, point: &str| Mount { root: root.to_owned(), point: point.into() };
        let mounts = [mount("", "/sys/fs/cgroup/unified"), mount("/pod", "/sys/fs/my group")];
        assert_eq!(Mounts::parse(text).0, mounts);
    }

    #[test]
    fn group_that_was_removed_and_created_again_is_another_group() {
        let place = tempfile::tempdir().unwrap();
        let mount = |root: &str| Mount { root: root.to_owned(), point: place.path().to_owned() };
        let mounts = Mounts(vec![mount("/pod"), mount("")]);
        assert!(mounts.directories("/job").is_empty());
        let group = place.path().join("job");
        std::fs::create_dir(&group).unwrap();
        assert_eq!(mounts.directories("/pod/job"), mounts.directories("/job"));
        assert!(mounts.directories("/podjob").is_empty());
        let directories = mounts.directories("/job");
        assert!(directories.exist());
        std::fs::rename(&group, place.path().join("old")).unwrap();
        assert!(!directories.exist());
        std::fs::create_dir(&group).unwrap();
        assert!(!directories.exist() && mounts.directories("/job").exist());
    }
}
