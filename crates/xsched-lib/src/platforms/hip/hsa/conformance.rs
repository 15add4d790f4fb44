//! The conformance suite of the core, on a stand-in for `ROCr`. A command is a kernel's packet, which decrements a signal
//! when it completes.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use xsched_core::conformance::Subject;
use xsched_core::{HwQueue as _, Level};

use super::doorbells;
use super::queue::HsaQueue;
use super::table::{self, Packet, QueueHandle, SUCCESS, Status, Store};
use crate::platforms::hip::conformance::{WITH_DRIVER, link_runtime, machine};
use crate::platforms::test_support::ExclusiveDevice;

const PACKETS: u32 = 1024;
/// `HSA_PACKET_TYPE_KERNEL_DISPATCH`.
const KERNEL: u32 = 2;
const INITIAL_SIGNAL_VALUE: i64 = 1 << 40;

/// The kernel object of the stand-in's kernel that runs for as many nanoseconds as its first argument states.
const TIMED_KERNEL: u64 = 1;

/// The runtime's functions that a program calls.
struct Runtime {
    gpu: u64,
    create_queue: CreateQueue,
    add_write_index: AddWriteIndex,
    create_signal: CreateSignal,
    load: Load,
    ring: Store,
}

type CreateQueue =
    unsafe extern "C" fn(u64, u32, u32, *mut c_void, *mut c_void, u32, u32, *mut QueueHandle) -> Status;
type AddWriteIndex = unsafe extern "C" fn(QueueHandle, u64) -> u64;
type CreateSignal = unsafe extern "C" fn(i64, u32, *const u64, *mut u64) -> Status;
type Load = unsafe extern "C" fn(u64) -> i64;
type Visit = unsafe extern "C" fn(u64, *mut c_void) -> Status;
type IterateAgents = unsafe extern "C" fn(Visit, *mut c_void) -> Status;

/// Stores the last agent, which is a GPU.
unsafe extern "C" fn store_agent(agent: u64, last: *mut c_void) -> Status {
    // SAFETY: the caller passes the address of a handle.
    unsafe { last.cast::<u64>().write(agent) };
    SUCCESS
}

fn open() -> &'static Runtime {
    static OPENED: OnceLock<Runtime> = OnceLock::new();
    OPENED.get_or_init(|| {
        let file = link_runtime("rocr");
        let path = CString::new(file.to_str().unwrap()).unwrap();
        // SAFETY: loading runs the stand-in's constructors only.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "cannot open {path:?}");
        // The library is mapped; other processes must not find the file.
        let _ = std::fs::remove_file(file);
        let find = |name: &CStr| {
            // SAFETY: the handle is valid, and the name is a C string.
            let found = unsafe { crate::loader::real_dlsym()(library, name.as_ptr()) };
            assert!(!found.is_null(), "{name:?}");
            found
        };
        // SAFETY: the types are those of the vendor's header, and of the stand-in for its own functions.
        unsafe {
            let init = std::mem::transmute::<*mut c_void, extern "C" fn() -> Status>(find(c"hsa_init"));
            assert_eq!(init(), SUCCESS);
            let tables = std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_void>(find(
                c"hsa_standin_tables",
            ));
            assert!(table::install_hooks(tables()));
            let mut gpu = 0_u64;
            let iterate = std::mem::transmute::<*mut c_void, IterateAgents>(find(c"hsa_iterate_agents"));
            assert_eq!(iterate(store_agent, (&raw mut gpu).cast()), SUCCESS);
            Runtime {
                gpu,
                create_queue: std::mem::transmute::<*mut c_void, CreateQueue>(find(c"hsa_queue_create")),
                add_write_index: std::mem::transmute::<*mut c_void, AddWriteIndex>(find(
                    c"hsa_queue_add_write_index_relaxed",
                )),
                create_signal: std::mem::transmute::<*mut c_void, CreateSignal>(find(c"hsa_signal_create")),
                load: std::mem::transmute::<*mut c_void, Load>(find(c"hsa_signal_load_scacquire")),
                ring: std::mem::transmute::<*mut c_void, Store>(find(c"hsa_signal_store_screlease")),
            }
        }
    })
}

/// A device, and its queues by address: each queue's handle in the runtime, and the signal that its kernels decrement.
struct Device {
    queues: Mutex<HashMap<usize, (usize, u64)>>,
    _exclusive: ExclusiveDevice,
}

impl Device {
    fn open() -> Self {
        let exclusive = ExclusiveDevice::acquire();
        open();
        Self { queues: Mutex::default(), _exclusive: exclusive }
    }

    fn handle_and_signal(&self, queue: &HsaQueue) -> (QueueHandle, u64) {
        let (queue, signal) = self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()];
        (std::ptr::with_exposed_provenance_mut(queue), signal)
    }
}

impl Subject for Device {
    type Queue = HsaQueue;

    fn queue(&self) -> Arc<HsaQueue> {
        let (mut queue, mut signal) = (null_mut(), 0);
        // SAFETY: `queue` and `signal` have room for a handle each.
        unsafe {
            let made =
                (open().create_queue)(open().gpu, PACKETS, 0, null_mut(), null_mut(), 0, 0, &raw mut queue);
            assert_eq!(made, SUCCESS);
            assert_eq!((open().create_signal)(INITIAL_SIGNAL_VALUE, 0, null(), &raw mut signal), SUCCESS);
        }
        // SAFETY: the queue was just created, and is never destroyed.
        let doorbell = doorbells::find(unsafe { (*queue).doorbell }).expect("the hook recorded the queue");
        let hw = Arc::new(HsaQueue::new(doorbell).expect("the queue was just created"));
        let state = (queue.expose_provenance(), signal);
        self.queues.lock().unwrap().insert(Arc::as_ptr(&hw).addr(), state);
        hw
    }

    fn launch(&self, queue: &HsaQueue, length: Duration) {
        let (queue, signal) = self.handle_and_signal(queue);
        // The device reads it when the kernel starts.
        let length: &'static u64 = Box::leak(Box::new(u64::try_from(length.as_nanos()).unwrap()));
        // SAFETY: the queue is never destroyed; advancing the write index has reserved the packet, and the ring is larger
        // than what any check launches at once.
        unsafe {
            let index = (open().add_write_index)(queue, 1);
            let packet = (*queue).base.add(usize::try_from(index % u64::from(PACKETS)).unwrap());
            packet.byte_add(4).cast::<u8>().write_bytes(0, size_of::<Packet>() - 4);
            (*packet).dependencies[3].store(TIMED_KERNEL, Ordering::Relaxed);
            (*packet).dependencies[4]
                .store(std::ptr::from_ref(length).expose_provenance() as u64, Ordering::Relaxed);
            (*packet).completion_signal = signal;
            (*packet).header.store(KERNEL | Packet::BARRIER_BIT, Ordering::Release);
            (open().ring)((*queue).doorbell, index.cast_signed());
        }
    }

    fn finished(&self, queue: &HsaQueue) -> u64 {
        // SAFETY: the signal is never destroyed.
        u64::try_from(INITIAL_SIGNAL_VALUE - unsafe { (open().load)(self.handle_and_signal(queue).1) })
            .unwrap()
    }
}

#[test]
fn levels_match_the_machine() {
    let device = Device::open();
    let queue = device.queue();
    let has_driver = machine() == WITH_DRIVER;
    for level in [Level::Deactivate, Level::Interrupt] {
        assert_eq!(queue.capabilities().cost(level).is_ok(), has_driver, "{level}");
    }
}

mod suite {
    use super::Device;
    xsched_core::conformance!(Device::open());
}
