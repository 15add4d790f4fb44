//! Devices and their hardware queues.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use xsched_core::{DeviceId, DeviceKind, HwQueue as _, Level, Marker};
use xsched_sim::{Config, SimDevice, SimQueue};

use crate::error::{Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, UNKNOWN, to_code};

/// How many hardware queues the streams of one priority share.
const QUEUES: usize = 4;
/// The PCI bus of the first device; further devices follow.
const FIRST_BUS: u32 = 0xc1;

pub(crate) struct Device {
    /// The driver's number: partitions are numbered like GPUs.
    pub(crate) number: usize,
    /// How many partitions its GPU has.
    partitions: usize,
    sim: SimDevice,
    /// For each priority its queues, and the index of the one that was assigned last.
    queues: Mutex<[(Vec<Arc<HwQueue>>, usize); 3]>,
}

/// A hardware queue. The driver sees only its ring.
#[repr(C)]
pub(crate) struct HwQueue {
    ring: Ring,
    /// The driver's id; none without a driver.
    id: Option<u32>,
    sim: SimQueue,
    /// Reports the numbers of the stall points that may be passed, and the last stall point.
    passed: SimQueue,
    stalls: Mutex<Marker>,
    /// The words that a program shares with the hardware: how many packets were written, and how many are done. The latter is up to
    /// date when the program has waited for the queue.
    written: AtomicU64,
    done: AtomicU64,
}

/// The ring header that the stand-in for the driver expects.
#[repr(C)]
struct Ring {
    magic: u64,
    control: unsafe extern "C" fn(*const Ring, u32),
}

/// Called by the driver to stop the queue (0 %) or to resume it.
unsafe extern "C" fn control(ring: *const Ring, percentage: u32) {
    // SAFETY: the ring is the first field of a queue, which is never freed once the driver has it.
    let queue = unsafe { &*ring.cast::<HwQueue>() };
    let _ = if percentage == 0 { queue.sim.preempt(Level::Interrupt) } else { queue.sim.restore() };
}

impl HwQueue {
    pub(crate) fn launch(&self, length: Duration) -> Result<(), Code> {
        self.written.fetch_add(1, Ordering::AcqRel);
        self.sim.launch(length).map_err(|_| UNKNOWN)
    }

    /// Places a marker.
    pub(crate) fn mark(&self) -> Result<Marker, Code> {
        self.sim.mark().map_err(|_| UNKNOWN)
    }

    pub(crate) fn is_past(&self, marker: Marker) -> bool {
        self.sim.progress().marker >= marker
    }

    pub(crate) fn wait(&self, marker: Marker) -> Result<(), Code> {
        let written = self.written.load(Ordering::Acquire);
        while !self.sim.wait(marker, Duration::from_secs(3600)).map_err(|_| UNKNOWN)? {}
        self.done.fetch_max(written, Ordering::AcqRel);
        Ok(())
    }

    /// Stalls the queue here. Returns a marker that is reported when the queue reaches the stall point.
    pub(crate) fn stall(&self) -> Result<Marker, Code> {
        let mut last = self.stalls.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.mark()?;
        self.sim.wait_for(&self.passed, *last + 1).map_err(|_| UNKNOWN)?;
        *last += 1;
        Ok(before)
    }

    /// The program has destroyed the only stream that uses the queue.
    pub(crate) fn destroy(&self) {
        self.id.into_iter().for_each(driver::destroy_queue);
    }

    /// Lets the queue pass the next stall point.
    pub(crate) fn pass(&self) {
        let _ = self.passed.mark();
    }

    pub(crate) fn wait_for(&self, other: &Self, marker: Marker) -> Result<(), Code> {
        self.sim.wait_for(&other.sim, marker).map_err(|_| UNKNOWN)
    }
}

impl Device {
    /// A hardware queue for a stream of a priority, -1 to 1.
    pub(crate) fn queue(&self, priority: c_int) -> Result<Arc<HwQueue>, Code> {
        let which = usize::try_from(priority.clamp(-1, 1) + 1).unwrap_or(1);
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let (created, last) = &mut queues[which];
        if created.len() < QUEUES {
            let queue = self.exclusive_queue()?;
            created.push(Arc::clone(&queue));
            return Ok(queue);
        }
        *last = (*last + 1) % QUEUES;
        Ok(Arc::clone(&created[*last]))
    }

