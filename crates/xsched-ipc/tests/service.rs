//! The service and its clients, each a process of its own: this test's binary, started again in another role.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use xsched_core::{DeviceId, Order, SchedulerLink};
use xsched_ipc::Page;
use xsched_ipc::protocol::{
    EventKind, HintRequest, PROTOCOL, Reply, Request, Settings, Status, Target, TaskState,
};
use xsched_ipc::service::{Options, Service, request_shutdown};
use xsched_ipc::socket::{Connection, Packet, SocketError};

const PATIENCE: Duration = Duration::from_secs(30);

/// What this process does instead of testing, if it was started for that.
#[test]
fn role() {
    let Ok(role) = std::env::var("SERVICE_TEST_ROLE") else { return };
    let socket = PathBuf::from(std::env::var_os("SERVICE_TEST_SOCKET").unwrap());
    match role.as_str() {
        "serve" => serve(socket),
        "program" => program(&socket),
        "brief" => {
            let joined = Joined::join(&socket, HintRequest::default());
            joined.page.slot(joined.slot).unwrap().gate.mark_busy(&joined);
        }
        "vandal" => vandal(&socket),
        "stranger" => stranger(&socket),
        other => panic!("no role {other}"),
    }
    // Without the farewells of a test.
    std::process::exit(0);
}

fn serve(socket: PathBuf) {
    if std::env::var_os("SERVICE_TEST_REPLACE").is_some() {
        request_shutdown(&socket, PATIENCE).unwrap();
    }
    let service = Service::bind(Options::at(socket)).unwrap();
    println!("ready");
    service.run().unwrap();
}

/// The smallest program that can be scheduled.
struct Joined {
    connection: Connection,
    page: Arc<Page>,
    slot: usize,
    fd: std::os::fd::OwnedFd,
    note: Option<String>,
}

impl SchedulerLink for Joined {
    fn notify(&self) {
        if self.page.notify() {
            self.connection.notify();
        }
    }
    fn alive(&self) -> bool {
        true
    }
}

impl Joined {
    fn join(socket: &Path, hint_request: HintRequest) -> Self {
        let connection = Connection::to(socket).unwrap();
        let join = Request::Join { protocol: PROTOCOL, version: "test".into(), name: None, hint_request };
        connection.send(&join, None, true).unwrap();
        let Some(Packet::Message(Reply::Welcome { note, .. }, Some(fd))) = connection.receive(true).unwrap()
        else {
            panic!("not welcome")
        };
        let page = Page::attach(&fd).unwrap();
        let slot = page.allocate_slot(DeviceId(1)).unwrap();
        let joined = Self { connection, page, slot, fd, note };
        joined.notify();
        joined
    }

    fn order(&self) -> Order {
        self.page.slot(self.slot).unwrap().gate.order()
    }
}

fn priority(priority: i64) -> HintRequest {
    HintRequest { priority: Some(priority), ..HintRequest::default() }
}

/// Does what it reads: a line, a deed, an answer.
fn program(socket: &Path) {
    let wish = std::env::var("SERVICE_TEST_PRIORITY").unwrap().parse().unwrap();
    let joined = Joined::join(socket, priority(wish));
    println!("ready");
    for line in std::io::stdin().lines() {
        let gate = &joined.page.slot(joined.slot).unwrap().gate;
        match line.unwrap().as_str() {
            "busy" => gate.mark_busy(&joined),
            "idle" => assert!(gate.mark_idle(gate.epoch(), &joined)),
            "order" => {}
            "beat" => {
                println!("{}", joined.page.last_heartbeat().0);
                continue;
            }
            other => panic!("{other}?"),
        }
        println!("{:?}", joined.order());
    }
}

/// Rings without pause and fills its page with rubbish, every word of it.
fn vandal(socket: &Path) {
    let joined = Joined::join(socket, HintRequest::default());
    println!("ready");
    let mut state = 88_172_645_463_325_252_u64;
    let mut rubbish = vec![0_u8; 32_768];
    loop {
        for (index, byte) in rubbish.iter_mut().enumerate() {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // In turns: anything, and words that mean something in most fields.
            *byte = if state & 1 << 60 == 0 { state.to_le_bytes()[0] } else { [2, 0, 0, 0][index % 4] };
        }
        rustix::io::pwrite(&joined.fd, &rubbish, 0).unwrap();
        joined.connection.notify();
    }
}

