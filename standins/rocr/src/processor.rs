//! The packet processor of a queue: executes AQL packets on the simulated device.
//!
//! ```text
//!   doorbell ──► submitting thread: reads packets in order, waits for dependencies, launches on the simulated device
//!                        │ packets in flight, in order
//!                        ▼
//!                completing thread: waits for the device, changes memory, records times, decrements completion signals
//! ```
//!
//! The device executes a queue's packets one after another, so a packet with the barrier bit starts after the earlier ones.
//! The driver can stop a queue: the device saves the running kernel, and no packet starts until the queue is resumed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xsched_core::{HwQueue as _, Level, Marker, Nanos};
use xsched_sim::SimQueue;

use crate::builtin_kernels::{Dispatch, Execution};
use crate::code_object::Kernel;
use crate::devices::Device;
use crate::doorbell::WakeWord;
use crate::driver::{self, Ring};
use crate::ledger::{self, PacketId, PacketKind, Record};
use crate::packets::{self, Content};
use crate::queues::Queue;
use crate::signals::{self, WaitMode, is_satisfied, signal};
use crate::status::{ERROR, INVALID_PACKET_FORMAT, Status};
use crate::threads::Thread;
use crate::{executables, runtime};

/// How many packets of a queue are on the device at once. The simulated device holds 1,023 commands of a queue.
const MAX_IN_FLIGHT: usize = 256;
/// How often an idle queue looks for a doorbell that was written without a function call.
const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How often it looks for a packet that is not written yet, behind a doorbell that was rung for a later packet.
const PACKET_POLL_INTERVAL: Duration = Duration::from_micros(50);
/// How often a thread that waits for the device looks whether the queue was destroyed.
const DEVICE_WAIT_INTERVAL: Duration = Duration::from_millis(20);
/// The time of a kernel without a known effect, unless `ROCR_STANDIN_KERNEL_US` is set.
const DEFAULT_KERNEL_TIME: Duration = Duration::from_micros(20);
/// The kernel object of programs without code: a kernel that runs for as many nanoseconds as its first argument states.
const TEST_KERNEL: u64 = 1;

/// A packet that was submitted and has not completed.
struct InFlight {
    position: u64,
    content: Content,
    kind: PacketKind,
    /// Placed on the device behind the packet.
    marker: Marker,
    /// A kernel with what it does.
    kernel: Option<(Arc<Kernel>, Execution)>,
    waited_for: Vec<u64>,
    /// When the doorbell was rung for it.
    submitted: Nanos,
    /// When its dependencies were satisfied.
    ready: Nanos,
}

/// What the driver refers to. It is never freed.
#[repr(C)]
struct Control {
    ring: Ring,
    shared: OnceLock<Arc<Shared>>,
}

struct Shared {
    queue: &'static Queue,
    device: &'static Device,
    /// None after the queue was destroyed.
    sim: Mutex<Option<Arc<SimQueue>>>,
    sim_number: u32,
    in_flight: Mutex<VecDeque<InFlight>>,
    changed: Condvar,
    /// How many packets have completed.
    completed: AtomicU64,
    is_destroyed: AtomicBool,
    is_stopped: AtomicBool,
    wake: &'static WakeWord,
}

/// The packet processor of a queue.
pub(crate) struct Processor {
    shared: Arc<Shared>,
    ring: &'static Ring,
    driver_id: Option<u32>,
    threads: Mutex<Vec<Thread>>,
}

/// Called by the driver to stop the queue (0 %) or to resume it.
unsafe extern "C" fn control(ring: *const Ring, percentage: u32) {
    // SAFETY: the ring is the first field of a `Control`, which is never freed.
    let control = unsafe { &*ring.cast::<Control>() };
    let Some(shared) = control.shared.get() else { return };
    let Some(sim) = shared.sim() else { return };
    shared.is_stopped.store(percentage == 0, Ordering::SeqCst);
    let _ = if percentage == 0 { sim.preempt(Level::Interrupt) } else { sim.restore() };
    if percentage != 0 {
        shared.wake.wake();
        signals::notify();
    }
}

