//! How a hook calls the real function: exactly once, whatever else happens.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Proof that no hook of ours is at work on this thread yet. While it lives, [`OutermostHook::enter`] answers none: what
/// the vendor's library or we ourselves call from inside a hook goes straight to the real functions.
pub struct OutermostHook(());

impl OutermostHook {
    /// None on a thread that is inside a hook already, or is ending.
    #[must_use]
    #[inline]
    pub fn enter() -> Option<Self> {
        let was_inside = INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true);
        // Made only then: one that is made and dropped says that nobody is inside.
        (!was_inside).then(|| Self(()))
    }
}

impl Drop for OutermostHook {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.set(false));
    }
}

/// Does something from within a hook that may call the program's own functions: what they call passes hooks again. Not
/// to be used where something of a [`crate::Table`] is being read.
pub fn outside_hooks<R>(work: impl FnOnce() -> R) -> R {
    /// Puts it back, also if `work` unwinds.
    struct Back(bool);
    impl Drop for Back {
        fn drop(&mut self) {
            let _ = INSIDE.try_with(|inside| inside.set(self.0));
        }
    }
    let _back = INSIDE.try_with(|inside| Back(inside.replace(false)));
    work()
}

/// Calls `real` exactly once and answers with its result. `around` decides when, by calling what it is given; if it
/// does not, or panics before it does, `real` is called afterwards. The caller finds `errno` as `real` left it, and
/// `real` finds it as the caller left it.
#[inline]
pub fn forward_once<R>(real: impl FnOnce() -> R, around: impl FnOnce(&mut dyn FnMut())) -> R {
    let callers = errno();
    let mut real = Some(real);
    let mut answer = None;
    let mut call = || {
        if let Some(real) = real.take() {
            set_errno(callers);
            let result = real();
            answer = Some((result, errno()));
        }
    };
    // What may be left half done by a panic is ours, and each part of it is valid after every statement.
    let _ = catch_unwind(AssertUnwindSafe(|| around(&mut call)));
    call();
    match answer {
        Some((result, left)) => {
            set_errno(left);
            result
        }
        // `call` has just filled it in, unless `real` unwound, and then we are not here.
        None => unreachable!("the real function was called"),
    }
}

/// Does something of our own beside what the program asked for: a panic ends here, and `errno` stays as it is.
pub fn run_isolated(work: impl FnOnce()) {
    let callers = errno();
    // As in `forward_once`.
    let _ = catch_unwind(AssertUnwindSafe(work));
    set_errno(callers);
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

    fn silently<R>(work: impl FnOnce() -> R) -> R {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let result = work();
        std::panic::set_hook(before);
        result
    }

    #[test]
    fn the_real_function_is_called_once_whatever_the_hook_does() {
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
        silently(|| {
            assert_eq!(forward_once(real, |_| panic!("before")), 4);
            let after = |call: &mut dyn FnMut()| {
                call();
                panic!("after");
            };
            assert_eq!(forward_once(real, after), 5);
        });
    }

    #[test]
    fn errno_belongs_to_the_program() {
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
    fn what_is_done_aside_leaves_no_trace() {
        set_errno(17);
        silently(|| {
            run_isolated(|| {
                set_errno(1);
                panic!("aside");
            });
        });
        assert_eq!(errno(), 17);
    }

    #[test]
    fn only_one_hook_at_a_time_is_outermost() {
        let outer = OutermostHook::enter().unwrap();
        assert!(OutermostHook::enter().is_none());
        assert!(OutermostHook::enter().is_none(), "asking has changed the answer");
        assert!(outside_hooks(|| OutermostHook::enter().is_some()), "the program's own function is inside");
        assert!(OutermostHook::enter().is_none(), "no longer inside after the program's function");
        drop(outer);
        assert!(OutermostHook::enter().is_some());
    }
}
