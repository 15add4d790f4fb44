//! The two programs of the demo, each in a process of its own.
//!
//! [`Launcher`] does what the preloaded library does for other programs: with a page, launches pass the gate; without a page,
//! they use the device directly.

use std::io::Write as _;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use xsched_core::{LevelRequest, Nanos};
use xsched_ipc::{Client, Notifier, Page, ScheduledQueue};
use xsched_sim::{SimDevice, SimQueue};

/// One program of the demo; started by `xsched demo` itself.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    #[arg(long, value_enum)]
    pub role: Role,
    /// Descriptor of the simulated device.
    #[arg(long)]
    pub device_fd: RawFd,
    /// Descriptors of the scheduler's page and notifier; without them the program runs unscheduled.
    #[arg(long, requires = "notifier_fd")]
    pub page_fd: Option<RawFd>,
    #[arg(long)]
    pub notifier_fd: Option<RawFd>,
    #[arg(long)]
    pub level: LevelRequest,
    /// Commands launched before each synchronization.
    #[arg(long)]
    pub commands: u32,
    /// Length of a command.
    #[arg(long)]
    pub command_us: u64,
    /// Requests to serve; the background runs until it is killed.
    #[arg(long, default_value_t = 0)]
    pub requests: usize,
    /// Mean time from one request to the next.
    #[arg(long, default_value_t = 0)]
    pub period_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    Foreground,
    Background,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Foreground => "foreground",
            Self::Background => "background",
        }
    }
}

/// Launches commands, scheduled or not.
struct Launcher {
    hw: Arc<SimQueue>,
    scheduled: Option<(Arc<ScheduledQueue>, Client)>,
}

impl Launcher {
    fn open(args: &Args) -> anyhow::Result<Self> {
        let device =
            SimDevice::from_fd(inherited(args.device_fd)).context("the device cannot be attached")?;
        let hw = Arc::new(device.queue()?);
        let scheduled = match (args.page_fd, args.notifier_fd) {
            (Some(page), Some(notifier)) => {
                let client =
                    Client::new(Page::attach(&inherited(page))?, Notifier::attach(inherited(notifier)));
                Some((client.join(Arc::clone(&hw) as _, args.level)?, client))
            }
            _ => None,
        };
        Ok(Self { hw, scheduled })
    }

    fn launch(&self, length: Duration) -> anyhow::Result<()> {
        Ok(match &self.scheduled {
            Some((queue, _)) => queue.launch(|| self.hw.launch(length)),
            None => self.hw.launch(length),
        }?)
    }

    fn synchronize(&self) -> anyhow::Result<()> {
        use xsched_core::HwQueue as _;
        Ok(match &self.scheduled {
            Some((queue, _)) => queue.launch_path().synchronized(|| self.hw.synchronize()),
            None => self.hw.synchronize(),
        }?)
    }
}

fn inherited(fd: RawFd) -> OwnedFd {
    // SAFETY: `xsched demo` opened this descriptor for this process and passed its number on the command line; `Launcher::open`
    // takes each descriptor once.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let device = Launcher::open(args)?;
    match args.role {
        Role::Foreground => serve(args, &device),
        Role::Background => loop {
            batch(args, &device)?;
        },
    }
}

/// One request, or one step of training: some commands, then wait for them.
fn batch(args: &Args, device: &Launcher) -> anyhow::Result<()> {
    for _ in 0..args.commands {
        device.launch(Duration::from_micros(args.command_us))?;
    }
    device.synchronize()
}

/// Serves requests that arrive at irregular intervals, and reports each as a line with its two times.
fn serve(args: &Args, device: &Launcher) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut next = Nanos::now();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..args.requests {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Between 0.75 and 1.25 periods, so that requests arrive in every phase of the background. The same sequence in every scene.
        next += Nanos::from_micros(args.period_us * (750 + random % 501) / 1000);
        std::thread::sleep((next - Nanos::now()).into());
        let arrived = Nanos::now();
        batch(args, device)?;
        writeln!(out, "{} {}", arrived.0, Nanos::now().0)?;
        out.flush()?;
    }
    Ok(())
}
