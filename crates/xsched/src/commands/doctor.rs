//! `xsched doctor`.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::PathBuf;

use serde_json::json;

use crate::doctor::{self, Machine, State};
use crate::term::{self, Glyphs};

/// Report what works on this machine, what does not, and how to fix it.
///
/// Checks the service, the preloading of the library, every accelerator, and the system. Changes nothing. The exit status is 1 if
/// there is a problem, and 0 if there are only warnings.
#[derive(clap::Args)]
// The manual leaves hidden options out, and a group may not name an option that is left out.
#[group(skip)]
pub(crate) struct Args {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,

    /// Print the commands that the report recommends, with the findings as comments. Runs none of them.
    #[arg(long, conflicts_with = "json")]
    fix: bool,

    /// Examine the files below this directory instead of the machine's own.
    #[arg(long, value_name = "DIRECTORY", hide = true)]
    root: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let machine = args.root.clone().map_or_else(Machine::this, Machine::below);
    let checks = doctor::examine(&machine);
    let problems = doctor::count(&checks, State::Problem);
    let mut out = io::stdout().lock();
    if args.json {
        let report = json!({ "ok": problems == 0, "checks": checks });
        serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    } else if args.fix {
        write!(out, "{}", doctor::commands(&checks))?;
    } else {
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let columns = term::size().0.map(usize::from);
        write!(out, "{}", doctor::text(&checks, columns, Glyphs::of_locale(), colour))?;
    }
    out.flush()?;
    anyhow::ensure!(
        problems == 0,
        "{problems} found: each is listed above with what to do",
        problems = plural(problems)
    );
    Ok(())
}

fn plural(problems: usize) -> String {
    if problems == 1 { "1 problem".to_owned() } else { format!("{problems} problems") }
}
