//! The conformance suite of the core, on the stand-in for a Level Zero driver behind the real loader. A command is a kernel that runs for a
//! given time and then increments a counter.

use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use xsched_core::conformance::Subject;

use super::markers::{Events, Fences, MarkerKind, Markers};
use super::vendor::{self, Code, Description, Handle, QueueDescription, SUCCESS};
use super::{queue, vendor::List};
use crate::event_queue::EventQueue;
use crate::hooks::functions;
use crate::platforms::test_support::{build_standins, target_directory, with_own_device};

functions! {
    library super::LIBRARY;

    fn zeInit(c_uint) -> Code = INIT;
    fn zeDriverGet(*mut c_uint, *mut Handle) -> Code = DRIVERS;
    fn zeDeviceGet(Handle, *mut c_uint, *mut Handle) -> Code = DEVICES;
    fn zeContextCreate(Handle, *const Description, *mut Handle) -> Code = CONTEXT;
    fn zeModuleCreate(Handle, Handle, *const c_void, *mut Handle, *mut Handle) -> Code = MODULE;
    fn zeKernelCreate(Handle, *const KernelDescription, *mut Handle) -> Code = KERNEL;
    fn zeKernelSetArgumentValue(Handle, c_uint, usize, *const u64) -> Code = ARGUMENT;
    fn zeCommandQueueCreate(Handle, Handle, *const QueueDescription, *mut Handle) -> Code = QUEUE;
    fn zeCommandListCreateImmediate(Handle, Handle, *const QueueDescription, *mut Handle) -> Code = IMMEDIATE;
    fn zeCommandListAppendLaunchKernel(List, Handle, *const [c_uint; 3], Handle, c_uint, *const Handle) -> Code = LAUNCH;
}

/// `ze_kernel_desc_t`.
#[repr(C)]
pub(crate) struct KernelDescription {
    structure: u32,
    next: *const c_void,
    flags: u32,
    name: *const c_char,
}

/// Calls a function of the vendor, which must succeed.
macro_rules! must {
    ($function:path, $($argument:expr),*) => {
        // SAFETY: handles that the vendor returned, and pointers to variables of the types that the function expects.
        assert_eq!(unsafe { $function.get().expect("the loader has the function")($($argument),*) }, SUCCESS)
    };
}

