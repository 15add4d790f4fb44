//! The process and the user at the other end of a connection, as the kernel reports them.
//!
//! ```text
//!   the peer is                          the kernel reports                identifier used here
//!   visible, also in a container         its process id on this host       the process id
//!   in a process namespace not visible   0, and a pidfd (Linux 6.5)        a number no process has, from its pidfd
//! ```
//! The second case occurs if the service runs in a container, and the peer runs in another or on the host.

use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;

use super::grants::Confinement;
use super::process;
use crate::protocol::Caller;

/// Numbers from here on are not process ids: the kernel's limit is 4 million.
const FIRST_INVISIBLE: u32 = 1 << 31;
/// The magic number of the file system whose inodes identify processes, since Linux 6.9.
const PIDFS: u64 = 0x5049_4446;

/// The user id that the kernel gives to no user, and the group id that it gives to no group.
const NO_ID: u32 = u32::MAX;
/// The process id of a peer without a process.
const NO_PROCESS: u32 = 0;

/// The process and the user at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// Its process id; for an invisible process a number that no process has.
    pub(super) pid: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// What it is confined to by its control group or its grant.
    pub(super) confinement: Confinement,
}

impl Peer {
    pub(super) fn of(socket: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        let cred: libc::ucred = option(socket, libc::SO_PEERCRED)?;
        let pid = match u32::try_from(cred.pid) {
            Ok(pid) if pid != 0 => pid,
            _ => invisible_number(socket),
        };
        Ok(Self { pid, uid: cred.uid, gid: cred.gid, confinement: Confinement::None })
    }

    /// The peer of a connection that acts for a caller: a user without a process, or no user.
    pub(super) fn acting_for(caller: Caller) -> Self {
        let uid = match caller {
            Caller::User(uid) => uid,
            Caller::Unknown => NO_ID,
        };
        Self { pid: NO_PROCESS, uid, gid: NO_ID, confinement: Confinement::None }
    }

    /// Its user, for messages.
    pub(super) fn user(self) -> String {
        if self.uid == NO_ID { "an unknown user".to_owned() } else { format!("user {}", self.uid) }
    }

    /// Whether the process is known. Without it, its groups are not known either.
    pub(super) fn has_process(self) -> bool {
        self.pid != NO_PROCESS
    }

    /// Whether it has the rights of its user.
    pub(super) fn is_unconfined(self) -> bool {
        self.confinement == Confinement::None
    }

    /// Whether it belongs to a group.
    pub(super) fn is_in_group(self, group: u32) -> bool {
        self.gid == group || self.groups().contains(&group)
    }

    /// Whether it may see the names of a process of `owner` and change its hints, if it is no administrator. A process may always
    /// see itself. A user sees all processes of the user, from
    /// a confined process only those confined to the same. What a caller without a known process is confined to is not known: it
    /// sees no confined process.
    pub(super) fn may_see(self, owner: Self) -> bool {
        let is_same = self.has_process() && (self.pid, self.uid) == (owner.pid, owner.uid);
        is_same || owner.is_visible_to(self.uid, self.confinement, self.has_process())
    }

    /// See [`Peer::may_see`].
    pub(super) fn is_visible_to(self, uid: u32, confinement: Confinement, has_process: bool) -> bool {
        let sees_confined = confinement == Confinement::None && has_process;
        self.uid == uid && (self.confinement == confinement || sees_confined)
    }

    /// Whether its process is in a process namespace that is not visible here.
    pub(super) fn is_invisible(self) -> bool {
        self.pid >= FIRST_INVISIBLE
    }

    /// A pidfd of its process. From the socket if the kernel supports it: then the process id cannot have been reused.
    pub(super) fn pidfd(self, socket: BorrowedFd<'_>) -> Option<OwnedFd> {
        pidfd_of(socket).or_else(|| process::pidfd(self.pid))
    }

    pub(super) fn groups(self) -> Vec<u32> {
        if self.has_process() { process::groups(self.pid, self.uid) } else { Vec::new() }
    }
}

fn pidfd_of(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let fd: libc::c_int = option(socket, libc::SO_PEERPIDFD).ok()?;
    // SAFETY: the kernel has created this descriptor for this call, and no other code owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A number for an invisible process. It is the same on all its connections if the kernel has pidfs.
fn invisible_number(socket: BorrowedFd<'_>) -> u32 {
    static LAST: AtomicU32 = AtomicU32::new(0);
    let inode = pidfd_of(socket).and_then(|pidfd| {
        #[allow(clippy::cast_sign_loss, reason = "a magic number, of a type that differs between machines")]
        let is_pidfs = rustix::fs::fstatfs(&pidfd).ok()?.f_type as u64 == PIDFS;
        is_pidfs.then(|| rustix::fs::fstat(&pidfd).ok().map(|stat| stat.st_ino))?
    });
    #[allow(clippy::cast_possible_truncation, reason = "two billion processes from now they may repeat")]
    let number = inode.map_or_else(|| LAST.fetch_add(1, Ordering::Relaxed), |inode| inode as u32);
    number | FIRST_INVISIBLE
}

/// Reads one option of a socket.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: libc::c_int) -> rustix::io::Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let size = libc::socklen_t::try_from(size_of::<T>()).unwrap_or(0);
    let mut length = size;
    // SAFETY: the kernel writes at most `length` bytes to `value`, which has that size.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done != 0 || length != size {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the kernel has written all of it, and both types used here consist of integers.
    Ok(unsafe { value.assume_init() })
}
