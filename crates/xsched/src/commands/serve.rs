//! `xsched serve`: the scheduler for all programs of this user, or of the whole machine.

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
/// As root it serves all users of the machine, else its own user. Nothing else is needed: `xsched run` finds it, and
/// starts one by itself where there is none.
#[derive(clap::Args)]
#[allow(clippy::doc_markdown, reason = "this is shown on the terminal as it stands")]
pub(crate) struct Args {
    /// Who decides: either name of a policy, such as priority or HPF. `xsched policy` lists them.
    #[arg(short, long, value_name = "NAME")]
    policy: Option<String>,

    /// Where to listen, instead of $XSCHED_SOCKET or xsched/socket in the runtime directory.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Take the place of the service that is running; programs join the new one within a second.
    #[arg(long)]
    replace: bool,

    /// End when nobody has been connected for so many seconds.
    #[arg(long, value_name = "SECS")]
    idle_exit: Option<u64>,

    /// Configuration, instead of the usual file: see `xsched config show`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Serve metrics for Prometheus at ADDR too, such as 127.0.0.1:9400. They are always served on a socket next to the
    /// service's own.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,

    /// Serve the HTTP interface of the reference's xserver at ADDR, such as 127.0.0.1:50000. It has no passwords:
    /// whoever reaches the port may use it.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,

    /// Allow addresses for --http and --metrics that other machines can reach.
    #[arg(long)]
    http_allow_remote: bool,

    /// Say nothing unless something goes wrong.
    #[arg(short, long)]
    quiet: bool,
}

/// The scheduler's own place among the processes of the CPU, if its user may have it.
const NICE: i32 = -15;

/// How long a predecessor may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let options = options(args)?;
    let socket = options.socket.clone();
    if args.replace {
        service::request_shutdown(&socket, PATIENCE)?;
    }
    let policy = options.policy;
    let service = Service::bind(options)?;
    // From before readiness is told: whoever waits for it may send a signal right after.
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
    // This thread alone, and only if it may: what it decides about should not wait for those it decides about.
    let _ = rustix::process::setpriority_process(None, NICE);
    let end = service.run();
    let _ = std::fs::remove_file(metrics_socket(&socket));
    end.context("the scheduler cannot wait for its clients any more")?;
    Ok(())
}

/// What was configured, and over it what was typed.
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

/// Starts what is served beside the socket.
fn serve_http(args: &Args, service: &Path) -> anyhow::Result<()> {
    let reach = if args.http_allow_remote { Reach::Anywhere } else { Reach::Loopback };
    let say = |what: &str, at: SocketAddr| {
        if !args.quiet {
            eprintln!("xsched: {what} at http://{at}");
        }
    };
    if let Some(at) = http::serve_metrics(service, &metrics_socket(service), args.metrics, reach)? {
        say("metrics", at);
    }
    if let Some(address) = args.http {
        say("HTTP interface", http::serve_compat(service, address, reach)?);
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

/// Tells systemd that the service listens. Nobody has to hear it.
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
