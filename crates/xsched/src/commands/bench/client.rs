//! The smallest client of the service: a connection and slots in a page, without threads or devices.

use std::io::{BufRead as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use xsched_core::{DeviceId, Gate, Nanos, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

/// One client process.
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long, allow_hyphen_values = true)]
    priority: i64,
    #[arg(long)]
    queues: usize,
    /// Mark the first queue busy and never idle.
    #[arg(long)]
    busy: bool,
}

/// The device of the clients that are measured.
pub(super) const DEVICE: DeviceId = DeviceId(1);

/// A client as the service sees it.
pub(super) struct BenchClient {
    connection: Connection,
    pub(super) page: Arc<Page>,
    fd: OwnedFd,
    /// From connecting until the page was mapped.
    connect_time: Nanos,
}

impl SchedulerLink for BenchClient {
    fn notify(&self) {
        if self.page.notify() {
            self.connection.notify();
        }
    }
    fn is_alive(&self) -> bool {
        true
    }
}

impl BenchClient {
    /// Joins with one queue on each of the devices.
    pub(super) fn join(
        socket: &Path,
        priority: i64,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> anyhow::Result<Self> {
        let began = Nanos::now();
        let connection =
            Connection::to(socket).with_context(|| format!("cannot join {}", socket.display()))?;
        let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
        let join = Request::Join {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").into(),
            name: None,
            hint_request,
            grant_token: None,
            memory_group: None,
        };
        connection.send(&join, None, true)?;
        let fd = match connection.receive::<Reply>(true)? {
            Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) => fd,
            other => {
                anyhow::bail!("the service at {} replied {other:?} instead of a welcome", socket.display())
            }
        };
        let page = Page::attach(&fd)?;
        let connect_time = Nanos::now() - began;
        for device in devices {
            page.allocate_slot(device).context("the page has no free slot: use fewer --queues")?;
        }
        let client = Self { connection, page, fd, connect_time };
        client.notify();
        Ok(client)
    }

    /// Notifies the service even if it has not read the page since the last notification.
    pub(super) fn notify_always(&self) {
        self.connection.notify();
    }

    /// Sends a request without waiting for room in the socket.
    pub(super) fn send_if_room(&self, request: &Request) {
        let _ = self.connection.send(request, None, false);
    }

    pub(super) fn gate(&self) -> anyhow::Result<&Gate> {
        Ok(&self.page.slot(0).context("the page has no slots")?.gate)
    }
}

/// Joins, prints the descriptor of the page and the connect time, and blocks until stdin ends.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let client = BenchClient::join(&args.socket, args.priority, std::iter::repeat_n(DEVICE, args.queues))?;
    if args.busy {
        client.gate()?.mark_busy(&client);
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {}", client.fd.as_raw_fd(), client.connect_time.0)?;
    out.flush()?;
    let mut stdin = std::io::stdin().lock();
    // A line is the request to become idle, the end of stdin the request to exit.
    while stdin.read_line(&mut String::new())? > 0 {
        let gate = client.gate()?;
        gate.mark_idle(gate.epoch(), &client);
    }
    Ok(())
}

/// Copies each number from the eventfd on stdin to the eventfd on stdout.
pub(super) fn echo() -> anyhow::Result<()> {
    let mut count = [0_u8; 8];
    loop {
        rustix::io::read(rustix::stdio::stdin(), &mut count)?;
        rustix::io::write(rustix::stdio::stdout(), &count)?;
        // A number over 1 is the request to exit.
        if u64::from_ne_bytes(count) > 1 {
            return Ok(());
        }
    }
}
