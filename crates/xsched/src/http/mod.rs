//! HTTP: metrics for a collector, and the interface of the original C++ XSched for its scripts.
//!
//! `xsched serve` calls [`serve_metrics`] and [`serve_compat`] once its own socket listens. Both bind before they return, so
//! that a port in use is an error of the command line, and then serve on a thread each until the process exits. They send
//! requests to the service over its socket as every tool does, with the rights of the service's own user. An HTTP client has no
//! credentials: every process that can connect may use all that the port offers. So the ports are on loopback unless the
//! user insists, cannot end the service or suspend a program, and reject requests from web pages.

mod compat;
mod message;
mod server;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use xsched_ipc::metrics;
use xsched_ipc::protocol::{Reply, Request as Ask};

use crate::tool::{ToolConnection, ToolError};
use message::Response;
use server::{Handler, Limits, Listener, Server};

/// How long the service may take to send the next packet of a reply.
const NEXT_PACKET_TIMEOUT: Duration = Duration::from_secs(5);

/// Which addresses may be listened on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Loopback addresses only.
    Loopback,
    /// Every address: the user gave --http-allow-remote.
    AnyAddress,
}

/// Serves `GET /metrics` of the service at `service` on the Unix socket `socket`, and on a TCP port if `address` is given. Returns
/// the address of the TCP port.
///
/// `socket` is a path such as `$XDG_RUNTIME_DIR/xsched/metrics.sock`; a file left there by an earlier service is replaced.
pub(crate) fn serve_metrics(
    service: &Path,
    socket: &Path,
    address: Option<SocketAddr>,
    reach: Reach,
) -> anyhow::Result<Option<SocketAddr>> {
    let tcp = address.map(|address| listen(address, reach, "--metrics")).transpose()?;
    let bound = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
    // Clients of the Unix socket are local, so their Host header is not checked.
    start("metrics-socket", vec![Listener::Unix(listen_unix(socket)?)], metrics_handler(service.to_owned()))?;
    if let Some(tcp) = tcp {
        start(
            "metrics-http",
            vec![Listener::Tcp(tcp)],
            reject_web_pages(reach, metrics_handler(service.to_owned())),
        )?;
    }
    Ok(bound)
}

/// Serves the HTTP interface of the original C++ XSched's `xserver`, for the service at `service`. Returns the address.
pub(crate) fn serve_compat(service: &Path, address: SocketAddr, reach: Reach) -> anyhow::Result<SocketAddr> {
    let listener = listen(address, reach, "--http")?;
    let bound = listener.local_addr()?;
    let service = service.to_owned();
    let handler: Handler = Box::new(move |request| compat::respond(&service, request));
    start("compat-http", vec![Listener::Tcp(listener)], reject_web_pages(reach, handler))?;
    Ok(bound)
}

fn start(name: &str, listeners: Vec<Listener>, handler: Handler) -> anyhow::Result<()> {
    for listener in &listeners {
        listener.set_nonblocking()?;
    }
    let server = Server { listeners, limits: Limits::default(), handler };
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || server.run())
        .with_context(|| format!("cannot start the thread {name}"))?;
    Ok(())
}

fn listen(address: SocketAddr, reach: Reach, flag: &str) -> anyhow::Result<TcpListener> {
    if reach == Reach::Loopback && !address.ip().is_loopback() {
        anyhow::bail!(
            "{flag} {address} can be reached from other machines, and the interface has no authentication: use a \
             loopback address such as 127.0.0.1:{}, or add --http-allow-remote",
            address.port()
        );
    }
    TcpListener::bind(address).with_context(|| format!("cannot listen at {address} ({flag})"))
}

fn listen_unix(path: &Path) -> anyhow::Result<UnixListener> {
    let at = || format!("cannot listen at {}", path.display());
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error).with_context(at),
        _ => {}
    }
    let listener = UnixListener::bind(path).with_context(at)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).with_context(at)?;
    Ok(listener)
}

/// Rejects requests that a browser sends for a web page. A page can reach loopback addresses by their own name (the request
/// then has an Origin) or by a foreign name that resolves to loopback (the Host is then foreign).
fn reject_web_pages(reach: Reach, handler: Handler) -> Handler {
    Box::new(move |request| match (&request.origin, &request.host) {
        (Some(_), _) => {
            Response::error(403, "requests from web pages are rejected: the request has an Origin header")
        }
        (None, Some(host)) if reach == Reach::Loopback && !is_loopback(host) => {
            Response::error(403, format_args!("the Host header `{host}` does not name this machine"))
        }
        _ => handler(request),
    })
}

/// Whether a `Host` header names this machine.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

fn metrics_handler(service: PathBuf) -> Handler {
    Box::new(move |request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => match metrics_of(&service) {
            Ok(body) => Response { status: 200, content_type: metrics::CONTENT_TYPE, body },
            Err(error) => Response::error(503, error),
        },
        (_, "/metrics") => Response::error(405, "use GET"),
        _ => Response::error(404, "only /metrics is served here"),
    })
}

fn metrics_of(service: &Path) -> Result<String, ToolError> {
    let tool = ToolConnection::connect_to_first(vec![service.to_owned()])?;
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
