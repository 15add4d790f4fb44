//! Requests to the service. A service that does not reply costs a step at most [`SERVICE_TIMEOUT`] per connection.

use std::path::Path;
use std::time::{Duration, Instant};

use xsched_ipc::protocol::{Grant, Reply, Request};
use xsched_ipc::tool::{ToolConnection, ToolError};

/// How long the plugin waits for the service. A service that works replies within microseconds.
const SERVICE_TIMEOUT: Duration = Duration::from_millis(400);

/// A connection to the service, for a limited time.
struct Service {
    connection: ToolConnection,
    deadline: Instant,
}

impl Service {
    fn connect(socket: &Path) -> Result<Self, ToolError> {
        let deadline = Instant::now() + SERVICE_TIMEOUT;
        Ok(Self { connection: ToolConnection::connect_within(socket, SERVICE_TIMEOUT)?, deadline })
    }

    fn next_reply(&self) -> Result<Reply, ToolError> {
        if !self.connection.wait(self.deadline.saturating_duration_since(Instant::now()))? {
            return Err(ToolError::NoReply { at: self.connection.socket().to_owned() });
        }
        self.connection.next_reply()
    }

    fn request(&self, request: &Request) -> Result<Reply, ToolError> {
        self.connection.send(request)?;
        self.next_reply()
    }
}

/// Gives a step its rights.
pub(crate) fn grant(socket: &Path, grant: Grant) -> Result<(), ToolError> {
    Service::connect(socket)?.request(&Request::Grant(grant)).map(drop)
}

/// Ends the grant of a step.
pub(crate) fn revoke(socket: &Path, name: &str) -> Result<(), ToolError> {
    Service::connect(socket)?.request(&Request::Revoke(name.to_owned())).map(drop)
}

/// Ends all grants that satisfy a condition. Returns how many.
pub(crate) fn revoke_all(socket: &Path, condition: impl Fn(&Grant) -> bool) -> Result<usize, ToolError> {
    let service = Service::connect(socket)?;
    let mut names = Vec::new();
    let mut reply = service.request(&Request::Grants)?;
    loop {
        let Reply::Grants { grants, more } = reply else { return Err(service.connection.unexpected()) };
        names
            .extend(grants.into_iter().map(|status| status.grant).filter(&condition).map(|grant| grant.name));
        if !more {
            break;
        }
        reply = service.next_reply()?;
    }
    for name in &names {
        match service.request(&Request::Revoke(name.clone())) {
            // It has ended meanwhile.
            Ok(_) | Err(ToolError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(names.len())
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    /// A socket of the service's type at which a test listens.
    fn listen(at: &Path) -> OwnedFd {
        use std::os::fd::{AsRawFd as _, FromRawFd as _};
        use std::os::unix::ffi::OsStrExt as _;
        // SAFETY: plain system calls; the address is initialized, and the descriptor is new.
        unsafe {
            let fd = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0));
            let mut address: libc::sockaddr_un = std::mem::zeroed();
            address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap();
            for (to, from) in address.sun_path.iter_mut().zip(at.as_os_str().as_bytes()) {
                *to = from.cast_signed();
            }
            let size = libc::socklen_t::try_from(size_of_val(&address)).unwrap();
            assert_eq!(libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size), 0);
            assert_eq!(libc::listen(fd.as_raw_fd(), 4), 0);
            fd
        }
    }

    #[test]
    fn service_that_does_not_reply_is_given_up_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().join("socket");
        assert!(matches!(revoke(&at, "slurm-1.0"), Err(ToolError::NoService { .. })));
        let _listening = listen(&at);
        let error = revoke(&at, "slurm-1.0").unwrap_err();
        assert!(matches!(error, ToolError::NoReply { .. }), "{error}");
        assert!(error.to_string().contains("does not reply"), "{error}");
    }
}
