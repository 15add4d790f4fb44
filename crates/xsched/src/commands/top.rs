//! `xsched top`.

/// Watch what is being scheduled, live.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched top` does not work yet")
}
