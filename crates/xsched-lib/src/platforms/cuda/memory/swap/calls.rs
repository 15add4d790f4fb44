//! The calls that are hooked only because they use device memory, in all forms of the driver. Programs that are started without
//! `--swap` find the driver's own functions.
//!
//! The two forms of a batch of copies differ in one parameter. The hook of the older form, which has one more, forwards either.

use std::ffi::{CStr, c_int, c_uint, c_void};

use super::{copies, pointers};
use crate::hooks::hooks;
use crate::loader::{HookTable, LookupHook, SymbolName};
use crate::platforms::cuda::VENDOR;
use crate::platforms::cuda::vendor::{self, Code, Context, Stream};

hooks! {
    prefix "cu";
    if missing return vendor::NOT_INITIALIZED;

    fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, bytes: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpyDtoDAsync_v2_ptsz(to: usize, from: usize, bytes: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpyPeerAsync(to: usize, to_context: Context, from: usize, from_context: Context, bytes: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemcpyPeerAsync_ptsz(to: usize, to_context: Context, from: usize, from_context: Context, bytes: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemcpyDtoA_v2(to: usize, offset: usize, from: usize, bytes: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpyDtoA_v2_ptds(to: usize, offset: usize, from: usize, bytes: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpyAtoD_v2(to: usize, from: usize, offset: usize, bytes: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpyAtoD_v2_ptds(to: usize, from: usize, offset: usize, bytes: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpy3DPeerAsync(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(real);
    fn cuMemcpy3DPeerAsync_ptsz(copy: *const c_void, stream: Stream) -> Code = |real, _, _| copies(real);
    fn cuMemcpyBatchAsync(to: *mut c_void, from: *mut c_void, sizes: *mut c_void, count: usize, attributes: *mut c_void, indexes: *mut c_void, number: usize, failed_or_stream: *mut c_void, stream: Stream) -> Code = |real, _, _, _, _, _, _, _, _, _| copies(real);
    fn cuMemcpyBatchAsync_ptsz(to: *mut c_void, from: *mut c_void, sizes: *mut c_void, count: usize, attributes: *mut c_void, indexes: *mut c_void, number: usize, failed_or_stream: *mut c_void, stream: Stream) -> Code = |real, _, _, _, _, _, _, _, _, _| copies(real);
    fn cuMemcpyBatchAsync_v2(to: *mut c_void, from: *mut c_void, sizes: *mut c_void, count: usize, attributes: *mut c_void, indexes: *mut c_void, number: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _, _, _| copies(real);
    fn cuMemcpyBatchAsync_v2_ptsz(to: *mut c_void, from: *mut c_void, sizes: *mut c_void, count: usize, attributes: *mut c_void, indexes: *mut c_void, number: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _, _, _| copies(real);
    fn cuMemcpy3DBatchAsync(count: usize, operations: *mut c_void, failed_or_flags: *mut c_void, flags_or_stream: *mut c_void, stream: Stream) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemcpy3DBatchAsync_ptsz(count: usize, operations: *mut c_void, failed_or_flags: *mut c_void, flags_or_stream: *mut c_void, stream: Stream) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemcpy3DBatchAsync_v2(count: usize, operations: *mut c_void, flags: u64, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemcpy3DBatchAsync_v2_ptsz(count: usize, operations: *mut c_void, flags: u64, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD8_v2(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD8_v2_ptds(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD16_v2(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD16_v2_ptds(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD32_v2(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD32_v2_ptds(to: usize, value: c_uint, count: usize) -> Code = |real, _, _, _| copies(real);
    fn cuMemsetD2D8_v2(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD2D8_v2_ptds(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD2D16_v2(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD2D16_v2_ptds(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD2D32_v2(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD2D32_v2_ptds(to: usize, pitch: usize, value: c_uint, width: usize, height: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuMemsetD8Async(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD8Async_ptsz(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD16Async(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD16Async_ptsz(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD32Async(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD32Async_ptsz(to: usize, value: c_uint, count: usize, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuMemsetD2D8Async(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemsetD2D8Async_ptsz(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemsetD2D16Async(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemsetD2D16Async_ptsz(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemsetD2D32Async(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuMemsetD2D32Async_ptsz(to: usize, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuStreamWriteValue32(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWriteValue32_ptsz(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWriteValue64(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWriteValue64_ptsz(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue32(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue32_ptsz(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue64(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue64_ptsz(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue32_v2(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue32_v2_ptsz(stream: Stream, address: u64, value: u32, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue64_v2(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamWaitValue64_v2_ptsz(stream: Stream, address: u64, value: u64, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamBatchMemOp(stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuStreamBatchMemOp_ptsz(stream: Stream, count: c_uint, operations: *mut c_void, flags: c_uint) -> Code = |real, _, _, _, _| copies(real);
    fn cuLaunch(f: *mut c_void) -> Code = |real, _| copies(real);
    fn cuLaunchGrid(f: *mut c_void, width: c_int, height: c_int) -> Code = |real, _, _, _| copies(real);
    fn cuLaunchGridAsync(f: *mut c_void, width: c_int, height: c_int, stream: Stream) -> Code = |real, _, _, _, _| copies(real);
    fn cuLaunchCooperativeKernelMultiDevice(list: *mut c_void, count: c_uint, flags: c_uint) -> Code = |real, _, _, _| copies(real);
    fn cuGraphUpload(graph: *mut c_void, stream: Stream) -> Code = |real, _, _| copies(real);
    fn cuGraphUpload_ptsz(graph: *mut c_void, stream: Stream) -> Code = |real, _, _| copies(real);
    fn cuGraphInstantiate_v2(executable: *mut c_void, graph: *mut c_void, node: *mut c_void, log: *mut c_void, size: usize) -> Code = |real, _, _, _, _, _| copies(real);
    fn cuGraphInstantiateWithFlags(executable: *mut c_void, graph: *mut c_void, flags: u64) -> Code = |real, _, _, _| copies(real);
    fn cuGraphInstantiateWithParams(executable: *mut c_void, graph: *mut c_void, parameters: *mut c_void) -> Code = |real, _, _, _| copies(real);
    fn cuGraphInstantiateWithParams_ptsz(executable: *mut c_void, graph: *mut c_void, parameters: *mut c_void) -> Code = |real, _, _, _| copies(real);
    fn cuGraphAddMemcpyNode(node: *mut c_void, graph: *mut c_void, dependencies: *const c_void, count: usize, copy: *const c_void, context: Context) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuGraphAddMemsetNode(node: *mut c_void, graph: *mut c_void, dependencies: *const c_void, count: usize, parameters: *const c_void, context: Context) -> Code = |real, _, _, _, _, _, _| copies(real);
    fn cuGraphExecMemcpyNodeSetParams(executable: *mut c_void, node: *mut c_void, copy: *const c_void, context: Context) -> Code = |real, _, _, _, _| copies(real);
    fn cuGraphExecMemsetNodeSetParams(executable: *mut c_void, node: *mut c_void, parameters: *const c_void, context: Context) -> Code = |real, _, _, _, _| copies(real);
    fn cuTexObjectCreate(texture: *mut c_void, resource: *const c_void, parameters: *const c_void, view: *const c_void) -> Code = |real, _, _, _, _| copies(real);
    fn cuTexRefSetAddress_v2(offset: *mut usize, reference: *mut c_void, address: usize, bytes: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuTexRefSetAddress2D_v3(reference: *mut c_void, shape: *const c_void, address: usize, pitch: usize) -> Code = |real, _, _, _, _| copies(real);
    fn cuPointerGetAttribute(out: *mut c_void, which: c_int, address: usize) -> Code = pointers::attribute;
    fn cuPointerGetAttributes(count: c_uint, which: *const c_int, out: *const *mut c_void, address: usize) -> Code = pointers::attributes;
    fn cuMemGetAddressRange_v2(base: *mut usize, bytes: *mut usize, address: usize) -> Code = pointers::address_range;
    fn cuPointerSetAttribute(value: *const c_void, which: c_int, address: usize) -> Code
        = |real, _, _, address| pointers::expose(real, address);
    fn cuMemGetHandleForAddressRange(handle: *mut c_void, address: usize, bytes: usize, kind: c_int, flags: u64) -> Code
        = |real, _, address, _, _, _| pointers::expose(real, address);
    fn cuMulticastBindAddr(handle: u64, offset: usize, address: usize, bytes: usize, flags: u64) -> Code
        = |real, _, _, address, _, _| pointers::expose(real, address);
}

/// The hooks, for programs that are started with `--swap`.
pub(in super::super::super) struct IfRequested;

impl HookTable for IfRequested {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        if is_requested() { LIBRARY.find_hook(name) } else { None }
    }
}

/// Whether the environment requests it. Takes no lock and allocates nothing: the look-up hook calls it before constructors have run.
pub(in super::super::super) fn is_requested() -> bool {
    // SAFETY: the name is a C string. As for every reader of the environment, no other thread may change it meanwhile.
    let value = unsafe { libc::getenv(c"XSCHED_SWAP".as_ptr()) };
    // SAFETY: not null, so the C library returned a C string.
    let value = (!value.is_null()).then(|| unsafe { CStr::from_ptr(value) }.to_bytes());
    value.is_some_and(|value| !matches!(value, b"" | b"0" | b"off" | b"OFF" | b"false" | b"FALSE"))
}
