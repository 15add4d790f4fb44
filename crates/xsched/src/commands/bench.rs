//! `xsched bench`.

/// Measure XSched itself.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("`xsched bench` does not work yet")
}
