//! The conformance suite of the core, on the first Vulkan device of this machine. A command fills a buffer repeatedly and then
//! writes its own number. Every queue has a device of its own, because some devices have one queue only.

use std::ffi::{CStr, c_void};
use std::ptr::{self, null, null_mut};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use xsched_core::conformance::Subject;
use xsched_core::{Capabilities, DeviceId, HalError, HwQueue, Level, Marker, Progress};

use super::device::{Device, identify};
use super::queue::{Submitting, Vulkan, open};
use super::vendor::{Chained, Code, CreateDevice, CreateInstance, GetProcAddr, Handle, Object, SUCCESS};
use crate::event_queue::EventQueue;

/// The buffer that commands fill; its first word receives their numbers.
const BUFFER_BYTES: u64 = 1 << 18;
/// `VK_STRUCTURE_TYPE_...`.
const INSTANCE_CREATE_INFO: i32 = 1;
const QUEUE_CREATE_INFO: i32 = 2;
const DEVICE_CREATE_INFO: i32 = 3;
const MEMORY_ALLOCATE_INFO: i32 = 5;
const BUFFER_CREATE_INFO: i32 = 12;
const COMMAND_POOL_CREATE_INFO: i32 = 39;
const COMMAND_BUFFER_ALLOCATE_INFO: i32 = 40;
const COMMAND_BUFFER_BEGIN_INFO: i32 = 42;

/// A structure of Vulkan after its head, as words. Pointers and 64-bit numbers take one word, two 32-bit numbers share one.
#[repr(C)]
struct Info<const WORDS: usize> {
    head: Chained,
    words: [u64; WORDS],
}

fn info<const WORDS: usize>(kind: i32, words: [u64; WORDS]) -> Info<WORDS> {
    Info { head: Chained { kind, next: null() }, words }
}

fn address<T>(of: &T) -> u64 {
    ptr::from_ref(of).expose_provenance() as u64
}

/// Two 32-bit numbers in one word.
const fn pair(first: u64, second: u64) -> u64 {
    first | second << 32
}

/// The loader's function for all others.
fn get_proc_addr() -> Option<GetProcAddr> {
    // SAFETY: loading runs the library's constructors only; the name is a C string, and the function has this type.
    unsafe {
        let library = libc::dlopen(c"libvulkan.so.1".as_ptr(), libc::RTLD_NOW);
        let found = (!library.is_null()).then(|| libc::dlsym(library, c"vkGetInstanceProcAddr".as_ptr()))?;
        std::mem::transmute::<*mut c_void, Option<GetProcAddr>>(found)
    }
}

/// A function of Vulkan.
///
/// # Safety
/// `F` is its type.
unsafe fn function<F: Copy>(get: GetProcAddr, instance: Handle, name: &CStr) -> F {
    // SAFETY: the name is a C string; guaranteed by the caller.
    unsafe {
        let found = get(instance, name.as_ptr());
        assert!(!found.is_null(), "Vulkan has no {name:?}");
        std::mem::transmute_copy::<*mut c_void, F>(&found)
    }
}

/// A queue of a device, which one thread uses at a time, as Vulkan requires.
struct ExclusiveQueue {
    hw: EventQueue<Vulkan>,
    queue: Handle,
    program: Mutex<Program>,
}

/// The program's objects on a device.
struct Program {
    device: Handle,
    pool: Object,
    buffer: Object,
    words: usize,
    launched: u64,
}

impl ExclusiveQueue {
    /// Calls `work` as the thread that submits to the queue.
    fn exclusively<R>(&self, work: impl FnOnce() -> R) -> R {
        let _exclusive = self.lock();
        let _submitting = Submitting::to(self.queue);
        work()
    }

    fn lock(&self) -> MutexGuard<'_, Program> {
        self.program.lock().unwrap()
    }
}

impl HwQueue for ExclusiveQueue {
    fn device(&self) -> DeviceId {
        self.hw.device()
    }

    fn capabilities(&self) -> &Capabilities {
        self.hw.capabilities()
    }

    fn mark(&self) -> Result<Marker, HalError> {
        self.exclusively(|| self.hw.mark())
    }

    fn progress(&self) -> Progress {
        self.hw.progress()
    }

    fn synchronize(&self) -> Result<(), HalError> {
        self.exclusively(|| self.hw.synchronize())
    }

    fn preempt(&self, level: Level) -> Result<(), HalError> {
        self.hw.preempt(level)
    }

    fn restore(&self) -> Result<(), HalError> {
        self.hw.restore()
    }

    fn can_mark_from_any_thread(&self) -> bool {
        self.hw.can_mark_from_any_thread()
    }
}

