//! The enforcer threads of a scheduled process: one for each device, so that a device that is slow to stop does not delay
//! the orders of the next. The test is the scheduler: it writes the orders into the page itself.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelCost, LevelRequest, Marker, Nanos, Order, Progress,
};
use xsched_ipc::{Client, Notifier, Page, ScheduledQueue};

/// How long a test waits for another thread before it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// What the devices of one test did, in order.
#[derive(Default)]
struct Log {
    events: Mutex<Vec<(u64, Event)>>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    PreemptBegins,
    Preempted,
    Restored,
}

impl Log {
    fn add(&self, device: u64, event: Event) {
        self.events.lock().unwrap().push((device, event));
        self.changed.notify_all();
    }

    /// Waits until the log contains the event.
    fn wait_for(&self, device: u64, event: Event) {
        let missing = |events: &mut Vec<(u64, Event)>| !events.contains(&(device, event));
        let events = self.events.lock().unwrap();
        let (events, timeout) = self.changed.wait_timeout_while(events, EVENT_TIMEOUT, missing).unwrap();
        assert!(!timeout.timed_out(), "no {event:?} on device {device} within {EVENT_TIMEOUT:?}: {events:?}");
    }

    fn position(&self, device: u64, event: Event) -> Option<usize> {
        self.events.lock().unwrap().iter().position(|entry| *entry == (device, event))
    }
}

/// A queue of a device whose `preempt` blocks while the device is blocked.
struct TestQueue {
    device: u64,
    capabilities: Capabilities,
    log: Arc<Log>,
    blocked: Arc<Blocker>,
    last_marker: AtomicU64,
    /// The thread that called `preempt` last.
    enforcer: AtomicI32,
}

#[derive(Default)]
struct Blocker {
    is_blocked: Mutex<bool>,
    changed: Condvar,
}

impl Blocker {
    fn set(&self, is_blocked: bool) {
        *self.is_blocked.lock().unwrap() = is_blocked;
        self.changed.notify_all();
    }

    fn wait(&self) {
        drop(self.changed.wait_while(self.is_blocked.lock().unwrap(), |is_blocked| *is_blocked).unwrap());
    }
}

impl TestQueue {
    fn new(device: u64, log: &Arc<Log>) -> Arc<Self> {
        Arc::new(Self {
            device,
            capabilities: Capabilities::block_only("the test device", "it has levels 1 and 2")
                .with_deactivate(Ok(LevelCost::default())),
            log: Arc::clone(log),
            blocked: Arc::default(),
            last_marker: AtomicU64::new(0),
            enforcer: AtomicI32::new(0),
        })
    }
}

impl HwQueue for TestQueue {
    fn device(&self) -> DeviceId {
        DeviceId(self.device)
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn mark(&self) -> Result<Marker, HalError> {
        Ok(self.last_marker.fetch_add(1, Ordering::SeqCst) + 1)
    }

    fn progress(&self) -> Progress {
        Progress { marker: self.last_marker.load(Ordering::SeqCst), at: None }
    }

    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }

    fn preempt(&self, _level: Level) -> Result<(), HalError> {
        self.enforcer.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        self.log.add(self.device, Event::PreemptBegins);
        self.blocked.wait();
        self.log.add(self.device, Event::Preempted);
        Ok(())
    }

    fn restore(&self) -> Result<(), HalError> {
        self.log.add(self.device, Event::Restored);
        Ok(())
    }
}

/// A scheduler that gives the orders it is called with, and sends heartbeats until it is dropped.
struct TestScheduler {
    page: Arc<Page>,
    is_stopped: Arc<AtomicBool>,
    heartbeat: Option<std::thread::JoinHandle<()>>,
}

impl TestScheduler {
    fn start() -> (Self, Client) {
        let page = Page::create().unwrap();
        let client = Client::new(Arc::clone(&page), Notifier::new().unwrap());
        let is_stopped = Arc::new(AtomicBool::new(false));
        let heartbeat = {
            let (page, is_stopped) = (Arc::clone(&page), Arc::clone(&is_stopped));
            std::thread::spawn(move || {
                while !is_stopped.load(Ordering::SeqCst) {
                    page.set_heartbeat(Nanos::now());
                    std::thread::sleep(Duration::from_millis(1));
                }
            })
        };
        (Self { page, is_stopped, heartbeat: Some(heartbeat) }, client)
    }

    fn order(&self, orders: &[(&ScheduledQueue, Order)]) {
        for (queue, order) in orders {
            self.page.slot(queue.slot().unwrap()).unwrap().gate.set_order(*order);
        }
        self.page.orders().bump();
    }
}

impl Drop for TestScheduler {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        self.heartbeat.take().unwrap().join().unwrap();
    }
}

fn join(client: &Client, hw: &Arc<TestQueue>) -> Arc<ScheduledQueue> {
    client.join(Arc::clone(hw) as _, LevelRequest::Auto).unwrap()
}

#[test]
fn device_that_is_slow_to_stop_does_not_delay_orders_of_another_device() {
    let (scheduler, client) = TestScheduler::start();
    let log = Arc::new(Log::default());
    let hardware = [TestQueue::new(0, &log), TestQueue::new(1, &log)];
    let queues = hardware.each_ref().map(|hw| join(&client, hw));
    hardware[0].blocked.set(true);
    scheduler.order(&[(&queues[0], Order::Drain), (&queues[1], Order::Drain)]);
    log.wait_for(0, Event::PreemptBegins);
    log.wait_for(1, Event::Preempted);
    // And it is resumed meanwhile.
    scheduler.order(&[(&queues[1], Order::Throttled)]);
    log.wait_for(1, Event::Restored);
    assert_eq!(log.position(0, Event::Preempted), None, "device 0 was to be blocked until here");
    hardware[0].blocked.set(false);
    log.wait_for(0, Event::Preempted);
}

/// The contents of a file that describes a thread of this process, while the thread exists.
fn thread_file(thread: i32, name: &str) -> Option<String> {
    std::fs::read_to_string(format!("/proc/self/task/{thread}/{name}")).ok()
}

#[test]
fn enforcer_exits_with_its_devices_last_queue_and_a_new_queue_starts_another() {
    let (scheduler, client) = TestScheduler::start();
    let (first, second) = (Arc::new(Log::default()), Arc::new(Log::default()));
    let hw = TestQueue::new(0, &first);
    let queue = join(&client, &hw);
    scheduler.order(&[(&queue, Order::Drain)]);
    first.wait_for(0, Event::Preempted);
    let enforcer = hw.enforcer.load(Ordering::SeqCst);
    assert_eq!(thread_file(enforcer, "comm").unwrap(), "xsched-enf-0\n");
    let status = thread_file(enforcer, "status").unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
    assert!(blocked.starts_with("ffff"), "the program's signals reach the enforcer: {blocked}");
    drop(queue);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while thread_file(enforcer, "comm").is_some() {
        assert!(Instant::now() < deadline, "the enforcer of a device without queues has not exited");
        std::thread::sleep(Duration::from_millis(10));
    }
    let queue = join(&client, &TestQueue::new(0, &second));
    scheduler.order(&[(&queue, Order::Drain)]);
    second.wait_for(0, Event::Preempted);
}
