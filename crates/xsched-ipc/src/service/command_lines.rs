//! Reads the command lines of processes on a thread of its own.
//!
//! The kernel reads a command line from the memory of its process, and a process can block that for any time. The service does
//! not wait for this thread: a process that blocks it only delays command lines in `xsched ps`.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::process;
use crate::notifier::Notifier;

/// The token of a session, and the command line of its process.
type CommandLine = (u64, String);

/// The maximum number of command lines that wait to be read.
const MAX_REQUESTS: usize = 4_096;

/// Requests command lines and returns them when they were read.
pub(super) struct CommandLineReader {
    requests: mpsc::SyncSender<(u64, u32)>,
    results: Arc<Mutex<Vec<CommandLine>>>,
    notifier: Arc<Notifier>,
}

impl CommandLineReader {
    /// Starts the thread. It exits when this value is dropped.
    pub(super) fn start() -> std::io::Result<Self> {
        let (requests, received) = mpsc::sync_channel::<(u64, u32)>(MAX_REQUESTS);
        let (results, notifier) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notifier::new()?));
        let (finished, ready) = (Arc::clone(&results), Arc::clone(&notifier));
        std::thread::Builder::new().name("xsched-cmdline".to_owned()).spawn(move || {
            for (token, pid) in received {
                let result = (token, process::command_line(pid));
                finished.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                ready.notify();
            }
        })?;
        Ok(Self { requests, results, notifier })
    }

    /// Requests the command line of a process.
    pub(super) fn request(&self, token: u64, pid: u32) {
        // Fails if a process blocks the thread and many have joined since: this one has no command line then.
        let _ = self.requests.try_send((token, pid));
    }

    /// The command lines that were read since the last call.
    pub(super) fn take_results(&self) -> Vec<CommandLine> {
        self.notifier.acknowledge();
        std::mem::take(&mut *self.results.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for CommandLineReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}
