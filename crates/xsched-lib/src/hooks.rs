//! The lists that define hooks and declare the vendor's functions.

/// Exports hooks: functions with the names and types of the vendor's functions, which they call.
///
/// ```text
/// hooks! {
///     prefix "toy_";
///     if missing return vendor::UNKNOWN;
///     fn toy_launch(queue: Queue, kernel: *mut c_void, argument: *mut c_void) -> Code = launch;
/// }
/// ```
/// Every name begins with the prefix. If the vendor's function cannot be found, a hook returns the given code of the vendor, or
/// null if it returns a pointer or a handle. No function has a floating point argument, unless the list says so in a third line:
/// `arguments may be floating point;`.
///
/// A hook calls its handler, here `launch(real, queue, kernel, argument)`. `real()` calls the vendor's function with the same
/// arguments; the handler calls it exactly once. Calls from inside the vendor's library or from inside a hook of this list go
/// straight to the vendor's function.
///
/// The platform's `VENDOR` says which library is the vendor's own. The macro also defines `LIBRARY`, for the loader's look-up
/// functions and for [`functions`].
macro_rules! hooks {
    ( prefix $prefix:literal; if missing return $missing:expr; arguments may be floating point; $($list:tt)* ) => {
        crate::hooks::hooks! { export_with_floating_point; $prefix; $missing; $($list)* }
    };
    ( prefix $prefix:literal; if missing return $missing:expr; $($list:tt)* ) => {
        crate::hooks::hooks! { export; $prefix; $missing; $($list)* }
    };
    (
        $export:ident; $prefix:literal; $missing:expr;
        $( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $handler:expr; )*
    ) => {
        /// The hooks.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod hooked {
            use super::*;
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The caller obeys the contract of the vendor's function of this name.
                pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                    const DOMAIN: ::xsched_interpose::HookDomain = crate::platforms::hook_domain(module_path!());
                    let look_up = |name| crate::loader::next_definition(name, &VENDOR);
                    // SAFETY: the list declares the type of the vendor's header. The loader, or a look-up function of the
                    // vendor, returned the address for this name.
                    let Some(real) = (unsafe { real::$name.get(look_up) }) else {
                        return crate::hooks::MissingFunction::result($missing);
                    };
                    // SAFETY: the caller vouches for the arguments, which are forwarded unchanged.
                    let real = || unsafe { real($($argument),*) };
                    if crate::duplicate_library::is_inactive_duplicate() {
                        return real();
                    }
                    match ::xsched_interpose::OutermostHook::enter(DOMAIN) {
                        Some(_outermost) => {
                            #[allow(clippy::redundant_closure_call, reason = "the handler may be a closure")]
                            ($handler)(real, $($argument),*)
                        }
                        None => real(),
                    }
                }
            )*
        }

        /// The vendor's functions.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod real {
            use super::*;
            $(
                pub(super) static $name: ::xsched_interpose::RealFunction<unsafe extern "C" fn($($kind),*) -> $result> =
                    ::xsched_interpose::RealFunction::new(crate::hooks::c_name(concat!(stringify!($name), "\0")));
            )*
        }

        /// The description of each hook.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod hook {
            use super::*;
            $(
                pub(super) static $name: crate::loader::Hook = crate::loader::Hook {
                    name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                    library: &LIBRARY,
                    exported: exported::$name as *const ::std::ffi::c_void,
                    hooked: hooked::$name as *const ::std::ffi::c_void,
                    real: real::$name.address(),
                };
            )*
        }

        /// The exports that programs call by name.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod exported {
            use super::*;
            $( crate::hooks::$export! { $name, hook::$name, crate::loader::select_target } )*
        }

        /// The vendor's library and its hooks.
        pub(crate) static LIBRARY: crate::loader::VendorLibrary =
            crate::loader::VendorLibrary::new($prefix, &VENDOR, &[ $( &hook::$name ),* ]);
    };
}
pub(crate) use hooks;

/// Exports a function that programs call by name: it calls `$select` with the return address of the call and the description of
/// the hook, and jumps to the function that this returns, with the caller's registers and stack unchanged. The function has no
/// floating point argument.
macro_rules! export {
    ($name:ident, $hook:path, $select:path) => {
        crate::hooks::trampoline! { $name, $hook, $select, [] [] 56, [] [] }
    };
}
pub(crate) use export;

/// The same for functions with floating point arguments, which eight more registers hold.
macro_rules! export_with_floating_point {
    ($name:ident, $hook:path, $select:path) => {
        crate::hooks::trampoline! { $name, $hook, $select,
            [
                "sub rsp, 128",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6", "movups [rsp + 112], xmm7",
            ]
            [
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]", "movups xmm7, [rsp + 112]",
                "add rsp, 128",
            ]
            56 + 128,
            ["stp q0, q1, [sp, #-128]!", "stp q2, q3, [sp, #32]", "stp q4, q5, [sp, #64]", "stp q6, q7, [sp, #96]",]
            ["ldp q2, q3, [sp, #32]", "ldp q4, q5, [sp, #64]", "ldp q6, q7, [sp, #96]", "ldp q0, q1, [sp], #128",]
        }
    };
}
pub(crate) use export_with_floating_point;

