//! Connections that harm the service as much as an unprivileged user can, to measure what the scheduled programs notice of them.
//!
//! One process with one thread keeps them all busy: the measurement is of the service, not of a machine without a free core.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use xsched_core::DeviceId;
use xsched_ipc::protocol::{HintRequest, JobKey, MAX_JOB_KEYS, PROTOCOL, Request};
use xsched_ipc::socket::{Connection, MAX_PACKET_SIZE, SocketError};

use super::client::BenchClient;

/// An unprivileged user, whose limits apply, if this process may become another user.
const UNPRIVILEGED_USER: u32 = 65_534;
/// Its queues are on devices of their own: only the service is attacked, not the device of the other clients. Each device has one
/// queue, so that there are as many tasks as queues.
const FIRST_DEVICE: u64 = 2;
const PRIORITY: i64 = -20;
const QUEUES: usize = 20;
/// The longest wait for a connection that only joins.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1);
/// The last packet of a listing ends with this.
const LAST_PACKET_END: &[u8] = b"\"more\":false}}";

/// The hidden command that is the process of the hostile connections.
#[derive(clap::Args)]
pub(super) struct Args {
    #[arg(long)]
    socket: PathBuf,
    #[arg(long)]
    connections: u32,
}

/// The process of the hostile connections. Dropping it ends the process.
pub(super) struct HostileProcess(Child);

impl HostileProcess {
    /// Starts it and returns when all its connections are established.
    pub(super) fn start(socket: &Path, connections: u32) -> anyhow::Result<Self> {
        // Not by its path: the other user may not be allowed to search the directories.
        let mut command = Command::new("/proc/self/exe");
        command.args(["bench", "hostile", "--connections", &connections.to_string(), "--socket"]).arg(socket);
        if rustix::process::geteuid().is_root() {
            command.uid(UNPRIVILEGED_USER).gid(UNPRIVILEGED_USER).current_dir("/");
        }
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Self(child.context("cannot start the process of the hostile connections")?);
        let mut line = String::new();
        let stdout = process.0.stdout.take().context("the hostile process has no stdout")?;
        BufReader::new(stdout).read_line(&mut line)?;
        anyhow::ensure!(line.trim_end() == "ready", "the hostile connections were not established");
        Ok(process)
    }
}

impl Drop for HostileProcess {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What one connection does.
enum Behavior {
    /// Requests the status or the metrics again as soon as it has received them.
    Reads { request: Request, awaits_reply: bool },
    /// Requests the status without end and never reads a reply.
    NeverReads,
    /// A scheduled process that sends notifications without end.
    Notifies(BenchClient),
    /// A scheduled process that changes its hints, or its jobs, without end and never reads a reply. Each request changes
    /// something, and so needs a decision.
    Requests { client: BenchClient, requests: [Request; 2] },
    /// Joins without end, each time on another connection.
    Joins { socket: PathBuf },
}

fn hints(priority: i64) -> HintRequest {
    HintRequest { priority: Some(priority), ..HintRequest::default() }
}

/// As many keys as a process can have, none of which another connection has.
fn job_keys(number: u32, version: char) -> Vec<JobKey> {
    (0..MAX_JOB_KEYS).map(|key| JobKey::Name(format!("job-{number}-{key}-{version}"))).collect()
}

struct HostileConnection {
    connection: Connection,
    behavior: Behavior,
}

impl HostileConnection {
    /// Of ten connections three read the status, one reads the metrics, one never reads, two notify, one changes its hints, one
    /// changes its jobs and one joins.
    fn open(socket: &Path, number: u32) -> anyhow::Result<Self> {
        let connection = Connection::to(socket).context("cannot connect to the service")?;
        let join = || {
            let first = FIRST_DEVICE + u64::from(number) * QUEUES as u64;
            BenchClient::join(socket, PRIORITY, (first..).map(DeviceId).take(QUEUES))
        };
        let behavior = match number % 10 {
            0..=2 => Behavior::Reads { request: Request::Status, awaits_reply: false },
            3 => Behavior::Reads { request: Request::Metrics, awaits_reply: false },
            4 => Behavior::NeverReads,
            5 | 6 => Behavior::Notifies(join()?),
            7 => Behavior::Requests {
                client: join()?,
                requests: [PRIORITY, PRIORITY - 1].map(|priority| Request::Hint(hints(priority))),
            },
            8 => Behavior::Requests {
                client: join()?,
                requests: ['a', 'b'].map(|version| Request::Jobs(job_keys(number, version))),
            },
            _ => Behavior::Joins { socket: socket.to_owned() },
        };
        Ok(Self { connection, behavior })
    }

    /// Does what it can do without waiting. Returns false if the service has closed the connection.
    fn act(&mut self, packet: &mut [u8]) -> bool {
        let mut is_open = true;
        let mut send = |request: &Request| match self.connection.send(request, None, false) {
            Ok(()) => true,
            Err(SocketError::Closed) => {
                is_open = false;
                false
            }
            Err(_) => false,
        };
        match &mut self.behavior {
            Behavior::Reads { request, awaits_reply: awaits_reply @ false } => *awaits_reply = send(request),
            Behavior::Reads { awaits_reply, .. } => loop {
                match recv(&self.connection, &mut *packet, RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => return false,
                    Ok((_, length)) if packet[..length].ends_with(LAST_PACKET_END) => {
                        *awaits_reply = false;
                        break;
                    }
                    Ok(_) => {}
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    Err(_) => return false,
                }
            },
            Behavior::NeverReads => drop(send(&Request::Status)),
            Behavior::Notifies(client) => client.notify_always(),
            Behavior::Requests { client, requests } => {
                client.send_if_room(&requests[0]);
                requests.swap(0, 1);
            }
            Behavior::Joins { socket } => {
                // The connection before it ends, whether the service has accepted it or not.
                if let Ok(next) = Connection::to_within(socket, CONNECT_TIMEOUT) {
                    self.connection = next;
                }
                let join = Request::Join {
                    protocol: PROTOCOL,
                    version: env!("CARGO_PKG_VERSION").into(),
                    name: None,
                    hint_request: hints(PRIORITY),
                    grant_token: None,
                    memory_group: None,
                };
                // Fails if the service has refused the connection: the next act makes another.
                let _ = self.connection.send(&join, None, false);
            }
        }
        is_open
    }
}

/// Opens the connections, prints a line and keeps them busy until stdin ends.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let open = |number| HostileConnection::open(&args.socket, number);
    let mut connections = (0..args.connections).map(open).collect::<Result<Vec<_>, _>>()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    let mut packet = vec![0; MAX_PACKET_SIZE];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    while poll(&mut [PollFd::new(&rustix::stdio::stdin(), PollFlags::IN)], Some(&now)) == Ok(0) {
        for (number, connection) in connections.iter_mut().enumerate() {
            if !connection.act(&mut packet) {
                // The service has closed it: an attacker would try again.
                *connection = open(u32::try_from(number).unwrap_or_default())?;
            }
        }
    }
    Ok(())
}
