//! The dispatch table, and how it is passed to tools.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use crate::error::{Code, NOT_FOUND, NOT_SUPPORTED, to_code};
use crate::{
    attributes, capture, compiler, device, device_memory, error, event, kernel, memory, stall, stream,
};

include!(concat!(env!("OUT_DIR"), "/names.rs"));

unsafe extern "C" {
    /// The entries of functions that are not implemented.
    static hip_standin_defaults: [*const c_void; NAMES.len()];
    /// The exported functions; null for what is not exported.
    static hip_standin_exports: [*const c_void; NAMES.len()];
}

/// `{ size_t size; function slots[]; }`, followed by the functions that have no slot.
#[repr(C)]
struct Table {
    size: usize,
    functions: [*const c_void; NAMES.len()],
}

struct Shared(*mut Table);
// SAFETY: it is written before it is shared, or by the tools that receive it at that time.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The number of slots in version 6.4.
const DEFAULT_VISIBLE_SLOTS: usize = 474;

#[allow(clippy::too_many_lines, reason = "a list")]
fn implementations() -> Vec<(&'static str, *const c_void)> {
    macro_rules! list {
        ($($name:literal => $function:expr,)*) => { vec![$(($name, $function as *const c_void)),*] };
    }
    list! {
        "hipInit" => device::init,
        "hipGetDeviceCount" => device::get_count,
        "hipGetDevice" => device::get,
        "hipSetDevice" => device::set,
        "hipDeviceGet" => device::get_handle,
        "hipDeviceGetName" => attributes::name,
        "hipDeviceGetPCIBusId" => attributes::pci_bus_id,
        "hipDeviceGetAttribute" => attributes::attribute,
        "hipDeviceGetStreamPriorityRange" => attributes::priority_range,
        "hipDeviceSynchronize" => device::synchronize,
        "hipDeviceReset" => stream::reset_device,
        "hipGetDevicePropertiesR0600" => attributes::properties,
        "hipGetDevicePropertiesR0000" => attributes::properties_of_version_5,
        "hipGetDeviceProperties" => attributes::properties_of_version_5,
        "hipRuntimeGetVersion" => attributes::runtime_version,
        "hipDriverGetVersion" => attributes::runtime_version,
        "hipCtxSynchronize" => device::context_synchronize,
        "hipCtxGetCurrent" => device::context_get_current,
        "hipGetLastError" => error::get_last_error,
        "hipExtGetLastError" => error::get_last_error,
        "hipPeekAtLastError" => error::peek_at_last_error,
        "hipGetErrorName" => error::name,
        "hipGetErrorString" => error::name,
        "hipStreamCreate" => stream::create,
        "hipStreamCreateWithFlags" => stream::create_with_flags,
        "hipStreamCreateWithPriority" => stream::create_with_priority,
        "hipExtStreamCreateWithCUMask" => stream::create_with_mask,
        "hipStreamDestroy" => stream::destroy,
        "hipStreamSynchronize" => stream::synchronize,
        "hipStreamSynchronize_spt" => stream::synchronize_spt,
        "hipStreamQuery" => stream::query,
        "hipStreamGetDevice" => stream::get_device,
        "hipGetStreamDeviceId" => stream::device_id,
        "hipStreamGetPriority" => stream::get_priority,
        "hipStreamGetFlags" => stream::get_flags,
        "hipStreamWaitEvent" => stream::wait_event,
        "hipStreamWaitValue64" => stall::wait_value,
        "hipStreamBeginCapture" => capture::begin,
        "hipStreamEndCapture" => capture::end,
        "hipStreamIsCapturing" => capture::is_capturing,
        "hipThreadExchangeStreamCaptureMode" => capture::exchange_mode,
        "hipGraphGetNodes" => capture::get_nodes,
        "hipGraphInstantiate" => capture::instantiate,
        "hipGraphDestroy" => capture::destroy,
        "hipGraphExecDestroy" => capture::destroy,
        "hipGraphLaunch" => capture::launch,
        "hipGraphLaunch_spt" => capture::launch_spt,
        "hipLaunchHostFunc" => capture::launch_host_function,
        "hipEventCreate" => event::create,
        "hipEventCreateWithFlags" => event::create_with_flags,
        "hipEventDestroy" => event::destroy,
        "hipEventRecord" => event::record,
        "hipEventRecord_spt" => event::record_spt,
        "hipEventQuery" => event::query,
        "hipEventSynchronize" => event::synchronize,
        "hipMalloc" => device_memory::allocate,
        "hipHostMalloc" => memory::allocate_with_flags,
        "hipExtMallocWithFlags" => memory::allocate_with_flags,
        "hipMallocManaged" => memory::allocate_with_flags,
        "hipMallocAsync" => device_memory::allocate_on,
        "hipMallocFromPoolAsync" => device_memory::allocate_from_pool,
        "hipMallocPitch" => device_memory::allocate_pitched,
        "hipMemAllocPitch" => device_memory::allocate_pitched_elements,
        "hipMalloc3D" => device_memory::allocate_3d,
        "hipMallocArray" => device_memory::allocate_array,
        "hipMalloc3DArray" => device_memory::allocate_array_3d,
        "hipArrayCreate" => device_memory::create_array::<2>,
        "hipArray3DCreate" => device_memory::create_array::<3>,
        "hipFree" => device_memory::free,
        "hipFreeArray" => device_memory::free,
        "hipArrayDestroy" => device_memory::free,
        "hipHostFree" => device_memory::free,
        "hipFreeAsync" => device_memory::free_on,
        "hipMemcpy" => memory::copy,
        "hipMemcpyAsync" => memory::copy_on,
        "hipMemcpyWithStream" => memory::copy_and_wait,
        "hipMemcpyDtoDAsync" => memory::copy_within_on,
        "hipMemcpyDtoH" => memory::copy_to_host,
        "hipMemcpyHtoD" => memory::copy_to_device,
        "hipMemcpy2DAsync" => memory::copy_2d_on,
        "hipMemset" => memory::set,
        "hipMemsetAsync" => memory::set_on,
        "hipMemsetD32Async" => memory::set_32_on,
        "hipMemset2DAsync" => memory::set_2d_on,
        "hipMemset3DAsync" => memory::set_3d_on,
        "hipMemGetInfo" => device_memory::information,
        "hipDeviceTotalMem" => device_memory::size_of_device,
        "hipModuleLoad" => kernel::load_module,
        "hipModuleLoadData" => kernel::load_module,
        "hipModuleLoadDataEx" => kernel::load_module,
        "hipModuleUnload" => kernel::unload_module,
        "hipModuleGetFunction" => kernel::get_function,
        "hiprtcCreateProgram" => compiler::create,
        "hiprtcCompileProgram" => compiler::compile,
        "hiprtcGetCodeSize" => compiler::code_size,
        "hiprtcGetCode" => compiler::code,
        "hipKernelNameRef" => kernel::name_of,
        "hipKernelNameRefByPtr" => kernel::name_of,
        "hipLaunchKernel" => kernel::launch,
        "hipLaunchKernel_spt" => kernel::launch_spt,
        "hipExtLaunchKernel" => kernel::launch_ext,
        "hipLaunchCooperativeKernel" => kernel::launch,
        "hipLaunchCooperativeKernel_spt" => kernel::launch_spt,
        "hipLaunchKernelExC" => kernel::launch_config,
        "hipDrvLaunchKernelEx" => kernel::launch_config,
        "hipModuleLaunchKernel" => kernel::launch_module,
        "hipModuleLaunchCooperativeKernel" => kernel::launch_module,
        "hipExtModuleLaunchKernel" => kernel::launch_module_ext,
        "hipHccModuleLaunchKernel" => kernel::launch_module_ext,
        "_Z24hipExtModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_j" => kernel::launch_module_ext,
        "_Z24hipHccModuleLaunchKernelP18ihipModuleSymbol_tjjjjjjmP12ihipStream_tPPvS4_P11ihipEvent_tS6_" => kernel::launch_module_ext,
        "hipLaunchCooperativeKernelMultiDevice" => kernel::launch_all,
        "hipExtLaunchMultiKernelMultiDevice" => kernel::launch_all,
        "hipConfigureCall" => kernel::push_configuration,
        "hipSetupArgument" => kernel::set_up_argument,
        "hipLaunchByPtr" => kernel::launch_by_pointer,
        "__hipPushCallConfiguration" => kernel::push_configuration,
        "__hipPopCallConfiguration" => kernel::pop_configuration,
        "__hipRegisterFatBinary" => kernel::register_binary,
        "__hipUnregisterFatBinary" => kernel::unregister_binary,
        "__hipRegisterFunction" => kernel::register_function,
        "__hipRegisterVar" => kernel::register_nothing,
        "__hipRegisterManagedVar" => kernel::register_nothing,
        "hipGetProcAddress" => get_proc_address,
        "hipGetDriverEntryPoint" => get_entry_point,
    }
}

