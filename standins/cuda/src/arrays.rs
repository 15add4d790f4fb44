//! CUDA arrays. No kernel of the stand-in accesses one, so an array is only an amount of memory.

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};

use crate::capture;
use crate::code::{Code, Outcome, write_out};
use crate::driver::{Handle, driver, new_handle};

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    width: usize,
    height: usize,
    format: c_int,
    channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor3D {
    width: usize,
    height: usize,
    depth: usize,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

pub(crate) struct Array {
    device: usize,
    bytes: u64,
    context: Handle,
}

/// The arrays of this process.
#[derive(Default)]
pub(crate) struct Arrays(HashMap<Handle, Array>);

impl Arrays {
    /// Removes the arrays of a destroyed context. Returns the device and the size of each.
    pub(crate) fn end(&mut self, context: Handle) -> Vec<(usize, u64)> {
        let ended: Vec<_> = self.0.extract_if(|_, array| array.context == context).collect();
        ended.into_iter().map(|(_, array)| (array.device, array.bytes)).collect()
    }
}

/// The size of an element's channel.
fn channel_bytes(format: c_int) -> Result<u64, Code> {
    match format {
        // 8 bits, 16 bits and half precision, 32 bits and single precision.
        1 | 8 => Ok(1),
        2 | 9 | 16 => Ok(2),
        3 | 10 | 32 => Ok(4),
        _ => Err(Code::ERROR_INVALID_VALUE),
    }
}

fn bytes(shape: &Descriptor3D, level: c_uint) -> Result<u64, Code> {
    if shape.width == 0 || !matches!(shape.channels, 1 | 2 | 4) {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let element = channel_bytes(shape.format)? * u64::from(shape.channels);
    let sides = [shape.width, shape.height, shape.depth].map(|side| (side >> level).max(1) as u64);
    let elements = sides.into_iter().try_fold(1_u64, u64::checked_mul);
    elements.and_then(|elements| elements.checked_mul(element)).ok_or(Code::ERROR_OUT_OF_MEMORY)
}

unsafe fn make(out: *mut Handle, shape: &Descriptor3D, levels: c_uint) -> Outcome {
    let mut driver = driver()?;
    let context = driver.current()?;
    capture::forbid_unsafe(&mut driver)?;
    if out.is_null() || levels == 0 || levels > 32 {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    let bytes = (0..levels).map(|level| bytes(shape, level)).sum::<Result<u64, _>>()?;
    let device = driver.contexts[&context].device;
    driver.memory.on_device.allocate(device, bytes)?;
    let array = new_handle();
    driver.memory.arrays.0.insert(array, Array { device, bytes, context });
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { write_out(out, array) }
}

pub(crate) unsafe fn create(out: *mut Handle, shape: *const Descriptor) -> Outcome {
    // SAFETY: null, or the caller guarantees a descriptor.
    let shape = unsafe { shape.as_ref() }.ok_or(Code::ERROR_INVALID_VALUE)?;
    let Descriptor { width, height, format, channels } = *shape;
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { make(out, &Descriptor3D { width, height, depth: 0, format, channels, flags: 0 }, 1) }
}

pub(crate) unsafe fn create_3d(out: *mut Handle, shape: *const Descriptor3D) -> Outcome {
    // SAFETY: the caller guarantees the arguments.
    unsafe { create_mipmapped(out, shape, 1) }
}

pub(crate) unsafe fn create_mipmapped(
    out: *mut Handle,
    shape: *const Descriptor3D,
    levels: c_uint,
) -> Outcome {
    // SAFETY: null, or the caller guarantees a descriptor.
    let shape = unsafe { shape.as_ref() }.filter(|shape| shape.flags == 0);
    // SAFETY: the caller guarantees that `out` is valid.
    unsafe { make(out, shape.ok_or(Code::ERROR_INVALID_VALUE)?, levels) }
}

pub(crate) unsafe fn destroy(array: Handle) -> Outcome {
    let mut driver = driver()?;
    let memory = &mut driver.memory;
    let array = memory.arrays.0.remove(&array).ok_or(Code::ERROR_INVALID_HANDLE)?;
    memory.on_device.free(array.device, array.bytes);
    Ok(())
}
