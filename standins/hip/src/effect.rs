//! What a kernel does, by its name: the few kernels below compute, and every other kernel only takes time.
//!
//! ```text
//!   spin(u64 ns)   increment(u64 *counter)   fill(float *to, float value, COUNT)   add(float *to, const float *from, COUNT)
//! ```
//! COUNT is 64 bits wide, or 32 in a C++ kernel whose mangled name says so. A kernel with other parameters that happens to have one of
//! these names, or a longer name that contains one, must not be given memory that it does not have.

use std::ffi::c_void;

/// The effect of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Occupies the device for the time in the first argument.
    Spin,
    /// Adds 1 to a counter.
    Increment,
    /// Fills an array; whether the count has 64 bits.
    Fill { wide: bool },
    /// Adds an array to another; whether the count has 64 bits.
    Add { wide: bool },
    /// Only takes time.
    None,
}

/// The effect of the kernel with this name, plain or as C++ mangles it.
pub(crate) fn effect(name: &str) -> Effect {
    let Some((base, parameters)) = demangled(name) else {
        return match name {
            "increment" => Effect::Increment,
            "fill" => Effect::Fill { wide: true },
            "add" => Effect::Add { wide: true },
            // Programs have several kernels of this kind.
            _ if name.starts_with("spin") => Effect::Spin,
            _ => Effect::None,
        };
    };
    let wide = parameters.ends_with(['m', 'y']);
    match (base, parameters.trim_end_matches(['m', 'y', 'i', 'j'])) {
        ("spin", "") if wide => Effect::Spin,
        ("increment", "P") if wide => Effect::Increment,
        ("fill", "Pff") => Effect::Fill { wide },
        ("add", "PfPKf") => Effect::Add { wide },
        _ => Effect::None,
    }
}

/// The name and the parameters in a mangled name of C++, `_Z3addPfPKfm`.
fn demangled(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("_Z")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit())?;
    let length: usize = rest[..digits].parse().ok()?;
    rest[digits..].split_at_checked(length)
}

/// Larger arrays are not computed.
const MAX_BYTES: usize = 1 << 30;

/// Whether so many floats at this address are mapped.
pub(crate) fn are_mapped(address: *const f32, count: u64) -> bool {
    const PAGE: usize = 4096;
    let Some(bytes) = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<f32>()))
    else {
        return false;
    };
    if bytes > MAX_BYTES {
        return false;
    }
    let start = address.addr() & !(PAGE - 1);
    let Some(length) = address.addr().checked_add(bytes).map(|end| end - start) else { return false };
    let mut residence = vec![0_u8; length.div_ceil(PAGE)];
    // SAFETY: the kernel only examines the range, and has room for a byte for each of its pages.
    length == 0
        || unsafe {
            libc::mincore(std::ptr::without_provenance_mut::<c_void>(start), length, residence.as_mut_ptr())
        } == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_known_kernels_have_an_effect() {
        for (name, expected) in [
            ("spin", Effect::Spin),
            ("spin_compiled", Effect::Spin),
            ("_Z4spinm", Effect::Spin),
            ("_Z9incrementPy", Effect::Increment),
            ("add", Effect::Add { wide: true }),
            ("_Z3addPfPKfi", Effect::Add { wide: false }),
            ("_Z3addPfPKfm", Effect::Add { wide: true }),
            ("_Z4fillPffm", Effect::Fill { wide: true }),
            // Kernels of other programs.
            ("vector_add", Effect::None),
            ("_Z10vector_addPKfS0_Pfi", Effect::None),
            ("_Z3addPKfS0_Pfi", Effect::None),
            ("_Z3addi", Effect::None),
            ("addressing", Effect::None),
            ("_Z99add", Effect::None),
            ("_Z", Effect::None),
            ("nothing", Effect::None),
        ] {
            assert_eq!(effect(name), expected, "{name}");
        }
    }

    #[test]
    fn memory_that_a_kernel_does_not_have_is_recognized() {
        let array = [0.0_f32; 4];
        assert!(are_mapped(array.as_ptr(), 4) && are_mapped(array.as_ptr(), 0));
        assert!(!are_mapped(std::ptr::without_provenance(8), 1));
        assert!(!are_mapped(array.as_ptr(), array.as_ptr().addr() as u64), "an address in place of a count");
        assert!(!are_mapped(array.as_ptr(), u64::MAX));
    }
}
