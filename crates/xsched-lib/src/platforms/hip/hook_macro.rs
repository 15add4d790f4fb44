//! The macro that declares the hooks of this platform: one name in one list, plus one function. [`super::runtime_copies`]
//! explains why each hook exists once for each copy of the runtime.

/// Makes hooks of a list of functions.
///
/// ```text
/// hooks! {
///     [166] fn hipGraphLaunch(graph: *mut c_void, stream: Stream) = |call, _, stream| launch(call, stream, LEGACY);
/// }
/// ```
/// The number is the function's slot in the runtime's API table; a function without a slot has `[none]`. `call` is a
/// [`super::Call`]: the copy of the runtime, and the real function with the caller's arguments, which must be called
/// exactly once.
macro_rules! hooks {
    ( $( [$($slot:tt)+] fn $name:ident($($argument:ident: $kind:ty),*) = $around:expr; )* ) => {
        /// The hooks, one for each copy.
        #[allow(non_snake_case, clippy::redundant_closure_call, reason = "the vendor's names; closures over arguments")]
        mod hooked {
            use super::*;
            $(
                pub(super) unsafe extern "C" fn $name<const COPY: usize>($($argument: $kind),*) -> Code {
                    // Acquire: pairs with the Release of the code that published this hook.
                    let real = real::$name[COPY].load(::std::sync::atomic::Ordering::Acquire);
                    // SAFETY: the list has the type of the vendor's header. The real function of this name is stored before the
                    // hook is published.
                    let real = unsafe {
                        ::std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(real)
                    };
                    // SAFETY: the caller's own arguments, passed on unchanged.
                    let mut real = || unsafe { real($($argument),*) };
                    match ::xsched_interpose::OutermostHook::enter(DOMAIN) {
                        Some(_outermost) => ($around)(Call { copy: COPY, real: &mut real }, $($argument),*),
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
                pub(super) static $name: [::std::sync::atomic::AtomicPtr<c_void>; runtime_copies::MAX_COPIES] =
                    [const { ::std::sync::atomic::AtomicPtr::new(::std::ptr::null_mut()) }; runtime_copies::MAX_COPIES];
            )*
        }

        /// The description of each hook.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod hook {
            use super::*;
            $(
                pub(super) static $name: Hook = Hook {
                    name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                    slot: hook_macro::slot!($($slot)+),
                    export: exported::$name as *const c_void,
                    hooked: crate::hooks::for_each_copy!(hooked::$name),
                    real: &real::$name,
                    missing: missing as *const c_void,
                };
            )*
        }

        /// The exports that programs call by name: each selects the copy of the runtime for the caller, and jumps to its
        /// hook.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod exported {
            use super::*;
            $( crate::hooks::export! { $name, hook::$name, runtime_copies::select_target } )*
        }

        /// All hooks.
        pub(in crate::platforms::hip) static HOOKS: &[&Hook] = &[$(&hook::$name),*];
    };
}
pub(super) use hooks;

macro_rules! slot {
    (none) => {
        None
    };
    ($slot:literal) => {
        Some($slot)
    };
}
pub(super) use slot;
