//! The socket that the service listens on. A [lock](crate::socket_lock) makes it the only service there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::socket::{Connection, SocketError};
use crate::socket_lock::{LockError, SocketLock};

/// Why a service could not start. Each message contains what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A service already runs at this socket.
    #[error(
        "a scheduler is already running at {}: use it, or replace it with `xsched serve --replace`",
        .0.display()
    )]
    Running(PathBuf),
    /// The running service did not shut down.
    #[error("the scheduler at {} has not shut down: {why}", path.display())]
    NotShutDown {
        /// Its socket.
        path: PathBuf,
        /// The reason, as far as it is known.
        why: String,
    },
    /// Another process is about to replace the service.
    #[error("another `xsched serve --replace` is replacing the scheduler at {}: use the new one", .0.display())]
    BeingReplaced(PathBuf),
    /// Another program listens at the socket.
    #[error("another program listens at {}: choose another path with --socket", .0.display())]
    Foreign(PathBuf),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket: remove it, or choose another path with --socket", .0.display())]
    NotASocket(PathBuf),
    /// The file of the lock is not usable.
    #[error("{} {why}: remove it, or choose another path with --socket", path.display())]
    ForeignLock {
        /// The file.
        path: PathBuf,
        /// What it is.
        why: &'static str,
    },
    /// The path is too long for a socket address.
    #[error("the path of the socket has {length} bytes, the maximum is 107: choose a shorter path with --socket ({})", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// The directory or a file in it cannot be created.
    #[error("cannot {operation} {}: {why} ({advice})", path.display())]
    Files {
        /// The operation.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the system call.
        why: io::Error,
        /// What to do.
        advice: &'static str,
    },
    /// Another system call failed.
    #[error("cannot start the scheduler: cannot {what}: {why}")]
    System {
        /// The operation.
        what: &'static str,
        /// The error of the system call.
        why: Errno,
    },
}

fn files(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |why| {
        let advice = match why.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "choose a path that this user can write to with --socket, or run the scheduler as root"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "free space there, or choose another path with --socket"
            }
            _ => "choose another path with --socket",
        };
        StartError::Files { operation, path, why, advice }
    }
}

/// The default socket of a service of this user: `$XSCHED_SOCKET`, else in the user's runtime directory, else in the machine's.
#[must_use]
pub fn default_socket() -> PathBuf {
    if let Some(path) = std::env::var_os("XSCHED_SOCKET").filter(|path| !path.is_empty()) {
        return path.into();
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    match own {
        Some(dir) if !rustix::process::geteuid().is_root() => Path::new(&dir).join("xsched/socket"),
        _ => PathBuf::from("/run/xsched/socket"),
    }
}

/// The listening socket and its lock. Dropping it removes both, and the sockets of the service's other interfaces.
pub(super) struct Listener {
    fd: OwnedFd,
    _socket: BoundSocket,
    /// Sockets of the service's other interfaces.
    others: Vec<BoundSocket>,
    /// Released after the sockets were removed: then the next service may create its own.
    _lock: SocketLock,
}

/// The file of a bound socket. Dropping it removes the file.
struct BoundSocket(PathBuf);

impl Drop for BoundSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    pub(super) fn bind(path: &Path, is_system_wide: bool) -> Result<Self, StartError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| StartError::TooLong { path: path.to_owned(), length: path.as_os_str().len() })?;
        make_directory(path, is_system_wide)?;
        let lock = acquire_lock(path, || is_listening(path), StartError::Running(path.to_owned()))?;
        remove_stale_socket(path)?;
        let system = |what| move |why| StartError::System { what, why };
        let fd = crate::socket::socket()
            .map_err(|_| StartError::System { what: "create a socket", why: Errno::MFILE })?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(system("make the socket non-blocking"))?;
        rustix::net::bind(&fd, &address).map_err(|why| files("create the socket", path)(why.into()))?;
        let socket = BoundSocket(path.to_owned());
        let mode = if is_system_wide { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(files("set the permissions of", path))?;
        rustix::net::listen(&fd, 512).map_err(system("listen on the socket"))?;
        Ok(Self { fd, _socket: socket, others: Vec::new(), _lock: lock })
    }

    /// Has another socket removed together with this one.
    pub(super) fn remove_too(&mut self, path: PathBuf) {
        self.others.push(BoundSocket(path));
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(why) => Err(why),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Acquires the lock beside `socket`, or returns `held`. `has_listener` is that of [`SocketLock::acquire`].
pub(super) fn acquire_lock(
    socket: &Path,
    has_listener: impl Fn() -> bool,
    held: StartError,
) -> Result<SocketLock, StartError> {
    let path = SocketLock::path_for(socket);
    SocketLock::acquire(socket, has_listener).map_err(|error| match error {
        LockError::Held => held,
        LockError::Foreign(why) => StartError::ForeignLock { path, why },
        LockError::System(operation, why) => files(operation, &path)(why),
    })
}

/// Whether a process listens at a socket, even if it does not accept connections.
fn is_listening(socket: &Path) -> bool {
    matches!(Connection::to(socket), Ok(_) | Err(SocketError::NotAccepted))
}

/// Creates the missing directories of a socket. Their permissions do not depend on the umask: every user has to reach the
/// socket of a system-wide service.
pub(super) fn make_directory(socket: &Path, is_system_wide: bool) -> Result<(), StartError> {
    let Some(directory) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    let mode = std::fs::Permissions::from_mode(if is_system_wide { 0o755 } else { 0o700 });
    let missing = directory.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.is_dir());
    for directory in missing.collect::<Vec<_>>().into_iter().rev() {
        match std::fs::create_dir(directory) {
            Ok(()) => std::fs::set_permissions(directory, mode.clone())
                .map_err(files("set the permissions of", directory))?,
            // Another service has created it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            Err(error) => return Err(files("create the directory", directory)(error)),
        }
    }
    Ok(())
}

/// Removes the socket of a service that was killed.
fn remove_stale_socket(path: &Path) -> Result<(), StartError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(files("inspect", path)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(StartError::NotASocket(path.to_owned())),
        Ok(_) if is_listening(path) => Err(StartError::Foreign(path.to_owned())),
        Ok(_) => std::fs::remove_file(path).map_err(files("remove the stale socket", path)),
    }
}
