//! `xsched serve`: the service for all programs of this user, or of the machine.

use std::net::SocketAddr;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use signal_hook::consts::{SIGINT, SIGTERM};
use xsched_ipc::service::{self, Options, Service};
use xsched_policy::PolicyInfo;

use crate::config::Config;
use crate::http::{self, Reach};

/// Run the scheduler service.
///
/// As root it schedules the programs of all users of the machine, else those of its own user. `xsched run` finds the service,
/// and starts one if none runs.
#[derive(clap::Args)]
#[allow(clippy::doc_markdown, reason = "clap prints this text verbatim")]
pub(crate) struct Args {
    /// The policy, by either of its names, such as priority or HPF. `xsched policy` lists them.
    #[arg(short, long, value_name = "NAME")]
    policy: Option<String>,

    /// Socket to listen on, instead of $XSCHED_SOCKET or xsched/socket in the runtime directory.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Replace the running service; its programs connect to the new one within a second.
    #[arg(long)]
    replace: bool,

    /// Exit after this many seconds without a client.
    #[arg(long, value_name = "SECS")]
    idle_exit: Option<u64>,

    /// Configuration file, instead of the default one: see `xsched config show`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Also serve metrics for Prometheus at ADDR, such as 127.0.0.1:9400. They are always served on a Unix socket in the directory of
    /// the service's socket.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,

    /// Serve the HTTP interface of the original C++ XSched's xserver at ADDR, such as 127.0.0.1:50000. It has no authentication: every
    /// process that can connect may use it.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,

    /// Allow addresses for --http and --metrics that other machines can reach.
    #[arg(long)]
    http_allow_remote: bool,

    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
}

/// CPU nice value of the scheduling thread, if the user has the right to set it.
const NICE: i32 = -15;

/// How long the running service may take to exit after `--replace`.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = options(args)?;
    let socket = options.socket.clone();
    if args.replace {
        service::request_shutdown(&socket, SHUTDOWN_TIMEOUT)?;
    }
    let policy = options.policy;
    let service = Service::bind(options)?;
    // Before readiness is reported: a process that waits for it may send a signal at once.
    let (signalled, signals) = UnixStream::pair().context("cannot watch for signals")?;
    for signal in [SIGTERM, SIGINT] {
        let end = signals.try_clone().context("cannot watch for signals")?;
        signal_hook::low_level::pipe::register(signal, end).context("cannot watch for signals")?;
    }
    service.stop_when_readable(&signalled).context("cannot watch for signals")?;
    serve_http(args, &socket)?;
    if !args.quiet {
        eprintln!("xsched: listening on {}, policy {} ({})", socket.display(), policy.name, policy.plain);
    }
    notify_ready();
    // Decisions should not wait for the CPU behind the scheduled programs. Failure without the right is fine.
    let _ = rustix::process::setpriority_process(None, NICE);
    let end = service.run();
    let _ = std::fs::remove_file(metrics_socket(&socket));
    end.context("the service cannot wait for its clients")?;
    Ok(())
}

/// The configuration, overridden by the command line.
fn options(args: &Args) -> anyhow::Result<Options> {
    let config = Config::read(args.config.as_deref())?;
    let socket = args.socket.clone().unwrap_or_else(service::default_socket);
    let mut options = config.options(socket);
    if let Some(name) = &args.policy {
        options.policy = PolicyInfo::find(name)?;
    }
    options.idle_exit = args.idle_exit.map(Duration::from_secs);
    Ok(options)
}

/// Starts the HTTP servers.
fn serve_http(args: &Args, service: &Path) -> anyhow::Result<()> {
    let reach = if args.http_allow_remote { Reach::AnyAddress } else { Reach::Loopback };
    let report = |what: &str, at: SocketAddr| {
        if !args.quiet {
            eprintln!("xsched: {what} at http://{at}");
        }
    };
    if let Some(at) = http::serve_metrics(service, &metrics_socket(service), args.metrics, reach)? {
        report("metrics", at);
    }
    if let Some(address) = args.http {
        report("HTTP interface", http::serve_compat(service, address, reach)?);
    }
    Ok(())
}

fn metrics_socket(service: &Path) -> PathBuf {
    if service.file_name().is_some_and(|name| name == "socket") {
        return service.with_file_name("metrics.sock");
    }
    let mut path = service.as_os_str().to_owned();
    path.push(".metrics");
    path.into()
}

/// Reports to systemd that the service listens. An error is ignored: the service works without systemd.
fn notify_ready() {
    use std::os::linux::net::SocketAddrExt as _;
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let Ok(socket) = UnixDatagram::unbound() else { return };
    let bytes = std::os::unix::ffi::OsStrExt::as_bytes(address.as_os_str());
    let _ = match bytes.strip_prefix(b"@") {
        Some(name) => std::os::unix::net::SocketAddr::from_abstract_name(name)
            .and_then(|address| socket.send_to_addr(b"READY=1", &address)),
        None => socket.send_to(b"READY=1", Path::new(&address)),
    };
}
