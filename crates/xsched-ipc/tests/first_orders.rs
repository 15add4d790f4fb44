//! The first launch of a new program or queue beside a program of higher priority, on the simulated device.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use xsched_core::{
    FIRST_ORDER_TIMEOUT, Hints, HwQueue, LevelRequest, Nanos, Order, Priority, Process, ProcessId,
};
use xsched_ipc::{Client, LocalScheduler, Page, ScheduledQueue};
use xsched_policy::PolicyInfo;
use xsched_sim::{Config, SimDevice, SimQueue};

const HIGH: i64 = 10;
const LOW: i64 = -10;
/// Longer than the test.
const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_micros(50);

struct Program {
    client: Client,
    hw: Arc<SimQueue>,
    queue: Arc<ScheduledQueue>,
}

fn hints(priority: i64) -> Hints {
    Hints { priority: Priority::new(priority).unwrap(), ..Hints::default() }
}

fn scheduler() -> LocalScheduler {
    LocalScheduler::start(PolicyInfo::find("priority").unwrap()).unwrap()
}

/// A program that the scheduler expects and that has no queue yet.
fn connect(scheduler: &LocalScheduler, pid: u32, priority: i64) -> Client {
    let page = Page::create().unwrap();
    let process = Process { id: ProcessId(pid), ..Process::default() };
    let _ = scheduler.admit(process, Arc::clone(&page), hints(priority));
    Client::new(page, scheduler.notifier().try_clone().unwrap())
}

fn add_queue(client: Client, device: &SimDevice) -> Program {
    let hw = Arc::new(device.queue().unwrap());
    let queue = client.join(Arc::clone(&hw) as _, LevelRequest::Auto).unwrap();
    Program { client, hw, queue }
}

fn program(scheduler: &LocalScheduler, device: &SimDevice, pid: u32, priority: i64) -> Program {
    add_queue(connect(scheduler, pid, priority), device)
}

impl Program {
    fn launch(&self, length: Duration) {
        self.queue.launch(|| self.hw.launch(length)).unwrap();
    }

    fn synchronize(&self) {
        self.queue.launch_path().synchronized(|| self.hw.synchronize()).unwrap();
    }

    fn order(&self) -> Order {
        self.queue.launch_path().gate().order()
    }

    fn is_undecided(&self) -> bool {
        self.queue.launch_path().gate().is_undecided()
    }
}

fn eventually(what: &str, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !happened() {
        assert!(Instant::now() < deadline, "{what} did not happen within 30 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// What a program of low priority did that launched with its first step, beside a leader that had work.
#[derive(Clone, Copy)]
enum FirstLaunch {
    Held,
    Launched { after: Nanos },
}

/// Creates a queue and launches on it at once, on a thread of the program. Afterwards the program leaves the scheduler, so that
/// the thread resumes.
fn launch_at_once(client: Client, device: &SimDevice) -> FirstLaunch {
    let (created, queue) = mpsc::channel();
    let (returned, launch) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let program = Arc::new(add_queue(client, device));
            let since = Nanos::now();
            created.send(Arc::clone(&program)).unwrap();
            program.launch(SHORT);
            returned.send(Nanos::now() - since).unwrap();
        });
        let program = queue.recv().unwrap();
        let is_held = || program.queue.launch_path().gate().counts().holds > 0;
        let mut after = None;
        eventually("the launch was held, or made", || {
            after = after.or(launch.try_recv().ok());
            after.is_some() || is_held()
        });
        program.client.use_no_scheduler();
        after.map_or(FirstLaunch::Held, |after| FirstLaunch::Launched { after })
    })
}

/// Returns 1 if the launch was held, and 0 if it was made because the scheduler's thread got no CPU in time.
fn count_held(launch: FirstLaunch) -> u32 {
    match launch {
        FirstLaunch::Held => 1,
        FirstLaunch::Launched { after } => {
            let is_late = after >= Nanos::from(FIRST_ORDER_TIMEOUT);
            assert!(is_late, "launched after {after:?}, without an order, beside work of higher priority");
            0
        }
    }
}

