//! A real service, and a program that joins it, both under a test's control.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use xsched_core::{DeviceId, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

/// A service that ends with the test.
pub(crate) struct Live {
    child: Child,
    directory: tempfile::TempDir,
    pub(crate) http: SocketAddr,
    #[allow(dead_code, reason = "not every test that includes this file needs it")]
    pub(crate) metrics: SocketAddr,
}

impl Live {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new(cargo_bin!("xsched"))
            .args([
                "serve",
                "--policy",
                "HPF",
                "--http",
                "127.0.0.1:0",
                "--metrics",
                "127.0.0.1:0",
                "--socket",
            ])
            .arg(directory.path().join("socket"))
            .env("XDG_CONFIG_HOME", directory.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let said: Vec<String> = lines.by_ref().take(3).collect();
        // It must always find somebody who reads what it says.
        thread::spawn(move || lines.for_each(drop));
        let at = |what: &str| {
            let found = said.iter().find_map(|line| line.split_once(what)?.1.parse().ok());
            found.unwrap_or_else(|| panic!("no {what} in {said:?}"))
        };
        Self { http: at("HTTP interface at http://"), metrics: at("metrics at http://"), child, directory }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program with queues on one device, but nothing behind them.
pub(crate) struct Program {
    pub(crate) connection: Connection,
    page: Arc<Page>,
}

struct Notifier<'a>(&'a Connection);

impl SchedulerLink for Notifier<'_> {
    fn notify(&self) {
        self.0.notify();
    }

    fn alive(&self) -> bool {
        true
    }
}

/// The device of all its queues.
pub(crate) const DEVICE: u64 = 0x2_0000_0030;

impl Program {
    pub(crate) fn join(service: &Live, name: &str) -> Self {
        let connection = Connection::to(&service.socket()).unwrap();
        let request = Request::Join {
            protocol: PROTOCOL,
            version: "test".into(),
            name: Some(name.into()),
            hint_request: HintRequest::default(),
        };
        connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) = connection.receive(true).unwrap() else {
            panic!("not welcome")
        };
        Self { connection, page: Page::attach(&fd).unwrap() }
    }

    /// A new queue; its slot.
    pub(crate) fn queue(&self, threshold: u32) -> usize {
        let slot = self.page.allocate_slot(DeviceId(DEVICE)).unwrap();
        self.page.slot(slot).unwrap().publish_settings(1, threshold, threshold / 2);
        self.connection.notify();
        slot
    }

    /// A queue gets a priority, and with it a task, of its own.
    pub(crate) fn raise(&self, slot: usize, priority: i64) {
        let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
        self.connection.send(&Request::QueueHint { slot, hint_request }, None, true).unwrap();
        let answer = self.connection.receive::<Reply>(true).unwrap();
        assert!(matches!(answer, Some(Packet::Message(Reply::Done, _))), "{answer:?}");
    }

    /// A queue has work from now on.
    pub(crate) fn busy(&self, slot: usize) {
        self.page.slot(slot).unwrap().gate.mark_busy(&Notifier(&self.connection));
    }

    /// A queue has no work any more.
    pub(crate) fn idle(&self, slot: usize) {
        let gate = &self.page.slot(slot).unwrap().gate;
        assert!(gate.mark_idle(gate.epoch(), &Notifier(&self.connection)));
    }

    /// Whether a queue is held.
    pub(crate) fn is_held(&self, slot: usize) -> bool {
        self.page.slot(slot).unwrap().gate.order() == xsched_core::Order::Yield
    }
}

/// Dependencies until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}
