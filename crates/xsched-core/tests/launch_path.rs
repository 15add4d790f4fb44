//! The launch path allocates nothing, whatever the scheduler says.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use xsched_core::sync::Shared;
use xsched_core::{Gate, LevelRequest, NoScheduler, NullQueue, Order, QueueId, XQueue};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts what this thread allocates.
struct Counting;

// SAFETY: every call is handed to the system's allocator unchanged; counting touches no memory but a thread-local cell
// that needs no allocation itself.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, and we pass its layout on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got `pointer` from `alloc` above, that is, from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn launching_allocates_nothing() {
    let boxed = Box::new(1);
    assert!(ALLOCATIONS.get() > 0, "the counter counts");
    drop(boxed);
    for order in [Order::Free, Order::Leader, Order::Throttled] {
        let gate = Shared::from(Arc::new(Gate::default()));
        gate.give(order);
        let hw = Arc::new(NullQueue::default());
        let queue = XQueue::new(QueueId(1), hw, gate, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let before = ALLOCATIONS.get();
        let launched: u32 = (0..10_000).map(|_| queue.launch(|| 1)).sum();
        assert_eq!((launched, ALLOCATIONS.get() - before), (10_000, 0), "{order:?}");
    }
}
