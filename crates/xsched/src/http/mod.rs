//! What the service offers over HTTP: metrics for a collector, and the reference's interface for its scripts.
//!
//! `xsched serve` calls [`serve_metrics`] and [`serve_compat`] once its own socket listens. Both bind at once, so that
//! a port that is taken is an error of the command line, and then serve on a thread of their own for as long as the
//! process lives. They are tools of the service like any other and speak to it over its socket; only they do it as the
//! user the service belongs to. An HTTP client has no credentials: whoever reaches the port may do all that the port
//! offers. So the ports are on loopback unless forced, offer no way to end the service or to hold a program, and do not
//! answer web pages.

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

use crate::tool::{Tool, ToolError};
use message::Response;
use server::{Handler, Limits, Listener, Server};

/// For the next packet of an answer that has begun.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who may connect from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Only addresses of this machine may be listened at.
    Loopback,
    /// Any address, because the user insists.
    Anywhere,
}

/// Serves `GET /metrics` of the service at `service` on a socket of its own, and on a TCP port if asked to. Answers
/// where the latter is.
///
/// `socket` is a path such as `$XDG_RUNTIME_DIR/xsched/metrics.sock`; a file left there by a predecessor is replaced.
pub(crate) fn serve_metrics(
    service: &Path,
    socket: &Path,
    address: Option<SocketAddr>,
    reach: Reach,
) -> anyhow::Result<Option<SocketAddr>> {
    let tcp = address.map(|address| listen(address, reach, "--metrics")).transpose()?;
    let bound = tcp.as_ref().map(TcpListener::local_addr).transpose()?;
    // The socket first: its clients are known to be of this machine and are not asked for a Host.
    start("metrics-socket", vec![Listener::Unix(listen_unix(socket)?)], answer_metrics(service.to_owned()))?;
    if let Some(tcp) = tcp {
        start("metrics-http", vec![Listener::Tcp(tcp)], guarded(reach, answer_metrics(service.to_owned())))?;
    }
    Ok(bound)
}

/// Serves the HTTP interface of the reference's `xserver`, for the service at `service`. Answers where.
pub(crate) fn serve_compat(service: &Path, address: SocketAddr, reach: Reach) -> anyhow::Result<SocketAddr> {
    let listener = listen(address, reach, "--http")?;
    let bound = listener.local_addr()?;
    let service = service.to_owned();
    let handler: Handler = Box::new(move |request| compat::answer(&service, request));
    start("compat-http", vec![Listener::Tcp(listener)], guarded(reach, handler))?;
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
        .with_context(|| format!("no thread for {name}"))?;
    Ok(())
}

fn listen(address: SocketAddr, reach: Reach, flag: &str) -> anyhow::Result<TcpListener> {
    if reach == Reach::Loopback && !address.ip().is_loopback() {
        anyhow::bail!(
            "{flag} {address} can be reached from other machines, and whoever reaches it needs no password: use an \
             address of this machine such as 127.0.0.1:{}, or insist with --http-allow-remote",
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

/// Refuses what a browser sends on behalf of some web page: pages can reach loopback, under our own name (they then have
/// an origin) or under one that was made to point here (then the host is not ours).
fn guarded(reach: Reach, handler: Handler) -> Handler {
    Box::new(move |request| match (&request.origin, &request.host) {
        (Some(_), _) => Response::error(403, "web pages are not served: the request has an Origin"),
        (None, Some(host)) if reach == Reach::Loopback && !is_loopback(host) => {
            Response::error(403, format_args!("the Host `{host}` is not this machine"))
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

fn answer_metrics(service: PathBuf) -> Handler {
    Box::new(move |request| match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => match metrics_of(&service) {
            Ok(body) => Response { status: 200, content_type: metrics::CONTENT_TYPE, body },
            Err(error) => Response::error(503, error),
        },
        (_, "/metrics") => Response::error(405, "use GET"),
        _ => Response::error(404, "there is only /metrics here"),
    })
}

fn metrics_of(service: &Path) -> Result<String, ToolError> {
    let tool = Tool::connect_to_first(vec![service.to_owned()])?;
    let mut page = String::new();
    let mut reply = tool.request(&Ask::Metrics)?;
    loop {
        let Reply::Metrics { text, more } = reply else { return Err(tool.unexpected()) };
        page.push_str(&text);
        if !more {
            return Ok(page);
        }
        if !tool.wait(PATIENCE)? {
            return Err(ToolError::NoReply { at: service.to_owned() });
        }
        reply = tool.next_reply()?;
    }
}
