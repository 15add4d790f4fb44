//! The VPI platform: `libnvvpi.so`, NVIDIA's Vision Programming Interface, which runs on the engines of a Jetson.
//!
//! * [`queue`]: a stream as a hardware queue. [`vendor`]: VPI's functions and types.

mod api;
#[cfg(test)]
mod conformance;
mod queue;
mod vendor;

use std::ffi::{c_int, c_void};

use xsched_interpose::run_isolated;

use crate::event_wait_lists;
use crate::hooks::hooks;
use crate::loader::VendorIdentity;
use crate::platforms::Platform;
use crate::queue_hooks;
use crate::runtime::runtime;
use crate::tracked_queue::ApiQueue;
use queue::Vpi;
use vendor::{CPU, Code, Context, Event, SIGNALED, SUCCESS, Stream};

/// No other library has these names.
static VENDOR: VendorIdentity = VendorIdentity { exports: &[], files: &["libnvvpi.so"] };

/// The platform, for the registry.
pub(crate) static PLATFORM: Platform = Platform {
    vendor: &VENDOR,
    hooks: &[&LIBRARY],
    bypasses_hook: None,
    observe_ioctl: None,
    at_exit: None,
    #[cfg(test)]
    header: &api::HEADER,
};

type Pointer = *mut c_void;

/// Hooks the functions of VPI, and those that submit an algorithm, which are given by their names: versions of VPI differ in their number
/// and in their parameters. All begin with a stream and a backend. So their hooks forward every register that can hold an argument, and as much
/// of the stack as the longest of them uses: 16 integers and pointers, and 8 floating point numbers. A hook of a shorter function reads
/// further words of the stack, which exist, and forwards them to a function that does not read them.
macro_rules! vpi_hooks {
    ( algorithms { $( $algorithm:ident )* } $($others:tt)* ) => {
        hooks! {
            prefix "vpi";
            if missing return vendor::INTERNAL;
            arguments may be floating point;

            $(
                fn $algorithm(stream: Stream, backend: u64, i3: u64, i4: u64, i5: u64, i6: u64, i7: u64, i8: u64, i9: u64, i10: u64, i11: u64, i12: u64, i13: u64, i14: u64, i15: u64, i16: u64, f1: f64, f2: f64, f3: f64, f4: f64, f5: f64, f6: f64, f7: f64, f8: f64) -> Code
                    = |real, stream, backend, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _| submit(real, stream, backend);
            )*
            $($others)*
        }
    };
}

