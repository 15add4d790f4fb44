//! `libcuda.so.1`: the functions used here, and safe handles on what they make.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use anyhow::{Context as _, bail};

type Code = c_int;
type Handle = *mut c_void;

const LIBRARY: &CStr = c"libcuda.so.1";
const SUCCESS: Code = 0;
const NOT_READY: Code = 600;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream.
const NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC`: whoever waits sleeps instead of using a processor.
const SLEEP_FOR_EVENTS: c_uint = 1;
const SM_COUNT: c_int = 16;
const THREADS_PER_SM: c_int = 39;

/// Declares the functions with their types once, and finds them all.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            fn of(library: Handle) -> anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        let found = symbol(library, $symbol)?;
                        // SAFETY: the driver's function of this name has this type, in every version since it exists.
                        unsafe { std::mem::transmute::<Handle, unsafe extern "C" fn($($argument),*) -> Code>(found) }
                    },)*
                })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    driver_version = c"cuDriverGetVersion" (*mut c_int);
    device_count = c"cuDeviceGetCount" (*mut c_int);
    device_get = c"cuDeviceGet" (*mut c_int, c_int);
    device_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    retain_context = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    set_context = c"cuCtxSetCurrent" (Handle);
    priority_range = c"cuCtxGetStreamPriorityRange" (*mut c_int, *mut c_int);
    load_module = c"cuModuleLoadData" (*mut Handle, *const c_void);
    get_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    allocate = c"cuMemAlloc_v2" (*mut u64, usize);
    create_stream = c"cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    synchronize = c"cuStreamSynchronize" (Handle);
    create_event = c"cuEventCreate" (*mut Handle, c_uint);
    record_event = c"cuEventRecord" (Handle, Handle);
    query_event = c"cuEventQuery" (Handle);
    synchronize_event = c"cuEventSynchronize" (Handle);
    launch = c"cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    error_name = c"cuGetErrorName" (Code, *mut *const c_char);
}

fn symbol(library: Handle, name: &CStr) -> anyhow::Result<Handle> {
    // SAFETY: the library is open and never closed, the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        bail!(
            "the NVIDIA driver is too old: {} has no {}",
            LIBRARY.to_string_lossy(),
            name.to_string_lossy()
        );
    }
    Ok(found)
}

/// The first GPU, with the driver's usual context for it. Lives as long as the program.
pub(crate) struct Gpu {
    functions: Functions,
    /// What the driver calls it.
    pub(crate) name: String,
    /// As in 13000 for CUDA 13.0.
    pub(crate) cuda_version: i32,
    device: c_int,
}

// SAFETY: the driver's functions may be called from any thread, and the fields do not change.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the driver and its first GPU, for this thread.
    pub(crate) fn open() -> anyhow::Result<&'static Self> {
        // SAFETY: opens the vendor's library, as every program that uses the GPU does; it stays open.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            // SAFETY: after a failure the loader gives the reason, in a string that lives until its next call.
            let reason = unsafe {
                let reason = libc::dlerror();
                if reason.is_null() { c"libcuda.so.1 cannot be loaded" } else { CStr::from_ptr(reason) }
            };
            bail!("no NVIDIA driver on this machine: {}", reason.to_string_lossy());
        }
        let mut gpu =
            Self { functions: Functions::of(library)?, name: String::new(), cuda_version: 0, device: 0 };
        gpu.start()?;
        Ok(Box::leak(Box::new(gpu)))
    }

    fn start(&mut self) -> anyhow::Result<()> {
        let (mut count, mut version, mut device) = (0, 0, 0);
        let mut name = [0_u8; 256];
        let mut context = ptr::null_mut();
        // SAFETY: every place that is written has room for what is written there, and `name` says how much it has.
        unsafe {
            self.check((self.functions.init)(0), "cuInit").context("the NVIDIA driver does not start")?;
            self.check((self.functions.driver_version)(&raw mut version), "cuDriverGetVersion")?;
            self.check((self.functions.device_count)(&raw mut count), "cuDeviceGetCount")?;
            if count == 0 {
                bail!("the NVIDIA driver is there, but it has no GPU (is CUDA_VISIBLE_DEVICES empty?)");
            }
            self.check((self.functions.device_get)(&raw mut device, 0), "cuDeviceGet")?;
            let asked = (self.functions.device_name)(name.as_mut_ptr().cast(), 255, device);
            self.check(asked, "cuDeviceGetName")?;
            let made = (self.functions.retain_context)(&raw mut context, device);
            self.check(made, "cuDevicePrimaryCtxRetain")?;
            self.check((self.functions.set_context)(context), "cuCtxSetCurrent")?;
        }
        (self.cuda_version, self.device) = (version, device);
        self.name = CStr::from_bytes_until_nul(&name)?.to_string_lossy().into_owned();
        Ok(())
    }

    fn check(&self, code: Code, deed: &str) -> anyhow::Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: the place has room for a pointer; the string is the driver's own and stays.
        let name = unsafe {
            (self.functions.error_name)(code, &raw mut name);
            if name.is_null() { c"an unknown error" } else { CStr::from_ptr(name) }
        };
        bail!("{deed} failed: {} ({code})", name.to_string_lossy())
    }

    /// How many threads run at the same time.
    pub(crate) fn threads(&self) -> anyhow::Result<u32> {
        let ask = |which| -> anyhow::Result<u32> {
            let mut value = 0;
            // SAFETY: the place has room for the answer.
            let code = unsafe { (self.functions.device_attribute)(&raw mut value, which, self.device) };
            self.check(code, "cuDeviceGetAttribute")?;
            Ok(u32::try_from(value)?)
        };
        Ok(ask(SM_COUNT)? * ask(THREADS_PER_SM)?)
    }

    /// Compiles the text of a module.
    pub(crate) fn module(&self, text: &str) -> anyhow::Result<Module> {
        let text = CString::new(text)?;
        let mut module = ptr::null_mut();
        // SAFETY: the text is a C string, and there is room for a handle.
        let code = unsafe { (self.functions.load_module)(&raw mut module, text.as_ptr().cast()) };
        self.check(code, "cuModuleLoadData")?;
        Ok(Module(module))
    }

    /// A kernel of a module.
    pub(crate) fn kernel(&self, module: &Module, name: &CStr) -> anyhow::Result<Kernel> {
        let mut kernel = ptr::null_mut();
        // SAFETY: modules are never unloaded; the name is a C string, and there is room for a handle.
        let code = unsafe { (self.functions.get_function)(&raw mut kernel, module.0, name.as_ptr()) };
        self.check(code, "cuModuleGetFunction")?;
        Ok(Kernel(kernel))
    }

    /// Memory of the device that is never given back.
    pub(crate) fn memory(&self, bytes: usize) -> anyhow::Result<u64> {
        let mut address = 0;
        // SAFETY: there is room for an address.
        let code = unsafe { (self.functions.allocate)(&raw mut address, bytes) };
        self.check(code, "cuMemAlloc")?;
        Ok(address)
    }

    /// A stream of its own; smaller numbers are more important, and none is the default.
    pub(crate) fn stream(&self, priority: Option<i32>) -> anyhow::Result<Stream<'_>> {
        if let Some(priority) = priority {
            let (mut least, mut most) = (0, 0);
            // SAFETY: both places have room for a number.
            let code = unsafe { (self.functions.priority_range)(&raw mut least, &raw mut most) };
            self.check(code, "cuCtxGetStreamPriorityRange")?;
            if !(most..=least).contains(&priority) {
                bail!("stream priority {priority} is out of range: this GPU has {most} (highest) to {least}");
            }
        }
        let mut stream = ptr::null_mut();
        // SAFETY: there is room for a handle.
        let code = unsafe {
            (self.functions.create_stream)(&raw mut stream, NON_BLOCKING, priority.unwrap_or_default())
        };
        self.check(code, "cuStreamCreateWithPriority")?;
        Ok(Stream { gpu: self, handle: stream })
    }

    /// A point in a stream that can be waited for.
    pub(crate) fn event(&self) -> anyhow::Result<Event<'_>> {
        let mut event = ptr::null_mut();
        // SAFETY: there is room for a handle.
        let code = unsafe { (self.functions.create_event)(&raw mut event, SLEEP_FOR_EVENTS) };
        self.check(code, "cuEventCreate")?;
        Ok(Event { gpu: self, handle: event })
    }
}

/// Compiled kernels.
pub(crate) struct Module(Handle);

/// One kernel of a module.
pub(crate) struct Kernel(Handle);

/// See [`Gpu::stream`].
pub(crate) struct Stream<'a> {
    gpu: &'a Gpu,
    handle: Handle,
}

impl Stream<'_> {
    /// Launches a kernel that takes two numbers of 64 bits, or none and ignores these.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        numbers: [u64; 2],
    ) -> anyhow::Result<()> {
        let [mut first, mut second] = numbers;
        let mut parameters: [*mut c_void; 2] = [(&raw mut first).cast(), (&raw mut second).cast()];
        // SAFETY: the kernel is one of ours, with at most these two parameters; the driver copies them before it returns.
        let code = unsafe {
            let (handle, more) = (self.handle, parameters.as_mut_ptr());
            (self.gpu.functions.launch)(
                kernel.0,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                0,
                handle,
                more,
                ptr::null_mut(),
            )
        };
        self.gpu.check(code, "cuLaunchKernel")
    }

    /// Dependencies until everything launched is done.
    pub(crate) fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: streams are never destroyed.
        let code = unsafe { (self.gpu.functions.synchronize)(self.handle) };
        self.gpu.check(code, "cuStreamSynchronize")
    }

    /// Moves an event to the end of what was launched.
    pub(crate) fn record(&self, event: &Event<'_>) -> anyhow::Result<()> {
        // SAFETY: neither is ever destroyed.
        let code = unsafe { (self.gpu.functions.record_event)(event.handle, self.handle) };
        self.gpu.check(code, "cuEventRecord")
    }
}

/// See [`Gpu::event`].
pub(crate) struct Event<'a> {
    gpu: &'a Gpu,
    handle: Handle,
}

impl Event<'_> {
    /// Whether the device has passed it.
    pub(crate) fn is_passed(&self) -> anyhow::Result<bool> {
        // SAFETY: events are never destroyed.
        let code = unsafe { (self.gpu.functions.query_event)(self.handle) };
        if code == NOT_READY { Ok(false) } else { self.gpu.check(code, "cuEventQuery").map(|()| true) }
    }

    /// Dependencies until the device has passed it.
    pub(crate) fn wait(&self) -> anyhow::Result<()> {
        // SAFETY: as above.
        let code = unsafe { (self.gpu.functions.synchronize_event)(self.handle) };
        self.gpu.check(code, "cuEventSynchronize")
    }
}
