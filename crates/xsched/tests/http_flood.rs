//! As many HTTP requests as this machine can send, to every port: the service keeps scheduling, every request is answered or refused, and
//! memory stays bounded. `--nocapture` prints the rates.

#[path = "common/live.rs"]
mod live;

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use live::{FakeProgram, RunningService, wait_until};

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

#[test]
fn service_keeps_scheduling_in_a_flood_of_requests() {
    let service = RunningService::new();
    let dashboard = Dashboard::start(&service);
    let (high, low) = (FakeProgram::join(&service, "high"), FakeProgram::join(&service, "low"));
    let (leader, held) = (high.queue(8), low.queue(8));
    high.set_priority(leader, 100);
    low.mark_busy(held);
    let preempt = || {
        high.mark_busy(leader);
        wait_until("the task of low priority is held", || low.is_held(held));
        high.mark_idle(leader);
        wait_until("it runs again", || !low.is_held(held));
    };
    preempt();

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
                preempt();
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
