//! Copies and fills of memory. The runtime carries out fills, copies within a device, small copies and copies of rectangles as
//! kernels, so they are launches, and a program that only copies or fills is scheduled, too.
//!
//! | operation | held at the gate | counted as work |
//! |---|---|---|
//! | fill; copy within a device; copy of a rectangle, array or symbol; copy of unknown direction | yes | yes |
//! | copy between host and device, up to the runtime's limit for kernels | yes | yes |
//! | larger copy between host and device: by a copy engine (SDMA) | no | unless the task is held |
//!
//! A copy engine does not take compute units from other tasks. A held task's copy by an engine is passed on at once: the
//! runtime keeps its place in the stream, behind kernels that wait for the device. Allocation in streams (`hipMallocAsync`,
//! `hipFreeAsync`) is not hooked, because it does not run on the device.

use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;

use xsched_interpose::{forward_once, run_isolated};

use super::NullStream::{self, Legacy, PerThread};
use super::runtime_copies::{self, Hook};
use super::stream::StreamId;
use super::vendor::{self, Code, Extent, PitchedPointer, Stream};
use super::{Call, DOMAIN, event_markers, has_device, hook_macro, is_captured, missing, stream_kind, track};
use crate::runtime::runtime;

type Address = *mut c_void;

/// The default stream.
const NULL: Stream = std::ptr::null_mut();

