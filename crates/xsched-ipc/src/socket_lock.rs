//! The lock beside a socket, and the process that holds it.
//!
//! The service holds a lock on a file beside its socket. The kernel releases the lock when the service exits for any reason. So
//! a socket with a free lock is stale, and of two services that start at the same time one finds the lock held.
//!
//! Only the user of the service can open the file: the lock of another user would block the next service. The file contains the
//! number of the service's process, so that a service that does not reply can be ended.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Why the lock was not acquired.
#[derive(Debug)]
pub(crate) enum LockError {
    /// A service holds it.
    Held,
    /// The file is not a regular file of this user.
    Foreign(&'static str),
    /// A system call failed.
    System(&'static str, io::Error),
}

/// The lock beside a socket. Dropping it removes the file and releases the lock.
pub(crate) struct SocketLock {
    file: File,
    path: PathBuf,
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

fn open(path: &Path, creates: bool) -> io::Result<File> {
    // A symbolic link could lead to any file, and opening a pipe could block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).write(true).create(creates).mode(0o600).custom_flags(flags).open(path)
}

impl SocketLock {
    /// Acquires the lock. `has_listener` tells whether a service listens at the socket.
    pub(crate) fn acquire(socket: &Path, has_listener: impl Fn() -> bool) -> Result<Self, LockError> {
        let path = lock_path(socket);
        loop {
            let file = open(&path, true).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::LOOP) => LockError::Foreign("is a symbolic link"),
                _ => LockError::System("create", error),
            })?;
            let inspect = |error| LockError::System("inspect", error);
            let ours = file.metadata().map_err(inspect)?;
            if !ours.is_file() {
                return Err(LockError::Foreign("is not a regular file"));
            }
            if ours.uid() != rustix::process::geteuid().as_raw() {
                return Err(LockError::Foreign("belongs to another user"));
            }
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                // A file of an earlier version, which other users could open and lock. Without a service it is in the way.
                Err(Errno::WOULDBLOCK) if ours.mode() & 0o077 != 0 && !has_listener() => {
                    remove(&path, &ours).map_err(|error| LockError::System("remove", error))?;
                    continue;
                }
                Err(Errno::WOULDBLOCK) => return Err(LockError::Held),
                Err(why) => return Err(LockError::System("lock", why.into())),
            }
            // The previous service may have removed the file between the two calls. Then this lock is on a file without a name.
            if !is_same_file(&path, &ours) {
                continue;
            }
            let mut lock = Self { file, path };
            lock.record_owner().map_err(|error| LockError::System("write", error))?;
            return Ok(lock);
        }
    }

    /// The file of the lock.
    pub(crate) fn path_for(socket: &Path) -> PathBuf {
        lock_path(socket)
    }

    fn record_owner(&mut self) -> io::Result<()> {
        self.file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
        self.file.set_len(0)?;
        writeln!(self.file, "{}", std::process::id())
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        // The file is removed while it is locked: no other service can have locked it.
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

fn is_same_file(path: &Path, ours: &std::fs::Metadata) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
}

fn remove(path: &Path, ours: &std::fs::Metadata) -> io::Result<()> {
    if is_same_file(path, ours) { std::fs::remove_file(path) } else { Ok(()) }
}

/// The process that holds the lock beside a socket.
pub(crate) struct SocketOwner {
    pid: Pid,
    /// Never refers to another process.
    pidfd: OwnedFd,
}

impl SocketOwner {
    /// The process of the service at `socket`. None if there is none, or this user may not know it.
    pub(crate) fn of(socket: &Path) -> Option<Self> {
        let mut file = open(&lock_path(socket), false).ok()?;
        let mut text = String::new();
        (&mut file).take(32).read_to_string(&mut text).ok()?;
        let pid = Pid::from_raw(text.trim_end().parse().ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The number may be that of a service that was killed, and belong to any process by now.
        let lock = file.metadata().ok()?;
        // The number may also be that of this process, which must not find its own descriptor.
        drop(file);
        let has_opened = |fd: &std::fs::DirEntry| {
            let opened = std::fs::metadata(fd.path());
            opened.is_ok_and(|opened| (opened.dev(), opened.ino()) == (lock.dev(), lock.ino()))
        };
        let mut opened = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).ok()?;
        opened.any(|fd| fd.is_ok_and(|fd| has_opened(&fd))).then_some(Self { pid, pidfd })
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Its state, as `/proc/PID/stat` abbreviates it.
    fn state_letter(&self) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).ok()?;
        // The name before it is in parentheses and may itself contain spaces.
        stat.rsplit_once(") ")?.1.chars().next()
    }

    /// Whether a signal has stopped the process.
    pub(crate) fn is_stopped(&self) -> bool {
        self.state_letter() == Some('T')
    }

    /// What the process does, as the end of a sentence.
    pub(crate) fn state(&self) -> &'static str {
        match self.state_letter() {
            Some('T') => "is stopped by a signal",
            Some('t') => "is stopped by a debugger",
            Some('D') => "waits for the kernel",
            Some('R') => "runs, and may be overloaded",
            _ => "does not respond",
        }
    }

    /// Kills the process and waits until it has exited.
    pub(crate) fn kill(&self, timeout: Duration) -> Result<(), String> {
        let pid = self.pid();
        pidfd_send_signal(&self.pidfd, Signal::KILL).or_else(|why| match why {
            Errno::SRCH => Ok(()),
            why => Err(format!("cannot end its process {pid}: {why}; run as root")),
        })?;
        // Fails only for a duration too long to represent: then there is no limit.
        let timeout = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], timeout.as_ref()) {
            Ok(1..) => Ok(()),
            _ => Err(format!("its process {pid} was killed and has not exited: it waits for the kernel")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_socket_path() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        (directory, socket)
    }

    #[test]
    fn lock_is_private_names_its_owner_and_is_removed() {
        let (_directory, socket) = new_socket_path();
        let lock = SocketLock::acquire(&socket, || false).map_err(|error| format!("{error:?}")).unwrap();
        let file = lock_path(&socket);
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(SocketLock::acquire(&socket, || false), Err(LockError::Held)));
        let owner = SocketOwner::of(&socket).unwrap();
        assert_eq!(u32::try_from(owner.pid()), Ok(std::process::id()));
        drop(lock);
        assert!(!file.exists());
        assert!(SocketOwner::of(&socket).is_none());
    }

    #[test]
    fn process_that_does_not_hold_the_lock_is_not_its_owner() {
        let (_directory, socket) = new_socket_path();
        std::fs::write(lock_path(&socket), format!("{}\n", std::process::id())).unwrap();
        assert!(SocketOwner::of(&socket).is_none());
    }

    #[test]
    fn lock_of_another_program_blocks_only_while_a_service_listens() {
        let (_directory, socket) = new_socket_path();
        let file = lock_path(&socket);
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let theirs = File::open(&file).unwrap();
        rustix::fs::flock(&theirs, FlockOperation::LockShared).unwrap();
        assert!(matches!(SocketLock::acquire(&socket, || true), Err(LockError::Held)));
        assert!(SocketLock::acquire(&socket, || false).is_ok());
    }

    #[test]
    fn lock_follows_no_symbolic_link() {
        let (directory, socket) = new_socket_path();
        let target = directory.path().join("target");
        std::os::unix::fs::symlink(&target, lock_path(&socket)).unwrap();
        assert!(matches!(
            SocketLock::acquire(&socket, || false),
            Err(LockError::Foreign("is a symbolic link"))
        ));
        assert!(!target.exists());
    }
}
