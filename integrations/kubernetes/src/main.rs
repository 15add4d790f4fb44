//! The program `xsched-kubernetes`.

use clap::Parser as _;
use xsched_kubernetes::options::Options;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    Options::parse().run().await
}
