//! `xsched bench`: measures XSched itself.

mod client;
mod gpu_worker;
mod service;

pub(crate) use service::Served;

/// Measure XSched itself.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// The service: how fast it decides, and what it costs.
    Service(service::Args),
    #[command(hide = true)]
    Client(client::Args),
    #[command(hide = true)]
    Echo,
    #[command(hide = true)]
    GpuWorker(gpu_worker::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.what {
        What::Service(args) => service::run(args),
        What::Client(args) => client::run(args),
        What::Echo => client::echo(),
        What::GpuWorker(args) => gpu_worker::run(args),
    }
}
