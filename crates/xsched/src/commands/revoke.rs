//! `xsched revoke`: ends a grant.

use std::io::{self, Write as _};

use anyhow::Context as _;
use xsched_ipc::protocol::Request;

use crate::term;
use crate::tool::ToolConnection;

/// End a grant.
///
/// Its processes continue with the limits of their users, from now on. Only administrators revoke grants.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The name of the grant.
    name: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let tool = ToolConnection::connect()?;
    let name = term::printable(&args.name);
    tool.request(&Request::Revoke(args.name.clone())).with_context(|| format!("cannot revoke {name}"))?;
    writeln!(io::stdout(), "grant {name} has ended")?;
    Ok(())
}
