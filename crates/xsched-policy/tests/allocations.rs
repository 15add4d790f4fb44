//! A round of the pipeline allocates nothing while no task comes or goes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use xsched_core::{DeviceId, Hints, Nanos, Priority, ProcessId, Share, TaskId};
use xsched_policy::{Dependency, POLICIES, Pipeline, PolicyInfo, Snapshot, TaskStatus, TaskView};

/// Counts the allocations of each thread: the test runner has threads of its own.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator with the caller's own arguments, which the caller vouches for.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `layout` is the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` or `realloc` of this allocator, with the caller's `layout`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: `pointer` came from `alloc` or `realloc` of this allocator, with the caller's `layout`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Tasks of six processes on two devices.
fn tasks() -> Snapshot {
    let mut snapshot = Snapshot::default();
    for id in 0..24_u64 {
        let number = i64::try_from(id).unwrap();
        let priority = Priority::new(if id == 0 { 9 } else { number % 2 }).unwrap();
        let hints = Hints { priority, share: Share::new(1 + number).unwrap(), ..Hints::default() };
        let view = TaskView {
            id: TaskId(id + 1),
            process: ProcessId(u32::try_from(id % 6).unwrap()),
            device: DeviceId(id / 12),
            hints,
            ..TaskView::default()
        };
        snapshot.push(view, TaskStatus::default());
    }
    snapshot
}

/// Tasks become busy and idle, wait for each other, consume device time and drain.
fn change(round: u64, snapshot: &mut Snapshot, pipeline: &Pipeline) {
    for (index, status) in snapshot.statuses.iter_mut().enumerate() {
        let key = round.wrapping_mul(7) + 3 * index as u64;
        status.has_work = if index == 0 { round % 32 < 8 } else { key % 5 > 1 };
        status.is_sync_bound = round % 64 < 32;
        let order = pipeline.orders().get(index).copied().unwrap_or_default();
        status.is_drained = order.stops() && !key.is_multiple_of(3);
        if status.has_work && !order.stops() {
            snapshot.views[index].used += Nanos::from_micros(300);
        }
    }
    snapshot.dependencies.clear();
    snapshot.dependencies.extend((0..8).map(|n| Dependency { waiter: n, holder: (n + 1) % 12 }));
}

fn allocations(policy: &'static PolicyInfo) -> u64 {
    let (mut pipeline, mut snapshot) = (Pipeline::new(policy), tasks());
    let mut before = 0;
    for round in 0..4_000 {
        // The first rounds reach every situation once.
        if round == 2_000 {
            before = ALLOCATIONS.get();
        }
        change(round, &mut snapshot, &pipeline);
        pipeline.plan(Nanos::from_secs(1) + Nanos::from_micros(round * 700), &mut snapshot);
    }
    ALLOCATIONS.get() - before
}

#[test]
fn round_allocates_nothing_while_no_task_comes_or_goes() {
    for policy in POLICIES {
        assert_eq!(allocations(policy), 0, "{policy:?}");
    }
}

#[test]
fn allocations_of_this_thread_are_counted() {
    let before = ALLOCATIONS.get();
    drop(std::hint::black_box(Vec::<u8>::with_capacity(100)));
    assert_eq!(ALLOCATIONS.get(), before + 1);
}