impl Processor {
    /// Starts the threads of a queue, and announces the queue to the driver.
    pub(crate) fn start(
        queue: &'static Queue,
        device: &'static Device,
        sim: SimQueue,
        wake: &'static WakeWord,
    ) -> Option<Arc<Self>> {
        let shared = Arc::new(Shared {
            queue,
            device,
            sim_number: sim.number(),
            sim: Mutex::new(Some(Arc::new(sim))),
            in_flight: Mutex::default(),
            changed: Condvar::new(),
            completed: AtomicU64::new(0),
            is_destroyed: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            wake,
        });
        let control: &'static Control =
            Box::leak(Box::new(Control { ring: Ring::new(control), shared: OnceLock::new() }));
        let _ = control.shared.set(Arc::clone(&shared));
        let spawn = |name: &str, run: fn(&Shared)| {
            let shared = Arc::clone(&shared);
            Thread::spawn(name, move || run(&shared))
        };
        let threads = vec![
            spawn("rocr-submit", Shared::submit_packets)?,
            spawn("rocr-complete", Shared::complete_packets)?,
        ];
        let driver_id = driver::create_queue(&control.ring, queue.indices(), device.node.gpu_id);
        Some(Arc::new(Self { shared, ring: &control.ring, driver_id, threads: Mutex::new(threads) }))
    }

    /// Ends the threads. Packets that have not completed are dropped.
    pub(crate) fn stop(&self) {
        if self.shared.is_destroyed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(id) = self.driver_id {
            driver::destroy_queue(id);
        }
        self.shared.wake.wake();
        signals::notify();
        // The lock orders the notification after the check of a thread that is about to wait.
        drop(self.shared.in_flight());
        self.shared.changed.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.into_iter().for_each(Thread::join);
        self.shared.sim.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.shared.device.forget(self.shared.sim_number);
    }

    pub(crate) fn set_priority(&self, priority: u32) -> bool {
        self.driver_id.is_none_or(|id| driver::set_priority(self.ring, id, priority))
    }

    pub(crate) fn set_cu_mask(&self, words: &[u32]) -> bool {
        self.driver_id.is_none_or(|id| driver::set_cu_mask(id, words))
    }
}

