//! The loader's own look-up function, hooked: most programs reach the vendor's library through it.
//!
//! ```text
//!   dlsym(handle, "cuLaunchKernel") ──► one of our names? ──no──► jump to the real dlsym, as if we were not there
//!                                          │yes
//!                                          ▼
//!                          remember what the real one answers, answer with our hook
//! ```
//!
//! The real `dlsym` looks at its return address to know who asks, so for names that are not ours it is jumped to, not
//! called. It may run before anything of ours, or of Rust's, is set up: no lock, no allocation, no state but atomics.

use std::arch::naked_asm;
use std::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// One function that we stand in front of.
pub(crate) struct Hook {
    pub(crate) name: &'static CStr,
    pub(crate) ours: *const c_void,
    /// Where the vendor's function is kept once it is known.
    pub(crate) real: &'static AtomicPtr<c_void>,
}

// SAFETY: the pointers are addresses of functions and statics, which never change.
unsafe impl Sync for Hook {}

impl Hook {
    /// Remembers the vendor's function and answers with ours.
    pub(crate) fn put_before(&self, real: *mut c_void) -> *mut c_void {
        if real.cast_const() != self.ours {
            // Release: pairs with the Acquire where the function is called.
            self.real.store(real, Ordering::Release);
        }
        self.ours.cast_mut()
    }
}

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Looks a symbol up as the loader does.
///
/// # Safety
/// As the loader's function of this name demands.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {decide}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        // The caller's own arguments and return address are in place: the real one sees its true caller.
        "mov rax, qword ptr [rip + {real}]",
        "jmp rax",
        "2:",
        "ret",
        decide = sym decide,
        real = sym REAL_DLSYM,
    )
}

/// Answers with our hook for a name of ours, and with null for every other.
unsafe extern "C" fn decide(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real_dlsym();
    if name.is_null() || handle == libc::RTLD_NEXT || handle == libc::RTLD_DEFAULT {
        return std::ptr::null_mut();
    }
    // SAFETY: whoever looks a name up passes a C string, or null, which was ruled out.
    let wanted = unsafe { CStr::from_ptr(name) };
    let Some(hook) = crate::cuda::hook(wanted) else { return std::ptr::null_mut() };
    // SAFETY: these are the caller's own arguments.
    let found = unsafe { real(handle, name) };
    if found.is_null() { found } else { hook.put_before(found) }
}

/// The loader's own function. Found by its version, for by name alone we would find ourselves.
pub(crate) fn real_dlsym() -> Dlsym {
    let mut found = REAL_DLSYM.load(Ordering::Acquire);
    if found.is_null() {
        // SAFETY: both are C strings; every glibc for this architecture has this version of the function.
        found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), c"GLIBC_2.2.5".as_ptr()) };
        REAL_DLSYM.store(found, Ordering::Release);
    }
    // SAFETY: the loader's `dlsym` has this type. Without it nothing in this process could have found us.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(found) }
}
