//! The algorithms. They run for as many microseconds as the input image is wide.
//!
//! None filters anything. The output is the input, scaled and with the offset of a conversion, or plus a number made of all other
//! parameters: a test sees whether each of them arrived.
#![allow(clippy::cast_precision_loss, reason = "tests pass small numbers")]

use std::ffi::c_void;
use std::time::Duration;

use xsched_standin_streams::object::get;
use xsched_standin_streams::occupy;

use crate::image::ImageHandle;
use crate::stream::StreamHandle;
use crate::{Code, INVALID_ARGUMENT, vpi};

/// Submits an algorithm that computes `output` from `input` pixel by pixel.
///
/// # Safety
/// As the vendor's headers demand.
unsafe fn submit(
    stream: StreamHandle,
    input: ImageHandle,
    output: ImageHandle,
    compute: impl Fn(f32) -> f32 + Send + 'static,
) -> Result<(), Code> {
    // SAFETY: the caller guarantees it.
    let (stream, input, output) = unsafe { (get(stream)?, get(input)?, get(output)?) };
    stream.object.submit(move |sim| {
        if occupy(sim, Duration::from_micros(input.object.width())) {
            let computed: Vec<f32> = input.object.pixels().iter().map(|pixel| compute(*pixel)).collect();
            let mut pixels = output.object.pixels();
            for (to, from) in pixels.iter_mut().zip(computed) {
                *to = from;
            }
        }
    });
    Ok(())
}

/// The beginning of `VPIConvertImageFormatParams`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Conversion {
    policy: i32,
    scale: f32,
    offset: f32,
}

/// The sum of `count` numbers; none if there are none.
///
/// # Safety
/// `numbers` is null or has so many elements.
unsafe fn sum(numbers: *const f32, count: i32) -> Option<f32> {
    let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
    // SAFETY: the caller guarantees it.
    (!numbers.is_null()).then(|| unsafe { std::slice::from_raw_parts(numbers, count) }.iter().sum())
}

vpi! {
    fn vpiSubmitConvertImageFormat(stream: StreamHandle, _backend: u64, input: ImageHandle, output: ImageHandle, conversion: *const Conversion) {
        // SAFETY: as the vendor's headers demand.
        let conversion = unsafe { conversion.as_ref() }.copied();
        let Conversion { scale, offset, .. } = conversion.unwrap_or(Conversion { policy: 0, scale: 1.0, offset: 0.0 });
        // SAFETY: as the vendor's headers demand.
        unsafe { submit(stream, input, output, move |pixel| pixel * scale + offset) }
    }
    fn vpiSubmitBilateralFilter(stream: StreamHandle, _backend: u64, input: ImageHandle, output: ImageHandle, size: i32, intensity: f32, space: f32, border: i32) {
        let added = size as f32 + 10.0 * intensity + 100.0 * space + 1000.0 * border as f32;
        // SAFETY: as the vendor's headers demand.
        unsafe { submit(stream, input, output, move |pixel| pixel + added) }
    }
    fn vpiSubmitGaussianFilter(stream: StreamHandle, _backend: u64, input: ImageHandle, output: ImageHandle, width: i32, height: i32, sigma_x: f32, sigma_y: f32, border: i32) {
        let added = width as f32 + 10.0 * height as f32 + 100.0 * sigma_x + 1000.0 * sigma_y + 10_000.0 * border as f32;
        // SAFETY: as the vendor's headers demand.
        unsafe { submit(stream, input, output, move |pixel| pixel + added) }
    }
    fn vpiSubmitSeparableConvolution(stream: StreamHandle, _backend: u64, input: ImageHandle, output: ImageHandle, x: *const f32, x_size: i32, y: *const f32, y_size: i32, border: i32) {
        // SAFETY: as the vendor's headers demand.
        let (x, y) = unsafe { (sum(x, x_size).ok_or(INVALID_ARGUMENT)?, sum(y, y_size).ok_or(INVALID_ARGUMENT)?) };
        let added = x + 10.0 * y + 100.0 * border as f32;
        // SAFETY: as the vendor's headers demand.
        unsafe { submit(stream, input, output, move |pixel| pixel + added) }
    }
    fn vpiSubmitDCFTrackerLocalizeBatch(stream: StreamHandle, _backend: u64, payload: *const f32, enabled: *const i32, sequences: i32, _window: *const c_void, input: ImageHandle, objects: *const f32, out_objects: *const f32, output: ImageHandle, maxima: *const f32, parameters: *const f32) {
        // The stand-in's trackers, arrays and parameters are numbers.
        // SAFETY: as the vendor's headers demand.
        let number = |pointer: *const f32| unsafe { pointer.as_ref() }.copied().ok_or(INVALID_ARGUMENT);
        // SAFETY: as the vendor's headers demand.
        let enabled = *unsafe { enabled.as_ref() }.ok_or(INVALID_ARGUMENT)?;
        let numbers = [number(payload)?, enabled as f32, sequences as f32, number(objects)?, number(out_objects)?, number(maxima)?, number(parameters)?];
        let added = numbers.iter().rev().fold(0.0, |sum, number| 4.0 * sum + number);
        // SAFETY: as the vendor's headers demand.
        unsafe { submit(stream, input, output, move |pixel| pixel + added) }
    }
}
