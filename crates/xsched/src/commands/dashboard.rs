//! `xsched dashboard`.

use std::io::{self, Write as _};
use std::path::PathBuf;

use anyhow::Context as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::cli::message;
use crate::dashboard::{Address, Dashboard, FORWARDED_PORT, browser};
use crate::tool::ToolConnection;

/// Show the devices and their tasks live in a browser.
///
/// Shows which task ran when, preemptions, utilization, waits and shares, and changes priorities, shares and the policy, with your rights.
/// Serves the page on the loopback address of this machine until Ctrl-C, and prints its address with a secret token: do not give it to
/// other users. To open the page on another machine, forward the port with ssh -L.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Port on 127.0.0.1; any free one by default.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Listen at this Unix socket, which only you can use, and at no port. On another machine, forward a port to it with ssh -L.
    #[arg(long, value_name = "PATH", conflicts_with = "port")]
    unix: Option<PathBuf>,

    /// Do not open a browser.
    #[arg(long)]
    no_open: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    let dashboard = match &args.unix {
        Some(path) => Dashboard::start_unix(path)?,
        None => Dashboard::start(args.port)?,
    };
    if let Err(error) = ToolConnection::connect() {
        // The page connects as soon as a service runs.
        message(format_args!("xsched: {error}"));
    }
    let url = dashboard.url();
    let mut out = io::stdout();
    writeln!(out, "{url}")?;
    out.flush()?;
    let mut redirect = None;
    match &dashboard.address {
        Address::Unix(path) => {
            message(format_args!(
                "forward the port first, on your machine: ssh -L {FORWARDED_PORT}:{} HOST",
                path.display()
            ));
        }
        Address::Tcp(address) if std::env::var_os("SSH_CONNECTION").is_some() => {
            let port = address.port();
            message(format_args!(
                "from another machine, forward the port first: ssh -L {port}:127.0.0.1:{port} HOST"
            ));
        }
        Address::Tcp(_) => {}
    }
    if !args.no_open && args.unix.is_none() && browser::has_desktop() {
        match browser::open(&url) {
            Ok(file) => redirect = Some(file),
            Err(error) => message(format_args!("xsched: {error:#}: open the address above in a browser")),
        }
    }
    signals.forever().next();
    // Also removes the Unix socket.
    drop((redirect, dashboard));
    Ok(())
}