vpi_hooks! {
    // All of versions 1.0 to 4.1.
    algorithms {
        vpiSubmitAprilTagDetector
        vpiSubmitAprilTagPoseEstimation
        vpiSubmitBackgroundSubtractor
        vpiSubmitBilateralFilter
        vpiSubmitBoxFilter
        vpiSubmitBruteForceMatcher
        vpiSubmitCannyEdgeDetector
        vpiSubmitConvertImageFormat
        vpiSubmitConvertImageFormatPyramid
        vpiSubmitConvolution
        vpiSubmitCopyArray
        vpiSubmitCopyImage
        vpiSubmitCopyPyramid
        vpiSubmitCropScalerBatch
        vpiSubmitDCFTrackerLocalizeBatch
        vpiSubmitDCFTrackerUpdateBatch
        vpiSubmitDilate
        vpiSubmitDynamicRemap
        vpiSubmitEqualizeHist
        vpiSubmitErode
        vpiSubmitExtractColorNameFeatures
        vpiSubmitExtractHOGFeatures
        vpiSubmitFASTCornerDetector
        vpiSubmitFFT
        vpiSubmitGaussianFilter
        vpiSubmitGaussianPyramidGenerator
        vpiSubmitHarrisCornerDetector
        vpiSubmitHistogram
        vpiSubmitIFFT
        vpiSubmitImageFlip
        vpiSubmitImageStats
        vpiSubmitKLTFeatureTracker
        vpiSubmitLaplacianPyramidGenerator
        vpiSubmitMedianFilter
        vpiSubmitMinMaxLoc
        vpiSubmitMixChannels
        vpiSubmitOpticalFlowDense
        vpiSubmitOpticalFlowDensePyramid
        vpiSubmitOpticalFlowPyrLK
        vpiSubmitORBFeatureDetector
        vpiSubmitPerspectiveWarp
        vpiSubmitRecursiveGaussianFilter
        vpiSubmitRemap
        vpiSubmitRescale
        vpiSubmitSeparableConvolution
        vpiSubmitStereoDisparityEstimator
        vpiSubmitTemplateMatching
        vpiSubmitTemporalNoiseReduction
        vpiSubmitTransformEstimator
    }

    fn vpiSubmitHostFunction(stream: Stream, function: Pointer, data: Pointer) -> Code = |real, stream, _, _| wait(real, stream, event_wait_lists::launch_waiting_for_program::<Vpi, _>);
    fn vpiSubmitHostFunctionEx(stream: Stream, function: Pointer, data: Pointer) -> Code = |real, stream, _, _| wait(real, stream, event_wait_lists::launch_waiting_for_program::<Vpi, _>);
    fn vpiStreamWaitEvent(stream: Stream, event: Event) -> Code
        = |real, stream, _| wait(real, stream, event_wait_lists::launch_waiting_for_event::<Vpi, _>);

    fn vpiStreamCreate(flags: u64, stream: *mut Stream) -> Code = |real, _, stream| create(real, stream);
    fn vpiStreamCreateWrapperCUDA(cuda: Pointer, flags: u64, stream: *mut Stream) -> Code = |real, _, _, stream| create(real, stream);
    // The name in version 1.
    fn vpiStreamCreateCUDAStreamWrapper(cuda: Pointer, flags: u64, stream: *mut Stream) -> Code = |real, _, _, stream| create(real, stream);
    fn vpiStreamDestroy(stream: Stream) -> () = destroy;
    fn vpiContextDestroy(context: Context) -> ()
        = |real, context| queue_hooks::destroy_all(real, || queue::STREAMS.take(|of| *of == context));

    fn vpiStreamSync(stream: Stream) -> Code = queue_hooks::synchronize;
    fn vpiEventSync(event: Event) -> Code = |real, _| queue_hooks::after_wait(real, |code| *code == SUCCESS);
    fn vpiEventQuery(event: Event, state: *mut c_int) -> Code = |real, _, state| query(real, state);
}

/// Calls `real`, which submits an algorithm, once the scheduler allows it. Algorithms on the processor's cores use no engine.
fn submit(real: impl FnOnce() -> Code, stream: Stream, backend: u64) -> Code {
    // Version 1 passes 32 bits, beside which the register has any.
    #[allow(clippy::cast_possible_truncation, reason = "the backends are the lower 16 bits")]
    if backend as u32 & 0xffff == CPU {
        return real();
    }
    queue_hooks::launch_and_track(real, stream.addr(), || queue::open(stream))
}

/// Calls `real`, after which the stream waits, and which `launch` launches if the stream is tracked.
fn wait<F: FnOnce() -> Code>(real: F, stream: Stream, launch: impl FnOnce(F, Stream) -> Code) -> Code {
    if runtime().is_some_and(|runtime| runtime.is_tracked(stream.addr())) {
        launch(real, stream)
    } else {
        real()
    }
}

fn create(real: impl FnOnce() -> Code, stream: *mut Stream) -> Code {
    let code = real();
    // SAFETY: the vendor's function has written the handle, if it succeeded.
    if let (SUCCESS, Some(stream)) = (code, unsafe { stream.as_ref() }) {
        queue_hooks::queue_created(*stream, || queue::open(*stream));
    }
    code
}

fn destroy(real: impl FnOnce(), stream: Stream) {
    let destroy = || {
        run_isolated(|| queue::STREAMS.forget(stream.addr()));
        real();
    };
    queue_hooks::release_queue(destroy, stream);
}

fn query(real: impl FnOnce() -> Code, state: *const c_int) -> Code {
    // SAFETY: the vendor's function has written the state, if it succeeded.
    queue_hooks::after_wait(real, |code| *code == SUCCESS && unsafe { state.as_ref() } == Some(&SIGNALED))
}

/// A stream that the program passes to the C interface.
fn api_queue(stream: Pointer) -> Option<ApiQueue> {
    ApiQueue::from_handle(&LIBRARY, "libnvvpi.so", stream, queue::open)
}
