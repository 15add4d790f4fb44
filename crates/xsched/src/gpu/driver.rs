//! `libcuda.so.1`: the functions used here, and safe handles for their objects.

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
/// `CU_EVENT_BLOCKING_SYNC`: a thread that waits for the event sleeps instead of spinning.
const BLOCKING_SYNC: c_uint = 1;
const SM_COUNT: c_int = 16;
const THREADS_PER_SM: c_int = 39;

/// Declares the functions with their types, and resolves them all.
macro_rules! functions {
    ($($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        struct Functions {
            $($field: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Functions {
            fn load(library: Handle) -> anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        let found = symbol(library, $symbol)?;
                        // SAFETY: every driver version that exports this name gives the function this type.
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
    copy_to_device = c"cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    copy_to_host = c"cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
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
    // SAFETY: `Gpu::open` opened the library and never closes it; `name` is a C string.
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

/// The first GPU, with its primary context. Never released.
pub(crate) struct Gpu {
    functions: Functions,
    /// The name that the driver reports.
    pub(crate) name: String,
    /// Such as 13000 for CUDA 13.0.
    pub(crate) cuda_version: i32,
    device: c_int,
}

// SAFETY: the driver's functions are thread-safe, and the fields do not change after `Gpu::open`.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens the driver, and makes the primary context of its first GPU current on this thread.
    pub(crate) fn open() -> anyhow::Result<&'static Self> {
        // SAFETY: loads NVIDIA's driver library, whose initializers may run in any program; it is never closed.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if library.is_null() {
            // SAFETY: after a failure `dlerror` returns null or a C string that is valid until the next call of the loader.
            let reason = unsafe {
                let reason = libc::dlerror();
                if reason.is_null() { c"libcuda.so.1 cannot be loaded" } else { CStr::from_ptr(reason) }
            };
            bail!("no NVIDIA driver on this machine: {}", reason.to_string_lossy());
        }
        let mut gpu =
            Self { functions: Functions::load(library)?, name: String::new(), cuda_version: 0, device: 0 };
        gpu.initialize()?;
        Ok(Box::leak(Box::new(gpu)))
    }

    fn initialize(&mut self) -> anyhow::Result<()> {
        let (mut count, mut version, mut device) = (0, 0, 0);
        let mut name = [0_u8; 256];
        let mut context = ptr::null_mut();
        // SAFETY: every output pointer points to a local variable of the type that the function writes; `cuDeviceGetName` writes at
        // most the 255 bytes it is given.
        unsafe {
            self.check((self.functions.init)(0), "cuInit")
                .context("the NVIDIA driver cannot be initialized")?;
            self.check((self.functions.driver_version)(&raw mut version), "cuDriverGetVersion")?;
            self.check((self.functions.device_count)(&raw mut count), "cuDeviceGetCount")?;
            if count == 0 {
                bail!("the NVIDIA driver reports no GPU (is CUDA_VISIBLE_DEVICES empty?)");
            }
            self.check((self.functions.device_get)(&raw mut device, 0), "cuDeviceGet")?;
            let code = (self.functions.device_name)(name.as_mut_ptr().cast(), 255, device);
            self.check(code, "cuDeviceGetName")?;
            let code = (self.functions.retain_context)(&raw mut context, device);
            self.check(code, "cuDevicePrimaryCtxRetain")?;
            self.check((self.functions.set_context)(context), "cuCtxSetCurrent")?;
        }
        (self.cuda_version, self.device) = (version, device);
        self.name = CStr::from_bytes_until_nul(&name)?.to_string_lossy().into_owned();
        Ok(())
    }

    fn check(&self, code: Code, function: &str) -> anyhow::Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = ptr::null();
        // SAFETY: `name` is a local pointer; the driver sets it to a static string or leaves it null.
        let name = unsafe {
            (self.functions.error_name)(code, &raw mut name);
            if name.is_null() { c"an unknown error" } else { CStr::from_ptr(name) }
        };
        bail!("{function} failed: {} ({code})", name.to_string_lossy())
    }

    /// How many threads the GPU runs at the same time.
    pub(crate) fn max_threads(&self) -> anyhow::Result<u32> {
        let attribute = |attribute| -> anyhow::Result<u32> {
            let mut value = 0;
            // SAFETY: `value` is a local variable of the type that the function writes.
            let code = unsafe { (self.functions.device_attribute)(&raw mut value, attribute, self.device) };
            self.check(code, "cuDeviceGetAttribute")?;
            Ok(u32::try_from(value)?)
        };
        Ok(attribute(SM_COUNT)? * attribute(THREADS_PER_SM)?)
    }

    /// Compiles a module from PTX.
    pub(crate) fn load_module(&self, ptx: &str) -> anyhow::Result<Module> {
        let ptx = CString::new(ptx)?;
        let mut module = ptr::null_mut();
        // SAFETY: `ptx` is a C string, and `module` a local handle.
        let code = unsafe { (self.functions.load_module)(&raw mut module, ptx.as_ptr().cast()) };
        self.check(code, "cuModuleLoadData")?;
        Ok(Module(module))
    }

    /// A kernel of a module.
    pub(crate) fn kernel(&self, module: &Module, name: &CStr) -> anyhow::Result<Kernel> {
        let mut kernel = ptr::null_mut();
        // SAFETY: modules are never unloaded; `name` is a C string, and `kernel` a local handle.
        let code = unsafe { (self.functions.get_function)(&raw mut kernel, module.0, name.as_ptr()) };
        self.check(code, "cuModuleGetFunction")?;
        Ok(Kernel(kernel))
    }

    /// Allocates device memory that is never released.
    pub(crate) fn allocate(&self, bytes: usize) -> anyhow::Result<u64> {
        let mut address = 0;
        // SAFETY: `address` is a local variable of the type that the function writes.
        let code = unsafe { (self.functions.allocate)(&raw mut address, bytes) };
        self.check(code, "cuMemAlloc")?;
        Ok(address)
    }

    /// Copies numbers to device memory that has room for them.
    pub(crate) fn copy_to_device(&self, address: u64, numbers: &[u32]) -> anyhow::Result<()> {
        // SAFETY: the numbers are read during the call; the driver rejects an address that is not allocated.
        let code = unsafe {
            let (from, size) = (numbers.as_ptr().cast(), size_of_val(numbers));
            (self.functions.copy_to_device)(address, from, size)
        };
        self.check(code, "cuMemcpyHtoD")
    }

    /// Copies numbers from device memory.
    pub(crate) fn copy_to_host(&self, address: u64, numbers: &mut [u32]) -> anyhow::Result<()> {
        // SAFETY: the numbers are written during the call; the driver rejects an address that is not allocated.
        let code = unsafe {
            let (to, size) = (numbers.as_mut_ptr().cast(), size_of_val(numbers));
            (self.functions.copy_to_host)(to, address, size)
        };
        self.check(code, "cuMemcpyDtoH")
    }

    /// Creates a stream. Lower numbers are higher priorities; none is the default priority.
    pub(crate) fn create_stream(&self, priority: Option<i32>) -> anyhow::Result<Stream<'_>> {
        if let Some(priority) = priority {
            let (mut lowest, mut highest) = (0, 0);
            // SAFETY: both outputs are local variables of the type that the function writes.
            let code = unsafe { (self.functions.priority_range)(&raw mut lowest, &raw mut highest) };
            self.check(code, "cuCtxGetStreamPriorityRange")?;
            if !(highest..=lowest).contains(&priority) {
                bail!(
                    "stream priority {priority} is out of range: allowed on this GPU is {highest} (highest) to {lowest} (lowest)"
                );
            }
        }
        let mut stream = ptr::null_mut();
        // SAFETY: the output is a local handle.
        let code = unsafe {
            (self.functions.create_stream)(&raw mut stream, NON_BLOCKING, priority.unwrap_or_default())
        };
        self.check(code, "cuStreamCreateWithPriority")?;
        Ok(Stream { gpu: self, handle: stream })
    }

    /// Creates an event.
    pub(crate) fn create_event(&self) -> anyhow::Result<Event<'_>> {
        let mut event = ptr::null_mut();
        // SAFETY: the output is a local handle.
        let code = unsafe { (self.functions.create_event)(&raw mut event, BLOCKING_SYNC) };
        self.check(code, "cuEventCreate")?;
        Ok(Event { gpu: self, handle: event })
    }
}