/// The code of [`export`]. `$save` and `$restore` are the instructions for further registers, for x86-64 and `AArch64`, and `$return` is where
/// x86-64's return address is then.
macro_rules! trampoline {
    (
        $name:ident, $hook:path, $select:path,
        [$($save:tt,)*] [$($restore:tt,)*] $return:expr,
        [$($arm_save:tt,)*] [$($arm_restore:tt,)*]
    ) => {
        /// # Safety
        /// As for the vendor's function of this name.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            ::std::arch::naked_asm!(
                // Six registers hold arguments that are not floating point.
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "sub rsp, 8",
                $($save,)*
                // The caller's return address.
                "mov rdi, qword ptr [rsp + {return_address}]",
                "lea rsi, [rip + {hook}]",
                "call {select}",
                $($restore,)*
                "add rsp, 8",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp rax",
                return_address = const $return,
                hook = sym $hook,
                select = sym $select,
            );
            #[cfg(target_arch = "aarch64")]
            ::std::arch::naked_asm!(
                // Eight registers hold arguments that are not floating point.
                "stp x29, x30, [sp, #-80]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                $($arm_save,)*
                // The caller's return address.
                "mov x0, x30",
                "adrp x1, {hook}",
                "add x1, x1, :lo12:{hook}",
                "bl {select}",
                "mov x16, x0",
                $($arm_restore,)*
                "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                hook = sym $hook,
                select = sym $select,
            );
        }
    };
}
pub(crate) use trampoline;

/// How many copies of a vendor's library have hooks of their own. Calls to further copies are only forwarded.
pub(crate) const MAX_COPIES: usize = 8;

/// One instance of a hook for each of [`MAX_COPIES`]; the compiler checks the number.
macro_rules! for_each_copy {
    ($hook:path) => {{
        use $hook as hook;
        [
            hook::<0> as *const ::std::ffi::c_void,
            hook::<1> as *const ::std::ffi::c_void,
            hook::<2> as *const ::std::ffi::c_void,
            hook::<3> as *const ::std::ffi::c_void,
            hook::<4> as *const ::std::ffi::c_void,
            hook::<5> as *const ::std::ffi::c_void,
            hook::<6> as *const ::std::ffi::c_void,
            hook::<7> as *const ::std::ffi::c_void,
        ]
    }};
}
pub(crate) use for_each_copy;

/// Declares functions of the vendor that the platform calls itself.
///
/// ```text
/// functions! {
///     library super::LIBRARY;
///     fn toy_event_query(Event) -> Code = EVENT_QUERY;
/// }
/// ```
macro_rules! functions {
    (
        library $library:path;
        $( fn $name:ident($($kind:ty),*) -> $result:ty = $constant:ident; )*
    ) => { $(
        pub(crate) static $constant: crate::loader::Function<unsafe extern "C" fn($($kind),*) -> $result> =
            // SAFETY: the list declares the type of the vendor's header.
            unsafe {
                crate::loader::Function::new(&$library, crate::hooks::c_name(concat!(stringify!($name), "\0")))
            };
    )* };
}
pub(crate) use functions;

/// Calls one of [`functions`] that returns 0 on success, as in `call!(EVENT_QUERY, event)`, which is unsafe. Returns the reason of a
/// failure as text.
macro_rules! call {
    ($function:path, $($argument:expr),*) => {
        $function.get().ok_or_else(|| "the vendor's library lacks the function".to_owned()).and_then(|function| {
            match function($($argument),*) {
                0 => Ok(()),
                code => Err(format!("error {code}")),
            }
        })
    };
}
pub(crate) use call;

/// What a hook returns if the vendor's function cannot be found.
pub(crate) trait MissingFunction {
    /// The vendor's error code, or null for a type that is not a code.
    fn result(code: i32) -> Self;
}

impl MissingFunction for i32 {
    fn result(code: i32) -> Self {
        code
    }
}

impl MissingFunction for () {
    fn result(_code: i32) -> Self {}
}

impl<T> MissingFunction for *mut T {
    fn result(_code: i32) -> Self {
        std::ptr::null_mut()
    }
}

impl MissingFunction for xsched_interpose::Handle {
    fn result(_code: i32) -> Self {
        Self::NONE
    }
}

/// A C string from a name that ends with a zero byte. For constants: any other name is a compile error.
pub(crate) const fn c_name(name: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the name has one zero byte, at its end"),
    }
}