    /// A hardware queue for exclusive use.
    pub(crate) fn exclusive_queue(&self) -> Result<Arc<HwQueue>, Code> {
        let (sim, passed) = (self.create_queue()?, self.create_queue()?);
        let ring = Ring { magic: u64::from_le_bytes(*b"kfd-ring"), control };
        let mut queue = Arc::new(HwQueue {
            ring,
            id: None,
            sim,
            passed,
            stalls: Mutex::new(0),
            written: AtomicU64::new(0),
            done: AtomicU64::new(0),
        });
        let addresses =
            [&raw const queue.ring as u64, queue.written.as_ptr() as u64, queue.done.as_ptr() as u64];
        if let Some(queue) = Arc::get_mut(&mut queue) {
            queue.id = driver::create_queue(addresses, self.number);
        }
        // The driver refers to it until the process exits.
        std::mem::forget(Arc::clone(&queue));
        Ok(queue)
    }

    /// The PCI address: bus, device and function.
    pub(crate) fn address(&self) -> u32 {
        (FIRST_BUS + u32::try_from(self.number / self.partitions).unwrap_or(0)) << 8
    }

    pub(crate) fn partitions(&self) -> usize {
        self.partitions
    }

    /// Domain, bus, device and function. As in AMD's runtime, all partitions of a GPU have the same; with
    /// `HIP_STANDIN_PARTITION_FUNCTIONS`, the function is the number of the partition.
    pub(crate) fn pci(&self) -> (c_int, c_int, c_int, c_int) {
        let has_functions = std::env::var_os("HIP_STANDIN_PARTITION_FUNCTIONS").is_some();
        let function = if has_functions { self.number % self.partitions } else { 0 };
        (0, c_int::try_from(self.address() >> 8).unwrap_or(0), 0, number(function))
    }

    fn create_queue(&self) -> Result<SimQueue, Code> {
        let created = self.sim.queue().or_else(|_| {
            // Queues of exited processes may still be open; `usage` removes them.
            let _ = self.sim.usage();
            self.sim.queue()
        });
        created.map_err(|_| UNKNOWN)
    }
}

mod driver {
    //! The kernel driver (KFD), as far as the runtime calls it.

    use std::ffi::c_int;
    use std::sync::OnceLock;

    /// The driver's descriptor; none if there is no driver; an error if the process may not open it.
    pub(super) fn open() -> Result<Option<c_int>, ()> {
        static OPENED: OnceLock<Result<Option<c_int>, ()>> = OnceLock::new();
        *OPENED.get_or_init(|| {
            // SAFETY: a C string.
            let fd = unsafe { libc::open(c"/dev/kfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
            if fd < 0 {
                let is_denied = std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
                return if is_denied { Err(()) } else { Ok(None) };
            }
            let mut version = [0_u32; 2];
            // SAFETY: the call writes eight bytes.
            unsafe { libc::ioctl(fd, 0x8008_4b01, version.as_mut_ptr()) };
            Ok(Some(fd))
        })
    }

    /// Creates a queue with these addresses of its ring and its indices. Returns its id.
    pub(super) fn create_queue(addresses: [u64; 3], device: usize) -> Option<u32> {
        let Ok(Some(fd)) = open() else { return None };
        let mut arguments = [0_u32; 24];
        for (words, address) in arguments.chunks_exact_mut(2).zip(addresses) {
            words.copy_from_slice(&[(address & 0xffff_ffff) as u32, (address >> 32) as u32]);
        }
        // Ring size, GPU id, type (compute AQL), percentage and priority.
        arguments[8] = 0x1000;
        arguments[9] = 1000 + u32::try_from(device).unwrap_or(0);
        arguments[10] = 2;
        arguments[11] = 100;
        arguments[12] = 7;
        // SAFETY: the call reads and writes 96 bytes.
        let is_created = unsafe { libc::ioctl(fd, 0xc060_4b02, arguments.as_mut_ptr()) } == 0;
        is_created.then_some(arguments[13])
    }

    pub(super) fn destroy_queue(id: u32) {
        let Ok(Some(fd)) = open() else { return };
        let mut arguments = [id, 0];
        // SAFETY: the call reads and writes eight bytes.
        unsafe { libc::ioctl(fd, 0xc008_4b03, arguments.as_mut_ptr()) };
    }
}

/// All devices that are visible to the program.
pub(crate) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        if driver::open().is_err() {
            return Vec::new();
        }
        let gpus: usize = std::env::var("HIP_STANDIN_DEVICES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        let partitions = partitions();
        // Each variable numbers what the previous one left. The first invalid number ends a list.
        let mut visible: Vec<usize> = (0..gpus * partitions).collect();
        for variable in ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"] {
            if let Ok(list) = std::env::var(variable) {
                let numbers =
                    list.split(',').map(|text| visible.get(text.trim().parse::<usize>().ok()?).copied());
                visible = numbers.map_while(|number| number).collect();
            }
        }
        visible.into_iter().filter_map(|number| open_device(number, partitions)).collect()
    })
}

