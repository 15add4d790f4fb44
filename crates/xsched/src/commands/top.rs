//! `xsched top`.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use xsched_core::Nanos;
use xsched_core::parse_time;

use crate::top;

/// Show the scheduled tasks live.
///
/// Shows the utilization of each device by each task, and which tasks are held and for how long. Keys change priorities and the
/// policy. Press ? for the keys and the columns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Update interval, such as 500ms or 2s [default: 1s, with --once 200ms].
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,

    /// Print one screen as text and exit; needs no terminal.
    #[arg(long)]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let Nanos(ns) = parse_time(text)?;
    let length = Duration::from_nanos(ns);
    if (Duration::from_millis(50)..=Duration::from_secs(60)).contains(&length) {
        Ok(length)
    } else {
        Err(format!("`{text}` is out of range: allowed is 50ms to 60s"))
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if args.once {
        return top::once(args.interval.unwrap_or(Duration::from_millis(200)));
    }
    anyhow::ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "`xsched top` needs a terminal: use `xsched top --once` for one screen as text, or `xsched ps`"
    );
    top::live(args.interval.unwrap_or(Duration::from_secs(1)))
}
