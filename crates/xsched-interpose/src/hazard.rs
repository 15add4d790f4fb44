//! Who reads what at this moment: hazard pointers whose price is paid by those who remove.
//!
//! A reader writes the address it is about to use into a word of its own, looks again whether it is still to be found,
//! and uses it. Who removes something takes it out of sight, makes every processor of this process take note
//! (`membarrier`), and then looks at all readers' words: nobody can come to use it any more, and who uses it shows.
//! So reading costs two plain stores, and no fence.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, compiler_fence};

/// The word of one thread. Never freed; a thread that ends leaves it to the next that begins.
struct Reader {
    uses: AtomicPtr<c_void>,
    taken: AtomicBool,
    next: *const Reader,
}

// SAFETY: `next` is written before the reader is shared and points at one that is never freed; the rest is atomics.
unsafe impl Sync for Reader {}

static READERS: AtomicPtr<Reader> = AtomicPtr::new(ptr::null_mut());

/// This thread's hold on its word.
struct Mine(&'static Reader);

impl Drop for Mine {
    fn drop(&mut self) {
        self.0.uses.store(ptr::null_mut(), Ordering::Release);
        self.0.taken.store(false, Ordering::Release);
    }
}

thread_local! {
    static MINE: Mine = Mine(take());
}

fn all() -> impl Iterator<Item = &'static Reader> {
    // SAFETY: the list holds leaked boxes only.
    let first = unsafe { READERS.load(Ordering::Acquire).as_ref() };
    // SAFETY: as above.
    std::iter::successors(first, |reader| unsafe { reader.next.as_ref() })
}

/// A word for this thread: one that was left, or a new one.
fn take() -> &'static Reader {
    let free = |reader: &&Reader| {
        !reader.taken.load(Ordering::Relaxed) && !reader.taken.swap(true, Ordering::AcqRel)
    };
    if let Some(left) = all().find(free) {
        return left;
    }
    let mut next = READERS.load(Ordering::Acquire);
    let new =
        Box::into_raw(Box::new(Reader { uses: AtomicPtr::default(), taken: AtomicBool::new(true), next }));
    loop {
        match READERS.compare_exchange(next, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above, and never freed.
            Ok(_) => return unsafe { &*new },
            Err(now) => {
                next = now;
                // SAFETY: not shared yet.
                unsafe { (*new).next = next };
            }
        }
    }
}

/// Uses what `source` points at, which is not freed meanwhile. Not to be called again inside `work`: a thread has one
/// word. `work` gets none if there is nothing, or if the thread is ending.
#[inline]
pub(crate) fn read<T, R>(source: &AtomicPtr<T>, work: impl FnOnce(Option<&T>) -> R) -> R {
    let Ok(reader) = MINE.try_with(|mine| mine.0) else { return work(None) };
    let found = loop {
        let found = source.load(Ordering::Acquire);
        reader.uses.store(found.cast(), Ordering::Relaxed);
        // The remover's `membarrier` makes this a fence wherever it matters.
        compiler_fence(Ordering::SeqCst);
        if source.load(Ordering::Acquire) == found {
            break found;
        }
    };
    let _done = Done(reader);
    // SAFETY: it was to be found after we had said that we use it, so whoever removes it sees that: `is_unused`.
    work(unsafe { found.as_ref() })
}

struct Done(&'static Reader);

impl Drop for Done {
    fn drop(&mut self) {
        // Release: our use happened before. Pairs with the Acquire in `is_unused`.
        self.0.uses.store(ptr::null_mut(), Ordering::Release);
    }
}

/// Whether nobody reads any of the values, which are out of sight already. Answers no if it cannot be known.
pub(crate) fn are_unused(values: &[*mut c_void]) -> Vec<bool> {
    if !everybody_takes_note() {
        return vec![false; values.len()];
    }
    let used: Vec<_> = all().map(|reader| reader.uses.load(Ordering::Acquire)).collect();
    values.iter().map(|value| !used.contains(value)).collect()
}

/// Every thread of this process passes a full memory barrier.
fn everybody_takes_note() -> bool {
    const REGISTER: i32 = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    const BARRIER: i32 = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    // SAFETY: the call reads and writes no memory of ours.
    let call = |command: i32| unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) } == 0;
    call(BARRIER) || (call(REGISTER) && call(BARRIER))
}
