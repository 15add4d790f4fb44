//! `xsched bench`: measures XSched itself.

mod client;
mod gpu_worker;
mod private_service;
mod service;

pub(crate) use private_service::PrivateService;

/// Measure XSched itself.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    target: Target,
}

#[derive(clap::Subcommand)]
enum Target {
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
    match &args.target {
        Target::Service(args) => service::run(args),
        Target::Client(args) => client::run(args),
        Target::Echo => client::echo(),
        Target::GpuWorker(args) => gpu_worker::run(args),
    }
}