fn stranger(socket: &Path) {
    let ask = |request: Request| -> Reply {
        let connection = Connection::to(socket).unwrap();
        connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = connection.receive(true).unwrap() else { panic!("no answer") };
        reply
    };
    let refused = |request: Request| match ask(request) {
        Reply::Refused { why } => assert!(why.contains("group `xsched`"), "{why}"),
        other => panic!("{other:?}"),
    };
    let pid = std::env::var("SERVICE_TEST_VICTIM").unwrap().parse().unwrap();
    let Reply::Status(status) = ask(Request::Status) else { panic!("no status") };
    let task = status.tasks.iter().find(|task| task.pid == pid).unwrap();
    assert_eq!((task.name.as_str(), task.cmdline.as_str()), ("", ""));
    refused(Request::Set { target: Target::Pid(pid), hint_request: priority(-5) });
    refused(Request::Suspend(Target::Pid(pid)));
    refused(Request::Policy { name: Some("fair".into()), timeslice_us: None, k: None });
    refused(Request::Focus(None));
    refused(Request::Stop);
    refused(Request::Configure { queue: status.queues[0].handle, settings: Settings::default() });
    // A wish above the limit is lowered, and said; the program runs all the same.
    let joined = Joined::join(socket, priority(100));
    assert!(joined.note.as_ref().unwrap().contains("priority 100 was lowered to 0"));
    let ask_joined = |request: Request| {
        joined.connection.send(&request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = joined.connection.receive::<Reply>(true).unwrap() else {
            panic!()
        };
        reply
    };
    assert_eq!(ask_joined(Request::Hint(priority(-7))), Reply::Done);
    assert!(matches!(ask_joined(Request::Hint(priority(1))), Reply::Refused { .. }));
    println!("ready");
}

/// Another process, killed when dropped.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(role: &str, socket: &Path, more: &[(&str, &str)], uid: Option<u32>) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "role", "--nocapture", "--test-threads=1"])
            .env("SERVICE_TEST_ROLE", role)
            .env("SERVICE_TEST_SOCKET", socket)
            .envs(more.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn()?;
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Ok(Self { child, input, output })
    }

    /// Dependencies for a line that says so.
    fn once_ready(mut self) -> Self {
        let mut line = String::new();
        // The test harness says a few words of its own first.
        while !line.ends_with("ready\n") {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended before it was ready");
        }
        self
    }

    fn tell(&mut self, what: &str) -> String {
        writeln!(self.input, "{what}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn becomes(&mut self, order: &str) {
        eventually(&format!("the order is {order}"), || self.tell("order") == order);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A service in a process of its own.
struct Served {
    service: Other,
    socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::Builder::new().prefix("xsched-service").tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let socket = directory.path().join("made/for/it/socket");
        let service = Other::start("serve", &socket, &[], None).unwrap().once_ready();
        Self { service, socket, _directory: directory }
    }

    fn program(&self, priority: &str) -> Other {
        Other::start("program", &self.socket, &[("SERVICE_TEST_PRIORITY", priority)], None)
            .unwrap()
            .once_ready()
    }

    fn ask(&self, request: &Request) -> Reply {
        let connection = Connection::to(&self.socket).unwrap();
        connection.send(request, None, true).unwrap();
        let Some(Packet::Message(reply, _)) = connection.receive(true).unwrap() else { panic!("no answer") };
        reply
    }

    fn status(&self) -> Status {
        let connection = Connection::to(&self.socket).unwrap();
        connection.send(&Request::Status, None, true).unwrap();
        let mut whole = Status::default();
        loop {
            let Some(Packet::Message(Reply::Status(part), _)) = connection.receive(true).unwrap() else {
                panic!()
            };
            let (tasks, queues) = (whole.tasks, whole.queues);
            whole = Status {
                tasks: [tasks, part.tasks].concat(),
                queues: [queues, part.queues].concat(),
                ..part
            };
            if !whole.more {
                return whole;
            }
        }
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.service.child.id())).unwrap().count()
    }
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !happened() {
        assert!(Instant::now() < patience, "it did not come true within {PATIENCE:?} that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[test]
fn an_important_program_stops_another_for_as_long_as_it_is_busy() {
    let served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    low.tell("busy");
    low.becomes("Throttled");
    eventually("it runs", || served.status().tasks.iter().any(|task| task.state == TaskState::Running));
    high.tell("busy");
    low.becomes("Yield");
    let status = served.status();
    let held = status.tasks.iter().find(|task| task.pid == low.child.id()).unwrap();
    assert_eq!((held.state, held.preemptions, held.priority), (TaskState::Held, 1, -10));
    eventually("command lines are known", || {
        served.status().tasks.iter().all(|task| task.cmdline.contains("--exact"))
    });
    high.tell("idle");
    low.becomes("Throttled");
    let status = served.status();
    let ran_on = status.tasks.iter().find(|task| task.pid == low.child.id()).unwrap();
    assert!(ran_on.held_ns > 0 && ran_on.wait_p99_us.is_some() && ran_on.launches == 1, "{ran_on:?}");
    drop(high);
    low.becomes("Free");
}

#[test]
fn whoever_a_killed_program_held_back_runs_on() {
    let served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    low.tell("busy");
    high.tell("busy");
    low.becomes("Yield");
    let killed = Instant::now();
    high.signal(Signal::KILL);
    low.becomes("Free");
    println!("ran on {:?} after the other was killed", killed.elapsed());
}

/// Or its threads would take the scheduler for dead and free it, with the important program still at work.
#[test]
fn who_is_held_without_work_sees_that_the_scheduler_lives() {
    let served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    high.tell("busy");
    low.becomes("Yield");
    for _ in 0..3 {
        let before = low.tell("beat");
        eventually("the scheduler shows that it lives", || low.tell("beat") != before);
    }
    assert_eq!(low.tell("order"), "Yield");
}

#[test]
fn a_stopped_program_stops_nobody_else() {
    let served = Served::start();
    let (mut high, mut low, frozen) = (served.program("10"), served.program("-10"), served.program("-20"));
    frozen.signal(Signal::STOP);
    for _ in 0..20 {
        low.tell("busy");
        high.tell("busy");
        low.becomes("Yield");
        high.tell("idle");
        low.becomes("Throttled");
        low.tell("idle");
    }
    frozen.signal(Signal::CONT);
}

#[test]
fn programs_that_come_and_go_leave_nothing_behind() {
    let served = Served::start();
    let _staying = served.program("0");
    eventually("the first is known", || served.status().tasks.len() == 1);
    let before = served.descriptors();
    for _ in 0..25 {
        let brief: Vec<_> =
            (0..8).map(|_| Other::start("brief", &served.socket, &[], None).unwrap()).collect();
        for mut other in brief {
            assert!(other.child.wait().unwrap().success());
        }
    }
    eventually("only the first is left", || served.status().tasks.len() == 1);
    eventually("descriptors are given back", || served.descriptors() <= before);
    let Reply::Metrics { text, .. } = served.ask(&Request::Metrics) else { panic!("no metrics") };
    for line in ["xsched_joins_total 201", "xsched_leaves_total 200", "xsched_queues 1"] {
        assert!(text.lines().any(|other| other == line), "{line} is not in\n{text}");
    }
}

#[test]
fn rubbish_ends_its_own_connection_and_nothing_else() {
    let served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    let mut vandal = Other::start("vandal", &served.socket, &[], None).unwrap().once_ready();
    for rubbish in [
        &b"rubbish"[..],
        b"{}",
        b"{\"request\":\"join\"}",
        &vec![0; 60_000],
        &vec![b'['; 60_000],
        b"\xff\xfe",
        b"\"status\"",
    ] {
        let connection = Connection::to(&served.socket).unwrap();
        rustix::net::send(&connection, rubbish, rustix::net::SendFlags::empty()).unwrap();
        let closed = loop {
            match connection.receive::<Reply>(true) {
                Ok(Some(Packet::Message(Reply::Refused { .. }, _))) => {}
                other => break other,
            }
        };
        assert!(matches!(closed, Err(SocketError::Closed)), "{closed:?}");
    }
    for _ in 0..20 {
        low.tell("busy");
        high.tell("busy");
        low.becomes("Yield");
        high.tell("idle");
        eventually("it is not held", || low.tell("order") != "Yield");
        low.tell("idle");
    }
    assert!(vandal.child.try_wait().unwrap().is_none(), "the vandal should still be at it");
    drop(vandal);
    eventually("nothing of it is left", || served.status().tasks.len() == 2);
}

#[test]
fn who_does_not_read_makes_nobody_wait() {
    let served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    let deaf = Connection::to(&served.socket).unwrap();
    deaf.send(&Request::Trace, None, true).unwrap();
    let asks = Connection::to(&served.socket).unwrap();
    // Until nothing fits any more, in either direction.
    while asks.send(&Request::Status, None, false).is_ok() {}
    for _ in 0..200 {
        low.tell("busy");
        high.tell("busy");
        low.becomes("Yield");
        high.tell("idle");
        low.becomes("Throttled");
        low.tell("idle");
    }
    let mut events = Vec::new();
    while !events.iter().any(|what| matches!(what, EventKind::Decision(_))) {
        match deaf.receive::<Reply>(true).unwrap() {
            Some(Packet::Message(Reply::Events { events: more, .. }, _)) => {
                events.extend(more.into_iter().map(|event| event.kind));
            }
            Some(Packet::Message(Reply::Done, _)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_person_can_suspend_a_program_and_change_its_priority() {
    let served = Served::start();
    let (mut one, mut two) = (served.program("10"), served.program("-10"));
    one.tell("busy");
    two.tell("busy");
    two.becomes("Yield");
    let one_pid = Target::Pid(one.child.id());
    assert_eq!(served.ask(&Request::Suspend(one_pid.clone())), Reply::Done);
    one.becomes("Drain");
    eventually("the other runs meanwhile", || two.tell("order") != "Yield");
    assert_eq!(served.ask(&Request::Resume(one_pid.clone())), Reply::Done);
    two.becomes("Yield");
    let lowest = Request::Set { target: one_pid, hint_request: priority(-20) };
    assert_eq!(served.ask(&lowest), Reply::Done);
    one.becomes("Yield");
    let policy = Request::Policy { name: Some("fair".into()), timeslice_us: Some(1_000), k: None };
    assert_eq!(served.ask(&policy), Reply::Policy { name: "CFS".into(), timeslice_us: 1_000, k: 1 });
    eventually("both have turns", || one.tell("order") == "Throttled");
    eventually("both have turns", || two.tell("order") == "Throttled");
}

#[test]
fn a_process_changes_its_own_wishes_on_another_connection_and_is_told_what_they_were() {
    let served = Served::start();
    assert_eq!(
        served.ask(&Request::SetOwn(priority(5))),
        Reply::PreviousHints(None),
        "it has not joined yet"
    );
    let too_much = served.ask(&Request::SetOwn(priority(256)));
    assert!(matches!(too_much, Reply::Refused { why } if why.contains("-256")));
    let _other = served.program("1");
    let _joined = Joined::join(&served.socket, priority(3));
    let Reply::PreviousHints(Some(had)) = served.ask(&Request::SetOwn(priority(5))) else {
        panic!("not joined")
    };
    assert_eq!((had.priority, had.share, had.deadline_us), (Some(3), Some(100), Some(-1)));
    let priorities = || {
        let mut found: Vec<_> = served.status().tasks.iter().map(|task| task.priority).collect();
        found.sort_unstable();
        found
    };
    eventually("only its own changes", || priorities() == [1, 5]);
    let Reply::PreviousHints(Some(_)) = served.ask(&Request::SetOwn(had)) else { panic!("not joined") };
    eventually("what they were can be given back", || priorities() == [1, 3]);
}

#[test]
fn whoever_is_answered_finds_its_orders_given() {
    let served = Served::start();
    let mut other = served.program("0");
    let own = Joined::join(&served.socket, priority(10));
    other.tell("busy");
    eventually("both are known", || served.status().tasks.len() == 2);
    let askers: Vec<_> = (0..32).map(|_| Connection::to(&served.socket).unwrap()).collect();
    served.status();
    for wish in [-10, 10].repeat(5) {
        // All of it is asked while the service stands still, so that it finds it at once: the hint, then what takes long.
        served.service.signal(Signal::STOP);
        own.connection.send(&Request::Hint(priority(wish)), None, true).unwrap();
        for asker in &askers {
            asker.send(&Request::Metrics, None, true).unwrap();
        }
        served.service.signal(Signal::CONT);
        let answer = own.connection.receive(true).unwrap();
        assert_eq!(own.order().stops(), wish < 0, "{wish}");
        assert!(matches!(answer, Some(Packet::Message(Reply::Done, _))), "{answer:?}");
        for asker in &askers {
            while let Some(Packet::Message(Reply::Metrics { more: true, .. }, _)) =
                asker.receive(true).unwrap()
            {}
        }
    }
}

#[test]
fn a_queue_that_is_given_wishes_becomes_a_task_of_its_own() {
    let served = Served::start();
    let _program = served.program("10");
    let queue = served.status().queues[0].handle;
    assert_eq!(served.ask(&Request::SetQueue { queue, hint_request: priority(-7) }), Reply::Done);
    let tasks = served.status().tasks;
    assert_eq!(tasks.iter().map(|task| (task.own, task.priority)).collect::<Vec<_>>(), [(true, -7)]);
    let nowhere = Request::SetQueue { queue: queue + 1, hint_request: priority(0) };
    assert!(matches!(served.ask(&nowhere), Reply::Refused { .. }));
    let too_much = Request::SetQueue { queue, hint_request: priority(256) };
    assert!(matches!(served.ask(&too_much), Reply::Refused { why } if why.contains("-256")));
}

#[test]
fn another_user_neither_sees_nor_changes_what_is_not_theirs() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let served = Served::start();
    let victim = served.program("10");
    eventually("the victim is known", || served.status().tasks.len() == 1);
    let pid = victim.child.id().to_string();
    match Other::start("stranger", &served.socket, &[("SERVICE_TEST_VICTIM", &pid)], Some(65_534)) {
        Ok(stranger) => drop(stranger.once_ready()),
        Err(error) => println!("skipped: another user cannot start {:?}: {error}", std::env::current_exe()),
    }
}

#[test]
fn another_protocol_is_refused_with_both_versions() {
    let served = Served::start();
    let join = Request::Join {
        protocol: 99,
        version: "9.9".into(),
        name: None,
        hint_request: HintRequest::default(),
    };
    let Reply::Refused { why } = served.ask(&join) else { panic!("welcome") };
    for part in ["9.9", "protocol 99", env!("CARGO_PKG_VERSION"), &format!("protocol {PROTOCOL}")] {
        assert!(why.contains(part), "{part} is not in: {why}");
    }
}

#[test]
fn a_successor_takes_over_while_programs_are_busy() {
    let mut served = Served::start();
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    low.tell("busy");
    high.tell("busy");
    low.becomes("Yield");
    let more = [("SERVICE_TEST_REPLACE", "1")];
    let successor = Other::start("serve", &served.socket, &more, None).unwrap().once_ready();
    let mut old = std::mem::replace(&mut served.service, successor);
    assert!(old.child.wait().unwrap().success());
    assert_eq!(low.tell("order"), "Free", "the old one released everybody before it went");
    assert!(served.status().tasks.is_empty());
    let (mut high, mut low) = (served.program("10"), served.program("-10"));
    low.tell("busy");
    high.tell("busy");
    low.becomes("Yield");
}
