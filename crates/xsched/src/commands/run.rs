//! `xsched run`.

/// Run a program under the scheduler.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched run` does not work yet")
}
