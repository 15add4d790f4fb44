//! `xsched policy`.

/// Show or change the scheduling policy.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched policy` does not work yet")
}
