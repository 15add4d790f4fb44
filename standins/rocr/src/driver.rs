//! The kernel driver (KFD), as far as the runtime calls it. The calls go through libc, as those of AMD's runtime.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

/// `AMDKFD_IOC_*`.
const GET_VERSION: c_ulong = 0x8008_4b01;
const CREATE_QUEUE: c_ulong = 0xc060_4b02;
const DESTROY_QUEUE: c_ulong = 0xc008_4b03;
const UPDATE_QUEUE: c_ulong = 0x4018_4b07;
const SET_CU_MASK: c_ulong = 0x4010_4b1a;

/// `KFD_IOC_QUEUE_TYPE_COMPUTE_AQL`.
const AQL_QUEUE: u32 = 2;
/// The queue percentage of an active queue.
const ACTIVE_PERCENTAGE: u32 = 100;
/// The size of the ring that the driver is told.
const RING_BYTES: u32 = 0x1000;
/// The driver's priority of a queue of normal priority.
pub(crate) const NORMAL_PRIORITY: u32 = 7;

/// The ring header that the stand-in for the driver expects.
#[repr(C)]
pub(crate) struct Ring {
    magic: u64,
    control: unsafe extern "C" fn(*const Ring, u32),
}

impl Ring {
    /// A ring whose queue `control` stops and resumes.
    pub(crate) fn new(control: unsafe extern "C" fn(*const Ring, u32)) -> Self {
        Self { magic: u64::from_le_bytes(*b"kfd-ring"), control }
    }
}

/// The driver's descriptor; none if there is no driver; an error if the process may not open it.
pub(crate) fn open() -> Result<Option<c_int>, ()> {
    static OPENED: OnceLock<Result<Option<c_int>, ()>> = OnceLock::new();
    *OPENED.get_or_init(|| {
        // SAFETY: a C string.
        let fd = unsafe { libc::open(c"/dev/kfd".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            let is_denied = std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
            return if is_denied { Err(()) } else { Ok(None) };
        }
        call(fd, GET_VERSION, &mut [0_u32; 2]);
        Ok(Some(fd))
    })
}

/// Calls the driver. The request encodes the size of the arguments.
fn call(fd: c_int, request: c_ulong, arguments: &mut [u32]) -> bool {
    debug_assert_eq!(usize::try_from((request >> 16) & 0x3fff), Ok(size_of_val(arguments)));
    // SAFETY: the driver reads and writes as many bytes as the request encodes, which is the size of the arguments.
    unsafe { libc::ioctl(fd, request, arguments.as_mut_ptr().cast::<c_void>()) == 0 }
}

fn halves(address: u64) -> (u32, u32) {
    ((address & 0xffff_ffff) as u32, (address >> 32) as u32)
}

/// Creates a queue with these indices of packets: written, and done. Returns the driver's id of it.
pub(crate) fn create_queue(ring: &'static Ring, indices: [&AtomicU64; 2], gpu_id: u32) -> Option<u32> {
    let fd = open().ok()??;
    let mut arguments = [0_u32; 24];
    (arguments[0], arguments[1]) = halves(std::ptr::from_ref(ring).expose_provenance() as u64);
    for (place, index) in indices.into_iter().enumerate() {
        let (low, high) = halves(index.as_ptr().expose_provenance() as u64);
        (arguments[2 + 2 * place], arguments[3 + 2 * place]) = (low, high);
    }
    arguments[8] = RING_BYTES;
    arguments[9] = gpu_id;
    arguments[10] = AQL_QUEUE;
    arguments[11] = ACTIVE_PERCENTAGE;
    arguments[12] = NORMAL_PRIORITY;
    call(fd, CREATE_QUEUE, &mut arguments).then_some(arguments[13])
}

/// Destroys a queue.
pub(crate) fn destroy_queue(id: u32) {
    if let Ok(Some(fd)) = open() {
        call(fd, DESTROY_QUEUE, &mut [id, 0]);
    }
}

/// Sets the priority of a queue.
pub(crate) fn set_priority(ring: &'static Ring, id: u32, priority: u32) -> bool {
    let Ok(Some(fd)) = open() else { return true };
    let (low, high) = halves(std::ptr::from_ref(ring).expose_provenance() as u64);
    call(fd, UPDATE_QUEUE, &mut [low, high, id, RING_BYTES, ACTIVE_PERCENTAGE, priority])
}

/// Limits a queue to compute units.
pub(crate) fn set_cu_mask(id: u32, words: &[u32]) -> bool {
    let Ok(Some(fd)) = open() else { return true };
    let (low, high) = halves(words.as_ptr().expose_provenance() as u64);
    let bits = u32::try_from(32 * words.len()).unwrap_or(0);
    call(fd, SET_CU_MASK, &mut [id, bits, low, high])
}
