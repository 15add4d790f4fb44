//! A real service, and a program that joins it, both controlled by the test.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use assert_cmd::cargo::cargo_bin;
use xsched_core::{DeviceId, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{HintRequest, PROTOCOL, Reply, Request};
use xsched_ipc::socket::{Connection, Packet};

/// A service, killed when the test drops it.
pub(crate) struct RunningService {
    child: Child,
    directory: tempfile::TempDir,
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) http: SocketAddr,
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) metrics: SocketAddr,
}

impl RunningService {
    pub(crate) fn new() -> Self {
        Self::with_config("")
    }

    /// A service with this configuration.
    pub(crate) fn with_config(config: &str) -> Self {
        Self::start_with(Command::new(cargo_bin!("xsched")), config)
    }

    /// A service that can have so many descriptors.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn with_descriptors(count: usize) -> Self {
        let mut command = Command::new("prlimit");
        command.arg(format!("--nofile={count}:{count}")).arg(cargo_bin!("xsched"));
        Self::start_with(command, "")
    }

    fn start_with(mut xsched: Command, config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Other users may connect to the socket.
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let file = directory.path().join("config.toml");
        std::fs::write(&file, config).unwrap();
        let mut child = xsched
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
            .arg("--config")
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let announced: Vec<String> = lines.by_ref().take(3).collect();
        // Read the remaining output, so that the service never blocks on a full pipe.
        thread::spawn(move || lines.for_each(drop));
        let address_after = |text: &str| {
            let address = announced.iter().find_map(|line| line.split_once(text)?.1.parse().ok());
            address.unwrap_or_else(|| panic!("no {text} in {announced:?}"))
        };
        let (http, metrics) =
            (address_after("HTTP interface at http://"), address_after("metrics at http://"));
        Self { child, directory, http, metrics }
    }

    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

impl Drop for RunningService {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client with queues on one device, without any real work.
pub(crate) struct FakeProgram {
    pub(crate) connection: Connection,
    page: Arc<Page>,
}

struct Notifier<'a>(&'a Connection);

impl SchedulerLink for Notifier<'_> {
    fn notify(&self) {
        self.0.notify();
    }

    fn is_alive(&self) -> bool {
        true
    }
}

/// The device of all queues.
pub(crate) const DEVICE: u64 = 0x2_0000_0030;

impl FakeProgram {
    pub(crate) fn join(service: &RunningService, name: &str) -> Self {
        Self::join_at(&service.socket(), name)
    }

    /// Joins the service at this socket.
    pub(crate) fn join_at(socket: &Path, name: &str) -> Self {
        let connection = Connection::to(socket).unwrap();
        let request = Request::Join {
            protocol: PROTOCOL,
            version: "test".into(),
            name: Some(name.into()),
            hint_request: HintRequest::default(),
            grant_token: None,
            memory_group: None,
        };
        connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(Reply::Welcome { .. }, Some(fd))) = connection.receive(true).unwrap() else {
            panic!("the service rejects the program")
        };
        Self { connection, page: Page::attach(&fd).unwrap() }
    }

    /// A program that has joined on this connection and got this page.
    #[allow(dead_code, reason = "other tests use it")]
    pub(crate) fn new(connection: Connection, page: &std::os::fd::OwnedFd) -> Self {
        Self { connection, page: Page::attach(page).unwrap() }
    }

    /// Creates a queue. Returns its slot.
    pub(crate) fn queue(&self, threshold: u32) -> usize {
        self.queue_on(DeviceId(DEVICE), threshold)
    }

    /// Creates a queue on another device. Returns its slot.
    pub(crate) fn queue_on(&self, device: DeviceId, threshold: u32) -> usize {
        let slot = self.page.allocate_slot(device).unwrap();
        self.page.slot(slot).unwrap().publish_settings(1, threshold, threshold / 2);
        self.connection.notify();
        slot
    }

    /// Publishes the preemption levels that the device of a queue offers.
    #[allow(dead_code, reason = "other tests do not use it")]
    pub(crate) fn publish_levels(&self, slot: usize, levels: &[xsched_core::Level]) {
        self.page.slot(slot).unwrap().publish_levels(levels.iter().copied());
    }

    /// Sets the priority of one queue, which makes the queue a task.
    pub(crate) fn set_priority(&self, slot: usize, priority: i64) {
        let hint_request = HintRequest { priority: Some(priority), ..HintRequest::default() };
        self.connection.send(&Request::QueueHint { slot, hint_request }, None, true).unwrap();
        let reply = self.connection.receive::<Reply>(true).unwrap();
        assert!(matches!(reply, Some(Packet::Message(Reply::Done, _))), "{reply:?}");
    }

    /// Marks a queue busy.
    pub(crate) fn mark_busy(&self, slot: usize) {
        self.page.slot(slot).unwrap().gate.mark_busy(&Notifier(&self.connection));
    }

    /// Marks a queue idle.
    pub(crate) fn mark_idle(&self, slot: usize) {
        let gate = &self.page.slot(slot).unwrap().gate;
        assert!(gate.mark_idle(gate.epoch(), &Notifier(&self.connection)));
    }

    /// Whether a queue is held.
    pub(crate) fn is_held(&self, slot: usize) -> bool {
        self.page.slot(slot).unwrap().gate.order() == xsched_core::Order::Yield
    }
}

/// Waits up to 60 s until a condition is true.
pub(crate) fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_true() {
        assert!(started.elapsed() < Duration::from_secs(60), "not within 60 s: {condition}");
        thread::sleep(Duration::from_millis(1));
    }
}
