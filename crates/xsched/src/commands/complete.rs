//! `xsched complete`: names of what runs, for the shells' completions.

use std::collections::BTreeSet;
use std::io::{self, Write as _};

use crate::term;
use crate::tool::ToolConnection;

/// Print the names that a shell completes.
#[derive(clap::Args)]
pub(crate) struct Args {
    what: What,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Programs that are scheduled.
    Programs,
    /// Grants in force.
    Grants,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let names: BTreeSet<String> = match args.what {
        // The service hides the names of programs that this user may not change.
        What::Programs => tool.status()?.tasks.into_iter().map(|task| task.name).collect(),
        What::Grants => tool.grants()?.into_iter().map(|status| status.grant.name).collect(),
    };
    let mut out = io::stdout().lock();
    for name in names.iter().filter(|name| !name.is_empty() && **name == term::printable(name)) {
        writeln!(out, "{name}")?;
    }
    Ok(())
}
