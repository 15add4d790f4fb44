//! `xsched serve`.

/// Run the scheduler service.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched serve` does not work yet")
}
