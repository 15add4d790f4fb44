//! HTTP: metrics for a collector, and the interface of the original C++ XSched for its scripts.
//!
//! `xsched serve` calls [`serve_metrics`] and [`serve_compat`] once its own socket listens. Both bind before they return, so
//! that a port in use is an error of the command line, and then serve on a thread each until the process exits. They send
//! requests to the service over its socket as every tool does, with the rights of the caller ([`access`]). The ports are on loopback
//! unless the user insists, cannot end the service or suspend a program, and reject requests from web pages.
//!
//! `xsched dashboard` calls [`serve_dashboard`] or [`serve_dashboard_unix`] in a process of its own, whose requests have the rights of its user.

mod access;
mod caller;
mod compat;
mod message;
mod server;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use xsched_ipc::metrics;
use xsched_ipc::protocol::{Reply, Request as Ask};

use crate::tool::ToolError;
use access::{AuthorizedHandler, Rights, authorize};
use server::{Handler, Limits, Listener, Server};

pub(crate) use access::{Access, Reach, Token, is_loopback};
pub(crate) use message::{Request, Response};

/// Connections to a Unix socket that wait until they are accepted.
const UNIX_BACKLOG: i32 = 128;

/// How long the service may take to send the next packet of a reply.
const NEXT_PACKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves `GET /metrics` of the service at `service` on the Unix socket `socket`, and on a TCP port if an address is given, with the
/// option or setting that it is from. Returns the address of the TCP port.
///
/// `socket` is a path such as `$XDG_RUNTIME_DIR/xsched/metrics.sock`; a file left there by an earlier service is replaced.
pub(crate) fn serve_metrics(
    service: &Path,
    socket: &Path,
    address: Option<(SocketAddr, &str)>,
    access: &Access,
) -> anyhow::Result<Option<SocketAddr>> {
    let tcp = address.map(|(address, from)| listen(address, access.reach, from)).transpose()?;
    let bound = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
    // Clients of the Unix socket are local, so their Host header is not checked.
    let handler = metrics_handler(service.to_owned(), access.shows_all_names);
    let handler: Handler = Box::new(move |request, caller| handler(request, Rights::Of(caller)));
    start("metrics-socket", vec![Listener::Unix(listen_unix(socket)?)], Limits::default(), handler)?;
    if let Some(tcp) = tcp {
        start(
            "metrics-http",
            vec![Listener::Tcp(tcp)],
            Limits::default(),
            authorize(access.clone(), metrics_handler(service.to_owned(), access.shows_all_names)),
        )?;
    }
    Ok(bound)
}

/// Serves the HTTP interface of the original C++ XSched's `xserver`, for the service at `service`. Returns the address.
pub(crate) fn serve_compat(
    service: &Path,
    address: SocketAddr,
    access: &Access,
) -> anyhow::Result<SocketAddr> {
    let listener = listen(address, access.reach, "--http")?;
    let bound = listener.local_addr()?;
    let service = service.to_owned();
    let handler: AuthorizedHandler =
        Box::new(move |request, rights| compat::respond(&|| rights.connect(&service), request));
    let handler = authorize(access.clone(), handler);
    start("compat-http", vec![Listener::Tcp(listener)], Limits::default(), handler)?;
    Ok(bound)
}

/// Serves the dashboard's requests at a port of the loopback address, any free one if `port` is 0. Returns the address. `respond` checks
/// which requests are allowed.
pub(crate) fn serve_dashboard(
    port: u16,
    respond: impl Fn(&Request) -> Response + Send + 'static,
) -> anyhow::Result<SocketAddr> {
    let listener = listen((std::net::Ipv4Addr::LOCALHOST, port).into(), Reach::Loopback, "--port")?;
    let bound = listener.local_addr()?;
    start_dashboard(Listener::Tcp(listener), respond)?;
    Ok(bound)
}

/// Serves the dashboard's requests at a Unix socket to which only the user of this process can connect. A socket that an ended process
/// has left there is replaced, any other file is not.
pub(crate) fn serve_dashboard_unix(
    path: &Path,
    respond: impl Fn(&Request) -> Response + Send + 'static,
) -> anyhow::Result<()> {
    let at = || format!("cannot listen at {} (--unix)", path.display());
    if let Ok(found) = std::fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            anyhow::bail!("{}: it is a file, and no socket: choose another path", at());
        }
        if UnixStream::connect(path).is_ok() {
            anyhow::bail!("{}: another program listens there: choose another path", at());
        }
    }
    start_dashboard(Listener::Unix(listen_unix(path)?), respond)
}

fn start_dashboard(
    listener: Listener,
    respond: impl Fn(&Request) -> Response + Send + 'static,
) -> anyhow::Result<()> {
    let handler: Handler = Box::new(move |request, _| respond(request));
    start("dashboard-http", vec![listener], Limits::default(), handler)
}

fn start(name: &str, listeners: Vec<Listener>, limits: Limits, handler: Handler) -> anyhow::Result<()> {
    for listener in &listeners {
        listener.set_nonblocking()?;
    }
    let server = Server { listeners, limits, handler };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || server.run())
        .with_context(|| format!("cannot start the thread {name}"))?;
    Ok(())
}

fn listen(address: SocketAddr, reach: Reach, from: &str) -> anyhow::Result<TcpListener> {
    if reach == Reach::Loopback && !address.ip().is_loopback() {
        anyhow::bail!(
            "{from} {address} can be reached from other machines: use a loopback address such as 127.0.0.1:{}, or add --http-allow-remote",
            address.port()
        );
    }
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address} ({from})"))
}

fn listen_unix(path: &Path) -> anyhow::Result<UnixListener> {
    let at = || format!("cannot listen at {}", path.display());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(at),
        _ => {}
    }
    // No process can connect before `listen`, and so none with the permissions that the umask allows.
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .with_context(at)?;
    let address = SocketAddrUnix::new(path).with_context(at)?;
    rustix::net::bind(&socket, &address).with_context(at)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(at)?;
    rustix::net::listen(&socket, UNIX_BACKLOG).with_context(at)?;
    Ok(UnixListener::from(socket))
}

fn metrics_handler(service: PathBuf, shows_all_names: bool) -> AuthorizedHandler {
    let rights = move |rights| if shows_all_names { Rights::Administrator } else { rights };
    Box::new(move |request, caller| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => match metrics_of(&service, rights(caller)) {
            Ok(body) => Response { status: 200, content_type: metrics::CONTENT_TYPE, body },
            Err(error) => Response::error(503, error),
        },
        (_, "/metrics") => Response::error(405, "use GET"),
        _ => Response::error(404, "only /metrics is served here"),
    })
}

fn metrics_of(service: &Path, rights: Rights) -> Result<String, ToolError> {
    let tool = rights.connect(service)?;
    let mut page = String::new();
    let mut reply = tool.request(&Ask::Metrics)?;
    loop {
        let Reply::Metrics { text, more } = reply else { return Err(tool.unexpected()) };
        page.push_str(&text);
        if !more {
            return Ok(page);
        }
        if !tool.wait(NEXT_PACKET_TIMEOUT)? {
            return Err(ToolError::NoReply { at: service.to_owned() });
        }
        reply = tool.next_reply()?;
    }
}
