//! The launch path allocates no memory, whatever the order.
#![cfg(not(loom))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use xsched_core::sync::Shared;
use xsched_core::{Gate, LevelRequest, NoScheduler, NullQueue, Order, QueueId, XQueue};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of the calling thread.
struct CountingAllocator;

// SAFETY: every call is forwarded to the system's allocator unchanged. Counting writes only a thread-local cell, which needs
// no allocation.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps the contract of `alloc`, and its layout is forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller got `pointer` from `alloc` above, which is the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn launching_allocates_no_memory() {
    let boxed = Box::new(1);
    assert!(ALLOCATIONS.get() > 0, "the counter works");
    drop(boxed);
    for order in [Order::Free, Order::Leader, Order::Throttled] {
        let gate = Shared::from(Arc::new(Gate::default()));
        gate.set_order(order);
        let hw = Arc::new(NullQueue::default());
        let queue = XQueue::new(QueueId(1), hw, gate, Arc::new(NoScheduler), LevelRequest::Auto).unwrap();
        let before = ALLOCATIONS.get();
        let launched: u32 = (0..10_000).map(|_| queue.launch(|| 1)).sum();
        assert_eq!((launched, ALLOCATIONS.get() - before), (10_000, 0), "{order:?}");
    }
}