/// A compiled module.
pub(crate) struct Module(Handle);

/// One kernel of a module.
pub(crate) struct Kernel(Handle);

/// See [`Gpu::create_stream`].
pub(crate) struct Stream<'a> {
    gpu: &'a Gpu,
    handle: Handle,
}

impl Stream<'_> {
    /// Launches a kernel with as many parameters, of 64 bits or fewer.
    pub(crate) fn launch<const COUNT: usize>(
        &self,
        kernel: &Kernel,
        blocks: u32,
        threads: u32,
        mut arguments: [u64; COUNT],
    ) -> anyhow::Result<()> {
        let mut parameters = arguments.each_mut().map(|argument| ptr::from_mut(argument).cast::<c_void>());
        // SAFETY: `kernels.rs` passes the parameters of its kernels, whose low bytes come first; the driver copies them before it returns.
        let code = unsafe {
            let (handle, arguments) = (self.handle, parameters.as_mut_ptr());
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
                arguments,
                ptr::null_mut(),
            )
        };
        self.gpu.check(code, "cuLaunchKernel")
    }

    /// Waits until all work launched on the stream is complete.
    pub(crate) fn synchronize(&self) -> anyhow::Result<()> {
        // SAFETY: streams are never destroyed.
        let code = unsafe { (self.gpu.functions.synchronize)(self.handle) };
        self.gpu.check(code, "cuStreamSynchronize")
    }

    /// Records an event after all work launched on the stream.
    pub(crate) fn record(&self, event: &Event<'_>) -> anyhow::Result<()> {
        // SAFETY: streams and events are never destroyed.
        let code = unsafe { (self.gpu.functions.record_event)(event.handle, self.handle) };
        self.gpu.check(code, "cuEventRecord")
    }
}

/// See [`Gpu::create_event`].
pub(crate) struct Event<'a> {
    gpu: &'a Gpu,
    handle: Handle,
}

impl Event<'_> {
    /// Whether the device has reached the event.
    pub(crate) fn is_complete(&self) -> anyhow::Result<bool> {
        // SAFETY: events are never destroyed.
        let code = unsafe { (self.gpu.functions.query_event)(self.handle) };
        if code == NOT_READY { Ok(false) } else { self.gpu.check(code, "cuEventQuery").map(|()| true) }
    }

    /// Waits until the device has reached the event.
    pub(crate) fn wait(&self) -> anyhow::Result<()> {
        // SAFETY: events are never destroyed.
        let code = unsafe { (self.gpu.functions.synchronize_event)(self.handle) };
        self.gpu.check(code, "cuEventSynchronize")
    }
}
