//! Where the service listens, and how it makes sure to be the only one there.
//!
//! Next to the socket lies a lock, held for as long as the service lives. The kernel gives it back whatever the service
//! dies of, so a socket whose lock is free is stale, and of two services that start at once one finds it taken.

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

/// Why a service could not start. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There is one already.
    #[error(
        "a scheduler is running at {} already: use it, or take its place with `xsched serve --replace`",
        .0.display()
    )]
    Running(PathBuf),
    /// It was asked to leave and did not.
    #[error("the scheduler at {} does not give up its place: {why}", path.display())]
    DoesNotLeave {
        /// Where.
        path: PathBuf,
        /// Why, as far as is known.
        why: String,
    },
    /// Somebody else has the place.
    #[error("{} is in use by something that is not this scheduler: choose another place with --socket", .0.display())]
    Foreign(PathBuf),
    /// The name is taken by something that is no socket.
    #[error("{} exists and is not a socket: remove it, or choose another place with --socket", .0.display())]
    NotASocket(PathBuf),
    /// The name does not fit a socket address.
    #[error("the socket's path has {length} bytes, and the system allows 107: choose a shorter one with --socket ({})", path.display())]
    TooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
    },
    /// The directory or the files in it cannot be made.
    #[error("cannot {deed} {}: {why} ({advice})", path.display())]
    Files {
        /// What was attempted.
        deed: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system said.
        why: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// The system refused something else.
    #[error("cannot start the scheduler: {what}: {why}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        why: Errno,
    },
}

fn files(deed: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    let path = path.to_owned();
    move |why| {
        let advice = match why.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "choose a place this user can write to with --socket, or run the scheduler as root"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "make room there, or choose another place with --socket"
            }
            _ => "choose another place with --socket",
        };
        StartError::Files { deed, path, why, advice }
    }
}

/// Where a service of this process's user listens unless told otherwise: `$XSCHED_SOCKET`, else in the user's runtime
/// directory, else in that of the machine.
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

/// Asks the service at `socket`, if there is one, to end, and waits until its place is free.
pub fn request_shutdown(socket: &Path, patience: Duration) -> Result<(), StartError> {
    let Ok(connection) = Connection::to(socket) else { return Ok(()) };
    let failed = |why: String| StartError::DoesNotLeave { path: socket.to_owned(), why };
    connection.send(&Request::Stop, None, false).map_err(|error| failed(error.to_string()))?;
    let give_up = Instant::now() + patience;
    loop {
        let left = give_up.saturating_duration_since(Instant::now());
        let timeout = rustix::time::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut wait = [rustix::event::PollFd::new(&connection, rustix::event::PollFlags::IN)];
        match rustix::event::poll(&mut wait, Some(&timeout)) {
            Ok(0) => return Err(failed(format!("no sign of it for {} s", patience.as_secs()))),
            Ok(_) | Err(Errno::INTR) => {}
            Err(why) => return Err(failed(why.to_string())),
        }
        match connection.receive::<Reply>(false) {
            Ok(Some(Packet::Message(Reply::Refused { why }, _))) => return Err(failed(why)),
            // It closes its connections when everything else is done.
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
    lock: Lock,
}

impl Listener {
    pub(super) fn bind(path: &Path, for_everyone: bool) -> Result<Self, StartError> {
        let address = SocketAddrUnix::new(path)
            .map_err(|_| StartError::TooLong { path: path.to_owned(), length: path.as_os_str().len() })?;
        make_directory(path, for_everyone)?;
        let lock = Lock::take(path)?;
        clear_away(path)?;
        let system = |what| move |why| StartError::System { what, why };
        let fd = crate::socket::socket()
            .map_err(|_| StartError::System { what: "no socket", why: Errno::MFILE })?;
        rustix::io::ioctl_fionbio(&fd, true).map_err(system("no socket"))?;
        rustix::net::bind(&fd, &address).map_err(|why| files("make the socket", path)(why.into()))?;
        let mode = if for_everyone { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
            .map_err(files("set the permissions of", path))?;
        rustix::net::listen(&fd, 512).map_err(system("cannot listen"))?;
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

    /// Removes the socket and gives the place to others.
    pub(super) fn remove(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        self.lock.give_back();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn make_directory(socket: &Path, for_everyone: bool) -> Result<(), StartError> {
    let Some(directory) = socket.parent().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(()) };
    if directory.is_dir() {
        return Ok(());
    }
    let mode = if for_everyone { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(directory)
        .map_err(files("make the directory", directory))
}

/// Removes what a service that died has left behind.
fn clear_away(path: &Path) -> Result<(), StartError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(files("look at", path)(error)),
        Ok(found) if !found.file_type().is_socket() => Err(StartError::NotASocket(path.to_owned())),
        Ok(_) if Connection::to(path).is_ok() => Err(StartError::Foreign(path.to_owned())),
        Ok(_) => std::fs::remove_file(path).map_err(files("remove the stale socket", path)),
    }
}

/// The lock next to a socket.
struct Lock {
    file: std::fs::File,
    path: PathBuf,
}

impl Lock {
    fn take(socket: &Path) -> Result<Self, StartError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".lock");
        let path = PathBuf::from(path);
        loop {
            let file = std::fs::File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(&path)
                .map_err(files("make", &path))?;
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(StartError::Running(socket.to_owned())),
                Err(why) => return Err(files("lock", &path)(why.into())),
            }
            // Its owner may have removed it between the two: then the lock is one on a file nobody else will find.
            let ours = file.metadata().map_err(files("look at", &path))?;
            if std::fs::metadata(&path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino()))
            {
                return Ok(Self { file, path });
            }
        }
    }

    fn give_back(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}
