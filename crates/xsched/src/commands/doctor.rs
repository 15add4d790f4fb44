//! `xsched doctor`.

/// Say what works on this machine, what does not, and why.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched doctor` does not work yet")
}