/// Returns the table; every exported function calls this first.
#[unsafe(no_mangle)]
extern "C" fn hip_standin_table() -> *const c_void {
    static TABLE: OnceLock<Shared> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let visible = std::env::var("HIP_STANDIN_SLOTS")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(DEFAULT_VISIBLE_SLOTS);
        // SAFETY: filled by the assembler with addresses of functions.
        let functions = unsafe { hip_standin_defaults };
        let mut table = Box::new(Table { size: 8 + 8 * visible.min(NAMES.len()), functions });
        for (name, function) in implementations() {
            match NAMES.iter().position(|known| *known == name) {
                Some(index) => table.functions[index] = function,
                None => unreachable!("{name} is missing in interface.txt"),
            }
        }
        let table = Box::into_raw(table);
        pass_to_register(table);
        Shared(table)
    });
    table.0.cast_const().cast()
}

#[unsafe(no_mangle)]
extern "C" fn hip_standin_unsupported(index: c_int) -> Code {
    let name = usize::try_from(index).ok().and_then(|index| NAMES.get(index)).unwrap_or(&"?");
    if std::env::var_os("HIP_STANDIN_VERBOSE").is_some() {
        eprintln!("hip stand-in: {name} is not implemented");
    }
    to_code(Err(NOT_SUPPORTED))
}

