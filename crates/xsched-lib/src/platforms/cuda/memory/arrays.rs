//! CUDA arrays. Their layout is the driver's secret, so their size is estimated: that of their elements.

use std::ffi::{c_int, c_uint};

use xsched_ipc::page::Staying;

use super::{Allocations, allocate_in, swap, taken};
use crate::platforms::cuda::vendor::{ArrayShape, ArrayShape3D, Code};

static ARRAYS: Allocations = Allocations::new();

/// Arrays with these flags have no memory of their own: `CUDA_ARRAY3D_SPARSE` and `CUDA_ARRAY3D_DEFERRED_MAPPING`.
const WITHOUT_MEMORY: c_uint = 0x40 | 0x80;

/// Calls `real`, which creates an array of one or two dimensions.
pub(in super::super) fn create(
    real: impl FnOnce() -> Code,
    array: *mut usize,
    shape: *const ArrayShape,
) -> Code {
    swap::stays(Staying::Arrays);
    // SAFETY: null, or the program passes a description to the driver, which reads it.
    let bytes = unsafe { shape.as_ref() }.map_or(0, |shape| {
        let ArrayShape { width, height, format, channels } = *shape;
        bytes(&ArrayShape3D { width, height, depth: 0, format, channels, flags: 0 }, 1)
    });
    // SAFETY: the driver has written the handle there.
    allocate_in(&ARRAYS, bytes, real, |_| unsafe { *array })
}

/// Calls `real`, which creates an array of up to three dimensions with so many levels, each half as wide as the one before.
pub(in super::super) fn create_levels(
    real: impl FnOnce() -> Code,
    array: *mut usize,
    shape: *const ArrayShape3D,
    levels: c_uint,
) -> Code {
    swap::stays(Staying::Arrays);
    // SAFETY: as above.
    let bytes = unsafe { shape.as_ref() }.map_or(0, |shape| bytes(shape, levels));
    // SAFETY: as above.
    allocate_in(&ARRAYS, bytes, real, |_| unsafe { *array })
}

/// Calls `real`, which destroys an array.
pub(in super::super) fn destroy(real: impl FnOnce() -> Code, array: usize) -> Code {
    ARRAYS.free(array, real)
}

/// Calls `real`, which destroys a context with its arrays.
pub(super) fn free_with_context(context: usize, real: impl FnOnce() -> Code) -> Code {
    ARRAYS.free_owned_by(context, real)
}

/// The driver has destroyed a context with its arrays.
pub(super) fn freed_with_context(context: usize) {
    ARRAYS.release_owned_by(context);
}

/// The size of an array. No array has more than 32 levels.
fn bytes(shape: &ArrayShape3D, levels: c_uint) -> u64 {
    if shape.flags & WITHOUT_MEMORY != 0 {
        return 0;
    }
    let element = channel_bytes(shape.format) * u64::from(shape.channels);
    let level_bytes = |level: c_uint| {
        let sides = [shape.width, shape.height, shape.depth].map(|side| (side >> level).max(1) as u64);
        sides.into_iter().fold(element, u64::saturating_mul)
    };
    taken((0..levels.min(32)).map(level_bytes).fold(0, u64::saturating_add))
}

/// The size of one channel of an element, by `CUarray_format`. Block-compressed and planar formats have at most a byte for each
/// channel of an element.
fn channel_bytes(format: c_int) -> u64 {
    match format {
        // Integers of 16 bits and half precision, integers of 32 bits and single precision.
        0x02 | 0x09 | 0x10 => 2,
        0x03 | 0x0a | 0x20 => 4,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_is_that_of_the_elements_of_all_levels() {
        let shape = ArrayShape3D { width: 1024, height: 1024, depth: 0, format: 0x20, channels: 4, flags: 0 };
        assert_eq!(bytes(&shape, 1), 16 << 20);
        assert_eq!(bytes(&shape, 2), 20 << 20);
        assert_eq!(bytes(&ArrayShape3D { depth: 8, ..shape }, 1), 128 << 20);
        assert_eq!(bytes(&ArrayShape3D { height: 0, format: 0x10, ..shape }, 1), 8 << 10);
        assert_eq!(bytes(&ArrayShape3D { flags: 0x40, ..shape }, 1), 0, "sparse");
        assert_eq!(bytes(&ArrayShape3D { width: usize::MAX, ..shape }, 1), u64::MAX);
    }
}
