//! The machine that the checks examine.

use std::collections::HashMap;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use xsched_ipc::socket;

use super::kernel::Kernel;

/// The machine, with its files below a root directory that tests can choose.
pub(crate) struct Machine {
    /// The root of the file tree: `/`, except in tests.
    pub(crate) root: PathBuf,
    /// Environment variables.
    pub(crate) environment: HashMap<String, String>,
    /// The effective user ID.
    pub(crate) uid: u32,
    /// The group IDs of the user.
    pub(crate) gids: Vec<u32>,
    /// The file of this program.
    pub(crate) program: Option<PathBuf>,
    /// Paths of the sockets that a service may use.
    pub(crate) sockets: Vec<PathBuf>,
    /// Features of the kernel.
    pub(crate) kernel: Kernel,
    /// Whether this user may read and write a file.
    pub(crate) may_use: fn(&Path) -> bool,
    /// The version of the interface of AMD's compute driver, by its device file.
    pub(crate) kfd_version: fn(&Path) -> Option<(u32, u32)>,
}

impl Machine {
    /// The machine this program runs on.
    pub(crate) fn this() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            root: PathBuf::from("/"),
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            uid: rustix::process::geteuid().as_raw(),
            gids: groups.iter().map(|group| group.as_raw()).collect(),
            program: std::env::current_exe().ok(),
            sockets: socket::candidates(),
            kernel: Kernel::probe(),
            // `access` also considers ACLs and capabilities, which the mode does not show.
            may_use: |path| rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK).is_ok(),
            kfd_version,
        }
    }

    /// The machine whose files are copied below a directory.
    pub(crate) fn below(root: PathBuf) -> Self {
        Self { root, kfd_version: |_| None, ..Self::this() }
    }

    /// The absolute `path` below the root.
    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Whether the file exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.at(path).exists()
    }

    /// The text of a file, if it can be read.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok()
    }

    /// The names in a directory, sorted; empty if it does not exist.
    pub(crate) fn names_in(&self, directory: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.at(directory)).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether this user may read and write a file.
    pub(crate) fn may_use(&self, path: &str) -> bool {
        (self.may_use)(&self.at(path))
    }

    /// The value of an environment variable, if it is not empty.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The ID of a group, if it exists.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        let groups = self.text("/etc/group")?;
        groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
        })
    }

    /// The name of the group of a file.
    pub(crate) fn group_of(&self, path: &str) -> Option<String> {
        let gid = std::fs::metadata(self.at(path)).ok()?.gid().to_string();
        let groups = self.text("/etc/group")?;
        groups.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1) == Some(&gid)).then(|| name.to_owned())
        })
    }

    /// How to get access to a file that only its group may use.
    pub(crate) fn how_to_get_access(&self, path: &str, default_group: &str) -> String {
        let gid = std::fs::metadata(self.at(path)).map_or(0, |file| file.gid());
        access_through_group(path, self.group_of(path).as_deref(), gid, default_group)
    }
}

/// How to join the group of a file, by its name or, if it has none here, its number.
pub(super) fn access_through_group(path: &str, name: Option<&str>, gid: u32, default: &str) -> String {
    if name.is_none() && gid != 0 {
        // The usual case in a container: the host's group is unknown in it.
        return format!(
            "{path} belongs to group {gid}, which has no name here: start the container with `--group-add {gid}`, or \
             `sudo groupadd -g {gid} {default}` and `sudo usermod -aG {default} $USER`, then log in again"
        );
    }
    let group = name.filter(|group| *group != "root").unwrap_or(default);
    format!("`sudo usermod -aG {group} $USER`, then log in again; in a container, pass {path} to it")
}

/// Asks AMD's compute driver for the version of its interface. This changes nothing in the driver.
fn kfd_version(path: &Path) -> Option<(u32, u32)> {
    /// `AMDKFD_IOC_GET_VERSION`.
    const GET_VERSION: libc::c_ulong = 0x8008_4b01;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).ok()?;
    let mut version = [0_u32; 2];
    // SAFETY: the driver writes 8 bytes, for which `version` has room.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), GET_VERSION, version.as_mut_ptr()) };
    (result == 0).then_some((version[0], version[1]))
}
