//! `xsched trace`.

/// Record what the scheduler does, for Perfetto to show.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched trace` does not work yet")
}