/// A physical device, and how many fills take a millisecond.
struct Machine {
    get: GetProcAddr,
    instance: Handle,
    physical: Handle,
    fills_per_ms: u128,
}

impl Machine {
    /// None, with a message, if the machine has no Vulkan device.
    fn open() -> Option<Self> {
        let found = Self::find();
        if found.is_none() {
            assert!(std::env::var_os("CI").is_none(), "no Vulkan device here");
            println!("skipped: no Vulkan device here (Debian has one in mesa-vulkan-drivers)");
        }
        found
    }

    fn find() -> Option<Self> {
        let get = get_proc_addr()?;
        let (mut instance, mut physical, mut count) = (Handle::NONE, Handle::NONE, 1_u32);
        let create_info = info(INSTANCE_CREATE_INFO, [0; 6]);
        // SAFETY: the types are those of Vulkan's header, and each variable has room for its result.
        unsafe {
            let create: CreateInstance = function(get, Handle::NONE, c"vkCreateInstance");
            (create(&raw const create_info.head, null(), &raw mut instance) == SUCCESS).then_some(())?;
            let enumerate: unsafe extern "C" fn(Handle, *mut u32, *mut Handle) -> Code =
                function(get, instance, c"vkEnumeratePhysicalDevices");
            enumerate(instance, &raw mut count, &raw mut physical);
        }
        (!physical.is_none()).then_some(())?;
        let mut machine = Self { get, instance, physical, fills_per_ms: 0 };
        machine.fills_per_ms = machine.measure_fills_per_ms();
        Some(machine)
    }

    fn measure_fills_per_ms(&self) -> u128 {
        const FILLS: u128 = 2_000;
        let queue = self.queue();
        self.launch_fills(&queue, FILLS);
        queue.synchronize().unwrap();
        let start = Instant::now();
        self.launch_fills(&queue, FILLS);
        queue.synchronize().unwrap();
        (FILLS * 1_000 / start.elapsed().as_micros().max(1)).max(1)
    }

    /// # Safety
    /// `F` is the type of the function.
    unsafe fn function<F: Copy>(&self, name: &CStr) -> F {
        // SAFETY: guaranteed by the caller.
        unsafe { function(self.get, self.instance, name) }
    }

    /// Creates an object without a dispatch table.
    fn create<const WORDS: usize>(&self, name: &CStr, device: Handle, create_info: &Info<WORDS>) -> Object {
        let mut created = 0;
        // SAFETY: the functions that create such objects have this type; `created` has room for a handle.
        unsafe {
            let create: unsafe extern "C" fn(Handle, *const Chained, *const c_void, *mut Object) -> Code =
                self.function(name);
            assert_eq!(
                create(device, &raw const create_info.head, null(), &raw mut created),
                SUCCESS,
                "{name:?}"
            );
        }
        created
    }

    /// A device that the layer knows.
    fn create_device(&self) -> Handle {
        let (priority, mut device) = (1.0_f32, Handle::NONE);
        let queue = info(QUEUE_CREATE_INFO, [0, 1, address(&priority)]);
        let create_info = info(DEVICE_CREATE_INFO, [pair(0, 1), address(&queue), 0, 0, 0, 0, 0]);
        // SAFETY: as in `find`.
        unsafe {
            let create: CreateDevice = self.function(c"vkCreateDevice");
            let code = create(self.physical, &raw const create_info.head, null(), &raw mut device);
            assert_eq!(code, SUCCESS);
            let properties = self.function(c"vkGetPhysicalDeviceProperties");
            let identity = identify(self.physical, Some(properties), None);
            Device::add(device, identity, self.function(c"vkGetDeviceProcAddr"));
        }
        device
    }

    fn create_program(&self, device: Handle) -> Program {
        // Transfers to the buffer; the first kind of memory that the buffer accepts is mapped, as on Mesa's CPU driver.
        let buffer =
            self.create(c"vkCreateBuffer", device, &info(BUFFER_CREATE_INFO, [0, BUFFER_BYTES, 2, 0, 0]));
        let pool = self.create(c"vkCreateCommandPool", device, &info(COMMAND_POOL_CREATE_INFO, [0]));
        let mut needs = [0_u64; 3];
        let mut words = null_mut::<c_void>();
        // SAFETY: as in `find`; the third member is a set of kinds of memory.
        unsafe {
            let get_needs: unsafe extern "C" fn(Handle, Object, *mut [u64; 3]) =
                self.function(c"vkGetBufferMemoryRequirements");
            get_needs(device, buffer, &raw mut needs);
            let kind = u64::from(needs[2].trailing_zeros());
            let memory =
                self.create(c"vkAllocateMemory", device, &info(MEMORY_ALLOCATE_INFO, [needs[0], kind]));
            let bind: unsafe extern "C" fn(Handle, Object, Object, u64) -> Code =
                self.function(c"vkBindBufferMemory");
            assert_eq!(bind(device, buffer, memory, 0), SUCCESS);
            let map: unsafe extern "C" fn(Handle, Object, u64, u64, u32, *mut *mut c_void) -> Code =
                self.function(c"vkMapMemory");
            assert_eq!(map(device, memory, 0, BUFFER_BYTES, 0, &raw mut words), SUCCESS);
        }
        Program { device, pool, buffer, words: words.expose_provenance(), launched: 0 }
    }

