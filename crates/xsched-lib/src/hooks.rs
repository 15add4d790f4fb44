//! How hooks are written, and the vendor's functions that we call ourselves.

/// Exports hooks: functions with the names and types of the vendor's, that call the vendor's.
///
/// ```text
/// hooks! {
///     prefix "xsim_";
///     if missing return vendor::UNKNOWN;
///     fn xsim_launch(queue: Queue, length_ns: u64) -> Code = launch;
/// }
/// ```
/// Where no function can be found, a hook answers with a code of the vendor's, or with null if it is to answer with a
/// pointer or a handle.
///
/// Each hands the call to a function or closure of this crate, here `launch(real, queue, length_ns)`, where `real()`
/// calls the vendor's function with the same arguments, to be called exactly once. What the vendor's library calls
/// among its own functions, and what is called from within a hook, goes straight through.
///
/// Makes `LIBRARY` of them, for the loader's look-up function, and for [`functions`].
macro_rules! hooks {
    (
        prefix $prefix:literal;
        if missing return $missing:expr;
        $( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty = $around:expr; )*
    ) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the vendor's function of this name demands.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
                // SAFETY: the list gives it the type that the vendor's header gives it. What comes to be stored in its
                // place is what the loader, or the vendor's own look-up, has for this name.
                let Some(real) = (unsafe { real::$name.get(crate::loader::next_definition) }) else {
                    return crate::hooks::Missing::or($missing);
                };
                // SAFETY: the caller vouches for the arguments, which are passed on as they are.
                let real = || unsafe { real($($argument),*) };
                if crate::duplicate_library::is_inactive_duplicate() {
                    return real();
                }
                match ::xsched_interpose::OutermostHook::enter() {
                    Some(_outermost) => {
                        #[allow(clippy::redundant_closure_call, reason = "a hook may be a closure over the arguments")]
                        ($around)(real, $($argument),*)
                    }
                    None => real(),
                }
            }
        )*

        /// Where the vendor's functions are kept.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod real {
            use super::*;
            $(
                pub(super) static $name: ::xsched_interpose::RealFunction<unsafe extern "C" fn($($kind),*) -> $answer> =
                    ::xsched_interpose::RealFunction::new(crate::hooks::c_name(concat!(stringify!($name), "\0")));
            )*
        }

        /// The vendor's library.
        pub(crate) static LIBRARY: crate::loader::VendorLibrary = crate::loader::VendorLibrary::new($prefix, &[ $(
            crate::loader::Hook {
                name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                hook: $name as *const ::std::ffi::c_void,
                real: real::$name.address(),
            }
        ),* ]);
    };
}
pub(crate) use hooks;

/// Names functions of the vendor's that we call ourselves.
///
/// ```text
/// functions! {
///     library super::LIBRARY;
///     fn xsim_queue_mark(Queue, *mut u64) -> Code = MARK;
/// }
/// ```
macro_rules! functions {
    (
        library $library:path;
        $( fn $name:ident($($kind:ty),*) -> $answer:ty = $ours:ident; )*
    ) => { $(
        pub(crate) static $ours: crate::loader::Function<unsafe extern "C" fn($($kind),*) -> $answer> =
            // SAFETY: the list gives it the type that the vendor's header gives it.
            unsafe {
                crate::loader::Function::new(&$library, crate::hooks::c_name(concat!(stringify!($name), "\0")))
            };
    )* };
}
pub(crate) use functions;

/// Calls one of [`functions`] that answers 0 if all is well, as in `call!(MARK, queue)`, which is unsafe. Else it says why not.
macro_rules! call {
    ($function:path, $($argument:expr),*) => {
        $function.get().ok_or_else(|| "the library lacks it".to_owned()).and_then(|function| {
            match function($($argument),*) {
                0 => Ok(()),
                code => Err(format!("error {code}")),
            }
        })
    };
}
pub(crate) use call;

/// What a hook answers if the vendor's function cannot be found.
pub(crate) trait Missing {
    /// The vendor's code for it, or null.
    fn or(code: i32) -> Self;
}

impl Missing for i32 {
    fn or(code: i32) -> Self {
        code
    }
}

impl<T> Missing for *mut T {
    fn or(_code: i32) -> Self {
        std::ptr::null_mut()
    }
}

impl Missing for xsched_interpose::Handle {
    fn or(_code: i32) -> Self {
        Self::NONE
    }
}

/// A name that ends with a zero byte, as C has it. For constants: a name that does not stops the compiler.
pub(crate) const fn c_name(name: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one zero byte, at the end"),
    }
}
