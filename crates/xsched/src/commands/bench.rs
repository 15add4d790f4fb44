//! `xsched bench`: measures XSched itself.

mod client;
mod corun;
mod estimate;
mod gpu_worker;
mod hostile;
mod interleave;
mod loads;
mod overhead;
mod page;
mod preempt;
mod private_service;
mod program;
mod progress;
mod recorder;
mod results;
mod scale;
mod scene;
mod service;
mod share;
mod table;
mod verify;
mod worker;

pub(crate) use private_service::PrivateService;

/// Measure XSched itself.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    target: Target,
}

#[derive(clap::Subcommand)]
enum Target {
    Corun(corun::Args),
    Overhead(overhead::Args),
    Preempt(preempt::Args),
    Share(share::Args),
    Scale(scale::Args),
    Verify(verify::Args),
    Service(service::Args),
    #[command(hide = true)]
    Client(client::Args),
    #[command(hide = true)]
    Echo,
    #[command(hide = true)]
    Hostile(hostile::Args),
    #[command(hide = true)]
    GpuWorker(gpu_worker::Args),
    #[command(hide = true)]
    Worker(worker::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.target {
        Target::Corun(args) => corun::run(args),
        Target::Overhead(args) => overhead::run(args),
        Target::Preempt(args) => preempt::run(args),
        Target::Share(args) => share::run(args),
        Target::Scale(args) => scale::run(args),
        Target::Verify(args) => verify::run(args),
        Target::Service(args) => service::run(args),
        Target::Client(args) => client::run(args),
        Target::Echo => client::echo(),
        Target::Hostile(args) => hostile::run(args),
        Target::GpuWorker(args) => gpu_worker::run(args),
        Target::Worker(args) => worker::run(args),
    }
}
