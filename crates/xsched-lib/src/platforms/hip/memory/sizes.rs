//! How much memory arrays and pitched rows take. What the runtime adds for alignment is included where it is known.

use std::ffi::{c_int, c_uint};

/// `hipChannelFormatDesc`: the bits of each channel.
#[repr(C)]
pub(super) struct ChannelFormat {
    bits: [c_int; 4],
    kind: c_uint,
}

/// `HIP_ARRAY_DESCRIPTOR`.
#[repr(C)]
pub(super) struct ArrayDescriptor {
    width: usize,
    height: usize,
    format: c_uint,
    channels: c_uint,
}

/// `HIP_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
pub(super) struct ArrayDescriptor3D {
    width: usize,
    height: usize,
    depth: usize,
    format: c_uint,
    channels: c_uint,
    flags: c_uint,
}

/// The alignment of rows.
const ROW_ALIGNMENT: usize = 256;

/// The pitch of rows of this many bytes.
pub(super) fn pitch(width: usize) -> usize {
    width.checked_next_multiple_of(ROW_ALIGNMENT).unwrap_or(usize::MAX)
}

/// Rows of a pitch.
pub(super) fn of_rows(pitch: usize, height: usize, depth: usize) -> u64 {
    pitch.saturating_mul(height).saturating_mul(depth) as u64
}

/// Lengths of 0 are those of dimensions that the array does not have.
fn of_elements(bytes: u64, lengths: [usize; 3], levels: c_uint) -> u64 {
    let of_level = |level: c_uint| {
        let length = |length: usize| length.checked_shr(level).unwrap_or(0).max(1) as u64;
        lengths.into_iter().fold(bytes, |bytes, of| bytes.saturating_mul(length(of)))
    };
    (0..levels.clamp(1, usize::BITS)).map(of_level).fold(0, u64::saturating_add)
}

fn element(format: *const ChannelFormat) -> u64 {
    // SAFETY: the program passes the same pointer to the runtime, which reads a format there.
    let bits = unsafe { format.as_ref() }.map_or([0; 4], |format| format.bits);
    bits.into_iter().map(|bits| u64::from(bits.unsigned_abs())).sum::<u64>() / 8
}

fn described_element(format: c_uint, channels: c_uint) -> u64 {
    /// `HIP_AD_FORMAT_*`.
    const BYTES: [c_uint; 2] = [0x01, 0x08];
    const WORDS: [c_uint; 3] = [0x03, 0x0a, 0x20];
    let bytes = match format {
        format if BYTES.contains(&format) => 1,
        format if WORDS.contains(&format) => 4,
        _ => 2,
    };
    bytes * u64::from(channels)
}

/// An array of this format.
pub(super) fn of_array(format: *const ChannelFormat, lengths: [usize; 3]) -> u64 {
    of_levels(format, lengths, 1)
}

/// The same with so many levels, each of half the lengths of the one before.
pub(super) fn of_levels(format: *const ChannelFormat, lengths: [usize; 3], levels: c_uint) -> u64 {
    of_elements(element(format), lengths, levels)
}

/// An array that a descriptor describes.
pub(super) fn of_described(descriptor: *const ArrayDescriptor) -> u64 {
    // SAFETY: the program passes the same pointer to the runtime, which reads a descriptor there.
    unsafe { descriptor.as_ref() }.map_or(0, |array| {
        of_elements(described_element(array.format, array.channels), [array.width, array.height, 1], 1)
    })
}

/// The same in three dimensions and with so many levels.
pub(super) fn of_described_3d(descriptor: *const ArrayDescriptor3D, levels: c_uint) -> u64 {
    // SAFETY: as above.
    unsafe { descriptor.as_ref() }.map_or(0, |array| {
        let lengths = [array.width, array.height, array.depth];
        of_elements(described_element(array.format, array.channels), lengths, levels)
    })
}

const _: () = {
    assert!(size_of::<ChannelFormat>() == 20 && size_of::<ArrayDescriptor>() == 24);
    assert!(std::mem::offset_of!(ArrayDescriptor3D, channels) == 28 && size_of::<ArrayDescriptor3D>() == 40);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_have_the_size_of_their_elements() {
        let format = ChannelFormat { bits: [32, 32, 0, 0], kind: 2 };
        assert_eq!(of_array(&raw const format, [100, 10, 1]), 8000);
        assert_eq!(of_array(&raw const format, [100, 0, 0]), 800, "it has one dimension");
        assert_eq!(of_array(std::ptr::null(), [100, 0, 0]), 0, "the runtime rejects it");
        assert_eq!(of_levels(&raw const format, [8, 4, 1], 4), 8 * (32 + 8 + 2 + 1));
        assert_eq!(of_array(&raw const format, [usize::MAX; 3]), u64::MAX);
        for (name, bytes) in [(0x01, 1), (0x02, 2), (0x03, 4), (0x0a, 4), (0x10, 2), (0x20, 4)] {
            let array = ArrayDescriptor { width: 10, height: 2, format: name, channels: 4 };
            assert_eq!(of_described(&raw const array), 80 * bytes, "{name}");
        }
    }

    #[test]
    fn rows_are_aligned() {
        assert_eq!(of_rows(pitch(257), 3, 2), 512 * 6);
        assert_eq!(of_rows(pitch(usize::MAX), 3, 2), u64::MAX);
    }
}
