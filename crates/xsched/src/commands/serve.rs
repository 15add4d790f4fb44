//! `xsched serve`: the service for all programs of this user, or of the machine.

use std::io::{IsTerminal as _, Read as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use xsched_ipc::service::{self, Options, Service};
use xsched_policy::PolicyInfo;

use crate::cli::message;
use crate::config::Config;
use crate::http::{self, Access, Reach, Token};

/// Run the scheduler service.
///
/// As root it schedules the programs of all users of the machine, else those of its own user. `xsched run` finds the service,
/// and starts one if none runs. SIGHUP, or `xsched config reload`, has the service read its configuration again.
#[derive(clap::Args, Clone)]
#[allow(clippy::doc_markdown, reason = "clap prints this text verbatim")]
pub(crate) struct Args {
    /// The policy, by either of its names, such as priority or HPF. `xsched policy` lists them.
    #[arg(short, long, value_name = "NAME")]
    policy: Option<String>,

    /// Socket to listen on, instead of $XSCHED_SOCKET or xsched/socket in the runtime directory.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Replace the running service; its programs connect to the new one within a second. A service that does not respond for
    /// 5 seconds is killed.
    #[arg(long)]
    replace: bool,

    /// Exit after this many seconds without a client.
    #[arg(long, value_name = "SECS")]
    idle_exit: Option<u64>,

    /// Configuration file, instead of the default one: see `xsched config show`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Also serve metrics for Prometheus at ADDR, such as 127.0.0.1:9400, instead of the address in the configuration. They are always served on a Unix socket in the directory of
    /// the service's socket.
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,

    /// Serve the HTTP interface of the original C++ XSched's xserver at ADDR, such as 127.0.0.1:50000. A request has the rights of the
    /// user whose process sends it.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,

    /// Allow addresses for --http and --metrics that other machines can reach. Without the token of the service (token_file in its
    /// configuration) they may read, but not change anything.
    #[arg(long)]
    http_allow_remote: bool,

    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
}

/// CPU nice value of the scheduling thread, if the user has the right to set it.
const NICE: i32 = -15;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::read(args.config.as_deref())?;
    let options = options(args, &config)?;
    let access = access(args, &config)?;
    let socket = options.socket.clone();
    let policy = options.policy;
    let mut service = if args.replace {
        let report_killed = |pid| {
            if !args.quiet {
                message(format_args!(
                    "xsched: the running service (process {pid}) did not respond and was killed"
                ));
            }
        };
        Service::replace(&options, report_killed)?
    } else {
        Service::bind(options)?
    };
    // Before readiness is reported: a process that waits for it may send a signal at once.
    let (signalled, signals) = UnixStream::pair().context("cannot watch for signals")?;
    for signal in [SIGTERM, SIGINT] {
        let end = signals.try_clone().context("cannot watch for signals")?;
        signal_hook::low_level::pipe::register(signal, end).context("cannot watch for signals")?;
    }
    service.stop_when_readable(&signalled).context("cannot watch for signals")?;
    reload_on_hangup(args, &config, &service)?;
    service.remove_at_exit(metrics_socket(&socket));
    serve_http(args, &config, &socket, &access)?;
    for warning in service.warnings() {
        message(format_args!("xsched: {warning}"));
    }
    if !args.quiet {
        message(format_args!(
            "xsched: listening on {}, policy {} ({})",
            socket.display(),
            policy.name,
            policy.plain
        ));
    }
    service::notify_manager("READY=1");
    // Decisions should not wait for the CPU behind the scheduled programs. Failure without the right is fine.
    let _ = rustix::process::setpriority_process(None, NICE);
    service.run().context("the service cannot wait for its clients")?;
    Ok(())
}

/// Starts a thread that reads the configuration again for each SIGHUP. An invalid configuration changes nothing. A service whose
/// terminal was closed stops.
fn reload_on_hangup(args: &Args, config: &Config, service: &Service) -> anyhow::Result<()> {
    let (reloader, stopper) = (service.reloader(), service.stopper());
    let is_in_terminal = std::io::stderr().is_terminal();
    let (mut hung_up, signal) = UnixStream::pair().context("cannot watch for signals")?;
    signal_hook::low_level::pipe::register(SIGHUP, signal).context("cannot watch for signals")?;
    let (args, mut http) = (args.clone(), config.content.http.clone());
    let reload = move || {
        while hung_up.read_exact(&mut [0]).is_ok() {
            if is_in_terminal && !std::io::stderr().is_terminal() {
                stopper.notify();
            }
            let read = Config::read(args.config.as_deref())
                .and_then(|config| Ok((options(&args, &config)?, config)));
            match read {
                Ok((options, config)) => {
                    reloader.apply(options);
                    if http != config.content.http {
                        message(format_args!(
                            "xsched: changes in [http] take effect after a restart of the service"
                        ));
                        http.clone_from(&config.content.http);
                    }
                    if !args.quiet {
                        let source = config.file.as_deref().map(|file| file.display().to_string());
                        message(format_args!(
                            "xsched: configuration read again from {}",
                            source.as_deref().unwrap_or("the built-in defaults")
                        ));
                    }
                }
                Err(error) => {
                    message(format_args!("xsched: the previous configuration stays in force: {error:#}"));
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("xsched-reload".to_owned())
        .spawn(reload)
        .context("cannot start a thread")?;
    Ok(())
}

/// The configuration, overridden by the command line.
fn options(args: &Args, config: &Config) -> anyhow::Result<Options> {
    let socket = args.socket.clone().unwrap_or_else(service::default_socket);
    let mut options = config.options(socket);
    if let Some(name) = &args.policy {
        options.policy = PolicyInfo::find(name)?;
    }
    options.idle_exit = args.idle_exit.map(Duration::from_secs);
    Ok(options)
}

/// The rules for HTTP clients.
fn access(args: &Args, config: &Config) -> anyhow::Result<Access> {
    let http = &config.content.http;
    Ok(Access {
        reach: if args.http_allow_remote { Reach::AnyAddress } else { Reach::Loopback },
        token: http.token_file.as_deref().map(Token::read).transpose()?.map(Arc::new),
        shows_all_names: http.metrics_names,
    })
}

/// Starts the HTTP servers.
fn serve_http(args: &Args, config: &Config, service: &Path, access: &Access) -> anyhow::Result<()> {
    let report = |what: &str, at: SocketAddr| {
        if !args.quiet {
            message(format_args!("xsched: {what} at http://{at}"));
        }
    };
    let metrics = args.metrics.map(|address| (address, "--metrics"));
    let configured = config.content.http.metrics.map(|address| (address.0, "metrics in [http]"));
    let socket = metrics_socket(service);
    if let Some(at) = http::serve_metrics(service, &socket, metrics.or(configured), access)? {
        report("metrics", at);
    }
    if let Some(address) = args.http {
        report("HTTP interface", http::serve_compat(service, address, access)?);
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
