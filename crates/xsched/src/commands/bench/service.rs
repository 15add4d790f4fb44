//! `xsched bench service`.
//!
//! ```text
//!   decision:   this process becomes ready, rings ─► service ─► the words of all others say stop
//!   ping-pong:  this process writes an eventfd ─► another reads it and writes one back ─► this process reads it
//! ```

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use xsched_core::{Nanos, Order};
use xsched_ipc::Page;

use super::client::Joined;

/// Measure the service: how fast it decides, and what it costs.
///
/// Starts a private service and clients that are processes of their own, and measures the time from a task becoming
/// ready until the words of all others say stop, beside a plain ping-pong of two processes over eventfds.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Processes that are scheduled, beside the one that measures.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,

    /// Queues of each.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=250))]
    queues: u32,

    /// Decisions to measure.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..))]
    rounds: u32,

    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Results {
    version: &'static str,
    cpus: usize,
    /// Else by sleeping, and the decision includes one more wake-up.
    watched_by_spinning: bool,
    clients: u32,
    queues: u32,
    rounds: u32,
    decision: Spread,
    ping_pong: Spread,
    ratio_p50: f64,
    ratio_p99: f64,
    connect_ms_median: f64,
    /// Of the service; a program has one more than without.
    fds_per_client: f64,
    memory_kib: u64,
    memory_1024_queues_kib: u64,
    idle: Idle,
}

#[derive(Serialize)]
#[allow(clippy::struct_field_names, reason = "whoever reads the JSON has to see the unit")]
struct Spread {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// What the service does while all its clients are idle.
#[derive(Serialize)]
struct Idle {
    seconds: f64,
    cpu_ms: f64,
    wakeups: u64,
}

const IDLE_SPAN: Duration = Duration::from_secs(3);
/// Between two measurements, so that each begins with everybody asleep.
const PAUSE: Duration = Duration::from_micros(100);
const PATIENCE: Nanos = Nanos::from_secs(10);

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let rig = Rig::start(args.clients, args.queues)?;
    let fds = rig.service.fds()? - rig.fds_before;
    let decision = rig.decisions(args.rounds)?;
    let ping_pong = ping_pong(args.rounds)?;
    let idle = rig.service.idle()?;
    let mut connect: Vec<Nanos> = rig.clients.iter().map(|client| client.took).collect();
    connect.sort_unstable();
    let memory_kib = rig.service.memory()?;
    drop(rig);
    let large = Rig::start(64, 16)?;
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        cpus: cpus(),
        watched_by_spinning: cpus() >= 4,
        clients: args.clients,
        queues: args.queues,
        rounds: args.rounds,
        ratio_p50: decision.p50_us / ping_pong.p50_us,
        ratio_p99: decision.p99_us / ping_pong.p99_us,
        decision,
        ping_pong,
        connect_ms_median: connect[connect.len() / 2].as_secs_f64() * 1e3,
        fds_per_client: fds as f64 / f64::from(args.clients + 1),
        memory_kib,
        memory_1024_queues_kib: large.service.memory()?,
        idle,
    };
    drop(large);
    show(&results, args.json)
}

fn show(results: &Results, json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, results).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let Results { clients, queues, rounds, cpus, decision, ping_pong, idle, .. } = results;
    writeln!(out, "{clients} clients with {queues} queue(s) each, {rounds} decisions, {cpus} CPUs\n")?;
    writeln!(out, "{:34}{:>10}{:>10}{:>10}", "", "p50", "p99", "max")?;
    for (name, spread) in
        [("ready -> all words written (us)", decision), ("eventfd ping-pong (us)", ping_pong)]
    {
        writeln!(out, "{name:34}{:>10.1}{:>10.1}{:>10.1}", spread.p50_us, spread.p99_us, spread.max_us)?;
    }
    writeln!(out, "{:34}{:>10.2}{:>10.2}\n", "ratio", results.ratio_p50, results.ratio_p99)?;
    for (name, value) in [
        ("connect, median (ms)", format!("{:.3}", results.connect_ms_median)),
        ("descriptors of the service per client", format!("{:.1}", results.fds_per_client)),
        ("memory of the service (KiB)", results.memory_kib.to_string()),
        ("  with 1024 queues in 64 processes", results.memory_1024_queues_kib.to_string()),
        ("idle: CPU time (ms)", format!("{:.2} in {:.1} s", idle.cpu_ms, idle.seconds)),
        ("idle: wake-ups", idle.wakeups.to_string()),
    ] {
        writeln!(out, "{name:38}{value:>12}")?;
    }
    Ok(())
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn spread(mut spans: Vec<Nanos>) -> Spread {
    spans.sort_unstable();
    let at = |per_mille: usize| {
        spans[((spans.len() * per_mille).div_ceil(1000)).saturating_sub(1)].as_micros_f64()
    };
    Spread { p50_us: at(500), p99_us: at(990), max_us: at(1000) }
}

