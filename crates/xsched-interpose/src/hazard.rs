//! Hazard pointers whose cost is paid by the thread that removes a value.
//!
//! A reader stores the address that it is about to use in a word of its own, checks that the value is still reachable, and
//! uses it. A remover makes the value unreachable, executes a memory barrier on every processor that runs a thread of this
//! process (`membarrier`), and then scans the words of all readers. A reader that could still use the value is visible to
//! that scan. Reading therefore costs two plain stores and no fence.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence};

/// How many values one thread can protect at a time: a hook of one vendor's function can run inside a hook of another's.
const WORDS: usize = 4;

/// The words of one thread. They are never freed; a thread that ends releases them for the next one.
struct Reader {
    protects: [AtomicPtr<c_void>; WORDS],
    is_owned: AtomicBool,
    next: *const Reader,
}

// SAFETY: `next` is written before the reader is shared and points to a reader that is never freed; the rest is atomic.
unsafe impl Sync for Reader {}

static READERS: AtomicPtr<Reader> = AtomicPtr::new(ptr::null_mut());

/// The calling thread's ownership of its words.
struct OwnedReader(&'static Reader);

impl Drop for OwnedReader {
    fn drop(&mut self) {
        self.0.protects.iter().for_each(|word| word.store(ptr::null_mut(), Ordering::Release));
        self.0.is_owned.store(false, Ordering::Release);
    }
}

thread_local! {
    static OWN: OwnedReader = OwnedReader(acquire());
}

fn readers() -> impl Iterator<Item = &'static Reader> {
    // SAFETY: the list holds leaked boxes only.
    let first = unsafe { READERS.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |reader| unsafe { reader.next.as_ref() })
}

/// Words for the calling thread: released ones, or new ones.
fn acquire() -> &'static Reader {
    let claim = |reader: &&Reader| {
        !reader.is_owned.load(Ordering::Relaxed) && !reader.is_owned.swap(true, Ordering::AcqRel)
    };
    if let Some(released) = readers().find(claim) {
        return released;
    }
    let mut next = READERS.load(Ordering::Acquire);
    let new = Box::into_raw(Box::new(Reader {
        protects: Default::default(),
        is_owned: AtomicBool::new(true),
        next,
    }));
    loop {
        match READERS.compare_exchange(next, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: allocated above, and never freed.
            Ok(_) => return unsafe { &*new },
            Err(now) => {
                next = now;
                // SAFETY: not shared yet.
                unsafe { (*new).next = next };
            }
        }
    }
}

/// A value that is not freed while the guard exists. A thread can hold four guards at a time.
pub struct Guard<'a, T> {
    value: &'a T,
    word: &'static AtomicPtr<c_void>,
    /// The word belongs to the thread that created the guard.
    not_send: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release: the use of the value happened before. Pairs with the Acquire in `are_unprotected`.
        self.word.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Protects the value that `source` points to. None if there is no value, if the thread is ending, or if it holds as many
/// guards as it can.
#[inline]
pub(crate) fn protect<T>(source: &AtomicPtr<T>) -> Option<Guard<'_, T>> {
    let reader = OWN.try_with(|own| own.0).ok()?;
    let word = reader.protects.iter().find(|word| word.load(Ordering::Relaxed).is_null())?;
    let found = loop {
        let found = source.load(Ordering::Acquire);
        word.store(found.cast(), Ordering::Relaxed);
        // The `membarrier` of the remover makes this a full fence where one is needed.
        compiler_fence(Ordering::SeqCst);
        if source.load(Ordering::Acquire) == found {
            break found;
        }
    };
    // SAFETY: it was reachable after this thread had published the address, so that the remover's scan sees the word and
    // does not free it.
    let value = unsafe { found.as_ref() }?;
    Some(Guard { value, word, not_send: PhantomData })
}

/// Whether each of these values, which are no longer reachable, is used by no reader. False if that cannot be determined.
pub(crate) fn are_unprotected(values: &[*mut c_void]) -> Vec<bool> {
    if !barrier_on_all_threads() {
        return vec![false; values.len()];
    }
    let protected: Vec<_> =
        readers().flat_map(|reader| &reader.protects).map(|word| word.load(Ordering::Acquire)).collect();
    values.iter().map(|value| !protected.contains(value)).collect()
}

/// Executes a full memory barrier on every thread of this process. Returns whether the kernel did.
fn barrier_on_all_threads() -> bool {
    const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    const BARRIER: i32 = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    // SAFETY: the system call accesses no memory of this process.
    let call = |command: i32| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
    call(BARRIER) || (call(REGISTER) && call(BARRIER))
}
