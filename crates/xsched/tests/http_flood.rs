//! As many HTTP requests as this machine can send, to every port: the service keeps scheduling, every request is answered or refused, and
//! memory stays bounded. `--nocapture` prints the rates.

#[path = "common/live.rs"]
mod live;
#[allow(dead_code, reason = "other tests use the rest of this module")]
mod measured;
mod open_loop;

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use live::{FakeProgram, RunningService, wait_until};
use measured::{require, retry_comparison};

const THREADS: usize = 4;
/// More in all than a port accepts at the same time.
const CONNECTIONS_PER_THREAD: usize = 64;
/// Longer than the server takes for a slow request. A request that gets neither response nor error within this time hangs.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// What each flood lasts for at least.
const REQUESTS: usize = 512;
const PREEMPTIONS: usize = 50;
/// What the memory of a process may grow by: the largest requests and responses of all connections at the same time are below this.
const MAX_GROWTH_KIB: u64 = 64 * 1024;

/// How requests ended.
#[derive(Debug, Default)]
struct Outcomes {
    answered: AtomicUsize,
    refused: AtomicUsize,
    hung: AtomicUsize,
}

impl Outcomes {
    fn count(&self, result: &io::Result<String>) {
        let counter = match result {
            Ok(response) if response.starts_with("HTTP/1.1 ") => &self.answered,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => &self.hung,
            _ => &self.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn ended(&self) -> usize {
        self.answered.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed)
    }
}

fn send(address: SocketAddr, request: &str) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

/// Sends requests on many connections at once until `stop`.
fn flood(address: SocketAddr, request: &str, stop: &AtomicBool, outcomes: &Outcomes) {
    while !stop.load(Ordering::Relaxed) {
        let streams: Vec<_> = (0..CONNECTIONS_PER_THREAD).map(|_| send(address, request)).collect();
        for stream in streams {
            let read = |mut stream: TcpStream| {
                let mut response = String::new();
                stream.read_to_string(&mut response).map(|_| response)
            };
            outcomes.count(&stream.and_then(read));
        }
    }
}

/// The most memory that a process has used.
fn peak_memory_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

struct Dashboard {
    child: Child,
    address: SocketAddr,
    token: String,
}

impl Dashboard {
    fn start(service: &RunningService) -> Self {
        let mut command = Command::new(cargo_bin!("xsched"));
        command.args(["dashboard", "--no-open"]).env("XSCHED_SOCKET", service.socket());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, token) = line.trim().strip_prefix("http://").unwrap().split_once("/#token=").unwrap();
        Self { child, address: address.parse().unwrap(), token: token.to_owned() }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two programs, of which one preempts the other.
struct Programs {
    high: FakeProgram,
    low: FakeProgram,
    leader: usize,
    held: usize,
}

impl Programs {
    fn join(service: &RunningService) -> Self {
        let (high, low) = (FakeProgram::join(service, "high"), FakeProgram::join(service, "low"));
        let (leader, held) = (high.queue(8), low.queue(8));
        high.set_priority(leader, 100);
        low.mark_busy(held);
        let programs = Self { high, low, leader, held };
        programs.preempt();
        programs
    }

    /// Preempts the task of low priority once. Returns how long the order took.
    fn preempt(&self) -> Duration {
        let began = Instant::now();
        self.high.mark_busy(self.leader);
        wait_until("the task of low priority is held", || self.low.is_held(self.held));
        let took = began.elapsed();
        self.high.mark_idle(self.leader);
        wait_until("it runs again", || !self.low.is_held(self.held));
        took
    }
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Requests at a rate that the dashboard cannot handle: unlike below, the clients do not wait for it. Returns the median times of an order
/// without the requests and with them.
fn flood_dashboard(rate: u32, seconds: u32) -> [Duration; 2] {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service);
    let programs = Programs::join(&service);
    let alone: Vec<_> = (0..PREEMPTIONS).map(|_| programs.preempt()).collect();
    let before = [service.pid(), dashboard.child.id()].map(peak_memory_kib);
    let (address, token) = (dashboard.address, &dashboard.token);
    let headers = format!("Host: {address}\r\nAuthorization: Bearer {token}\r\n");
    let request = format!("GET /api/state?events=1 HTTP/1.1\r\n{headers}\r\n");
    let (outcomes, orders) = thread::scope(|scope| {
        let flood =
            scope.spawn(|| open_loop::send(address, &request, rate, Duration::from_secs(seconds.into())));
        let mut orders = Vec::new();
        while !flood.is_finished() || orders.len() < PREEMPTIONS {
            orders.push(programs.preempt());
        }
        (flood.join().unwrap(), orders)
    });
    let reached = outcomes.ended() as f64 / outcomes.sending.as_secs_f64();
    let after = [service.pid(), dashboard.child.id()].map(peak_memory_kib);
    println!("{reached:.0} requests per second: {outcomes:?}");
    println!("peak memory in KiB: {before:?} before, {after:?} after");
    assert_eq!(outcomes.ended(), usize::try_from(rate * seconds).unwrap());
    assert!(outcomes.answered > 0, "{outcomes:?}");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + MAX_GROWTH_KIB, "from {before} to {after} KiB");
    }
    // It answers as before.
    let mut response = String::new();
    send(address, &request).unwrap().read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    let (count, longest) = (orders.len(), orders.iter().max().copied().unwrap_or_default());
    let (alone, meanwhile) = (median(alone), median(orders));
    println!(
        "an order takes {alone:?} without requests, {meanwhile:?} with them, at most {longest:?} of {count}"
    );
    [alone, meanwhile]
}

#[test]
fn dashboard_at_10000_requests_per_second_delays_no_order() {
    retry_comparison(
        || flood_dashboard(10_000, 2),
        |[alone, meanwhile]| {
            require(meanwhile < alone * 10, || format!("{meanwhile:?} instead of {alone:?}"))
        },
    );
}

#[test]
fn service_keeps_scheduling_in_a_flood_of_requests() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service);
    let programs = Programs::join(&service);

    let processes = [service.pid(), dashboard.child.id()];
    let before = processes.map(peak_memory_kib);
    let bearer = format!("Authorization: Bearer {}\r\n", dashboard.token);
    for (name, address, path, headers) in [
        ("state", dashboard.address, "/api/state?events=1", bearer.as_str()),
        ("no token", dashboard.address, "/api/state", ""),
        ("metrics", service.metrics, "/metrics", ""),
        ("interface of the original", service.http, "/xqueues", ""),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        let (stop, outcomes, began) = (AtomicBool::new(false), Outcomes::default(), Instant::now());
        let mut preemptions = 0;
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| flood(address, &request, &stop, &outcomes));
            }
            while preemptions < PREEMPTIONS || outcomes.ended() < REQUESTS {
                programs.preempt();
                preemptions += 1;
            }
            stop.store(true, Ordering::Relaxed);
        });
        let elapsed = began.elapsed().as_secs_f64();
        println!("{name}: {preemptions} preemptions and {outcomes:?} in {elapsed:.1} s");
        assert_eq!(outcomes.hung.load(Ordering::Relaxed), 0, "{name}: {outcomes:?}");
        assert!(outcomes.answered.load(Ordering::Relaxed) > 0, "{name}: {outcomes:?}");
    }
    let after = processes.map(peak_memory_kib);
    println!("peak memory in KiB: {before:?} before, {after:?} after");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + MAX_GROWTH_KIB, "from {before} to {after} KiB");
    }
}
