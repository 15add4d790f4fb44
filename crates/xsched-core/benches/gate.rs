//! The cost of a launch through the gate, compared with calling the function directly.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use xsched_core::sync::Shared;
use xsched_core::{Gate, LevelRequest, Limit, Nanos, NoScheduler, NullQueue, Order, QueueId, XQueue};

#[inline(never)]
fn vendor_call(n: u64) -> u64 {
    black_box(n) + 1
}

fn queue(order: Order) -> XQueue {
    let gate = Shared::from(Arc::new(Gate::default()));
    gate.set_order(order);
    XQueue::new(QueueId(1), Arc::new(NullQueue::default()), gate, Arc::new(NoScheduler), LevelRequest::Auto)
        .expect("every device offers level 1")
}

fn gate(c: &mut Criterion) {
    let mut group = c.benchmark_group("gate");
    group.bench_function("direct", |b| b.iter(|| vendor_call(1)));
    for (name, order) in [("free", Order::Free), ("leader", Order::Leader), ("throttled", Order::Throttled)] {
        let queue = queue(order);
        group.bench_function(name, |b| b.iter(|| queue.launch(|| vendor_call(1))));
    }
    let counted = queue(Order::Throttled);
    counted.launch_path().set_limit(Some(Limit::Count { threshold: 16, batch_size: 8 }));
    group.bench_function("throttled by count", |b| b.iter(|| counted.launch(|| vendor_call(1))));
    let narrow = queue(Order::Throttled);
    narrow.launch_path().set_limit(Some(Limit::Budget(Nanos::from_micros(10))));
    group.bench_function("throttled, window mostly full", |b| b.iter(|| narrow.launch(|| vendor_call(1))));
    group.finish();
}

criterion_group!(benches, gate);
criterion_main!(benches);
