//! The driver's own look-up function, through which the CUDA runtime and most frameworks find all others.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::LIBRARY;
use super::memory::swap;
use super::vendor::{self, Code};
use crate::loader::Hook;

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_FUNCTIONS: u64 = 2;
/// From this version on, `cuGetProcAddress` denotes `cuGetProcAddress_v2`.
const CUDA_12: c_int = 12_000;
/// From this version on, `cuCtxSynchronize` denotes `cuCtxSynchronize_v2`, which takes a context.
const CUDA_13: c_int = 13_000;

/// Calls `real`, the driver's own look-up function. If the function it found has a hook, stores its address for the hook and
/// returns the hook to the program.
pub(super) fn get_proc_address(
    real: impl FnOnce() -> Code,
    symbol: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Code {
    let code = real();
    // SAFETY: the program passes the same pointer to the driver, which reads a C string there.
    let name = unsafe { vendor::symbol_name(symbol) };
    if code != vendor::SUCCESS || found.is_null() {
        return code;
    }
    // SAFETY: the driver has just written the address there.
    let address = unsafe { *found };
    let hook = name.filter(|_| !address.is_null()).and_then(|name| find_hook(name, version, flags));
    if let Some(hook) = hook.filter(|hook| is_hooked_form(hook, address)) {
        // SAFETY: as above.
        unsafe { *found = hook.install(address) };
    }
    code
}

/// The hook for a name that is looked up. The driver has several forms of some functions, and returns one of them for the plain
/// name, depending on version and flags.
fn find_hook(name: &CStr, version: c_int, flags: u64) -> Option<&'static Hook> {
    let name = name.to_str().ok()?;
    let form = match name {
        "cuGetProcAddress" if version >= CUDA_12 => "cuGetProcAddress_v2",
        "cuArray3DCreate" => "cuArray3DCreate_v2",
        "cuArrayCreate" => "cuArrayCreate_v2",
        "cuCtxDestroy" => "cuCtxDestroy_v2",
        "cuCtxSynchronize" if version >= CUDA_13 => "cuCtxSynchronize_v2",
        "cuGraphInstantiate" if version >= CUDA_12 => "cuGraphInstantiateWithFlags",
        "cuGraphInstantiate" => "cuGraphInstantiate_v2",
        "cuMemcpy3DBatchAsync" if version >= CUDA_13 => "cuMemcpy3DBatchAsync_v2",
        "cuMemcpyBatchAsync" if version >= CUDA_13 => "cuMemcpyBatchAsync_v2",
        "cuMemGetAddressRange" => "cuMemGetAddressRange_v2",
        "cuMemcpyAtoD" => "cuMemcpyAtoD_v2",
        "cuMemcpyDtoA" => "cuMemcpyDtoA_v2",
        "cuMemcpyDtoD" => "cuMemcpyDtoD_v2",
        "cuMemcpyDtoDAsync" => "cuMemcpyDtoDAsync_v2",
        "cuMemsetD16" => "cuMemsetD16_v2",
        "cuMemsetD2D16" => "cuMemsetD2D16_v2",
        "cuMemsetD2D32" => "cuMemsetD2D32_v2",
        "cuMemsetD2D8" => "cuMemsetD2D8_v2",
        "cuMemsetD32" => "cuMemsetD32_v2",
        "cuMemsetD8" => "cuMemsetD8_v2",
        "cuTexRefSetAddress" => "cuTexRefSetAddress_v2",
        "cuTexRefSetAddress2D" => "cuTexRefSetAddress2D_v3",
        "cuDevicePrimaryCtxRelease" => "cuDevicePrimaryCtxRelease_v2",
        "cuDevicePrimaryCtxReset" => "cuDevicePrimaryCtxReset_v2",
        "cuDeviceTotalMem" => "cuDeviceTotalMem_v2",
        "cuIpcOpenMemHandle" => "cuIpcOpenMemHandle_v2",
        "cuMemAlloc" => "cuMemAlloc_v2",
        "cuMemAllocHost" => "cuMemAllocHost_v2",
        "cuMemAllocPitch" => "cuMemAllocPitch_v2",
        "cuMemFree" => "cuMemFree_v2",
        "cuMemGetInfo" => "cuMemGetInfo_v2",
        "cuMemHostRegister" => "cuMemHostRegister_v2",
        "cuMemcpy2D" => "cuMemcpy2D_v2",
        "cuMemcpy2DAsync" => "cuMemcpy2DAsync_v2",
        "cuMemcpy2DUnaligned" => "cuMemcpy2DUnaligned_v2",
        "cuMemcpy3D" => "cuMemcpy3D_v2",
        "cuMemcpy3DAsync" => "cuMemcpy3DAsync_v2",
        "cuMemcpyAtoH" => "cuMemcpyAtoH_v2",
        "cuMemcpyDtoH" => "cuMemcpyDtoH_v2",
        "cuMemcpyDtoHAsync" => "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoA" => "cuMemcpyHtoA_v2",
        "cuMemcpyHtoD" => "cuMemcpyHtoD_v2",
        "cuMemcpyHtoDAsync" => "cuMemcpyHtoDAsync_v2",
        "cuStreamBatchMemOp" => "cuStreamBatchMemOp_v2",
        "cuStreamBeginCapture" => "cuStreamBeginCapture_v2",
        "cuStreamDestroy" => "cuStreamDestroy_v2",
        "cuStreamWriteValue32" => "cuStreamWriteValue32_v2",
        "cuStreamWriteValue64" => "cuStreamWriteValue64_v2",
        other => other,
    };
    let has_suffix = |hook: &Hook, suffix: &str| {
        hook.name
            .to_str()
            .is_ok_and(|name| name.strip_suffix(suffix) == Some(form) || (suffix.is_empty() && name == form))
    };
    let for_swapping = if swap::calls::is_requested() { swap::calls::LIBRARY.hooks() } else { &[] };
    let hooks = || LIBRARY.hooks().iter().chain(for_swapping);
    let is_per_thread = |hook: &&&Hook| has_suffix(hook, "_ptsz") || has_suffix(hook, "_ptds");
    let wants_per_thread = flags & PER_THREAD_FUNCTIONS != 0;
    let per_thread = wants_per_thread.then(|| hooks().find(is_per_thread)).flatten();
    per_thread.or_else(|| hooks().find(|hook| has_suffix(hook, ""))).copied()
}

/// Whether the hook has the parameters of the function that the driver has found: the two forms of `cuCtxSynchronize` have different
/// ones.
fn is_hooked_form(hook: &Hook, address: *mut c_void) -> bool {
    !matches!(hook.name.to_bytes(), b"cuCtxSynchronize" | b"cuCtxSynchronize_v2")
        || LIBRARY.symbol(hook.name) == address
}
