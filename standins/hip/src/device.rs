//! Devices, their hardware queues and their attributes.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
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
    pub(crate) number: usize,
    sim: SimDevice,
    /// For each priority its queues, and the index of the one that was assigned last.
    queues: Mutex<[(Vec<Arc<HwQueue>>, usize); 3]>,
}

/// A hardware queue. The driver sees only its ring.
#[repr(C)]
pub(crate) struct HwQueue {
    ring: Ring,
    sim: SimQueue,
    /// Reports the numbers of the stall points that may be passed, and the last stall point.
    passed: SimQueue,
    stalls: Mutex<Marker>,
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
        while !self.sim.wait(marker, Duration::from_secs(3600)).map_err(|_| UNKNOWN)? {}
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
        let queue = Arc::new(HwQueue { ring, sim, passed, stalls: Mutex::new(0) });
        // The driver refers to it until the process exits.
        std::mem::forget(Arc::clone(&queue));
        driver::create_queue(&raw const queue.ring as u64, self.number);
        Ok(queue)
    }

    /// The PCI address: bus, device and function.
    pub(crate) fn address(&self) -> u32 {
        (FIRST_BUS + u32::try_from(self.number).unwrap_or(0)) << 8
    }

    fn create_queue(&self) -> Result<SimQueue, Code> {
        let created = self.sim.queue().or_else(|_| {
            // Queues of exited processes may still be open; `usage` removes them.
            let _ = self.sim.usage();
            self.sim.queue()
        });
        created.map_err(|_| UNKNOWN)
    }

    fn pci(&self) -> String {
        format!("0000:{:02x}:00.0", FIRST_BUS as usize + self.number)
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

    pub(super) fn create_queue(ring: u64, device: usize) {
        let Ok(Some(fd)) = open() else { return };
        let mut arguments = [0_u32; 24];
        (arguments[0], arguments[1]) = ((ring & 0xffff_ffff) as u32, (ring >> 32) as u32);
        // Ring size, GPU id, type (compute AQL), percentage and priority.
        arguments[8] = 0x1000;
        arguments[9] = 1000 + u32::try_from(device).unwrap_or(0);
        arguments[10] = 2;
        arguments[11] = 100;
        arguments[12] = 7;
        // SAFETY: the call reads and writes 96 bytes.
        unsafe { libc::ioctl(fd, 0xc060_4b02, arguments.as_mut_ptr()) };
    }
}

/// All devices that are visible to the program.
pub(crate) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        if driver::open().is_err() {
            return Vec::new();
        }
        let count = std::env::var("HIP_STANDIN_DEVICES").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
        let mut visible: Vec<usize> = (0..count).collect();
        if let Ok(list) = std::env::var("HIP_VISIBLE_DEVICES") {
            // The first invalid number ends the list.
            let numbers =
                list.split(',').map(|text| text.trim().parse::<usize>().ok().filter(|n| *n < count));
            visible = numbers.map_while(|number| number).collect();
        }
        visible.into_iter().filter_map(open_device).collect()
    })
}

fn open_device(number: usize) -> Option<Device> {
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
    Some(Device { number, sim, queues: Mutex::default() })
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The current device of this thread.
pub(crate) fn current() -> Result<&'static Device, Code> {
    devices().get(CURRENT.get()).ok_or(NO_DEVICE)
}

fn at(number: c_int) -> Result<&'static Device, Code> {
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

pub(crate) extern "C" fn pci_bus_id(name: *mut c_char, room: c_int, device: c_int) -> Code {
    to_code(at(device).and_then(|device| {
        let text = device.pci();
        if name.is_null() || usize::try_from(room).unwrap_or(0) <= text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller guarantees room for the text and a zero byte.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            name.add(text.len()).write(0);
        }
        Ok(())
    }))
}

/// The attributes of a large GPU that libraries need; one value for all of them.
pub(crate) extern "C" fn attribute(value: *mut c_int, which: c_int, device: c_int) -> Code {
    let _ = which;
    to_code(at(device).and_then(|_| write_out(value, 64)))
}

pub(crate) extern "C" fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Code {
    to_code(write_out(least, 1).and(write_out(greatest, -1)))
}

pub(crate) extern "C" fn runtime_version(version: *mut c_int) -> Code {
    to_code(write_out(version, 60_443_482))
}

/// `hipDeviceProp_t` of version 6: 1472 bytes, with the fields that libraries use.
pub(crate) extern "C" fn properties(out: *mut u8, device: c_int) -> Code {
    to_code(at(device).and_then(|_| {
        let mut bytes = vec![0_u8; 1472];
        let mut write = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        write(0, b"Stand-in");
        write(288, &(64_u64 << 30).to_ne_bytes());
        write(296, &65_536_u64.to_ne_bytes());
        write(308, &64_u32.to_ne_bytes());
        write(320, &1024_u32.to_ne_bytes());
        write(360, &9_u32.to_ne_bytes());
        write(388, &104_u32.to_ne_bytes());
        write(1160, b"gfx90a:sramecc+:xnack-");
        if out.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller has room for the structure of this version.
        unsafe { out.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }))
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
