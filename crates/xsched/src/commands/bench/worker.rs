//! `xsched bench worker`: the built-in loads of the benchmarks, each in a process of its own.
//!
//! The same loads run on every platform. On a real device they contain no scheduling code: the preloaded library intercepts their
//! calls. On the simulated device they join the service themselves, as the library does for other programs.

mod cuda;
mod functions;
mod hip;
mod opencl;
mod simulated;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::{Value, json};

use super::gpu_worker::percentile;
use super::loads::Platform;

/// Run a built-in load.
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long, value_enum)]
    platform: Platform,
    /// The file of the simulated device.
    #[arg(long)]
    device: Option<PathBuf>,
    /// Output of `probe`, so that kernels need not be calibrated again.
    #[arg(long)]
    calibration: Option<String>,
    #[command(subcommand)]
    mode: Mode,
}

#[derive(clap::Subcommand)]
enum Mode {
    /// Print the name of the device and the calibration.
    Probe,
    /// Serve requests at irregular intervals, until the process is ended.
    Requests {
        #[arg(long)]
        commands: u32,
        #[arg(long)]
        length_us: u64,
        #[arg(long)]
        period_us: u64,
    },
    /// Keep the device busy, until the process is ended.
    Busy {
        /// Commands between two synchronizations.
        #[arg(long)]
        commands: u32,
        #[arg(long)]
        length_us: u64,
    },
    /// Print how long single commands take that begin at irregular intervals.
    Latency {
        #[arg(long)]
        count: u32,
        #[arg(long)]
        length_us: u64,
        #[arg(long)]
        period_us: u64,
    },
    /// Print the cost of a launch, and of launches back to back.
    Launches {
        #[arg(long)]
        count: u32,
        #[arg(long)]
        length_us: u64,
    },
    /// Compute, and print a checksum of the results.
    Compute {
        /// Commands, each of which changes the results of the one before.
        #[arg(long)]
        commands: u32,
        #[arg(long)]
        length_us: u64,
    },
}

/// A device that runs commands of a chosen length.
trait Accelerator {
    /// Launches a command; length 0 is the shortest.
    fn launch(&mut self, length_us: u64) -> anyhow::Result<()>;
    /// Waits until all launched commands are complete.
    fn synchronize(&mut self) -> anyhow::Result<()>;
    /// The name of the device, and the calibration of its commands.
    fn describe(&self) -> (String, String);
    /// Runs commands that depend on each other and returns a checksum of their results.
    fn compute(&mut self, commands: u32, length_us: u64) -> anyhow::Result<u64>;
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let calibration = args.calibration.as_deref();
    let mut device: Box<dyn Accelerator> = match args.platform {
        Platform::Simulated => Box::new(simulated::Device::open(
            args.device.as_deref().context("the file of the device is missing")?,
        )?),
        Platform::Cuda => Box::new(cuda::Device::open(calibration)?),
        Platform::Hip => Box::new(hip::Device::open(calibration)?),
        Platform::Opencl => Box::new(opencl::Device::open(calibration)?),
    };
    let device = device.as_mut();
    match args.mode {
        Mode::Probe => {
            let (name, calibration) = device.describe();
            print_line(&json!({"device": name, "calibration": calibration}))
        }
        Mode::Requests { commands, length_us, period_us } => {
            let mut arrivals = Arrivals::new(period_us);
            loop {
                arrivals.wait();
                batch(device, commands, length_us)?;
            }
        }
        Mode::Busy { commands, length_us } => loop {
            batch(device, commands, length_us)?;
        },
        Mode::Latency { count, length_us, period_us } => {
            let mut arrivals = Arrivals::new(period_us);
            // The first command of a process is slow.
            batch(device, 1, length_us)?;
            let times = (0..count).map(|_| {
                arrivals.wait();
                let began = Instant::now();
                batch(device, 1, length_us)?;
                Ok(began.elapsed().as_secs_f64() * 1e6)
            });
            let mut times = times.collect::<anyhow::Result<Vec<f64>>>()?;
            times.sort_by(f64::total_cmp);
            print_line(&json!({"p50_us": percentile(&times, 50), "p99_us": percentile(&times, 99)}))
        }
        Mode::Launches { count, length_us } => launches(device, count, length_us),
        Mode::Compute { commands, length_us } => {
            print_line(&json!({"commands": commands, "checksum": device.compute(commands, length_us)?}))
        }
    }
}

/// Launches commands and waits for them.
fn batch(device: &mut dyn Accelerator, commands: u32, length_us: u64) -> anyhow::Result<()> {
    for _ in 0..commands {
        device.launch(length_us)?;
    }
    device.synchronize()
}

/// Measures several batches, and prints the median of each figure.
fn launches(device: &mut dyn Accelerator, count: u32, length_us: u64) -> anyhow::Result<()> {
    const BATCHES: u32 = 11;
    // This many launches do not fill the queue of a device. Beyond, the host waits for the device.
    const WITHOUT_WAITING: u32 = 256;
    let (mut host, mut rate) = (Vec::new(), Vec::new());
    // The first launches of a process are slow.
    batch(device, count, length_us)?;
    for _ in 0..BATCHES {
        let began = Instant::now();
        for launch in 1..=count {
            device.launch(length_us)?;
            if launch == count.min(WITHOUT_WAITING) {
                host.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(launch));
            }
        }
        device.synchronize()?;
        rate.push(f64::from(count) / began.elapsed().as_secs_f64());
    }
    for values in [&mut host, &mut rate] {
        values.sort_by(f64::total_cmp);
    }
    print_line(&json!({"launch_us": percentile(&host, 50), "kernels_per_s": percentile(&rate, 50)}))
}

/// Irregular intervals, the same sequence in every process.
struct Arrivals {
    next: Instant,
    period: Duration,
    random: u64,
}

impl Arrivals {
    fn new(period_us: u64) -> Self {
        Self { next: Instant::now(), period: Duration::from_micros(period_us), random: 0x2545_f491_4f6c_dd1d }
    }

    /// Sleeps for 0.75 to 1.25 periods from the last arrival, so that requests arrive in every phase of other programs.
    fn wait(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let per_mille = u32::try_from(750 + self.random % 501).unwrap_or(1_000);
        self.next = (self.next + self.period * per_mille / 1_000).max(Instant::now());
        std::thread::sleep(self.next.saturating_duration_since(Instant::now()));
    }
}

/// Prints one line and flushes it.
fn print_line(value: &Value) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}
