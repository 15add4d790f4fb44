//! Interleavings of calls that use device memory and the thread that takes the memory away, explored by loom.
//!
//! Run with `LOOM_MAX_PREEMPTIONS=3 RUSTFLAGS="--cfg loom" cargo test -p xsched-core --release --test loom_calls`.
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use xsched_core::call_gate::CallGate;

const LONG: Duration = Duration::from_secs(600);

/// A call never finds the memory away, whether the closing is committed or abandoned; a held thread resumes.
fn move_memory_beside_a_call(patience: Duration) {
    loom::model(move || {
        let gate = Arc::new(CallGate::new());
        let is_away = Arc::new(AtomicBool::new(false));
        let caller = {
            let (gate, is_away) = (Arc::clone(&gate), Arc::clone(&is_away));
            thread::spawn(move || {
                let _call = gate.enter(patience, || {});
                assert!(!is_away.load(Ordering::SeqCst));
            })
        };
        gate.close();
        if gate.wait_until_empty(LONG) && gate.commit() {
            is_away.store(true, Ordering::SeqCst);
            is_away.store(false, Ordering::SeqCst);
        }
        gate.open();
        caller.join().unwrap();
        assert_eq!(gate.held(), 0);
    });
}

#[test]
fn memory_is_in_place_during_each_call() {
    move_memory_beside_a_call(LONG);
}

#[test]
fn memory_is_in_place_if_a_held_thread_abandons_the_closing() {
    move_memory_beside_a_call(Duration::ZERO);
}
