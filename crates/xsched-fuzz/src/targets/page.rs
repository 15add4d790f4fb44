//! The pages of malicious processes. The scheduler reads what they wrote, whatever it is, and what it reports agrees with the pages.
//!
//! An input is a sequence of steps: a process writes anything anywhere into its page, or the scheduler reads, decides, reports, or
//! handles a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags};
use xsched_core::{DeviceId, Hints, Nanos, Priority, Process, ProcessId, Share};
use xsched_ipc::protocol::JobKey;
use xsched_ipc::{ClientId, Coordinator, Page};
use xsched_policy::POLICIES;

use super::Run;
use super::steps::Steps;

/// The number of processes.
const PROCESSES: usize = 3;
/// Slots that steps reach with one byte. All further slots are reached by writing words.
const SLOTS: usize = 8;
/// The most steps of one input.
const MAX_STEPS: usize = 256;

/// A page, and the same memory as its process sees it.
struct SharedPage {
    page: Arc<Page>,
    words: *mut u32,
    /// The words of a new page, as many as fit.
    initial: Vec<u32>,
}

impl SharedPage {
    fn new() -> Self {
        let page = Page::create().expect("a page");
        let fd = page.fd().expect("its descriptor");
        let size = usize::try_from(rustix::fs::fstat(fd).expect("its size").st_size).unwrap_or(0);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses: no other code refers to it.
        let words = unsafe { rustix::mm::mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, fd, 0) };
        let words = words.expect("a mapping").cast::<u32>();
        // SAFETY: `size` bytes are mapped at `words`. The other mapping of this memory is accessed by atomics only, on this same thread.
        let initial = (0..size / 4).map(|index| unsafe { words.add(index).read_volatile() }).collect();
        Self { page, words, initial }
    }

    fn write(&self, index: usize, word: u32) {
        // SAFETY: `new` mapped as many words at `words` as `initial` has, and nothing unmaps them; otherwise as above.
        unsafe { self.words.add(index % self.initial.len()).write_volatile(word) }
    }

    fn reset(&self) {
        // SAFETY: as above.
        unsafe { self.words.copy_from_nonoverlapping(self.initial.as_ptr(), self.initial.len()) }
    }
}

pub(super) fn start() -> Run {
    let pages: Vec<SharedPage> = (0..PROCESSES).map(|_| SharedPage::new()).collect();
    Box::new(move |input| {
        pages.iter().for_each(SharedPage::reset);
        let mut steps = Steps(input);
        let mut machine = Machine::new(&pages, usize::from(steps.byte()));
        for _ in 0..MAX_STEPS {
            let Some(step) = steps.next() else { break };
            machine.step(step, &mut steps);
        }
        machine.check();
        machine.coordinator.release_all();
    })
}

struct Machine<'a> {
    pages: &'a [SharedPage],
    coordinator: Coordinator,
    clients: Vec<Option<ClientId>>,
    now: Nanos,
}

impl<'a> Machine<'a> {
    fn new(pages: &'a [SharedPage], policy: usize) -> Self {
        let coordinator = Coordinator::new(&POLICIES[policy % POLICIES.len()]);
        let mut machine =
            Self { pages, coordinator, clients: vec![None; pages.len()], now: Nanos::from_secs(1) };
        for index in 0..pages.len() {
            machine.add(index);
        }
        machine
    }

    fn add(&mut self, index: usize) {
        let process =
            Process { id: ProcessId(u32::try_from(index).unwrap_or(0) + 1), nice: 0, focused: false };
        let page = Arc::clone(&self.pages[index].page);
        self.clients[index] = Some(self.coordinator.add_client_of(7, process, page, Hints::default()));
    }

    fn step(&mut self, step: u8, steps: &mut Steps<'_>) {
        let index = usize::from(step >> 4) % self.pages.len();
        let shared = &self.pages[index];
        match step & 15 {
            // A word anywhere: the header, or a slot of 128 bytes.
            0 | 1 => {
                let at = usize::from(steps.byte()) << 8 | usize::from(steps.byte());
                shared.write(at, word(steps));
            }
            2 | 3 => {
                let at = 64 + steps.below(SLOTS) * 32 + steps.below(32);
                shared.write(at, word(steps));
            }
            4 => drop(shared.page.allocate_slot(DeviceId(steps.number()))),
            5 => shared.page.release_slot(steps.below(SLOTS)),
            6 => {
                let at = steps.below(8) * 2;
                shared.write(at, word(steps));
            }
            7 => {
                if let Some(client) = self.clients[index] {
                    self.coordinator.look_at(client, self.now);
                }
            }
            8 => {
                self.now += Nanos(steps.number().min(1 << 40));
                let _ = self.coordinator.round(self.now);
            }
            9 => {
                self.now += Nanos::from_micros(steps.byte().into());
                let _ = self.coordinator.step(self.now);
            }
            10 => match self.clients[index].take() {
                Some(client) => self.coordinator.remove_client(client),
                None => self.add(index),
            },
            11 => self.hint(index, steps),
            12 => self.coordinator.set_policy(&POLICIES[steps.below(POLICIES.len())]),
            13 => {
                let keys =
                    (0..steps.below(3)).map(|_| JobKey::Name(format!("{}", steps.byte() % 3))).collect();
                if let Some(client) = self.clients[index] {
                    self.coordinator.set_jobs(client, keys, self.now);
                }
            }
            14 => {
                self.coordinator.set_tracing(steps.flag());
                let mut events = Vec::new();
                self.coordinator.take_events(&mut events);
            }
            _ => {
                self.coordinator.set_suspended(ProcessId(steps.byte().into()), steps.flag());
                self.coordinator.read_unreported(self.now);
                if let Some(client) = self.clients[index] {
                    self.coordinator.set_parked(client, steps.flag(), self.now);
                }
                self.check();
            }
        }
    }

    fn hint(&mut self, index: usize, steps: &mut Steps<'_>) {
        let Some(client) = self.clients[index] else { return };
        let priority = Priority::new(i64::from(steps.byte()) - 256).unwrap_or_default();
        let share = Share::new(i64::from(steps.byte() % 101)).unwrap_or_default();
        let hints = Hints { priority, share, ..Hints::default() };
        if steps.flag() {
            self.coordinator.set_hints(client, hints);
        } else {
            self.coordinator.set_queue_hints(client, steps.below(SLOTS), hints, self.now);
        }
    }

    /// Reads every page, makes a decision, and compares the report with the pages.
    fn check(&mut self) {
        let _ = self.coordinator.step(self.now);
        let mut by_client: BTreeMap<ClientId, Vec<usize>> = BTreeMap::new();
        let mut count = 0;
        for queue in self.coordinator.report_queues() {
            by_client.entry(queue.client).or_default().push(queue.slot);
            count += 1;
            assert!(queue.task.is_some(), "a queue without a task: {queue:?}");
        }
        for (shared, client) in self.pages.iter().zip(&self.clients) {
            let Some(client) = client else { continue };
            let used: Vec<usize> = shared.page.used_slots().map(|(slot, _)| slot).collect();
            let mut known = by_client.remove(client).unwrap_or_default();
            known.sort_unstable();
            assert_eq!(known, used, "the queues of a page");
        }
        assert!(by_client.is_empty(), "queues of processes that left: {by_client:?}");
        let in_tasks: u32 = self.coordinator.report_tasks().map(|task| task.queues).sum();
        assert_eq!(in_tasks, count, "the queues of all tasks");
    }
}

fn word(steps: &mut Steps<'_>) -> u32 {
    u32::try_from(steps.number() & 0xffff_ffff).unwrap_or(0)
}
