//! Reads on a thread of its own which processes do not run.
//!
//! The files of one process are as many as its threads, and their user decides how many those are. The service does not wait for
//! this thread. The thread reads each process once per pass, and ends the pass after [`MAX_THREADS_PER_PASS`]: users take turns,
//! and of the processes of one user those come first that were read least recently.

use std::collections::HashMap;
use std::io::Read as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::process;
use super::turns::Turns;
use crate::coordinator::ClientId;
use crate::notifier::Notifier;

/// How many threads are read in one pass, besides those of one process.
const MAX_THREADS_PER_PASS: usize = 4_096;
/// How many threads of one process are read. A process with more is taken to run.
const MAX_THREADS_PER_PROCESS: usize = 4_096;
/// Where the kernel shows processes.
const PROC: &str = "/proc";

/// The flags of a thread that executes nothing of its program any more: it exits, or its process dumps its core or was killed
/// (`PF_EXITING`, `PF_POSTCOREDUMP`, `PF_DUMPCORE`, `PF_SIGNALED` in Linux).
const ENDING: u64 = 0x4 | 0x8 | 0x200 | 0x400;

/// Where the second version of control groups is mounted: alone, or beside the first.
const CGROUP_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Processes, and for each whether no thread of it can run.
type States = Vec<(u32, bool)>;

/// Requests the states of processes and returns them when they were read. One request at a time.
pub(super) struct ThreadStateReader {
    requests: mpsc::Sender<Vec<u32>>,
    results: Arc<Mutex<Option<States>>>,
    notifier: Arc<Notifier>,
    /// The suspects of the request that is being read.
    suspects: Option<Vec<ClientId>>,
    order: ReadingOrder,
}

impl ThreadStateReader {
    /// Starts the thread. It exits when this value is dropped.
    pub(super) fn start() -> std::io::Result<Self> {
        let (requests, received) = mpsc::channel::<Vec<u32>>();
        let (results, notifier) = (Arc::new(Mutex::new(None)), Arc::new(Notifier::new()?));
        let (finished, ready) = (Arc::clone(&results), Arc::clone(&notifier));
        std::thread::Builder::new().name("xsched-stalls".to_owned()).spawn(move || {
            for processes in received {
                let states = read_pass(Path::new(PROC), &processes, MAX_THREADS_PER_PASS);
                *finished.lock().unwrap_or_else(PoisonError::into_inner) = Some(states);
                ready.notify();
            }
        })?;
        Ok(Self { requests, results, notifier, suspects: None, order: ReadingOrder::default() })
    }

    /// Whether the thread still reads the last request.
    pub(super) fn is_pending(&self) -> bool {
        self.suspects.is_some()
    }

    /// Has processes read, given with their users.
    pub(super) fn request(&mut self, suspects: Vec<ClientId>, processes: &[(u32, u32)]) {
        if !processes.is_empty() && self.requests.send(self.order.arrange(processes)).is_ok() {
            self.suspects = Some(suspects);
        }
    }

    /// The suspects of the request, and the states of the processes that were read.
    pub(super) fn take_results(&mut self) -> Option<(Vec<ClientId>, States)> {
        self.notifier.acknowledge();
        let states = self.results.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        self.order.note_read(&states);
        Some((self.suspects.take()?, states))
    }
}

impl AsFd for ThreadStateReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

/// The order in which processes are read.
#[derive(Default)]
struct ReadingOrder {
    pass: u64,
    /// The pass in which each process of the last request was read.
    last_read: HashMap<u32, u64>,
}

impl ReadingOrder {
    fn arrange(&mut self, processes: &[(u32, u32)]) -> Vec<u32> {
        let with_pass = |&(uid, pid): &(u32, u32)| (self.last_read.get(&pid).copied().unwrap_or(0), uid, pid);
        let mut sorted: Vec<_> = processes.iter().map(with_pass).collect();
        sorted.sort_unstable();
        self.last_read = sorted.iter().map(|(pass, _, pid)| (*pid, *pass)).collect();
        let mut turns = Turns::default();
        for (_, uid, pid) in sorted {
            turns.push(uid, pid);
        }
        std::iter::from_fn(|| turns.next()).map(|(_, pid)| pid).collect()
    }

    fn note_read(&mut self, states: &States) {
        self.pass += 1;
        self.last_read.extend(states.iter().map(|(pid, _)| (*pid, self.pass)));
    }
}

/// Reads processes until `max_threads` were read, but at least one process.
fn read_pass(proc: &Path, processes: &[u32], max_threads: usize) -> States {
    let mut states = Vec::new();
    let mut read = 0;
    for &pid in processes {
        let (is_stopped, threads) = read_process(proc, pid);
        states.push((pid, is_stopped));
        // A process that has exited counts too.
        read += threads.max(1);
        if read >= max_threads {
            break;
        }
    }
    states
}

