//! Finds the control groups of pods below `/sys/fs/cgroup`.
//!
//! ```text
//!   cgroupfs driver   /kubepods/burstable/podUID/CONTAINER
//!   systemd driver    /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podU_I_D.slice/cri-containerd-CONTAINER.scope
//!   without pod groups (cgroupsPerQOS: false)   /CONTAINER or /k8s.io/CONTAINER
//! ```
//!
//! Version 2 has one hierarchy, version 1 one below each directory of the mount; a pod has the same path in all of them. The search
//! does not descend into pods and containers, nor into directories that other users own: a process could create a directory
//! there with the name of another pod.

use std::collections::{BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The maximum depth of a pod's group below the root of a hierarchy, for kubelets with a cgroup root of their own.
const MAX_DEPTH: usize = 6;

/// The control groups of all pods and containers of the node, as in `/proc/PID/cgroup`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupIndex {
    has_pod_groups: bool,
    pods: HashMap<String, String>,
    containers: HashMap<String, String>,
}

impl CgroupIndex {
    /// Looks at all hierarchies below the mount, usually `/sys/fs/cgroup`.
    #[must_use]
    pub fn look(mount: &Path) -> Self {
        let mut index = Self::default();
        for hierarchy in hierarchies(mount) {
            index.look_in(&hierarchy, "", 0);
        }
        index
    }

    /// Whether the kubelet makes a group for each pod. It creates the groups above them when it starts.
    #[must_use]
    pub fn has_pod_groups(&self) -> bool {
        self.has_pod_groups
    }

    /// The groups of a pod: its own, or if the kubelet makes none for pods, those of its containers that exist.
    #[must_use]
    pub fn of_pod<'a>(&self, uid: &str, containers: impl Iterator<Item = &'a str>) -> Vec<String> {
        if let Some(pod) = self.pods.get(uid) {
            return vec![pod.clone()];
        }
        let paths = containers.filter_map(|id| self.containers.get(id).cloned());
        paths.collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn look_in(&mut self, directory: &Path, path: &str, depth: usize) {
        for name in trusted_directories(directory) {
            let below = format!("{path}/{name}");
            if let Some(uid) = pod_uid(&name) {
                self.pods.entry(uid).or_insert(below);
            } else if let Some(id) = container_id(&name) {
                self.containers.entry(id.to_owned()).or_insert(below);
            } else if depth < MAX_DEPTH && may_contain_pods(&name) {
                self.has_pod_groups |= name.contains("kubepods");
                self.look_in(&directory.join(&name), &below, depth + 1);
            }
        }
    }
}

/// Whether a process is in the group with this path, or below it, in any hierarchy.
#[must_use]
pub fn has_processes(mount: &Path, path: &str) -> bool {
    fn is_populated(directory: &Path) -> bool {
        // The size of these files is always 0.
        let processes = std::fs::read(directory.join("cgroup.procs")).unwrap_or_default();
        if !processes.is_empty() {
            return true;
        }
        let Ok(entries) = std::fs::read_dir(directory) else { return false };
        let directories = entries.filter_map(Result::ok).filter(|entry| entry.path().is_dir());
        directories.into_iter().any(|entry| is_populated(&entry.path()))
    }
    hierarchies(mount).iter().any(|root| is_populated(&root.join(path.trim_start_matches('/'))))
}

fn hierarchies(mount: &Path) -> Vec<PathBuf> {
    if mount.join("cgroup.controllers").exists() {
        return vec![mount.to_owned()];
    }
    let mut names = trusted_directories(mount);
    names.sort_unstable();
    names.into_iter().map(|name| mount.join(name)).filter(|path| path.join("cgroup.procs").exists()).collect()
}

/// The directories that belong to root or to the agent's user.
fn trusted_directories(directory: &Path) -> Vec<String> {
    let own = std::fs::metadata("/proc/self").map_or(0, |metadata| metadata.uid());
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let trusted = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        let is_trusted = metadata.is_dir() && (metadata.uid() == 0 || metadata.uid() == own);
        is_trusted.then(|| entry.file_name().into_string().ok())?
    });
    trusted.collect()
}

fn may_contain_pods(name: &str) -> bool {
    name.contains("kube") || matches!(name, "burstable" | "besteffort" | "guaranteed" | "k8s.io" | "default")
}