    fn launch_fills(&self, queue: &ExclusiveQueue, fills: u128) {
        let mut program = queue.lock();
        program.launched += 1;
        let number = u32::try_from(program.launched).unwrap();
        let Program { device, pool, buffer, .. } = *program;
        let mut commands = Handle::NONE;
        let allocate_info = info(COMMAND_BUFFER_ALLOCATE_INFO, [pool, pair(0, 1)]);
        let begin_info = info(COMMAND_BUFFER_BEGIN_INFO, [0, 0]);
        // SAFETY: as in `find`. This thread has locked the queue.
        unsafe {
            let allocate: unsafe extern "C" fn(Handle, *const Chained, *mut Handle) -> Code =
                self.function(c"vkAllocateCommandBuffers");
            assert_eq!(allocate(device, &raw const allocate_info.head, &raw mut commands), SUCCESS);
            let begin: unsafe extern "C" fn(Handle, *const Chained) -> Code =
                self.function(c"vkBeginCommandBuffer");
            assert_eq!(begin(commands, &raw const begin_info.head), SUCCESS);
            let fill: unsafe extern "C" fn(Handle, Object, u64, u64, u32) = self.function(c"vkCmdFillBuffer");
            for _ in 0..fills {
                fill(commands, buffer, 4, BUFFER_BYTES - 4, number);
            }
            fill(commands, buffer, 0, 4, number);
            let end: unsafe extern "C" fn(Handle) -> Code = self.function(c"vkEndCommandBuffer");
            assert_eq!(end(commands), SUCCESS);
            let batch = info(4, [0, 0, 0, 1, address(&commands), 0, 0]);
            let submit: unsafe extern "C" fn(Handle, u32, *const Chained, Object) -> Code =
                self.function(c"vkQueueSubmit");
            assert_eq!(submit(queue.queue, 1, &raw const batch.head, 0), SUCCESS);
        }
    }
}

impl Subject for Machine {
    type Queue = ExclusiveQueue;

    fn queue(&self) -> Arc<Self::Queue> {
        let (handle, mut queue) = (self.create_device(), Handle::NONE);
        // SAFETY: as in `find`; the device exists.
        let device = unsafe {
            let get: unsafe extern "C" fn(Handle, u32, u32, *mut Handle) = self.function(c"vkGetDeviceQueue");
            get(handle, 0, 0, &raw mut queue);
            Device::of(queue).expect("the device was just added")
        };
        let hw = open(&device, queue);
        Arc::new(ExclusiveQueue { hw, queue, program: Mutex::new(self.create_program(handle)) })
    }

    fn launch(&self, queue: &Self::Queue, length: Duration) {
        self.launch_fills(queue, (length.as_micros() * self.fills_per_ms / 1_000).max(1));
    }

    fn finished(&self, queue: &Self::Queue) -> u64 {
        let word = ptr::with_exposed_provenance::<u32>(queue.lock().words);
        // SAFETY: the memory stays mapped; the device may write to it at any time.
        u64::from(unsafe { word.read_volatile() })
    }
}

#[test]
fn only_the_submitting_thread_places_markers() {
    let Some(machine) = Machine::open() else { return };
    let queue = machine.queue();
    let refused = queue.hw.mark().expect_err("no thread submits to the queue").to_string();
    assert!(refused.contains("only a thread that submits"), "{refused}");
    queue.mark().unwrap();
}

#[test]
fn destroyed_device_is_forgotten_with_its_fences() {
    let Some(machine) = Machine::open() else { return };
    let queue = machine.queue();
    let marker = queue.mark().unwrap();
    assert!(queue.wait(marker, Duration::from_secs(30)).unwrap());
    // SAFETY: the queue exists.
    let device = unsafe { Device::of(queue.queue) }.unwrap();
    // SAFETY: the device exists, and no queue is tracked.
    unsafe { device.remove() };
    // SAFETY: the queue exists.
    assert!(unsafe { Device::of(queue.queue) }.is_none());
    let gone = queue.mark().expect_err("the device was removed").to_string();
    assert!(gone.contains("destroyed"), "{gone}");
}

xsched_core::conformance!(match Machine::open() {
    Some(machine) => machine,
    None => return,
});