/// Whether no thread of a process can run: the process was stopped, is in a debugger, was frozen, dumps its core or exits, or
/// all its threads are blocked in the kernel. False if that is unknown. Also returns how many threads were read.
fn read_process(proc: &Path, pid: u32) -> (bool, usize) {
    let Ok(threads) = std::fs::read_dir(proc.join(format!("{pid}/task"))) else { return (false, 0) };
    let mut count = 0;
    for thread in threads.flatten() {
        if count == MAX_THREADS_PER_PROCESS {
            return (false, count);
        }
        count += 1;
        match read(&thread.path().join("stat")).as_deref().and_then(ThreadState::parse) {
            // The thread has exited meanwhile.
            None | Some(ThreadState::Stopped) => {}
            Some(ThreadState::Runnable) => return (false, count),
            // A thread of a frozen control group sleeps.
            Some(ThreadState::Sleeping) => return (is_frozen(&process::cgroup(pid)), count),
        }
    }
    (true, count)
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Runnable,
    Sleeping,
    Stopped,
}

impl ThreadState {
    /// Reads a line of `/proc/PID/task/TID/stat`. The name in parentheses may contain anything.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
        let state = fields.next()?;
        let flags: u64 = fields.nth(5)?.parse().ok()?;
        Some(match state {
            _ if flags & ENDING != 0 => Self::Stopped,
            // Stopped, traced, ended, and blocked in the kernel, as also in a frozen control group of the first version.
            "T" | "t" | "Z" | "X" | "D" => Self::Stopped,
            "S" | "I" => Self::Sleeping,
            _ => Self::Runnable,
        })
    }
}

/// Whether a control group of the second version is frozen.
fn is_frozen(cgroup: &str) -> bool {
    let events = |mount| read(Path::new(&format!("{mount}{cgroup}/cgroup.events")));
    let text = CGROUP_MOUNTS.into_iter().find_map(events).unwrap_or_default();
    !cgroup.is_empty() && text.lines().any(|line| line == "frozen 1")
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(4_096).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_that_was_stopped_traced_or_killed_does_not_run() {
        let state = |state: &str, flags: u64| {
            ThreadState::parse(&format!("42 (a) R (b) {state} 1 1 1 0 -1 {flags} 101 0 0 0"))
        };
        for stopped in ["T", "t", "Z", "X", "D"] {
            assert_eq!(state(stopped, 0x40_0000), Some(ThreadState::Stopped), "{stopped}");
        }
        assert_eq!(state("R", 0x40_0000), Some(ThreadState::Runnable));
        assert_eq!(state("S", 0x40_0000), Some(ThreadState::Sleeping));
        // It writes the core of its process, waits until another thread has, or exits.
        for ending in [0x604, 0x200, 0x8, 0x4] {
            assert_eq!(state("R", 0x40_0000 | ending), Some(ThreadState::Stopped), "{ending:#x}");
        }
        assert_eq!(ThreadState::parse("42 (a) S"), None);
    }

    fn is_stopped(pid: u32) -> bool {
        read_process(Path::new(PROC), pid).0
    }

    #[test]
    fn passes_are_limited_and_every_process_has_its_turn() {
        const THREADS: usize = 10;
        let proc = tempfile::tempdir().unwrap();
        // Nine processes of one user, one of another.
        let processes: Vec<(u32, u32)> = (1..=9).map(|pid| (7, pid)).chain([(8, 10)]).collect();
        for (_, pid) in &processes {
            for thread in 0..THREADS {
                let directory = proc.path().join(format!("{pid}/task/{thread}"));
                std::fs::create_dir_all(&directory).unwrap();
                std::fs::write(directory.join("stat"), "1 (a) T 1 1 1 0 -1 0 0").unwrap();
            }
        }
        let mut order = ReadingOrder::default();
        let mut times_read = HashMap::<u32, usize>::new();
        for _ in 0..9 {
            let states = read_pass(proc.path(), &order.arrange(&processes), 2 * THREADS);
            assert_eq!(states.len(), 2, "a pass reads two processes of ten threads");
            assert!(states.iter().all(|(_, is_stopped)| *is_stopped));
            assert!(states.contains(&(10, true)), "users take turns");
            order.note_read(&states);
            for (pid, _) in states {
                *times_read.entry(pid).or_default() += 1;
            }
        }
        assert!((1..=9).all(|pid| times_read[&pid] == 1), "{times_read:?}");
    }

    #[test]
    fn process_runs_unless_all_its_threads_are_stopped() {
        assert!(!is_stopped(std::process::id()));
        assert!(!is_stopped(0), "unknown");
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        // It may be blocked in the kernel while it starts.
        while is_stopped(child.id()) {
            std::thread::yield_now();
        }
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        while !is_stopped(child.id()) {
            std::thread::yield_now();
        }
        rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
        while is_stopped(child.id()) {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