impl Shared {
    fn sim(&self) -> Option<Arc<SimQueue>> {
        self.sim.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn in_flight(&self) -> std::sync::MutexGuard<'_, VecDeque<InFlight>> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::SeqCst)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }

    /// Reports an error of the queue to the program.
    fn fail(&self, status: Status) {
        if let Some((callback, data)) = self.queue.callback {
            callback(status, self.queue, std::ptr::with_exposed_provenance_mut(data));
        }
        self.is_destroyed.store(true, Ordering::SeqCst);
    }

    /// The submitting thread.
    fn submit_packets(&self) {
        let (mut next, mut rung) = (0_u64, -1_i64);
        while !self.is_destroyed() {
            rung = rung.max(self.queue.doorbell_value());
            let is_rung = i64::try_from(next).is_ok_and(|next| next <= rung);
            if self.is_stopped() || !is_rung {
                let was_rung = rung;
                self.wake.sleep(IDLE_POLL_INTERVAL, || {
                    self.is_destroyed() || (!self.is_stopped() && self.queue.doorbell_value() > was_rung)
                });
                continue;
            }
            let packet = self.queue.packet(next);
            if packet.kind() == packets::INVALID {
                // The doorbell was rung for a later packet of another thread.
                self.wake.sleep(PACKET_POLL_INTERVAL, || packet.kind() != packets::INVALID);
                continue;
            }
            match self.submit(next, packet.read()) {
                Some(()) => next += 1,
                None => return,
            }
        }
    }

    /// Submits a packet; none if the queue ended.
    fn submit(&self, position: u64, content: Content) -> Option<()> {
        let submitted = self.queue.doorbell_time(position);
        let mut packet = InFlight {
            position,
            content,
            kind: PacketKind::Vendor,
            marker: 0,
            kernel: None,
            waited_for: Vec::new(),
            submitted,
            ready: submitted,
        };
        let mut must_complete_first = false;
        match content.kind() {
            packets::KERNEL_DISPATCH => {
                packet.kind = PacketKind::Kernel;
                let (kernel, execution) = self.start_kernel(&content)?;
                must_complete_first = executables::may_wait(&kernel);
                packet.kernel = Some((kernel, execution));
            }
            packets::BARRIER_AND | packets::BARRIER_OR => {
                let is_and = content.kind() == packets::BARRIER_AND;
                packet.kind = if is_and { PacketKind::BarrierAnd } else { PacketKind::BarrierOr };
                let signals: Vec<u64> =
                    content.dependencies().into_iter().filter(|signal| *signal != 0).collect();
                let is_done = |handle: &u64| signal(*handle).is_none_or(|signal| signal.load() == 0);
                self.wait_for(|| {
                    signals.is_empty()
                        || if is_and { signals.iter().all(is_done) } else { signals.iter().any(is_done) }
                })?;
                packet.waited_for = signals;
            }
            packets::VENDOR_SPECIFIC if content.is_barrier_value() => {
                packet.kind = PacketKind::BarrierValue;
                let (handle, value, mask, condition) = content.awaited_value();
                // The value may change in both directions, so it counts at the barrier's place in the queue, not earlier.
                if handle != 0 {
                    self.wait_until_completed(position)?;
                }
                let is_met = || {
                    signal(handle).is_none_or(|signal| is_satisfied(signal.load() & mask, condition, value))
                };
                self.wait_for(is_met)?;
                packet.waited_for = vec![handle];
            }
            packets::AGENT_DISPATCH => {}
            _ => {
                self.fail(INVALID_PACKET_FORMAT);
                return None;
            }
        }
        packet.ready = Nanos::now();
        let sim = self.sim()?;
        let duration = packet.kernel.as_ref().map(|(_, execution)| execution.duration());
        let mut in_flight = self.in_flight();
        while in_flight.len() >= MAX_IN_FLIGHT && !self.is_destroyed() {
            in_flight = self.changed.wait(in_flight).unwrap_or_else(PoisonError::into_inner);
        }
        let launched = duration.map_or(Ok(()), |duration| sim.launch(duration.max(Duration::from_nanos(1))));
        let Some(marker) = launched.ok().and_then(|()| sim.mark().ok()) else {
            drop(in_flight);
            self.fail(ERROR);
            return None;
        };
        packet.marker = marker;
        in_flight.push_back(packet);
        drop(in_flight);
        self.changed.notify_all();
        // A kernel that waits for a word occupies the queue until the word has changed.
        if must_complete_first { self.wait_until_completed(position + 1) } else { Some(()) }
    }

    /// Waits until as many packets have completed; none if the queue ended.
    fn wait_until_completed(&self, count: u64) -> Option<()> {
        let mut in_flight = self.in_flight();
        while self.completed.load(Ordering::Acquire) < count && !self.is_destroyed() {
            in_flight = self.changed.wait(in_flight).unwrap_or_else(PoisonError::into_inner);
        }
        (!self.is_destroyed()).then_some(())
    }

    /// Waits until a barrier is satisfied and the queue is not stopped; none if the queue ended.
    fn wait_for(&self, mut is_met: impl FnMut() -> bool) -> Option<()> {
        signals::wait_until(None, WaitMode::Active, || {
            if self.is_destroyed() {
                return Some(None);
            }
            (!self.is_stopped() && is_met()).then_some(Some(()))
        })?
    }

    fn start_kernel(&self, content: &Content) -> Option<(Arc<Kernel>, Execution)> {
        let kernel = if content.kernel_object() == TEST_KERNEL {
            Some(executables::test_kernel())
        } else {
            executables::kernel_at(content.kernel_object())
        };
        let Some(kernel) = kernel else {
            let address = usize::try_from(content.kernel_object()).unwrap_or(0);
            runtime::report_memory_fault(self.queue.agent.handle(), self.device.node.node, address);
            self.fail(ERROR);
            return None;
        };
        let dispatch = Dispatch {
            grid: content.grid(),
            workgroup: content.workgroup(),
            kernarg: usize::try_from(content.kernarg()).unwrap_or(0),
        };
        // SAFETY: a program that writes a kernel packet passes the arguments that the kernel takes.
        let execution = unsafe { Execution::new(&kernel, dispatch, default_kernel_time()) };
        Some((kernel, execution))
    }

    /// The completing thread.
    fn complete_packets(&self) {
        let mut last_end = Nanos::ZERO;
        loop {
            let mut in_flight = self.in_flight();
            while in_flight.is_empty() && !self.is_destroyed() {
                in_flight = self.changed.wait(in_flight).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(marker) = in_flight.front().map(|packet| packet.marker) else { return };
            drop(in_flight);
            if !self.wait_for_device(marker) {
                return;
            }
            let mut in_flight = self.in_flight();
            let Some(mut packet) = in_flight.pop_front() else { return };
            let has_effect = packet.kernel.is_some();
            drop(in_flight);
            let times = if has_effect { self.device.next_completed(self.sim_number) } else { None };
            if let Some((_, execution)) = &mut packet.kernel {
                let ended = signals::wait_until(None, WaitMode::Memory, || {
                    (execution.advance() || self.is_destroyed()).then_some(())
                });
                if ended.is_none() || self.is_destroyed() {
                    return;
                }
            }
            let instant = last_end.max(packet.ready);
            let (start, end) = times.unwrap_or((instant, instant));
            // A kernel that waited for a word ended when the word had changed, not when its device time was over.
            let end = if packet.kernel.as_ref().is_some_and(|(kernel, _)| executables::may_wait(kernel)) {
                Nanos::now()
            } else {
                end
            };
            last_end = last_end.max(end);
            self.complete(&packet, start, end.max(start));
            let in_flight = self.in_flight();
            self.completed.store(packet.position + 1, Ordering::Release);
            drop(in_flight);
            self.changed.notify_all();
        }
    }

    /// Waits until the device has reached a marker. Returns false if the queue ended.
    fn wait_for_device(&self, marker: Marker) -> bool {
        let Some(sim) = self.sim() else { return false };
        loop {
            if self.is_destroyed() {
                return false;
            }
            match sim.wait(marker, DEVICE_WAIT_INTERVAL) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => {
                    self.fail(ERROR);
                    return false;
                }
            }
        }
    }

    fn complete(&self, packet: &InFlight, start: Nanos, end: Nanos) {
        let completes = packet.content.completion_signal();
        if let Some(ledger) = ledger::ledger() {
            ledger.append(&Record {
                packet: PacketId::Queue { queue: self.queue.id(), position: packet.position },
                kind: packet.kind,
                kernel: packet.kernel.as_ref().map(|(kernel, _)| kernel.name.as_str()),
                label: packet.kernel.as_ref().and_then(|(_, execution)| execution.label()),
                waited_for: &packet.waited_for,
                completes,
                has_barrier_bit: packet.content.has_barrier_bit(),
                agent: self.queue.agent.device_number(),
                submitted_ns: packet.submitted.0,
                start_ns: start.0,
                end_ns: end.0,
            });
        }
        self.queue.release_packet(packet.position);
        if let Some(signal) = signal(completes) {
            signal.complete(start, end);
        }
    }
}

/// The time of a kernel without a known effect.
fn default_kernel_time() -> Duration {
    static TIME: OnceLock<Duration> = OnceLock::new();
    *TIME.get_or_init(|| {
        let micros = std::env::var("ROCR_STANDIN_KERNEL_US").ok().and_then(|text| text.trim().parse().ok());
        micros.map_or(DEFAULT_KERNEL_TIME, Duration::from_micros)
    })
}
