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
                    match ::xsched_interpose::OutermostHook::enter() {
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

        /// Numbers of the hooks.
        #[allow(non_camel_case_types, reason = "the vendor's names")]
        #[repr(u16)]
        enum Number { $($name),* }

        /// The description of each hook.
        #[allow(non_upper_case_globals, reason = "the vendor's names")]
        mod hook {
            use super::*;
            $(
                pub(super) static $name: Hook = Hook {
                    number: Number::$name as u16 + 1,
                    name: crate::hooks::c_name(concat!(stringify!($name), "\0")),
                    slot: hook_macro::slot!($($slot)+),
                    export: exported::$name as *const c_void,
                    hooked: hook_macro::for_each_copy!(hooked::$name),
                    real: &real::$name,
                    missing: missing as *const c_void,
                };
            )*
        }

        /// The exports that programs call by name: each selects the copy of the runtime for the caller, and jumps to its
        /// hook with the caller's registers and stack unchanged.
        #[allow(non_snake_case, reason = "the vendor's names")]
        mod exported {
            use super::*;
            $(
                /// # Safety
                /// As for the vendor's function of this name.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub(super) unsafe extern "C" fn $name() {
                    #[cfg(target_arch = "x86_64")]
                    ::std::arch::naked_asm!(
                        // Six registers hold arguments. No function of the list has a floating point argument.
                        "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                        "sub rsp, 8",
                        // The caller's return address.
                        "mov rdi, qword ptr [rsp + 56]",
                        "lea rsi, [rip + {hook}]",
                        "call {select}",
                        "add rsp, 8",
                        "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                        "jmp rax",
                        hook = sym hook::$name,
                        select = sym runtime_copies::select_target,
                    );
                    #[cfg(target_arch = "aarch64")]
                    ::std::arch::naked_asm!(
                        // Eight registers hold arguments. No function of the list has a floating point argument.
                        "stp x29, x30, [sp, #-80]!",
                        "mov x29, sp",
                        "stp x0, x1, [sp, #16]", "stp x2, x3, [sp, #32]", "stp x4, x5, [sp, #48]", "stp x6, x7, [sp, #64]",
                        // The caller's return address.
                        "mov x0, x30",
                        "adrp x1, {hook}",
                        "add x1, x1, :lo12:{hook}",
                        "bl {select}",
                        "mov x16, x0",
                        "ldp x0, x1, [sp, #16]", "ldp x2, x3, [sp, #32]", "ldp x4, x5, [sp, #48]", "ldp x6, x7, [sp, #64]",
                        "ldp x29, x30, [sp], #80",
                        "br x16",
                        hook = sym hook::$name,
                        select = sym runtime_copies::select_target,
                    );
                }
            )*
        }

        /// All hooks.
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

/// One instance for each of `runtime_copies::MAX_COPIES`; the compiler checks the number.
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
