//! How hooks are written here: one name in one list, plus one function; see `copies` for why each exists many times.

/// Makes hooks of a list of functions.
///
/// ```text
/// hooks! {
///     [166] fn hipGraphLaunch(graph: *mut c_void, stream: Stream) = |call, _, stream| launch(call, stream, LEGACY);
/// }
/// ```
/// The number is the function's place in the runtime's table; functions without one are written `[none]`. `call` is a
/// [`super::Call`]: the copy it goes to, and the real function with the caller's arguments, to be called exactly once.
macro_rules! hooks {
    ( $( [$($slot:tt)+] fn $name:ident($($argument:ident: $kind:ty),*) = $around:expr; )* ) => {
        /// The hooks, one for each copy.
        #[allow(non_snake_case, clippy::redundant_closure_call, reason = "the vendor's names; closures over arguments")]
        mod hooked {
            use super::*;
            $(
                pub(super) unsafe extern "C" fn $name<const COPY: usize>($($argument: $kind),*) -> Code {
                    // Acquire: pairs with the Release of who handed this hook out.
                    let real = real::$name[COPY].load(::std::sync::atomic::Ordering::Acquire);
                    // SAFETY: the list gives it the type that the vendor's header gives it. Whoever hands this hook
                    // out has stored the function of this name before.
                    let real = unsafe {
                        ::std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> Code>(real)
                    };
                    // SAFETY: the caller vouches for the arguments, which are passed on as they are.
                    let mut real = || unsafe { real($($argument),*) };
                    match ::xsched_interpose::OutermostHook::enter() {
                        Some(_outermost) => ($around)(Call { copy: COPY, real: &mut real }, $($argument),*),
                        None => real(),
                    }
                }
            )*
        }

        /// Where the vendor's functions are kept.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod real {
            use super::*;
            $(
                pub(super) static $name: [::std::sync::atomic::AtomicPtr<c_void>; copies::MOST] =
                    [const { ::std::sync::atomic::AtomicPtr::new(::std::ptr::null_mut()) }; copies::MOST];
            )*
        }

        /// Numbers for the hooks.
        #[allow(non_camel_case_types, reason = "the vendor's names")]
        #[repr(u16)]
        enum Number { $($name),* }

        /// What is known about each.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod hook {
            use super::*;
            $(
                pub(super) static $name: Hook = Hook {
                    number: Number::$name as u16 + 1,
                    name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                    slot: stubs::slot!($($slot)+),
                    export: exported::$name as *const c_void,
                    hooked: stubs::for_each_copy!(hooked::$name),
                    real: &real::$name,
                    missing: missing as *const c_void,
                };
            )*
        }

        /// What programs reach by name: finds out which copy is meant, and goes on there as if it had been called itself.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod exported {
            use super::*;
            $(
                /// # Safety
                /// As the vendor's function of this name demands.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub(super) unsafe extern "C" fn $name() {
                    ::std::arch::naked_asm!(
                        // Six registers hold arguments; none of these functions takes a floating point number.
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                        "sub rsp, 8",
                        // The caller's return address.
                        "mov rdi, qword ptr [rsp + 56]",
                        "lea rsi, [rip + {hook}]",
                        "call {choose}",
                        "add rsp, 8",
                        "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp rax",
                        hook = sym hook::$name,
                        choose = sym copies::choose,
                    )
                }
            )*
        }

        /// All of them.
        static HOOKS: &[&Hook] = &[$(&hook::$name),*];
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

/// As many as `copies::MOST`; the compiler counts.
macro_rules! for_each_copy {
    ($hook:path) => {{
        use $hook as hook;
        [
            hook::<0> as *const c_void,
            hook::<1> as *const c_void,
            hook::<2> as *const c_void,
            hook::<3> as *const c_void,
            hook::<4> as *const c_void,
            hook::<5> as *const c_void,
            hook::<6> as *const c_void,
            hook::<7> as *const c_void,
        ]
    }};
}
pub(super) use for_each_copy;
