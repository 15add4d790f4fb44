//! When the watcher thread asks a device whether a queue is busy. The test is the scheduler.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use xsched_core::{
    Capabilities, DeviceId, HalError, HwQueue, Level, LevelRequest, Marker, NullQueue, Order, Progress,
};
use xsched_ipc::{Client, Notifier, Page, ScheduledQueue};

/// How long a test waits for another thread before it fails.
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the watcher polls until the test is sure that it takes no sample. Each poll is more than a sample's interval later.
const POLLS: u32 = 20;

/// A busy queue that counts the queries.
#[derive(Default)]
struct TestQueue {
    null: NullQueue,
    queries: AtomicU64,
    /// The next query blocks until this is false.
    blocks: Mutex<bool>,
    unblocked: Condvar,
    is_blocked: AtomicBool,
}

impl HwQueue for TestQueue {
    fn device(&self) -> DeviceId {
        self.null.device()
    }
    fn capabilities(&self) -> &Capabilities {
        self.null.capabilities()
    }
    fn mark(&self) -> Result<Marker, HalError> {
        self.null.mark()
    }
    fn progress(&self) -> Progress {
        self.null.progress()
    }
    fn synchronize(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.null.preempt(level)
    }
    fn restore(&self) -> Result<(), HalError> {
        Ok(())
    }
    fn query_busy(&self) -> Option<bool> {
        self.queries.fetch_add(1, Ordering::SeqCst);
        let blocks = self.blocks.lock().unwrap();
        self.is_blocked.store(*blocks, Ordering::SeqCst);
        drop(self.unblocked.wait_while(blocks, |blocks| *blocks).unwrap());
        Some(true)
    }
}

fn wait_until(condition: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < deadline, "{condition}: not within {EVENT_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Process {
    page: Arc<Page>,
    client: Client,
    hw: Arc<TestQueue>,
    _queue: Arc<ScheduledQueue>,
}

impl Process {
    fn start(interval: Duration) -> Self {
        let page = Page::create().unwrap();
        page.set_sample_interval(interval);
        let client = Client::new(Arc::clone(&page), Notifier::new().unwrap());
        let hw = Arc::new(TestQueue::default());
        let queue = client.join(Arc::clone(&hw) as Arc<dyn HwQueue>, LevelRequest::default()).unwrap();
        Self { page, client, hw, _queue: queue }
    }

    fn queries(&self) -> u64 {
        self.hw.queries.load(Ordering::SeqCst)
    }

    /// Has the watcher poll often, more than 2 ms apart.
    fn poll(&self) {
        for _ in 0..POLLS {
            let polls = self.page.polls();
            std::thread::sleep(Duration::from_millis(2));
            wait_until("the watcher polls", || {
                self.page.orders().bump();
                self.page.polls() != polls
            });
        }
    }
}

#[test]
fn free_queue_is_sampled_and_its_time_is_published() {
    let process = Process::start(Duration::from_millis(1));
    wait_until("the queue was sampled", || process.queries() > 10);
    let samples = process.page.slot(0).unwrap().samples();
    assert!(samples.was_busy && samples.count > 0 && samples.busy.0 > 0, "{samples:?}");
}

#[test]
fn process_takes_no_samples_that_its_scheduler_does_not_want() {
    let process = Process::start(Duration::ZERO);
    process.poll();
    assert_eq!(process.queries(), 0);
}

#[test]
fn queue_with_another_order_is_not_sampled() {
    let process = Process::start(Duration::from_millis(1));
    wait_until("the queue was sampled", || process.queries() > 0);
    process.page.slot(0).unwrap().gate.set_order(Order::Leader);
    process.page.orders().bump();
    // A sample may be under way.
    process.poll();
    let queries = process.queries();
    process.poll();
    assert_eq!(process.queries(), queries);
}

#[test]
fn process_that_exits_no_longer_queries_its_devices() {
    let process = Process::start(Duration::from_millis(1));
    wait_until("the queue was sampled", || process.queries() > 0);
    process.client.shut_down();
    let queries = process.queries();
    process.poll();
    assert_eq!(process.queries(), queries, "the driver's exit handlers may be running");
}

#[test]
fn query_that_does_not_return_does_not_block_the_exit() {
    let process = Process::start(Duration::from_millis(1));
    *process.hw.blocks.lock().unwrap() = true;
    wait_until("a query blocks", || process.hw.is_blocked.load(Ordering::SeqCst));
    process.client.shut_down();
    *process.hw.blocks.lock().unwrap() = false;
    process.hw.unblocked.notify_all();
}