/// The id of the pod that a directory belongs to.
fn pod_uid(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= 32 && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

/// The id of the container that a directory belongs to.
fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit_once('-').map_or(name, |(_, id)| id);
    (id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2f1c0b7e-5a0d-4c55-9d0e-0123456789ab";
    const OTHER: &str = "ffffffff-5a0d-4c55-9d0e-0123456789ab";

    fn index(version_2: bool, groups: &[&str]) -> CgroupIndex {
        let mount = tempfile::tempdir().unwrap();
        let root = if version_2 { mount.path().to_owned() } else { mount.path().join("memory") };
        std::fs::create_dir_all(&root).unwrap();
        std::fs::write(root.join(if version_2 { "cgroup.controllers" } else { "cgroup.procs" }), "").unwrap();
        for group in groups {
            std::fs::create_dir_all(root.join(group.trim_start_matches('/'))).unwrap();
        }
        CgroupIndex::look(mount.path())
    }

    #[test]
    fn pods_of_both_drivers_and_both_versions_are_found() {
        let slice = UID.replace('-', "_");
        for group in [
            format!("/kubepods/pod{UID}"),
            format!("/kubepods/besteffort/pod{UID}"),
            format!("/kubelet/kubepods/burstable/pod{UID}"),
            format!("/kubepods.slice/kubepods-pod{slice}.slice"),
            format!("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice"),
            format!("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{slice}.slice"),
        ] {
            for version_2 in [false, true] {
                let container = format!("{group}/{}", "a".repeat(64));
                let index = index(version_2, &[&container]);
                assert!(index.has_pod_groups());
                let found = index.of_pod(UID, std::iter::empty());
                assert_eq!(found, [group.as_str()]);
            }
        }
    }

    #[test]
    fn containers_are_found_where_pods_have_no_group() {
        let [a, b] = ["a", "b"].map(|digit| digit.repeat(64));
        let index = index(false, &[&format!("/{a}"), &format!("/k8s.io/{b}"), "/system.slice/x"]);
        let ids = [a.as_str(), b.as_str(), "c"];
        assert!(!index.has_pod_groups());
        assert_eq!(index.of_pod(UID, ids.into_iter()), [format!("/{a}"), format!("/k8s.io/{b}")]);
    }

    #[test]
    fn directories_below_pods_and_outside_of_kubernetes_do_not_count() {
        let forged = format!("/kubepods/pod{OTHER}/kubepods/pod{UID}");
        let elsewhere = format!("/user.slice/kubepods/pod{UID}");
        let container = format!("/kubepods/{}/pod{UID}", "a".repeat(64));
        let index = index(true, &[&forged, &elsewhere, &container]);
        assert_eq!(index.of_pod(UID, std::iter::empty()), [""; 0]);
        assert_eq!(index.of_pod(OTHER, std::iter::empty()), [format!("/kubepods/pod{OTHER}")]);
    }

    #[test]
    fn group_has_the_processes_of_the_groups_below() {
        let mount = tempfile::tempdir().unwrap();
        let container = mount.path().join("kubepods/pod/container");
        std::fs::create_dir_all(&container).unwrap();
        std::fs::write(mount.path().join("cgroup.controllers"), "").unwrap();
        std::fs::write(container.join("cgroup.procs"), "").unwrap();
        assert!(!has_processes(mount.path(), "/kubepods/pod"));
        std::fs::write(container.join("cgroup.procs"), "17\n").unwrap();
        assert!(has_processes(mount.path(), "/kubepods/pod"));
        assert!(!has_processes(mount.path(), "/kubepods/other"));
    }

    #[test]
    fn directories_of_other_users_do_not_count() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::write(mount.path().join("cgroup.controllers"), "").unwrap();
        let kubepods = mount.path().join("kubepods");
        std::fs::create_dir_all(kubepods.join(format!("pod{UID}"))).unwrap();
        if std::os::unix::fs::chown(&kubepods, Some(12_345), None).is_err() {
            eprintln!("skipped: only root can give a directory to another user");
            return;
        }
        assert_eq!(CgroupIndex::look(mount.path()), CgroupIndex::default());
    }
}
