//! `xsched bench service`.
//!
//! ```text
//!   decision:   the leader marks its queue busy ─► service ─► every other client's order stops its launches
//!   ping-pong:  this process writes an eventfd ─► another process reads it and writes a second ─► this process reads it
//! ```

mod session;

use std::io::{self, Write as _};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;
use xsched_core::Nanos;

use super::hostile::HostileProcess;
use super::private_service::PrivateService;
use super::progress::Progress;
use session::Session;

/// Measure the service: how fast it decides, and what it costs.
///
/// Starts a private service and client processes. One client of low priority always has work, all other clients are idle. Then a
/// task of high priority becomes busy again and again, and the time is measured until the orders of all clients stop their
/// launches. For comparison, two processes wake each other over eventfds.
///
/// With --hostile, connections of another user (of this user unless run as root) attack the service meanwhile. Of ten, three request
/// the status and one requests the metrics without pause, one requests the status and never reads a reply, four are scheduled
/// processes with 20 tasks on as many devices, of which two send notifications, one changes its priority and one changes the keys
/// of its jobs without pause, and one joins again and again.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of client processes, in addition to the process that measures.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: u32,

    /// Queues of each client.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=250))]
    queues: u32,

    /// Decisions to measure.
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(10..))]
    rounds: u32,

    /// Number of hostile connections while decisions are measured.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    hostile: u32,

    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Results {
    version: &'static str,
    /// Cores that this process may use.
    cpus: usize,
    /// Otherwise the measuring thread slept until it was notified, and the decision includes that wake-up.
    watched_by_spinning: bool,
    clients: u32,
    queues: u32,
    rounds: u32,
    hostile: u32,
    decision: Percentiles,
    ping_pong: Percentiles,
    ratio_p50: f64,
    ratio_p99: f64,
    connect_ms_median: f64,
    /// Descriptors of the service; a client has one more than without XSched.
    fds_per_client: f64,
    memory_kib: u64,
    memory_1024_queues_kib: u64,
    idle: Idle,
}

#[derive(Serialize)]
#[allow(clippy::struct_field_names, reason = "the unit is part of the JSON key")]
struct Percentiles {
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

impl Percentiles {
    fn of(mut spans: Vec<Nanos>) -> Self {
        spans.sort_unstable();
        let at = |per_mille: usize| {
            spans[((spans.len() * per_mille).div_ceil(1000)).saturating_sub(1)].as_micros_f64()
        };
        Self { p50_us: at(500), p99_us: at(990), max_us: at(1000) }
    }
}

/// What the service does while all its clients are idle.
#[derive(Serialize)]
struct Idle {
    seconds: f64,
    cpu_ms: f64,
    wakeups: u64,
}

const IDLE_SPAN: Duration = Duration::from_secs(3);
/// For the busy client to become idle, and for timers of the service that were armed before.
const SETTLE_SPAN: Duration = Duration::from_millis(100);
/// Between two measurements, so that each begins with all processes asleep.
const PAUSE: Duration = Duration::from_micros(100);
/// With fewer cores, a measuring thread that spins would take the service's core.
const CORES_FOR_SPINNING: usize = 4;
const CLIENTS_FOR_MEMORY: u32 = 64;
const QUEUES_FOR_MEMORY: u32 = 16;

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let cpus = thread::available_parallelism().map_or(1, Into::into);
    let spins = cpus >= CORES_FOR_SPINNING;
    let progress = Progress::new();
    progress.phase(&format!("starting {} clients on {cpus} cores", args.clients), 0);
    let mut session = Session::start(args.clients, args.queues, spins)?;
    let descriptors = session.descriptors_of_clients()?;
    let hostile = match args.hostile {
        0 => None,
        connections => Some(HostileProcess::start(session.service().socket(), connections)?),
    };
    progress.phase("measuring decisions", args.rounds);
    let decision = Percentiles::of(session.decisions(args.rounds, || progress.step())?);
    drop(hostile);
    progress.phase("measuring eventfd ping-pong", args.rounds);
    let ping_pong = Percentiles::of(ping_pong(args.rounds, || progress.step())?);
    progress.phase(&format!("watching the idle service for {IDLE_SPAN:?}"), 0);
    session.make_idle()?;
    let idle = idle(session.service())?;
    let connect_ms_median = session.median_connect_time().as_secs_f64() * 1e3;
    let memory_kib = session.service().peak_memory_kib()?;
    drop(session);
    progress.phase("measuring the memory for 1024 queues", 0);
    let large = Session::start(CLIENTS_FOR_MEMORY, QUEUES_FOR_MEMORY, spins)?;
    let memory_1024_queues_kib = large.service().peak_memory_kib()?;
    drop(large);
    progress.finish();
    let results = Results {
        version: env!("CARGO_PKG_VERSION"),
        cpus,
        watched_by_spinning: spins,
        clients: args.clients,
        queues: args.queues,
        rounds: args.rounds,
        hostile: args.hostile,
        ratio_p50: decision.p50_us / ping_pong.p50_us,
        ratio_p99: decision.p99_us / ping_pong.p99_us,
        decision,
        ping_pong,
        connect_ms_median,
        fds_per_client: descriptors as f64 / f64::from(args.clients + 1),
        memory_kib,
        memory_1024_queues_kib,
        idle,
    };
    print(&results, args.json)
}

