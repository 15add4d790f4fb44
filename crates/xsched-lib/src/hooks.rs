//! How a hook is written.

/// Exports hooks: functions with the names and types of the vendor's, that call the vendor's.
///
/// ```text
/// hooks! {
///     unless found answer vendor::UNKNOWN;
///     fn xsim_launch(queue: Queue, length_ns: u64) -> Code = launch;
/// }
/// ```
/// Each hands the call to a function of this crate, here `launch(real, queue, length_ns)`, where `real()` calls the
/// vendor's function with the same arguments, to be called exactly once. What the vendor's library calls among its own
/// functions, and what is called from within a hook, goes straight through.
macro_rules! hooks {
    (
        unless found answer $missing:expr;
        $( $(#[$doc:meta])* fn $name:ident($($argument:ident: $kind:ty),*) -> $answer:ty = $around:path; )*
    ) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the vendor's function of this name demands.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
            static REAL: ::xsched_interpose::Real<unsafe extern "C" fn($($kind),*) -> $answer> =
                ::xsched_interpose::Real::new(crate::hooks::c_name(concat!(stringify!($name), "\0")));
            // SAFETY: the list gives it the type that the vendor's header gives it.
            let Some(real) = (unsafe { REAL.get() }) else { return $missing };
            // SAFETY: the caller vouches for the arguments, which are passed on as they are.
            let real = || unsafe { real($($argument),*) };
            match ::xsched_interpose::Outermost::enter() {
                Some(_outermost) => $around(real, $($argument),*),
                None => real(),
            }
        }
    )* };
}
pub(crate) use hooks;

/// A name that ends with a zero byte, as C has it. For constants: a name that does not stops the compiler.
pub(crate) const fn c_name(name: &'static str) -> &'static std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("one zero byte, at the end"),
    }
}
