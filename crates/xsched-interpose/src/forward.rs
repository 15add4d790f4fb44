//! How a hook calls the vendor's function: exactly once, whatever else happens.

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A set of hooks that call each other's functions: those of one vendor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HookDomain(u32);

impl HookDomain {
    /// The domain with this number.
    ///
    /// # Panics
    /// If the number is 32 or more: a thread records its domains in one word.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        assert!(number < u32::BITS);
        Self(1 << number)
    }
}

/// All domains.
const ALL: u32 = u32::MAX;

thread_local! {
    /// The domains of which a hook is running on this thread.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

/// Proof that the calling hook is the outermost one of its domain on its thread. While it exists, [`OutermostHook::enter`]
/// returns none for this domain on this thread: calls that the vendor's library or this library makes from inside a hook go
/// straight to the real functions. Hooks of other domains act as usual, because one vendor's interface can be implemented on
/// top of another's.
pub struct OutermostHook {
    before: u32,
    /// The domains belong to the thread that entered them.
    not_send: PhantomData<*const ()>,
}

impl OutermostHook {
    /// None on a thread that is inside a hook of the domain already, or that is ending.
    #[must_use]
    #[inline]
    pub fn enter(domain: HookDomain) -> Option<Self> {
        Self::enter_mask(domain.0)
    }

    /// Enters all domains. None on a thread that is inside all of them already, or that is ending.
    #[must_use]
    pub fn enter_all() -> Option<Self> {
        Self::enter_mask(ALL)
    }

    #[inline]
    fn enter_mask(mask: u32) -> Option<Self> {
        let before = INSIDE.try_with(|inside| inside.replace(inside.get() | mask)).unwrap_or(ALL);
        // Created only in this case: dropping it restores the word.
        (before & mask != mask).then_some(Self { before, not_send: PhantomData })
    }
}

impl Drop for OutermostHook {
    #[inline]
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(self.before));
    }
}

/// Calls `work` from inside a hook as if it were outside. For vendor functions that call the program's functions: what those
/// call passes the hooks again.
pub fn outside_hooks<R>(work: impl FnOnce() -> R) -> R {
    /// Restores the word, also if `work` unwinds.
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = INSIDE.try_with(|inside| inside.set(self.0));
        }
    }
    let _restore = INSIDE.try_with(|inside| Restore(inside.replace(0)));
    work()
}

/// Calls `real` exactly once and returns its result. `around` decides when, by calling its argument; if it returns or
/// panics without having called it, `real` is called afterwards. `real` sees the caller's `errno`, and the caller sees the
/// `errno` of `real`.
#[inline]
pub fn forward_once<R>(real: impl FnOnce() -> R, around: impl FnOnce(&mut dyn FnMut())) -> R {
    let caller_errno = errno();
    let mut real = Some(real);
    let mut returned = None;
    let mut call = || {
        if let Some(real) = real.take() {
            set_errno(caller_errno);
            let result = real();
            returned = Some((result, errno()));
        }
    };
    // A panic can interrupt the library's own state only, which is valid after every statement.
    let _ = catch_unwind(AssertUnwindSafe(|| around(&mut call)));
    call();
    match returned {
        Some((result, errno_of_real)) => {
            set_errno(errno_of_real);
            result
        }
        // `call` has set it, unless `real` unwound, and then this is not reached.
        None => unreachable!("the real function was called"),
    }
}

/// Does work of the library's own within a call of the program: a panic ends here, and `errno` is preserved.
pub fn run_isolated(work: impl FnOnce()) {
    let caller_errno = errno();
    // As in `forward_once`.
    let _ = catch_unwind(AssertUnwindSafe(work));
    set_errno(caller_errno);
}

fn errno() -> i32 {
    // SAFETY: the address of this thread's own `errno`.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn without_panic_message<R>(work: impl FnOnce() -> R) -> R {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = work();
        std::panic::set_hook(before);
        result
    }

    #[test]
    fn real_function_is_called_exactly_once() {
        let calls = Cell::new(0);
        let real = || {
            calls.set(calls.get() + 1);
            calls.get()
        };
        assert_eq!(forward_once(real, |call| call()), 1);
        assert_eq!(forward_once(real, |_| {}), 2);
        let twice = |call: &mut dyn FnMut()| {
            call();
            call();
        };
        assert_eq!(forward_once(real, twice), 3);
        without_panic_message(|| {
            assert_eq!(forward_once(real, |_| panic!("before")), 4);
            let after = |call: &mut dyn FnMut()| {
                call();
                panic!("after");
            };
            assert_eq!(forward_once(real, after), 5);
        });
    }

    #[test]
    fn errno_of_the_program_and_of_the_real_function_are_preserved() {
        set_errno(17);
        let seen = forward_once(
            || {
                let seen = errno();
                set_errno(23);
                seen
            },
            |call| {
                set_errno(1);
                call();
                set_errno(2);
            },
        );
        assert_eq!((seen, errno()), (17, 23));
    }

    #[test]
    fn isolated_work_changes_neither_errno_nor_unwinds() {
        set_errno(17);
        without_panic_message(|| {
            run_isolated(|| {
                set_errno(1);
                panic!("isolated");
            });
        });
        assert_eq!(errno(), 17);
    }

    #[test]
    fn one_hook_of_a_domain_and_thread_is_outermost() {
        const ONE: HookDomain = HookDomain::new(0);
        const OTHER: HookDomain = HookDomain::new(3);
        let outer = OutermostHook::enter(ONE).unwrap();
        assert!(OutermostHook::enter(ONE).is_none());
        assert!(OutermostHook::enter(ONE).is_none(), "a failed attempt left the domain");
        let inner = OutermostHook::enter(OTHER).expect("a hook of another domain acts inside this one");
        assert!(OutermostHook::enter(ONE).is_none() && OutermostHook::enter(OTHER).is_none());
        drop(inner);
        assert!(OutermostHook::enter(ONE).is_none(), "leaving the inner domain left the outer one");
        assert!(
            outside_hooks(|| OutermostHook::enter(ONE).is_some()),
            "the program's function counts as inside"
        );
        assert!(
            OutermostHook::enter(ONE).is_none(),
            "the word was not restored after the program's function"
        );
        let all = OutermostHook::enter_all().unwrap();
        assert!(OutermostHook::enter(OTHER).is_none() && OutermostHook::enter_all().is_none());
        drop(all);
        assert!(OutermostHook::enter(OTHER).is_some());
        drop(outer);
        assert!(OutermostHook::enter(ONE).is_some());
    }
}
