//! `xsched top`.

use std::io::{self, IsTerminal as _, Write as _};
use std::thread;
use std::time::Duration;

use xsched_core::Nanos;
use xsched_core::parse_time;

use crate::selection::Selection;
use crate::tool::ToolConnection;
use crate::top::{Options, Sort};
use crate::{rates, status, top};

/// Show the scheduled tasks live.
///
/// Shows the utilization of each device by each task, and which tasks are held and for how long. Keys change priorities and the
/// policy; the mouse selects, sorts and scrolls. Press ? for the keys and the columns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Update interval, such as 500ms or 2s [default: 1s, with --once 200ms].
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    interval: Option<Duration>,

    /// Print one screen as text and exit; needs no terminal.
    #[arg(long)]
    once: bool,

    /// Print one JSON object in each interval, one line each, as `xsched ps --json` prints; with --once only one. Needs no
    /// terminal.
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    selection: Selection,

    /// Sort by this column.
    #[arg(short, long, value_name = "COLUMN", default_value = "device", conflicts_with = "json")]
    sort: Sort,
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
    if args.json {
        return stream(args.interval.unwrap_or(Duration::from_secs(1)), args.once, &args.selection);
    }
    let options = Options { selection: args.selection.clone(), sort: args.sort };
    if args.once {
        return top::once(args.interval.unwrap_or(Duration::from_millis(200)), options);
    }
    anyhow::ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "`xsched top` needs a terminal: use `xsched top --once` for one screen as text, `xsched top --json`, or `xsched ps`"
    );
    top::live(args.interval.unwrap_or(Duration::from_secs(1)), options)
}

/// Prints a line for each interval until the reader closes the pipe or the service closes the connection.
fn stream(interval: Duration, once: bool, selection: &Selection) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let mut out = io::stdout().lock();
    let mut old = tool.status()?;
    loop {
        thread::sleep(interval);
        let new = tool.status()?;
        let rates = rates::between(&old, &new);
        let mut shown = new.clone();
        selection.apply(&mut shown);
        status::sort(&mut shown.tasks);
        let sample = status::to_json(&shown, &rates)?;
        serde_json::to_writer(&mut out, &sample).map_err(io::Error::from)?;
        writeln!(out)?;
        out.flush()?;
        if once {
            return Ok(());
        }
        old = new;
    }
}
