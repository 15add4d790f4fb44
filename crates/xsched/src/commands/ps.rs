//! `xsched ps`.

/// List what is being scheduled.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched ps` does not work yet")
}
