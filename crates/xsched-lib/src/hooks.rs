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
/// null if it returns a pointer or a handle.
///
/// A hook calls its handler, here `launch(real, queue, kernel, argument)`. `real()` calls the vendor's function with the same
/// arguments; the handler calls it exactly once. Calls from inside the vendor's library or from inside a hook go straight to
/// the vendor's function.
///
/// The macro also defines `LIBRARY`, for the loader's look-up functions and for [`functions`].
macro_rules! hooks {
    (
        prefix $prefix:literal;
        if missing return $missing:expr;
        $( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $result:ty = $handler:expr; )*
    ) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// The caller obeys the contract of the vendor's function of this name.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $result {
                // SAFETY: the list declares the type of the vendor's header. The loader, or a look-up function of the vendor,
                // returned the address for this name.
                let Some(real) = (unsafe { real::$name.get(crate::loader::next_definition) }) else {
                    return crate::hooks::MissingFunction::result($missing);
                };
                // SAFETY: the caller vouches for the arguments, which are forwarded unchanged.
                let real = || unsafe { real($($argument),*) };
                if crate::duplicate_library::is_inactive_duplicate() {
                    return real();
                }
                match ::xsched_interpose::OutermostHook::enter() {
                    Some(_outermost) => {
                        #[allow(clippy::redundant_closure_call, reason = "the handler may be a closure")]
                        ($handler)(real, $($argument),*)
                    }
                    None => real(),
                }
            }
        )*

        /// The vendor's functions.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod real {
            use super::*;
            $(
                pub(super) static $name: ::xsched_interpose::RealFunction<unsafe extern "C" fn($($kind),*) -> $result> =
                    ::xsched_interpose::RealFunction::new(crate::hooks::c_name(concat!(stringify!($name), "\0")));
            )*
        }

        /// The vendor's library and its hooks.
        pub(crate) static LIBRARY: crate::loader::VendorLibrary = crate::loader::VendorLibrary::new($prefix, &[ $(
            crate::loader::Hook {
                name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                exported: $name as *const ::std::ffi::c_void,
                real: real::$name.address(),
            }
        ),* ]);
    };
}
pub(crate) use hooks;

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