fn print(results: &Results, json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, results).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let Results { clients, queues, rounds, hostile, cpus, decision, ping_pong, idle, .. } = results;
    let watched = if results.watched_by_spinning {
        "watched by spinning"
    } else {
        "watched by sleeping, one more wake-up"
    };
    writeln!(
        out,
        "{clients} clients with {queues} queue(s) each, {hostile} hostile connections, {rounds} decisions, {cpus} cores \
         ({watched})\n"
    )?;
    writeln!(out, "{:34}{:>10}{:>10}{:>10}", "", "p50", "p99", "max")?;
    for (name, times) in
        [("busy -> all orders written (us)", decision), ("eventfd ping-pong (us)", ping_pong)]
    {
        writeln!(out, "{name:34}{:>10.1}{:>10.1}{:>10.1}", times.p50_us, times.p99_us, times.max_us)?;
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

fn idle(service: &PrivateService) -> anyhow::Result<Idle> {
    thread::sleep(SETTLE_SPAN);
    let (began, cpu, wakeups) = (Nanos::now(), service.cpu_time()?, service.voluntary_context_switches()?);
    thread::sleep(IDLE_SPAN);
    Ok(Idle {
        seconds: (Nanos::now() - began).as_secs_f64(),
        cpu_ms: (service.cpu_time()? - cpu).as_micros_f64() / 1e3,
        wakeups: service.voluntary_context_switches()? - wakeups,
    })
}

/// The round-trip times of two processes that only wake each other.
fn ping_pong(rounds: u32, mut progress: impl FnMut()) -> anyhow::Result<Vec<Nanos>> {
    let (request, reply) = (eventfd(0, EventfdFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
    let mut echo = Command::new(std::env::current_exe()?)
        .args(["bench", "echo"])
        .stdin(request.try_clone()?)
        .stdout(reply.try_clone()?)
        .spawn()
        .context("cannot start the second process of the ping-pong")?;
    let mut spans = Vec::with_capacity(rounds as usize);
    let warm_up = rounds / 10;
    for round in 0..rounds + warm_up {
        thread::sleep(PAUSE);
        let began = Nanos::now();
        rustix::io::write(&request, &1_u64.to_ne_bytes())?;
        rustix::io::read(&reply, &mut [0_u8; 8])?;
        if round >= warm_up {
            spans.push(Nanos::now() - began);
            progress();
        }
    }
    rustix::io::write(&request, &2_u64.to_ne_bytes())?;
    echo.wait()?;
    Ok(spans)
}
