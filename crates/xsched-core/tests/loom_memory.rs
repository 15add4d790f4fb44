//! Interleavings of processes that reserve device memory within a common limit, explored by loom.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_memory`.
#![cfg(loom)]

use std::sync::Arc;

use loom::thread;
use xsched_core::memory_protocol::{MemorySlot, reserve, used_on};

const DEVICE: u64 = 7;
const LIMIT: u64 = 10;

/// Two members that use these amounts reserve these amounts at the same time. Returns whether each succeeded, and what both use.
fn reserve_at_once(used: [u64; 2], bytes: [u64; 2]) -> ([bool; 2], u64) {
    let slots = Arc::new([MemorySlot::default(), MemorySlot::default()]);
    for (member, (slot, used)) in (1..).zip(slots.iter().zip(used)) {
        assert!(slot.try_claim(member, DEVICE, used));
    }
    let wait = || {
        thread::yield_now();
        true
    };
    let other = {
        let slots = Arc::clone(&slots);
        thread::spawn(move || reserve(&*slots, 1, bytes[1], LIMIT, wait).is_ok())
    };
    let first = reserve(&*slots, 0, bytes[0], LIMIT, wait).is_ok();
    let second = other.join().unwrap();
    ([first, second], used_on(&*slots, DEVICE))
}

#[test]
fn one_of_two_that_do_not_fit_together_succeeds() {
    loom::model(|| {
        let (succeeded, used) = reserve_at_once([1, 2], [6, 5]);
        assert!(used <= LIMIT, "{used} are used");
        assert_eq!(succeeded.iter().filter(|ok| **ok).count(), 1, "{succeeded:?}");
    });
}

#[test]
fn two_that_fit_together_both_succeed() {
    loom::model(|| {
        let (succeeded, used) = reserve_at_once([1, 2], [4, 3]);
        assert_eq!((succeeded, used), ([true, true], LIMIT));
    });
}

#[test]
fn one_that_fits_is_not_refused_for_one_that_does_not() {
    loom::model(|| {
        assert_eq!(reserve_at_once([1, 2], [8, 5]), ([false, true], 8));
    });
    loom::model(|| {
        assert_eq!(reserve_at_once([1, 2], [5, 8]), ([true, false], 8));
    });
}
