//! A private service with its clients, and the decisions that are measured there.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use xsched_core::Nanos;
use xsched_ipc::Page;

use super::super::client::{BenchClient, DEVICE};
use super::super::private_service::PrivateService;
use super::PAUSE;

const LEADER_PRIORITY: i64 = 10;
const CLIENT_PRIORITY: &str = "-10";
/// The service has failed if it neither runs nor waits for a core this long, or uses this much CPU time, while a decision is due.
const DECISION_TIMEOUT: Nanos = Nanos::from_secs(10);
const CHECK_INTERVAL: Nanos = Nanos::from_secs(1);
/// How long the measuring thread sleeps at most before it reads the orders again.
const SLEEP_LIMIT: Duration = Duration::from_millis(10);

/// A private service and its clients.
pub(super) struct Session {
    /// All idle, except the last one.
    clients: Vec<Client>,
    /// The task whose work preempts the clients.
    leader: BenchClient,
    service: PrivateService,
    /// Of the service, before the first client connected.
    descriptors_before: usize,
    /// Whether the measuring thread spins while it waits for orders. Otherwise it sleeps until it is notified.
    spins: bool,
}

/// A client process, with its page mapped into this process too.
struct Client {
    child: Child,
    stdin: ChildStdin,
    page: Arc<Page>,
    connect_time: Nanos,
}

impl Session {
    pub(super) fn start(clients: u32, queues: u32, spins: bool) -> anyhow::Result<Self> {
        let service = PrivateService::start()?;
        let descriptors_before = service.open_descriptors()?;
        // All idle clients start at the same time; the last client has work.
        let idle: Vec<_> = (1..clients).map(|_| spawn_client(service.socket(), queues, false)).collect();
        let mut clients =
            idle.into_iter().map(|child| child.and_then(Client::attach)).collect::<Result<Vec<_>, _>>()?;
        clients.push(Client::attach(spawn_client(service.socket(), queues, true)?)?);
        let leader = BenchClient::join(service.socket(), LEADER_PRIORITY, [DEVICE])?;
        let session = Self { clients, leader, service, descriptors_before, spins };
        session.wait_until_busy_client_runs()?;
        Ok(session)
    }

    pub(super) fn service(&self) -> &PrivateService {
        &self.service
    }

    /// Descriptors that the service opened for its clients and for the leader.
    pub(super) fn descriptors_of_clients(&self) -> anyhow::Result<usize> {
        Ok(self.service.open_descriptors()?.saturating_sub(self.descriptors_before))
    }

    pub(super) fn median_connect_time(&self) -> Nanos {
        let mut times: Vec<Nanos> = self.clients.iter().map(|client| client.connect_time).collect();
        times.sort_unstable();
        times[times.len() / 2]
    }

    /// Makes the busy client idle, so that no task has work.
    pub(super) fn make_idle(&mut self) -> anyhow::Result<()> {
        let Some(busy) = self.clients.last_mut() else { return Ok(()) };
        busy.stdin.write_all(b"idle\n").context("the busy client has exited")
    }

    /// Times from the leader becoming busy until the orders of all clients stop their launches.
    pub(super) fn decisions(&self, rounds: u32, mut progress: impl FnMut()) -> anyhow::Result<Vec<Nanos>> {
        let gate = self.leader.gate()?;
        let mut spans = Vec::with_capacity(rounds as usize);
        let warm_up = rounds / 10;
        for round in 0..rounds + warm_up {
            thread::sleep(PAUSE);
            let began = Nanos::now();
            gate.mark_busy(&self.leader);
            self.wait_until_clients_are_held()?;
            if round >= warm_up {
                spans.push(Nanos::now() - began);
                progress();
            }
            gate.mark_idle(gate.epoch(), &self.leader);
            self.wait_until_busy_client_runs()?;
        }
        Ok(spans)
    }

