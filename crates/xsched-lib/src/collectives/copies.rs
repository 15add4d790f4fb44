//! Copies of the collectives libraries. A process may have several: the one that a framework is linked to, and one that a
//! package opens. A communicator of one copy is invalid in the other, so every call must go to the copy that its caller uses.
//! Each hook therefore exists once for each copy.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::VENDOR;
use crate::hooks::MAX_COPIES;
use crate::loaded_libraries::LoadedLibrary;
use crate::loader::{HookTable, LookupHook, SymbolName, VendorIdentity, call_sites};

/// The address where each copy is mapped; 0 for an unused entry.
static COPIES: [AtomicUsize; MAX_COPIES] = [const { AtomicUsize::new(0) }; MAX_COPIES];

/// The number of a copy, which is added if it is new. None if there are too many: calls to it are not observed.
fn number_of(library: LoadedLibrary) -> Option<usize> {
    COPIES.iter().position(|start| {
        let claimed = start.compare_exchange(0, library.start(), Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok() || claimed == Err(library.start())
    })
}

/// The hooks of one function.
pub(super) struct Hook {
    pub(super) name: &'static CStr,
    /// This library's export of the same name.
    pub(super) exported: *const c_void,
    /// The hook for each copy.
    pub(super) hooked: [*const c_void; MAX_COPIES],
    /// The real function of each copy.
    pub(super) real: &'static [AtomicPtr<c_void>; MAX_COPIES],
    /// Called if the process has no copy.
    pub(super) missing: *const c_void,
}

// SAFETY: the pointers are addresses of functions, which never change.
unsafe impl Sync for Hook {}

impl LookupHook for Hook {
    fn name(&self) -> &'static CStr {
        self.name
    }

    fn vendor(&self) -> &'static VendorIdentity {
        &VENDOR
    }

    fn replace(&'static self, found: *mut c_void) -> *mut c_void {
        let is_own = found.cast_const() == self.exported || self.hooked.contains(&found.cast_const());
        let library = LoadedLibrary::containing(found).filter(|_| !is_own);
        let Some(copy) = library.and_then(number_of) else { return found };
        // Release: a thread that calls the hook sees the real function. Pairs with the Acquire in the hook.
        self.real[copy].store(found, Ordering::Release);
        self.hooked[copy].cast_mut()
    }
}

/// All hooks, for the look-up functions of the loader.
pub(crate) struct Hooks(pub(super) &'static [&'static Hook]);

impl HookTable for Hooks {
    fn find_hook(&self, name: SymbolName) -> Option<&'static dyn LookupHook> {
        if !name.starts_with(b"nccl") {
            return None;
        }
        self.0.iter().find(|hook| name.is(hook.name)).map(|hook| *hook as _)
    }
}

/// The function that a call of an export goes to, by the call's return address.
///
/// # Safety
/// Called by the exports only, with the hook of their name.
pub(super) unsafe extern "C" fn select_target(return_address: usize, hook: &'static Hook) -> *const c_void {
    call_sites::target_in_caller_copy(return_address, hook, hook.missing)
}

/// Makes hooks of a list of functions. A hook calls its handler with the real function of its copy, which the handler calls
/// exactly once, and with the arguments.
macro_rules! hooks {
    ( $( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) = $handler:expr; )* ) => {
        /// The hooks, one for each copy.
        #[allow(non_snake_case, clippy::redundant_closure_call, reason = "the vendor's names; closures over arguments")]
        mod hooked {
            use super::*;
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The caller obeys the contract of the vendor's function of this name.
                pub(super) unsafe extern "C" fn $name<const COPY: usize>($($argument: $kind),*) -> Code {
                    // Acquire: pairs with the Release of `replace`, which published this hook.
                    let real = real::$name[COPY].load(::std::sync::atomic::Ordering::Acquire);
                    // SAFETY: the list has the type of the vendor's header. The real function of this name is stored before
                    // the hook is published.
                    let real = unsafe {
                        ::std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(real)
                    };
                    // SAFETY: the caller's own arguments, passed on unchanged.
                    let real = || unsafe { real($($argument),*) };
                    if crate::duplicate_library::is_inactive_duplicate() {
                        return real();
                    }
                    match ::xsched_interpose::OutermostHook::enter(DOMAIN) {
                        Some(_outermost) => ($handler)(real, $($argument),*),
                        None => real(),
                    }
                }
            )*
        }

        /// The vendor's functions, for each copy.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod real {
            use super::*;
            $(
                pub(super) static $name: [::std::sync::atomic::AtomicPtr<c_void>; crate::hooks::MAX_COPIES] =
                    [const { ::std::sync::atomic::AtomicPtr::new(::std::ptr::null_mut()) }; crate::hooks::MAX_COPIES];
            )*
        }

        /// The description of each hook.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod hook {
            use super::*;
            $(
                pub(super) static $name: copies::Hook = copies::Hook {
                    name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                    exported: exported::$name as *const c_void,
                    hooked: crate::hooks::for_each_copy!(hooked::$name),
                    real: &real::$name,
                    missing: missing as *const c_void,
                };
            )*
        }

        /// The exports that programs call by name: each selects the copy that the caller uses, and jumps to its hook.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod exported {
            use super::*;
            $( crate::hooks::export! { $name, hook::$name, copies::select_target } )*
        }

        /// All hooks.
        pub(crate) static HOOKS: copies::Hooks = copies::Hooks(&[$(&hook::$name),*]);
    };
}
pub(super) use hooks;