#[test]
fn programs_that_start_beside_a_busy_leader_launch_nothing() {
    let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
    let high = program(&scheduler, &device, 1, HIGH);
    let other = program(&scheduler, &device, 2, LOW);
    eventually("both are known", || high.order() == Order::Leader && other.order() == Order::Throttled);
    high.launch(LONG);
    eventually("the leader is known to be busy", || other.order() == Order::Yield);
    let launches = (100..120).map(|pid| launch_at_once(connect(&scheduler, pid, LOW), &device));
    let held: u32 = launches.map(count_held).sum();
    assert!(held > 0, "every launch has waited for longer than {FIRST_ORDER_TIMEOUT:?}");
}

/// The launches of a program that is alone are not counted: the scheduler does not know that it has work.
#[test]
fn programs_that_start_beside_one_that_was_alone_launch_nothing() {
    let mut held = 0;
    for _ in 0..10 {
        let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
        let high = program(&scheduler, &device, 1, HIGH);
        eventually("the scheduler has decided", || !high.is_undecided());
        high.launch(LONG);
        assert_eq!((high.order(), high.queue.launch_path().gate().counts().passes), (Order::Free, 0));
        held += count_held(launch_at_once(connect(&scheduler, 2, LOW), &device));
    }
    assert!(held > 0, "every launch has waited for longer than {FIRST_ORDER_TIMEOUT:?}");
}

#[test]
fn new_queues_of_a_held_program_launch_nothing() {
    let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
    let high = program(&scheduler, &device, 1, HIGH);
    high.launch(LONG);
    let mut held = 0;
    for pid in 100..110 {
        let first = program(&scheduler, &device, pid, LOW);
        eventually("the program is held", || first.order() == Order::Yield);
        held += count_held(launch_at_once(first.client, &device));
    }
    assert!(held > 0, "every launch has waited for longer than {FIRST_ORDER_TIMEOUT:?}");
}

#[test]
fn first_launch_does_not_wait_for_a_scheduler_that_does_not_run() {
    let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
    let client = connect(&scheduler, 1, LOW);
    // The scheduler's thread waits for the lock that `with` holds.
    let only = scheduler.with(|_| {
        let only = add_queue(client, &device);
        assert!(only.is_undecided());
        only.launch(SHORT);
        assert!(!only.is_undecided(), "no further launch waits");
        only.hw.synchronize().unwrap();
        only
    });
    assert_eq!(only.hw.finished().unwrap(), 1);
    eventually("the scheduler decides", || only.order() == Order::Free);
    only.launch(SHORT);
    only.synchronize();
}

#[test]
fn program_without_a_scheduler_never_waits() {
    let device = SimDevice::create(&Config::default()).unwrap();
    let only = add_queue(Client::unscheduled().unwrap(), &device);
    assert!(only.queue.launch_path().gate().is_free());
    let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
    let left = program(&scheduler, &device, 1, LOW);
    left.client.use_no_scheduler();
    assert!(left.queue.launch_path().gate().is_free(), "it has left its scheduler");
    let next = left.client.join(Arc::new(device.queue().unwrap()), LevelRequest::Auto).unwrap();
    assert!(next.launch_path().gate().is_free());
}

#[test]
fn lone_program_is_free_after_its_first_launch() {
    let (scheduler, device) = (scheduler(), SimDevice::create(&Config::default()).unwrap());
    let only = program(&scheduler, &device, 1, LOW);
    eventually("the scheduler has decided", || !only.is_undecided());
    only.launch(SHORT);
    only.synchronize();
    assert!(only.queue.launch_path().gate().is_free());
    assert_eq!(only.queue.launch_path().gate().counts().passes, 0, "a launch was counted");
}