    fn wait_until_clients_are_held(&self) -> anyhow::Result<()> {
        // In reverse: only the order of the busy client, the last, changes in every round.
        let all_held = || self.clients.iter().rev().all(Client::is_held);
        self.wait_until("hold the clients", all_held)
    }

    /// Idle clients may stay held: the service keeps them from starting during the time slice of the busy client.
    fn wait_until_busy_client_runs(&self) -> anyhow::Result<()> {
        self.wait_until("resume the busy client", || {
            self.clients.last().is_none_or(|client| !client.is_held())
        })
    }

    fn wait_until(&self, decision: &str, is_decided: impl Fn() -> bool) -> anyhow::Result<()> {
        let Some(busy) = self.clients.last() else { return Ok(()) };
        let mut check = StallCheck::new(&self.service);
        // The service notifies a client that has work after it has written the orders.
        let orders = busy.page.orders();
        loop {
            let seen = orders.word().load(Ordering::SeqCst);
            if is_decided() {
                return Ok(());
            }
            check.fail_if_stalled(decision)?;
            if self.spins {
                std::hint::spin_loop();
            } else {
                orders.wait(seen, Some(SLEEP_LIMIT));
            }
        }
    }
}

/// Distinguishes a service that does not decide from one that waits for a core of a busy machine.
struct StallCheck<'a> {
    service: &'a PrivateService,
    next: Nanos,
    /// CPU time of the service when the first check was due.
    cpu_time: Option<Nanos>,
    asleep: Nanos,
}

impl<'a> StallCheck<'a> {
    fn new(service: &'a PrivateService) -> Self {
        Self { service, next: Nanos::now() + CHECK_INTERVAL, cpu_time: None, asleep: Nanos::ZERO }
    }

    fn fail_if_stalled(&mut self, decision: &str) -> anyhow::Result<()> {
        if Nanos::now() < self.next {
            return Ok(());
        }
        self.next = Nanos::now() + CHECK_INTERVAL;
        let pid = self.service.pid();
        match self.service.thread_state()? {
            'Z' | 'X' => anyhow::bail!("the private service (process {pid}) exited and did not {decision}"),
            // It runs or waits for a core.
            'R' => self.asleep = Nanos::ZERO,
            _ => self.asleep += CHECK_INTERVAL,
        }
        anyhow::ensure!(
            self.asleep < DECISION_TIMEOUT,
            "the private service (process {pid}) did not {decision}: it was asleep or stopped for {DECISION_TIMEOUT}"
        );
        let cpu_time = self.service.cpu_time()?;
        let used = cpu_time - *self.cpu_time.get_or_insert(cpu_time);
        anyhow::ensure!(
            used < DECISION_TIMEOUT,
            "the private service (process {pid}) did not {decision}: it used {DECISION_TIMEOUT} of CPU time"
        );
        Ok(())
    }
}

fn spawn_client(socket: &Path, queues: u32, busy: bool) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's own file")?);
    command
        .args(["bench", "client", "--priority", CLIENT_PRIORITY, "--queues", &queues.to_string(), "--socket"])
        .arg(socket);
    command.args(busy.then_some("--busy"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a client process")
}

impl Client {
    /// Waits until the client process has joined the service, and maps its page.
    fn attach(mut child: Child) -> anyhow::Result<Self> {
        let stdin = child.stdin.take().context("a client process has no stdin")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a client process has no stdout")?)
            .read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(fd)), Some(Ok(connect_time))) = (words.next(), words.next()) else {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("a client process could not join the private service");
        };
        let path = format!("/proc/{}/fd/{fd}", child.id());
        let file = File::options()
            .read(true)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot open the page of a client at {path}"))?;
        let page = Page::attach(&file.into())?;
        Ok(Self { child, stdin, page, connect_time: Nanos(connect_time) })
    }

    fn is_held(&self) -> bool {
        self.page.used_slots().all(|(_, slot)| slot.gate.order().stops())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
