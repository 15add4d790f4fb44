//! Functions of a vendor's library, which the loads find as most programs do.

use std::ffi::{CStr, c_int, c_void};

/// Declares functions with their types in a structure, and resolves them all.
///
/// ```text
/// functions! {
///     Functions;
///     finish = c"clFinish" (Handle) -> Code;
/// }
/// ```
macro_rules! functions {
    ($name:ident; $($field:ident = $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        struct $name {
            $($field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            /// Fails if the library, opened from this file and never closed, lacks one of them.
            fn load(library: *mut ::std::ffi::c_void, file: &::std::ffi::CStr) -> ::anyhow::Result<Self> {
                Ok(Self {
                    $($field: {
                        let found = $crate::commands::bench::worker::functions::find(library, $symbol);
                        let found = ::anyhow::Context::with_context(found, || {
                            format!("{} has no {}", file.to_string_lossy(), $symbol.to_string_lossy())
                        })?;
                        // SAFETY: the list has the type that the vendor's header gives the function of this name.
                        unsafe {
                            ::std::mem::transmute::<*mut ::std::ffi::c_void, unsafe extern "C" fn($($argument),*) -> $result>(found)
                        }
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;

/// The code that the functions of OpenCL and HIP return on success.
pub(super) const SUCCESS: c_int = 0;

/// Fails with the name of the function and its code, unless it has succeeded.
pub(super) fn check(code: c_int, function: &str) -> anyhow::Result<()> {
    anyhow::ensure!(code == SUCCESS, "{function} failed: error {code}");
    Ok(())
}

/// How many rounds of a kernel take so long.
pub(super) fn rounds(length_us: u64, rounds_per_us: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 1 to 1e13")]
    let rounds = (length_us as f64 * rounds_per_us).clamp(1.0, 1e13) as u64;
    rounds
}

/// The address of a function of a library.
pub(super) fn find(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller opened the library and never closes it; the name is a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
