use super::*;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use xsched_core::{DeviceId, LevelRequest, NullQueue, Order};

use crate::notifier::Notifier;
use crate::scheduled_process::{ScheduledProcess, SchedulerEndpoint};
use crate::scheduled_queue::ScheduledQueue;

/// How long a test waits for another thread before it fails.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
const PAGE_BYTES: usize = 36_864;

/// A process whose service is replaced again and again.
struct TestProcess {
    process: Arc<ScheduledProcess>,
    queue: Arc<ScheduledQueue>,
    /// All pages so far, and where they were mapped.
    pages: Vec<(usize, Weak<Page>)>,
}

impl TestProcess {
    fn new() -> Self {
        let process = ScheduledProcess::new(Page::private().unwrap(), SchedulerEndpoint::None);
        let process = Arc::new(process);
        let queue = process
            .add_queue(DeviceId::default(), |page| {
                ScheduledQueue::new(&process, page, Arc::new(NullQueue::default()), LevelRequest::Auto)
            })
            .unwrap();
        process.threads().start(&process).unwrap();
        Self { process, queue, pages: Vec::new() }
    }

    /// The next service gives the queue an order and dies.
    fn replace_service(&mut self, order: Order) {
        let theirs = Page::create().unwrap();
        let ours = Page::attach(&theirs.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
        let endpoint = SchedulerEndpoint::Notifier(Notifier::new().unwrap());
        assert!(self.process.bind_to(&ours, endpoint, || true));
        for (_, slot) in theirs.used_slots() {
            slot.gate.set_order(order);
        }
        theirs.orders().bump();
        self.pages.push((ours.address().addr(), Arc::downgrade(&ours)));
    }

    /// How many of the pages share memory with a service.
    fn shared(&self) -> usize {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let starts: Vec<_> = maps
            .lines()
            .filter(|line| line.contains("/memfd:xsched-page"))
            .filter_map(|line| usize::from_str_radix(line.split('-').next()?, 16).ok())
            .collect();
        self.pages.iter().filter(|(address, _)| starts.contains(address)).count()
    }

    /// How many pages of physical memory lie behind the addresses of the oldest so many pages.
    fn resident(&self, oldest: usize) -> usize {
        let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
        let unit = rustix::param::page_size();
        let addresses =
            self.pages[..oldest].iter().flat_map(|(start, _)| (*start..*start + PAGE_BYTES).step_by(unit));
        addresses
            .filter(|address| {
                let mut entry = [0; 8];
                pagemap.read_exact_at(&mut entry, (address / unit * 8) as u64).unwrap();
                u64::from_ne_bytes(entry) >> 63 != 0
            })
            .count()
    }

    /// How many of the pages are kept by some handle.
    fn held(&self) -> usize {
        self.pages.iter().filter(|(_, page)| page.strong_count() > 0).count()
    }
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < PROGRESS_TIMEOUT, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn process_keeps_few_pages_however_often_its_service_is_replaced() {
    const SERVICES: usize = 40;
    let mut process = TestProcess::new();
    let is_ended = Arc::new(AtomicBool::new(false));
    let launches: Vec<_> = (0..4).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let threads: Vec<_> = launches
        .iter()
        .map(|count| {
            let (queue, count, is_ended) =
                (Arc::clone(&process.queue), Arc::clone(count), Arc::clone(&is_ended));
            std::thread::spawn(move || {
                let launch_path = queue.launch_path();
                while !is_ended.load(Ordering::SeqCst) {
                    launch_path.launch(|| count.fetch_add(1, Ordering::SeqCst));
                    launch_path.launch_and_finish(|| ());
                    launch_path.synchronized(|| ());
                }
            })
        })
        .collect();
    process.replace_service(Order::Leader);
    process.queue.launch_path().launch(|| ());
    // A thread that waits for the device meanwhile refers to the first gate.
    let launch_path = Arc::clone(process.queue.launch_path());
    let wait = launch_path.begin_wait();
    // A dead service holds a thread for up to 0.1 s.
    let orders = [Order::Leader, Order::Throttled, Order::Free, Order::Peer, Order::Leader, Order::Yield];
    for order in orders.into_iter().cycle().take(SERVICES) {
        let before: Vec<_> = launches.iter().map(|count| count.load(Ordering::SeqCst)).collect();
        process.replace_service(order);
        wait_until("a thread does not launch", || {
            launches.iter().zip(&before).all(|(count, before)| count.load(Ordering::SeqCst) > *before)
        });
    }
    is_ended.store(true, Ordering::SeqCst);
    for thread in threads {
        thread.join().unwrap();
    }
    // A page that had a thread inside is replaced by zeros now, at the latest.
    process.replace_service(Order::Leader);
    let shared = process.shared();
    assert_eq!(shared, 1 + KEPT_PAGES, "of {} pages", process.pages.len());
    let resident = process.resident(process.pages.len() - shared);
    // The watcher and the enforcer may each have read a page that had just been replaced.
    assert!(resident <= 2, "{resident} pages of memory lie behind former pages");
    wait.finish();
    // The queue gives up the pages that were replaced by zeros when it moves.
    process.replace_service(Order::Leader);
    wait_until("former pages are kept", || process.held() <= 1 + KEPT_PAGES + 1);
    process.queue.launch_path().launch(|| ());
}

#[test]
fn page_is_kept_while_a_thread_is_inside_one_of_its_gates() {
    let mut process = TestProcess::new();
    process.replace_service(Order::Leader);
    let (inside, is_inside) = channel();
    let (leave, may_leave) = channel::<()>();
    let launching = {
        let queue = Arc::clone(&process.queue);
        std::thread::spawn(move || {
            // A service without heartbeats does not free a gate that stops no thread.
            queue.launch_path().gate().set_order(Order::Leader);
            queue.launch_path().launch(|| {
                inside.send(()).unwrap();
                may_leave.recv().unwrap();
            });
        })
    };
    is_inside.recv().unwrap();
    for _ in 0..5 {
        process.replace_service(Order::Leader);
    }
    assert_eq!(process.shared(), 1 + KEPT_PAGES + 1, "the page of the thread inside is kept");
    // Suspending the queue waits for that thread: its count has to be right.
    let suspending = {
        let queue = Arc::clone(&process.queue);
        std::thread::spawn(move || queue.suspend(xsched_core::Suspend::default()).is_ok())
    };
    wait_until("the queue is not suspended", || process.queue.launch_path().gate().is_closed());
    leave.send(()).unwrap();
    launching.join().unwrap();
    assert!(suspending.join().unwrap());
    process.replace_service(Order::Leader);
    assert_eq!(process.shared(), 1 + KEPT_PAGES);
}

#[test]
fn addresses_of_a_released_page_hold_free_gates() {
    let theirs = Page::create().unwrap();
    let page = Page::attach(&theirs.fd().unwrap().try_clone_to_owned().unwrap()).unwrap();
    let index = page.allocate_slot(DeviceId(1)).unwrap();
    let gate = page.shared_slot(index).unwrap().project(|slot| &slot.gate);
    gate.set_order(Order::Yield);
    page.release_slot(index);
    assert!(page.is_abandoned());
    page.release_memory().unwrap();
    // The memory stays valid without a handle on the page.
    let address: *const xsched_core::Gate = &raw const *gate;
    drop((page, gate));
    // SAFETY: `release_memory` keeps the addresses mapped until the process ends.
    let gate = unsafe { &*address };
    assert!(gate.is_free() && !gate.is_used());
    // A thread that entered before the replacement leaves after it.
    gate.leave();
    assert!(!gate.is_occupied());
    gate.wait_until_empty(|| panic!("waits for no thread"));
    assert_eq!(
        theirs.slot(index).unwrap().gate.order(),
        Order::Yield,
        "the scheduler's own page has changed"
    );
}