hook_macro::hooks! {
    // Fills. A function without a stream uses the default stream.
    [288] fn hipMemset(to: Address, value: c_int, size: usize)
        = |call, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [289] fn hipMemset2D(to: Address, pitch: usize, value: c_int, width: usize, height: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [290] fn hipMemset2DAsync(to: Address, pitch: usize, value: c_int, width: usize, height: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [291] fn hipMemset3D(to: PitchedPointer, value: c_int, extent: Extent)
        = |call, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [292] fn hipMemset3DAsync(to: PitchedPointer, value: c_int, extent: Extent, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [293] fn hipMemsetAsync(to: Address, value: c_int, size: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [294] fn hipMemsetD16(to: Address, value: u16, count: usize)
        = |call, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [295] fn hipMemsetD16Async(to: Address, value: u16, count: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [296] fn hipMemsetD32(to: Address, value: c_int, count: usize)
        = |call, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [297] fn hipMemsetD32Async(to: Address, value: c_int, count: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [298] fn hipMemsetD8(to: Address, value: u8, count: usize)
        = |call, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [299] fn hipMemsetD8Async(to: Address, value: u8, count: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [396] fn hipMemset_spt(to: Address, value: c_int, size: usize)
        = |call, _, _, _| enqueue(call, NULL, PerThread, Engine::Kernel);
    [397] fn hipMemsetAsync_spt(to: Address, value: c_int, size: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [398] fn hipMemset2D_spt(to: Address, pitch: usize, value: c_int, width: usize, height: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, PerThread, Engine::Kernel);
    [399] fn hipMemset2DAsync_spt(to: Address, pitch: usize, value: c_int, width: usize, height: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [400] fn hipMemset3DAsync_spt(to: PitchedPointer, value: c_int, extent: Extent, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [401] fn hipMemset3D_spt(to: PitchedPointer, value: c_int, extent: Extent)
        = |call, _, _, _| enqueue(call, NULL, PerThread, Engine::Kernel);
    [478] fn hipMemsetD2D8(to: Address, pitch: usize, value: u8, width: usize, height: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [479] fn hipMemsetD2D8Async(to: Address, pitch: usize, value: u8, width: usize, height: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [480] fn hipMemsetD2D16(to: Address, pitch: usize, value: u16, width: usize, height: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [481] fn hipMemsetD2D16Async(to: Address, pitch: usize, value: u16, width: usize, height: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [482] fn hipMemsetD2D32(to: Address, pitch: usize, value: c_uint, width: usize, height: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [483] fn hipMemsetD2D32Async(to: Address, pitch: usize, value: c_uint, width: usize, height: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);

    // Copies that return at once, or that do not wait for the default stream only.
    [74] fn hipDrvMemcpy3DAsync(parameters: Address, stream: Stream)
        = |call, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [261] fn hipMemcpy2DAsync(to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [263] fn hipMemcpy2DFromArrayAsync(to: Address, to_pitch: usize, from: Address, x: usize, y: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [265] fn hipMemcpy2DToArrayAsync(to: Address, x: usize, y: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [267] fn hipMemcpy3DAsync(parameters: Address, stream: Stream)
        = |call, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [268] fn hipMemcpyAsync(to: Address, from: Address, size: usize, kind: c_int, stream: Stream)
        = |call, _, _, size, kind, stream| enqueue(call, stream, Legacy, Engine::of(kind, size));
    [271] fn hipMemcpyDtoDAsync(to: Address, from: Address, size: usize, stream: Stream)
        = |call, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [273] fn hipMemcpyDtoHAsync(to: Address, from: Address, size: usize, stream: Stream)
        = |call, _, _, size, stream| enqueue(call, stream, Legacy, Engine::of(TO_HOST, size));
    [276] fn hipMemcpyFromSymbolAsync(to: Address, symbol: Address, size: usize, offset: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [279] fn hipMemcpyHtoDAsync(to: Address, from: Address, size: usize, stream: Stream)
        = |call, _, _, size, stream| enqueue(call, stream, Legacy, Engine::of(TO_DEVICE, size));
    [281] fn hipMemcpyParam2DAsync(parameters: Address, stream: Stream)
        = |call, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [282] fn hipMemcpyPeer(to: Address, to_device: c_int, from: Address, from_device: c_int, size: usize)
        = |call, _, _, _, _, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [283] fn hipMemcpyPeerAsync(to: Address, to_device: c_int, from: Address, from_device: c_int, size: usize, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [286] fn hipMemcpyToSymbolAsync(symbol: Address, from: Address, size: usize, offset: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [402] fn hipMemcpyAsync_spt(to: Address, from: Address, size: usize, kind: c_int, stream: Stream)
        = |call, _, _, size, kind, stream| enqueue(call, stream, PerThread, Engine::of(kind, size));
    [403] fn hipMemcpy3DAsync_spt(parameters: Address, stream: Stream)
        = |call, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [404] fn hipMemcpy2DAsync_spt(to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [405] fn hipMemcpyFromSymbolAsync_spt(to: Address, symbol: Address, size: usize, offset: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [406] fn hipMemcpyToSymbolAsync_spt(symbol: Address, from: Address, size: usize, offset: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [409] fn hipMemcpy2DFromArrayAsync_spt(to: Address, to_pitch: usize, from: Address, from_x: usize, from_y: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [410] fn hipMemcpy2DToArrayAsync_spt(to: Address, x: usize, y: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int, stream: Stream)
        = |call, _, _, _, _, _, _, _, _, stream| enqueue(call, stream, PerThread, Engine::Kernel);
    [449] fn hipMemcpyAtoHAsync(to: Address, from: Address, from_offset: usize, size: usize, stream: Stream)
        = |call, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [450] fn hipMemcpyHtoAAsync(to: Address, to_offset: usize, from: Address, size: usize, stream: Stream)
        = |call, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [487] fn hipMemcpyBatchAsync(to: Address, from: Address, sizes: Address, count: usize, attributes: Address, indices: Address, attribute_count: usize, failed: Address, stream: Stream)
        = |call, _, _, _, _, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [488] fn hipMemcpy3DBatchAsync(count: usize, operations: Address, failed: Address, flags: u64, stream: Stream)
        = |call, _, _, _, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);
    [489] fn hipMemcpy3DPeer(parameters: Address)
        = |call, _| enqueue(call, NULL, Legacy, Engine::Kernel);
    [490] fn hipMemcpy3DPeerAsync(parameters: Address, stream: Stream)
        = |call, _, stream| enqueue(call, stream, Legacy, Engine::Kernel);

    // Copies that return when they, and everything before them in the stream, have completed.
    [72] fn hipDrvMemcpy2DUnaligned(parameters: Address)
        = |call, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [73] fn hipDrvMemcpy3D(parameters: Address)
        = |call, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [259] fn hipMemcpy(to: Address, from: Address, size: usize, kind: c_int)
        = |call, _, _, size, kind| copy_and_wait(call, NULL, Legacy, Engine::of(kind, size));
    [260] fn hipMemcpy2D(to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [262] fn hipMemcpy2DFromArray(to: Address, to_pitch: usize, from: Address, x: usize, y: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [264] fn hipMemcpy2DToArray(to: Address, x: usize, y: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [266] fn hipMemcpy3D(parameters: Address)
        = |call, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [269] fn hipMemcpyAtoH(to: Address, from: Address, from_offset: usize, count: usize)
        = |call, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [270] fn hipMemcpyDtoD(to: Address, from: Address, size: usize)
        = |call, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [272] fn hipMemcpyDtoH(to: Address, from: Address, size: usize)
        = |call, _, _, size| copy_and_wait(call, NULL, Legacy, Engine::of(TO_HOST, size));
    [274] fn hipMemcpyFromArray(to: Address, from: Address, x: usize, y: usize, count: usize, kind: c_int)
        = |call, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [275] fn hipMemcpyFromSymbol(to: Address, symbol: Address, size: usize, offset: usize, kind: c_int)
        = |call, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [277] fn hipMemcpyHtoA(to: Address, to_offset: usize, from: Address, count: usize)
        = |call, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [278] fn hipMemcpyHtoD(to: Address, from: Address, size: usize)
        = |call, _, _, size| copy_and_wait(call, NULL, Legacy, Engine::of(TO_DEVICE, size));
    [280] fn hipMemcpyParam2D(parameters: Address)
        = |call, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [284] fn hipMemcpyToArray(to: Address, x: usize, y: usize, from: Address, count: usize, kind: c_int)
        = |call, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [285] fn hipMemcpyToSymbol(symbol: Address, from: Address, size: usize, offset: usize, kind: c_int)
        = |call, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [287] fn hipMemcpyWithStream(to: Address, from: Address, size: usize, kind: c_int, stream: Stream)
        = |call, _, _, size, kind, stream| copy_and_wait(call, stream, Legacy, Engine::of(kind, size));
    [390] fn hipMemcpy_spt(to: Address, from: Address, size: usize, kind: c_int)
        = |call, _, _, size, kind| copy_and_wait(call, NULL, PerThread, Engine::of(kind, size));
    [391] fn hipMemcpyToSymbol_spt(symbol: Address, from: Address, size: usize, offset: usize, kind: c_int)
        = |call, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [392] fn hipMemcpyFromSymbol_spt(to: Address, symbol: Address, size: usize, offset: usize, kind: c_int)
        = |call, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [393] fn hipMemcpy2D_spt(to: Address, to_pitch: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [394] fn hipMemcpy2DFromArray_spt(to: Address, to_pitch: usize, from: Address, x: usize, y: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [395] fn hipMemcpy3D_spt(parameters: Address)
        = |call, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [407] fn hipMemcpyFromArray_spt(to: Address, from: Address, from_x: usize, y: usize, count: usize, kind: c_int)
        = |call, _, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [408] fn hipMemcpy2DToArray_spt(to: Address, x: usize, y: usize, from: Address, from_pitch: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _, _| copy_and_wait(call, NULL, PerThread, Engine::Kernel);
    [446] fn hipMemcpyAtoD(to: Address, from: Address, from_offset: usize, size: usize)
        = |call, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [447] fn hipMemcpyDtoA(to: Address, to_offset: usize, from: Address, size: usize)
        = |call, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [448] fn hipMemcpyAtoA(to: Address, to_offset: usize, from: Address, from_offset: usize, size: usize)
        = |call, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
    [451] fn hipMemcpy2DArrayToArray(to: Address, to_x: usize, to_y: usize, from: Address, from_x: usize, from_y: usize, width: usize, height: usize, kind: c_int)
        = |call, _, _, _, _, _, _, _, _, _| copy_and_wait(call, NULL, Legacy, Engine::Kernel);
}

/// `hipMemcpyHostToDevice` and `hipMemcpyDeviceToHost`.
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;

/// What carries out an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Kernel,
    /// A copy engine, or the host.
    Copy,
}

impl Engine {
    /// For a copy of one range.
    fn of(kind: c_int, size: usize) -> Self {
        static LIMIT: OnceLock<Option<usize>> = OnceLock::new();
        let limit = *LIMIT.get_or_init(|| kernel_copy_limit(|name| std::env::var(name).ok()));
        Self::for_copy(kind, size, limit)
    }

    /// `limit` is the largest copy between host and device that is a kernel; none if all of them are.
    fn for_copy(kind: c_int, size: usize, limit: Option<usize>) -> Self {
        /// `hipMemcpyHostToHost` and `hipMemcpyDeviceToDeviceNoCU`.
        const ON_HOST: c_int = 0;
        const WITHOUT_KERNEL: c_int = 1024;
        match kind {
            ON_HOST | WITHOUT_KERNEL => Self::Copy,
            TO_DEVICE | TO_HOST if limit.is_some_and(|limit| size > limit) => Self::Copy,
            _ => Self::Kernel,
        }
    }
}

/// The runtime's own settings: the largest copy that it carries out with a kernel, in KiB, and whether it may use the engines.
fn kernel_copy_limit(variable: impl Fn(&str) -> Option<String>) -> Option<usize> {
    const DEFAULT_KIB: usize = 16;
    if variable("HSA_ENABLE_SDMA").is_some_and(|value| value.trim() == "0") {
        return None;
    }
    let kib = variable("GPU_FORCE_BLIT_COPY_SIZE").and_then(|value| value.trim().parse::<usize>().ok());
    kib.unwrap_or(DEFAULT_KIB).checked_mul(1024)
}

fn enqueue(call: Call, stream: Stream, null: NullStream, engine: Engine) -> Code {
    run(call, stream, null, engine, false)
}

fn copy_and_wait(call: Call, stream: Stream, null: NullStream, engine: Engine) -> Code {
    run(call, stream, null, engine, true)
}

fn run(call: Call, stream: Stream, null: NullStream, engine: Engine, waits: bool) -> Code {
    let Some(runtime) = runtime() else { return call.forward() };
    let Call { copy, real } = call;
    let kind = stream_kind(stream, null);
    let waited_for = Cell::new(None);
    let code = forward_once(
        || event_markers::recording_failure(real),
        |call| {
            if is_captured(copy, kind) || !has_device(copy) {
                return;
            }
            let Some(stream) = StreamId::resolve(copy, kind) else { return };
            let queue = runtime.queue_or_track(stream.key, || track(runtime, stream));
            let Some(path) = queue.as_ref().and_then(|queue| queue.launch_path()) else { return };
            if engine == Engine::Copy && path.gate().order().stops() {
                // The caller passes it on.
                return;
            }
            if waits {
                waited_for.set(Some(stream.key));
                path.launch_and_finish(|| path.synchronized(call));
            } else {
                path.launch(call);
            }
        },
    );
    if code != vendor::SUCCESS
        && let Some(key) = waited_for.get()
    {
        // It may not have waited.
        run_isolated(|| {
            if let Some(path) = runtime.queue(key).as_ref().and_then(|queue| queue.launch_path()) {
                path.assume_busy();
            }
        });
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_copies_between_host_and_device_use_an_engine() {
        const LIMIT: Option<usize> = Some(16 << 10);
        const WITHIN_DEVICE: c_int = 3;
        const UNKNOWN: c_int = 4;
        for kind in [TO_DEVICE, TO_HOST] {
            assert_eq!(Engine::for_copy(kind, 16 << 10, LIMIT), Engine::Kernel, "{kind}");
            assert_eq!(Engine::for_copy(kind, (16 << 10) + 1, LIMIT), Engine::Copy, "{kind}");
            assert_eq!(Engine::for_copy(kind, 1 << 30, None), Engine::Kernel, "{kind}, without engines");
        }
        for kind in [WITHIN_DEVICE, UNKNOWN, 99] {
            assert_eq!(Engine::for_copy(kind, 1 << 30, LIMIT), Engine::Kernel, "{kind}");
        }
        assert_eq!(Engine::for_copy(0, 8, LIMIT), Engine::Copy, "on the host");
    }

    #[test]
    fn limit_follows_the_runtimes_settings() {
        let with = |sdma: Option<&str>, size: Option<&str>| {
            kernel_copy_limit(|name| if name == "HSA_ENABLE_SDMA" { sdma } else { size }.map(str::to_owned))
        };
        assert_eq!(with(None, None), Some(16 << 10));
        assert_eq!(with(Some("1"), Some("64")), Some(64 << 10));
        assert_eq!(with(None, Some("many")), Some(16 << 10));
        assert_eq!(with(Some("0"), Some("64")), None);
    }
}
