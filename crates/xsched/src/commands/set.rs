//! `xsched set`.

/// Change the priority, share or deadline of something that runs.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched set` does not work yet")
}