/// The context, the device and the module, created once. None, with a message, if the loader is not installed.
fn open() -> Option<[Handle; 3]> {
    static OPENED: OnceLock<Option<[Handle; 3]>> = OnceLock::new();
    *OPENED.get_or_init(|| {
        build_standins(&["xsched-standin-levelzero"]);
        let driver = target_directory().join("libstandin_levelzero.so");
        // SAFETY: called once, before the library that reads the variable is loaded; no other test changes it.
        unsafe { std::env::set_var("ZE_ENABLE_ALT_DRIVERS", driver) };
        // SAFETY: loading runs the library's constructors only.
        let library = unsafe { libc::dlopen(c"libze_loader.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            assert!(std::env::var_os("CI").is_none(), "no Level Zero loader here");
            println!("skipped: no Level Zero loader here (Debian has it in libze1)");
            return None;
        }
        let hook = &super::LIBRARY.hooks()[0];
        // SAFETY: the handle is valid, and the name is a C string.
        hook.install(unsafe { crate::loader::real_dlsym()(library, hook.name.as_ptr()) });
        let [mut driver, mut device, mut context, mut module] = [Handle::NONE; 4];
        let mut one = 1;
        with_own_device("levelzero", || {
            must!(INIT, 0);
            must!(DRIVERS, &raw mut one, &raw mut driver);
            must!(DEVICES, driver, &raw mut one, &raw mut device);
            must!(CONTEXT, driver, &raw const CONTEXT_DESCRIPTION.0, &raw mut context);
            must!(MODULE, context, device, null(), &raw mut module, null_mut());
        });
        Some([context, device, module])
    })
}

struct Shared<T>(T);
// SAFETY: it is never written.
unsafe impl<T> Sync for Shared<T> {}
/// A head and zeros, as for a fence. The stand-in does not read the type.
static CONTEXT_DESCRIPTION: Shared<Description> = Shared(Description::fence());

/// A kind of queue as programs create it and launch on it.
trait ProgramQueue: MarkerKind + Send + Sync {
    fn create_queue(context: Handle, device: Handle, description: &QueueDescription) -> Handle;

    fn launch(queue: Handle, context: Handle, device: Handle, kernel: Handle);
}

fn append(list: List, kernel: Handle) {
    let groups = [1; 3];
    must!(LAUNCH, list, kernel, &raw const groups, Handle::NONE, 0, null());
}

impl ProgramQueue for Fences {
    fn create_queue(context: Handle, device: Handle, description: &QueueDescription) -> Handle {
        let mut queue = Handle::NONE;
        must!(QUEUE, context, device, &raw const *description, &raw mut queue);
        queue
    }

    fn launch(queue: Handle, context: Handle, device: Handle, kernel: Handle) {
        let (mut list, description) = (Handle::NONE, Description::list(0));
        must!(vendor::CREATE_LIST, context, device, &raw const description, &raw mut list);
        append(list, kernel);
        must!(vendor::CLOSE_LIST, list);
        must!(vendor::EXECUTE, queue, 1, &raw const list, Handle::NONE);
    }
}

impl ProgramQueue for Events {
    fn create_queue(context: Handle, device: Handle, description: &QueueDescription) -> Handle {
        let mut list = Handle::NONE;
        must!(IMMEDIATE, context, device, &raw const *description, &raw mut list);
        list
    }

    fn launch(queue: Handle, _context: Handle, _device: Handle, kernel: Handle) {
        append(queue, kernel);
    }
}

/// A device, and its queues by address: each queue's handle, its kernel, and its count of finished kernels.
struct Device<K> {
    queues: Mutex<HashMap<usize, (Handle, Handle, &'static AtomicU64)>>,
    kind: std::marker::PhantomData<K>,
}

impl<K: ProgramQueue> Device<K> {
    fn open() -> Option<Self> {
        open().map(|_| Self { queues: Mutex::default(), kind: std::marker::PhantomData })
    }

    fn state_of(&self, queue: &EventQueue<Markers<K>>) -> (Handle, Handle, &'static AtomicU64) {
        self.queues.lock().unwrap()[&std::ptr::from_ref(queue).addr()]
    }
}

impl<K: ProgramQueue> Subject for Device<K> {
    type Queue = EventQueue<Markers<K>>;

    fn queue(&self) -> Arc<Self::Queue> {
        let [context, device, module] = open().expect("it was opened");
        let description = QueueDescription::asynchronous();
        let queue = K::create_queue(context, device, &description);
        queue::created::<K>(queue, context, device, &description);
        let hw = Arc::new(queue::open::<K>(queue).expect("the queue was just created"));
        let finished: &'static AtomicU64 = Box::leak(Box::default());
        let mut kernel = Handle::NONE;
        let increment =
            KernelDescription { structure: 0, next: null(), flags: 0, name: c"increment".as_ptr() };
        must!(KERNEL, module, &raw const increment, &raw mut kernel);
        let counter = finished.as_ptr().expose_provenance() as u64;
        must!(ARGUMENT, kernel, 1, 8, &raw const counter);
        self.queues.lock().unwrap().insert(Arc::as_ptr(&hw).addr(), (queue, kernel, finished));
        hw
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        // A kernel has one set of arguments: threads may not set and append it at the same time.
        static LAUNCHING: Mutex<()> = Mutex::new(());
        let (queue, kernel, _) = self.state_of(queue);
        let [context, device, _] = open().expect("it was opened");
        let _launching = LAUNCHING.lock().unwrap();
        let length = u64::try_from(length.as_nanos()).unwrap();
        must!(ARGUMENT, kernel, 0, 8, &raw const length);
        K::launch(queue, context, device, kernel);
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        self.state_of(queue).2.load(Ordering::SeqCst)
    }
}

mod command_queues {
    use super::{Device, Fences};
    xsched_core::conformance!(match Device::<Fences>::open() {
        Some(device) => device,
        None => return,
    });
}

mod immediate_lists {
    use super::{Device, Events};
    xsched_core::conformance!(match Device::<Events>::open() {
        Some(device) => device,
        None => return,
    });
}
