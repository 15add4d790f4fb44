//! Messages to the service manager, such as systemd.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// Sends a state such as `READY=1` to the service manager. An error is ignored: the service works without one.
pub fn notify_manager(state: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    // A service manager that does not read must not block the service.
    let _ = socket.set_nonblocking(true);
    let _ = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)
            .and_then(|address| socket.send_to_addr(state.as_bytes(), &address)),
        None => socket.send_to(state.as_bytes(), Path::new(&address)),
    };
}

/// How long the service manager waits for a sign of life before it ends the service; none if it expects none.
pub(super) fn watchdog_timeout() -> Option<Duration> {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let is_ours = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|_| is_ours).map(Duration::from_micros)
}
