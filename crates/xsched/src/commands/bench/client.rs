//! The smallest program that can be scheduled: a connection and slots in a page, without threads and devices.

use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use xsched_core::{DeviceId, Gate, Nanos, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

/// One client.
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    priority: i64,
    #[arg(long)]
    queues: usize,
    /// Has work all the time.
    #[arg(long)]
    busy: bool,
}

/// A program as the service sees one.
pub(super) struct Joined {
    connection: Connection,
    pub(super) page: Arc<Page>,
    fd: OwnedFd,
    /// From connecting to the page.
    pub(super) took: Nanos,
}

impl SchedulerLink for Joined {
    fn notify(&self) {
        if self.page.notify() {
            self.connection.notify();
        }
    }
    fn alive(&self) -> bool {
        true
    }
}

impl Joined {
    pub(super) fn join(socket: &Path, priority: i64, queues: usize) -> anyhow::Result<Self> {
        let began = Nanos::now();
        let connection =
            Connection::to(socket).with_context(|| format!("cannot join {}", socket.display()))?;
        let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
        let join = Request::Join {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            name: None,
            hint_request,
        };
        connection.send(&join, None, true)?;
        let fd = match connection.receive::<Reply>(true)? {
            Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) => fd,
            other => anyhow::bail!("the service answered {other:?} instead of a welcome"),
        };
        let page = Page::attach(&fd)?;
        let took = Nanos::now() - began;
        for _ in 0..queues {
            page.allocate_slot(DeviceId(1)).context("a page has no more slots")?;
        }
        let joined = Self { connection, page, fd, took };
        joined.notify();
        Ok(joined)
    }

    pub(super) fn gate(&self) -> anyhow::Result<&Gate> {
        Ok(&self.page.slot(0).context("a page without slots")?.gate)
    }
}

/// Joins, says so, and sleeps until its input ends.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let joined = Joined::join(&args.socket, args.priority, args.queues)?;
    if args.busy {
        joined.gate()?.mark_busy(&joined);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {}", joined.fd.as_raw_fd(), joined.took.0)?;
    out.flush()?;
    std::io::stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Sends back what it is sent, from one eventfd to another.
pub(super) fn echo() -> anyhow::Result<()> {
    let mut count = [0_u8; 8];
    loop {
        rustix::io::read(rustix::stdio::stdin(), &mut count)?;
        rustix::io::write(rustix::stdio::stdout(), &count)?;
        // More than one ring at once is the sign to end.
        if u64::from_ne_bytes(count) > 1 {
            return Ok(());
        }
    }
}
