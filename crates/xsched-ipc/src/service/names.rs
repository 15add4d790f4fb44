//! Command lines, read on a thread of their own.
//!
//! The system takes a command line from the memory of the process it belongs to, and a process can see to it that
//! this takes for ever. Nobody waits for this thread: whoever blocks it only keeps command lines from being shown.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use super::process;
use crate::notifier::Notifier;

/// A connection, as epoll calls it, and the command line of the program there.
type Answer = (u64, String);

/// Asks for command lines and takes the answers.
pub(super) struct Names {
    questions: mpsc::Sender<(u64, u32)>,
    answers: Arc<Mutex<Vec<Answer>>>,
    notifier: Arc<Notifier>,
}

impl Names {
    /// Starts the thread. It ends with this value.
    pub(super) fn start() -> std::io::Result<Self> {
        let (questions, asked) = mpsc::channel::<(u64, u32)>();
        let (answers, notifier) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notifier::new()?));
        let (found, ready) = (Arc::clone(&answers), Arc::clone(&notifier));
        std::thread::Builder::new().name("xsched-names".to_owned()).spawn(move || {
            for (token, pid) in asked {
                let answer = (token, process::command_line(pid));
                found.lock().unwrap_or_else(PoisonError::into_inner).push(answer);
                ready.notify();
            }
        })?;
        Ok(Self { questions, answers, notifier })
    }

    pub(super) fn ask(&self, token: u64, pid: u32) {
        // The thread lives as long as this value.
        let _ = self.questions.send((token, pid));
    }

    pub(super) fn answers(&self) -> Vec<Answer> {
        self.notifier.acknowledge();
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Names {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}