/// How many partitions each GPU has, by the mode that `HIP_STANDIN_PARTITIONS` names, such as `CPX` or `QPX/NPS4`. The memory
/// mode does not change the devices.
fn partitions() -> usize {
    let mode = std::env::var("HIP_STANDIN_PARTITIONS").unwrap_or_default();
    match mode.split('/').next() {
        Some("DPX") => 2,
        Some("TPX") => 3,
        Some("QPX") => 4,
        Some("CPX") => 8,
        _ => 1,
    }
}

fn open_device(number: usize, partitions: usize) -> Option<Device> {
    let address = (FIRST_BUS + u32::try_from(number).ok()?) << 8;
    let config = Config { device: DeviceId::new(DeviceKind::Gpu, address), ..Config::default() };
    let sim = match std::env::var_os("HIP_STANDIN_DEVICE") {
        None => SimDevice::create(&config).ok()?,
        Some(path) => {
            let mut path = path;
            path.push(format!(".{number}"));
            let path = PathBuf::from(path);
            // If another process creates it at the same time, opening it succeeds.
            let created = if path.exists() { None } else { SimDevice::create_at(&path, &config).ok() };
            created.or_else(|| SimDevice::open(&path).ok())?
        }
    };
    Some(Device { number, partitions, sim, queues: Mutex::default() })
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The current device of this thread.
pub(crate) fn current() -> Result<&'static Device, Code> {
    devices().get(CURRENT.get()).ok_or(NO_DEVICE)
}

pub(crate) fn at(number: c_int) -> Result<&'static Device, Code> {
    if devices().is_empty() {
        return Err(NO_DEVICE);
    }
    usize::try_from(number).ok().and_then(|number| devices().get(number)).ok_or(INVALID_DEVICE)
}

/// Writes a result to an output parameter.
pub(crate) fn write_out<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller guarantees that it is valid.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// A number as a C int.
pub(crate) fn number(value: usize) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

pub(crate) extern "C" fn init(_flags: c_uint) -> Code {
    to_code(current().map(drop))
}

pub(crate) extern "C" fn get_count(count: *mut c_int) -> Code {
    let found = devices().len();
    to_code(write_out(count, number(found)).and(if found == 0 { Err(NO_DEVICE) } else { Ok(()) }))
}

pub(crate) extern "C" fn get(device: *mut c_int) -> Code {
    to_code(current().and_then(|_| write_out(device, number(CURRENT.get()))))
}

pub(crate) extern "C" fn set(device: c_int) -> Code {
    to_code(at(device).map(|_| CURRENT.set(usize::try_from(device).unwrap_or(0))))
}

pub(crate) extern "C" fn get_handle(handle: *mut c_int, device: c_int) -> Code {
    to_code(at(device).and_then(|_| write_out(handle, device)))
}

/// Waits for all work on the device.
pub(crate) extern "C" fn synchronize() -> Code {
    to_code(current().and_then(|device| {
        let queues = device.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let all: Vec<_> = queues.iter().flat_map(|(queues, _)| queues.iter().cloned()).collect();
        drop(queues);
        all.iter().try_for_each(|queue| queue.mark().and_then(|marker| queue.wait(marker)))
    }))
}

/// Contexts are not supported; this call fails, as in AMD's runtime.
pub(crate) extern "C" fn context_synchronize() -> Code {
    to_code(Err(crate::error::NOT_SUPPORTED))
}

pub(crate) extern "C" fn context_get_current(context: *mut *mut c_void) -> Code {
    to_code(current().and_then(|device| write_out(context, std::ptr::from_ref(device).cast_mut().cast())))
}
