//! NVIDIA's management library, as far as the service needs it: which processes use a GPU, and how much.
//!
//! It is loaded while it is used and is no dependency of the service. The layouts are those of `nvml.h` since driver 510.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::time::{SystemTime, UNIX_EPOCH};

use xsched_core::DeviceId;

use super::unscheduled::GpuProcess;

const LIBRARY: &CStr = c"libnvidia-ml.so.1";
const SUCCESS: c_int = 0;
/// More processes or samples than this are not looked at.
const MAX_ENTRIES: usize = 1024;
/// How far back samples are read. The driver takes one or several in each second.
const SAMPLED: u64 = 1_500_000;

type Handle = *mut c_void;

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used_memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// `nvmlProcessUtilizationSample_t`. The utilizations are in percent.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sample {
    pid: c_uint,
    /// In microseconds since 1970.
    taken_at: c_ulonglong,
    multiprocessors: c_uint,
    memory: c_uint,
    encoder: c_uint,
    decoder: c_uint,
}

type NoArguments = unsafe extern "C" fn() -> c_int;
type HandleByAddress = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
type RunningProcesses = unsafe extern "C" fn(Handle, *mut c_uint, *mut ProcessInfo) -> c_int;
type ProcessUtilization = unsafe extern "C" fn(Handle, *mut Sample, *mut c_uint, c_ulonglong) -> c_int;

/// The library, initialized. Shut down when dropped.
pub(super) struct ManagementLibrary {
    library: *mut c_void,
    shut_down: NoArguments,
    handle_by_address: HandleByAddress,
    running_processes: RunningProcesses,
    process_utilization: ProcessUtilization,
}

impl ManagementLibrary {
    /// Loads and initializes the library. None if there is none, or no driver.
    pub(super) fn load() -> Option<Self> {
        // SAFETY: loading runs the library's constructors, as every program does that manages a GPU.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return None;
        }
        let initialized = Self::initialize(library);
        if initialized.is_none() {
            // SAFETY: it was loaded above, and nothing of it is in use.
            unsafe { libc::dlclose(library) };
        }
        initialized
    }

    fn initialize(library: *mut c_void) -> Option<Self> {
        let find = |name: &CStr| {
            // SAFETY: the library was loaded by the caller.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let running_processes = find(c"nvmlDeviceGetComputeRunningProcesses_v3")
            .or_else(|| find(c"nvmlDeviceGetComputeRunningProcesses_v2"))?;
        let initialize = find(c"nvmlInit_v2")?;
        // SAFETY: `nvml.h` declares the functions of these names with these types.
        let (initialize, loaded) = unsafe {
            let initialize = std::mem::transmute::<*mut c_void, NoArguments>(initialize);
            let loaded = Self {
                library,
                shut_down: std::mem::transmute::<*mut c_void, NoArguments>(find(c"nvmlShutdown")?),
                handle_by_address: std::mem::transmute::<*mut c_void, HandleByAddress>(find(
                    c"nvmlDeviceGetHandleByPciBusId_v2",
                )?),
                running_processes: std::mem::transmute::<*mut c_void, RunningProcesses>(running_processes),
                process_utilization: std::mem::transmute::<*mut c_void, ProcessUtilization>(find(
                    c"nvmlDeviceGetProcessUtilization",
                )?),
            };
            (initialize, std::mem::ManuallyDrop::new(loaded))
        };
        // SAFETY: it has no arguments.
        let is_initialized = unsafe { initialize() } == SUCCESS;
        is_initialized.then(|| std::mem::ManuallyDrop::into_inner(loaded))
    }

    /// The processes that use a GPU. None if the library does not know the device.
    pub(super) fn processes(&self, device: DeviceId) -> Option<Vec<GpuProcess>> {
        let address = CString::new(device.to_string()).ok()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both pointers are valid during the call.
        if unsafe { (self.handle_by_address)(address.as_ptr(), &raw mut handle) } != SUCCESS {
            return None;
        }
        let mut processes = vec![ProcessInfo::default(); MAX_ENTRIES];
        let mut count = c_uint::try_from(MAX_ENTRIES).unwrap_or(0);
        // SAFETY: there is room for `count` entries.
        let result = unsafe { (self.running_processes)(handle, &raw mut count, processes.as_mut_ptr()) };
        if result != SUCCESS {
            return None;
        }
        processes.truncate(count as usize);
        let samples = self.samples(handle);
        let utilization = |pid: u32| {
            let its =
                || samples.iter().filter(|sample| sample.pid == pid).map(|sample| sample.multiprocessors);
            its().sum::<u32>() / u32::try_from(its().count().max(1)).unwrap_or(1)
        };
        Some(
            processes
                .iter()
                .map(|info| GpuProcess { pid: info.pid, utilization: utilization(info.pid) })
                .collect(),
        )
    }

    /// The samples of the last second. None of a process that did not use the GPU.
    fn samples(&self, handle: Handle) -> Vec<Sample> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros());
        let since = u64::try_from(now).unwrap_or(0).saturating_sub(SAMPLED);
        let mut samples = vec![Sample::default(); MAX_ENTRIES];
        let mut count = c_uint::try_from(MAX_ENTRIES).unwrap_or(0);
        // SAFETY: there is room for `count` samples.
        let result =
            unsafe { (self.process_utilization)(handle, samples.as_mut_ptr(), &raw mut count, since) };
        samples.truncate(if result == SUCCESS { count as usize } else { 0 });
        samples.retain(|sample| sample.taken_at >= since && sample.multiprocessors <= 100);
        samples
    }
}

impl Drop for ManagementLibrary {
    fn drop(&mut self) {
        // SAFETY: `initialize` initialized it, and only this value uses it.
        unsafe {
            (self.shut_down)();
            libc::dlclose(self.library);
        }
    }
}
