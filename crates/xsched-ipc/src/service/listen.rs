//! The socket that the service listens on, and the lock that makes it the only service there.
//!
//! The service holds a lock on a file beside the socket. The kernel releases the lock when the service exits for any reason. So
//! a socket with a free lock is stale, and of two services that start at the same time one finds the lock held.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};

use crate::protocol::{Reply, Request};
use crate::socket::{Connection, Packet, SocketError};

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
    /// Another program listens at the socket.
    #[error("another program listens at {}: choose another path with --socket", .0.display())]
    Foreign(PathBuf),
    /// The path exists and is not a socket.
    #[error("{} exists and is not a socket: remove it, or choose another path with --socket", .0.display())]
    NotASocket(PathBuf),
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

/// Has the service at `socket`, if there is one, shut down, and waits until it has released the socket.
pub fn request_shutdown(socket: &Path, timeout: Duration) -> Result<(), StartError> {
    let Ok(connection) = Connection::to(socket) else { return Ok(()) };
    let failed = |why: String| StartError::NotShutDown { path: socket.to_owned(), why };
    connection.send(&Request::Stop, None, false).map_err(|error| failed(error.to_string()))?;
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let remaining = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut wait = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&remaining)) {
            Ok(0) => return Err(failed(format!("it did not reply within {} s", timeout.as_secs()))),
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(failed(why.to_string())),
        }
        match connection.receive::<Reply>(false) {
            Ok(Some(Packet::Message(Reply::Refused { why }, _))) => return Err(failed(why)),
            // The service closes its connections after it has released the socket.
            Err(SocketError::Closed) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(failed(error.to_string())),
        }
    }
}

/// The listening socket and its lock.
pub(super) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    lock: SocketLock,
}

impl Listener {
    pub(super) fn bind(path: &Path, is_system_wide: bool) -> Result<Self, StartError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| StartError::TooLong { path: path.to_owned(), length: path.as_os_str().len() })?;
        make_directory(path, is_system_wide)?;
        let lock = SocketLock::acquire(path)?;
        remove_stale_socket(path)?;
        let system = |what| move |why| StartError::System { what, why };
        let fd = crate::socket::socket()
            .map_err(|_| StartError::System { what: "create a socket", why: Errno::MFILE })?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(system("make the socket non-blocking"))?;
        rustix::net::bind(&fd, &address).map_err(|why| files("create the socket", path)(why.into()))?;
        let mode = if is_system_wide { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(files("set the permissions of", path))?;
        rustix::net::listen(&fd, 512).map_err(system("listen on the socket"))?;
        Ok(Self { fd, path: path.to_owned(), lock })
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(why) => Err(why),
        }
    }

    /// Removes the socket and releases the lock.
    pub(super) fn remove(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.lock.release();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn make_directory(socket: &Path, is_system_wide: bool) -> Result<(), StartError> {
    let Some(directory) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    if directory.is_dir() {
        return Ok(());
    }
    let mode = if is_system_wide { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
        .map_err(files("create the directory", directory))
}

/// Removes the socket of a service that was killed.
fn remove_stale_socket(path: &Path) -> Result<(), StartError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(files("inspect", path)(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(StartError::NotASocket(path.to_owned())),
        Ok(_) if Connection::to(path).is_ok() => Err(StartError::Foreign(path.to_owned())),
        Ok(_) => std::fs::remove_file(path).map_err(files("remove the stale socket", path)),
    }
}

/// The lock next to a socket.
struct SocketLock {
    file: std::fs::File,
    path: PathBuf,
}

impl SocketLock {
    fn acquire(socket: &Path) -> Result<Self, StartError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let file = std::fs::File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(files("create", &path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(StartError::Running(socket.to_owned())),
                Err(why) => return Err(files("lock", &path)(why.into())),
            }
            // The previous service may have removed the file between the two calls. Then this lock is on a file without a name.
            let ours = file.metadata().map_err(files("inspect", &path))?;
            if std::fs::metadata(&path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
            {
                return Ok(Self { file, path });
            }
        }
    }

    fn release(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}