/// A private service and its clients.
struct Rig {
    clients: Vec<Client>,
    measuring: Joined,
    service: Served,
    /// What the service had before anybody came.
    fds_before: usize,
    /// Watch the words without pause, and see the moment they are written. Only where there are processors to spare:
    /// else sleep until called, which adds the time of one more wake-up but leaves the processor to the service.
    spin: bool,
}

struct Client {
    child: Child,
    _input: ChildStdin,
    page: Arc<Page>,
    took: Nanos,
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Rig {
    fn start(clients: u32, queues: u32) -> anyhow::Result<Self> {
        let service = Served::start()?;
        let fds_before = service.fds()?;
        let started: Vec<_> = (1..clients).map(|_| spawn_client(&service.socket, queues, false)).collect();
        let mut clients =
            started.into_iter().map(|child| child.and_then(Client::of)).collect::<Result<Vec<_>, _>>()?;
        clients.push(Client::of(spawn_client(&service.socket, queues, true)?)?);
        let measuring = Joined::join(&service.socket, 10, 1)?;
        let spin = cpus() >= 4;
        let rig = Self { clients, measuring, service, fds_before, spin };
        rig.all_become(false)?;
        Ok(rig)
    }

    /// Dependencies until every word says stop, or none does and all know that they are not alone.
    fn all_become(&self, held: bool) -> anyhow::Result<()> {
        let Some(last) = self.clients.last() else { return Ok(()) };
        let fits = |order| if held { order == Order::Yield } else { order == Order::Throttled };
        let began = Nanos::now();
        // The last one has work, so its program is called once the words are written.
        let orders = last.page.orders();
        loop {
            let seen = orders.word().load(Ordering::SeqCst);
            let mut slots = self.clients.iter().rev().flat_map(|client| client.page.used_slots());
            if slots.all(|(_, slot)| fits(slot.gate.order())) {
                return Ok(());
            }
            anyhow::ensure!(Nanos::now() - began < PATIENCE, "the service has not decided for {PATIENCE}");
            if self.spin {
                std::hint::spin_loop();
            } else {
                orders.wait(seen, Some(Duration::from_millis(10)));
            }
        }
    }

    fn decisions(&self, rounds: u32) -> anyhow::Result<Spread> {
        let gate = self.measuring.gate()?;
        let mut spans = Vec::with_capacity(rounds as usize);
        // Whatever is only done once is done by then.
        let warm_up = rounds / 10;
        for round in 0..rounds + warm_up {
            std::thread::sleep(PAUSE);
            let began = Nanos::now();
            gate.mark_busy(&self.measuring);
            self.all_become(true)?;
            if round >= warm_up {
                spans.push(Nanos::now() - began);
            }
            gate.mark_idle(gate.epoch(), &self.measuring);
            self.all_become(false)?;
        }
        Ok(spread(spans))
    }
}

fn spawn_client(socket: &Path, queues: u32, busy: bool) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program itself")?);
    command
        .args(["bench", "client", "--priority", "-10", "--queues", &queues.to_string(), "--socket"])
        .arg(socket);
    command.args(busy.then_some("--busy"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start a client")
}

impl Client {
    fn of(mut child: Child) -> anyhow::Result<Self> {
        let input = child.stdin.take().context("a client without input")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("a client without output")?).read_line(&mut line)?;
        let mut words = line.split_whitespace().map(str::parse::<u64>);
        let (Some(Ok(fd)), Some(Ok(took))) = (words.next(), words.next()) else {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("a client could not join the private service");
        };
        let path = format!("/proc/{}/fd/{fd}", child.id());
        let file =
            File::options().read(true).write(true).open(path).context("cannot open a client's page")?;
        Ok(Self { page: Page::attach(&file.into())?, child, _input: input, took: Nanos(took) })
    }
}

/// A private service, in a directory of its own.
pub(crate) struct Served {
    child: Child,
    pub(crate) socket: PathBuf,
    directory: PathBuf,
}

impl Served {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let directory = std::env::temp_dir().join(format!("xsched-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        let socket = directory.join("socket");
        // An empty file, so that the machine's own configuration does not count.
        let config = directory.join("config.toml");
        File::create(&config).with_context(|| format!("cannot make {}", config.display()))?;
        let mut child = Command::new(std::env::current_exe().context("cannot find this program itself")?)
            .arg("serve")
            .arg("--socket")
            .arg(&socket)
            .arg("--config")
            .arg(&config)
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot start a service")?;
        let mut line = String::new();
        BufReader::new(child.stderr.take().context("a service that cannot say it is ready")?)
            .read_line(&mut line)?;
        let served = Self { child, socket, directory };
        anyhow::ensure!(
            line.contains("listening on"),
            "the private service did not start: {}",
            line.trim_end()
        );
        Ok(served)
    }

    fn read(&self, what: &str) -> anyhow::Result<String> {
        let mut text = String::new();
        let path = format!("/proc/{}/{what}", self.child.id());
        File::open(&path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .with_context(|| path.clone())?;
        Ok(text)
    }

    /// A number of `/proc/PID/status`.
    fn number(&self, field: &str) -> anyhow::Result<u64> {
        let text = self.read("status")?;
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        line.split_whitespace().find_map(|word| word.parse().ok()).with_context(|| format!("no {field}"))
    }

    /// The most it ever had.
    fn memory(&self) -> anyhow::Result<u64> {
        self.number("VmHWM:")
    }

    fn fds(&self) -> anyhow::Result<usize> {
        Ok(std::fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    fn idle(&self) -> anyhow::Result<Idle> {
        let look = || -> anyhow::Result<(u64, u64)> {
            let ran = self.read("schedstat")?.split_whitespace().next().and_then(|word| word.parse().ok());
            Ok((ran.context("no schedstat")?, self.number("voluntary_ctxt_switches:")?))
        };
        // What was armed before rings once for nothing.
        std::thread::sleep(Duration::from_millis(100));
        let (began, (ran, woken)) = (Nanos::now(), look()?);
        std::thread::sleep(IDLE_SPAN);
        let (ran_then, woken_then) = look()?;
        Ok(Idle {
            seconds: (Nanos::now() - began).as_secs_f64(),
            cpu_ms: (ran_then - ran) as f64 / 1e6,
            wakeups: woken_then - woken,
        })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Two processes that do nothing but wake each other.
fn ping_pong(rounds: u32) -> anyhow::Result<Spread> {
    let (there, back) = (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
    let mut echo = Command::new(std::env::current_exe()?)
        .args(["bench", "echo"])
        .stdin(there.try_clone()?)
        .stdout(back.try_clone()?)
        .spawn()
        .context("cannot start the other side of the ping-pong")?;
    let mut spans = Vec::with_capacity(rounds as usize);
    let warm_up = rounds / 10;
    for round in 0..rounds + warm_up {
        std::thread::sleep(PAUSE);
        let began = Nanos::now();
        rustix::io::write(&there, &1_u64.to_ne_bytes())?;
        rustix::io::read(&back, &mut [0_u8; 8])?;
        if round >= warm_up {
            spans.push(Nanos::now() - began);
        }
    }
    rustix::io::write(&there, &2_u64.to_ne_bytes())?;
    echo.wait()?;
    Ok(spread(spans))
}