pub(crate) type SetTable = unsafe extern "C" fn(*const c_char, u64, u64, *mut *mut c_void, u64) -> c_int;

type Register = unsafe extern "C" fn(
    *const c_char,
    extern "C" fn() -> u32,
    u32,
    *mut *mut c_void,
    u64,
    *mut u64,
) -> c_int;

/// The import function by which `rocprofiler-register` verifies the runtime's version.
extern "C" fn import() -> u32 {
    version()
}

/// The version of the runtime: `HIP_STANDIN_VERSION`, or 6.4.
fn version() -> u32 {
    std::env::var("HIP_STANDIN_VERSION").ok().and_then(|version| version.parse().ok()).unwrap_or(60_400)
}

/// Passes the table to the real `rocprofiler-register`, if `HIP_STANDIN_REGISTER` is its path. Otherwise does what that
/// library does: it finds a tool by one exported name or by the environment, and passes the table to another.
fn pass_to_register(table: *mut Table) {
    let look = |library: *mut c_void, name: &CStr| {
        // SAFETY: a handle of the dynamic loader, and a C string.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    if std::env::var_os("HIP_STANDIN_NO_REGISTER").is_some() {
        return;
    }
    if let Some(path) = std::env::var("HIP_STANDIN_REGISTER").ok().and_then(|path| CString::new(path).ok()) {
        // SAFETY: a C string; the user named the library.
        let register = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        let found = look(register, c"rocprofiler_register_library_api_table");
        // SAFETY: the function of this name has this type.
        let register = found.map(|found| unsafe { std::mem::transmute::<*mut c_void, Register>(found) });
        let (mut tables, mut id) = ([table.cast::<c_void>()], 0);
        if let Some(register) = register {
            // SAFETY: one table, which is never freed, and room for an id.
            unsafe { register(c"hip".as_ptr(), import, version(), tables.as_mut_ptr(), 1, &raw mut id) };
        }
        return;
    }
    let named = std::env::var("ROCPROFILER_REGISTER_LIBRARY").ok().and_then(|path| CString::new(path).ok());
    let library = match named {
        // SAFETY: a C string; the user named the library.
        Some(path) => unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) },
        None if look(libc::RTLD_DEFAULT, c"rocprofiler_configure").is_some() => libc::RTLD_DEFAULT,
        None => return,
    };
    let Some(set) = look(library, c"rocprofiler_set_api_table") else { return };
    // SAFETY: the function of this name has this type.
    let set = unsafe { std::mem::transmute::<*mut c_void, SetTable>(set) };
    let mut tables = [table.cast::<c_void>()];
    // SAFETY: one table, which is never freed.
    unsafe { set(c"hip".as_ptr(), version().into(), 0, tables.as_mut_ptr(), 1) };
}

fn exported(name: *const c_char) -> Option<*const c_void> {
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) }.to_str().ok()?;
    let index = NAMES.iter().position(|known| *known == name)?;
    // SAFETY: filled by the assembler.
    Some(unsafe { hip_standin_exports[index] }).filter(|address| !address.is_null())
}

extern "C" fn get_proc_address(
    name: *const c_char,
    out: *mut *const c_void,
    _version: c_int,
    _flags: u64,
    status: *mut c_int,
) -> Code {
    get_entry_point(name, out, 0, status)
}

extern "C" fn get_entry_point(
    name: *const c_char,
    out: *mut *const c_void,
    _flags: u64,
    status: *mut c_int,
) -> Code {
    let found = exported(name);
    if !status.is_null() {
        let _ = device::write_out(status, c_int::from(found.is_none()));
    }
    to_code(device::write_out(out, found.unwrap_or(std::ptr::null())).and(found.map(drop).ok_or(NOT_FOUND)))
}
