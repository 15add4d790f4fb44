//! The thread that talks to the service, so that the screen never waits for it.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use xsched_ipc::protocol::{Request, Status};

use crate::tool::{Tool, ToolError};

/// What the thread tells.
#[derive(Debug)]
pub(super) enum News {
    /// A new look at the service.
    Status(Box<Status>),
    /// No service answers, and why.
    Lost(String),
    /// A request was done; what to say about it.
    Done(String),
    /// A request was not done, and why.
    Failed(String),
}

/// Both ends of the talk with the thread.
#[derive(Debug)]
pub(super) struct Feed {
    requests: Sender<(Request, String)>,
    news: Receiver<News>,
}

impl Feed {
    /// Starts to look at the service every `interval`. The thread ends when this is dropped.
    pub(super) fn start(interval: Duration) -> Self {
        let (requests, to_do) = mpsc::channel();
        let (tell, news) = mpsc::channel();
        thread::spawn(move || watch(interval, &to_do, &tell));
        Self { requests, news }
    }

    /// Asks the service when the thread gets to it; `done` comes back if it was done.
    pub(super) fn ask(&self, request: Request, done: String) {
        // Only a thread that panicked does not listen, and `news` tells of that.
        let _ = self.requests.send((request, done));
    }

    /// What came in the meantime, if anything. An error: nothing will come any more, for the thread has panicked.
    pub(super) fn news(&self) -> anyhow::Result<Option<News>> {
        match self.news.try_recv() {
            Ok(news) => Ok(Some(news)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => anyhow::bail!("nobody watches the scheduler any more"),
        }
    }
}

fn watch(interval: Duration, to_do: &Receiver<(Request, String)>, tell: &Sender<News>) {
    let mut tool: Option<Tool> = None;
    loop {
        let next_look = Instant::now() + interval;
        let news = match look(&mut tool) {
            Ok(status) => News::Status(Box::new(status)),
            Err(error) => {
                tool = None;
                News::Lost(error.to_string())
            }
        };
        if tell.send(news).is_err() {
            return;
        }
        loop {
            match to_do.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
                Ok((request, done)) => {
                    let news = match ask(tool.as_ref(), &request) {
                        Ok(()) => News::Done(done),
                        Err(error) => News::Failed(error),
                    };
                    if tell.send(news).is_err() {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

fn look(tool: &mut Option<Tool>) -> Result<Status, ToolError> {
    let connected = match tool.take() {
        Some(connected) => connected,
        None => Tool::connect()?,
    };
    let status = connected.status()?;
    *tool = Some(connected);
    Ok(status)
}

fn ask(tool: Option<&Tool>, request: &Request) -> Result<(), String> {
    let tool = tool.ok_or("there is no scheduler to ask")?;
    tool.request(request).map(drop).map_err(|error| error.to_string())
}
