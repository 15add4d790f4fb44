//! The cost of a callback command, from its submission until it has completed on a device without latency.

use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use xsched_core::sync::Shared;
use xsched_core::{Gate, LevelRequest, NoScheduler, NullQueue, QueueId, XQueue};

fn queue() -> XQueue {
    let gate = Shared::from(Arc::new(Gate::default()));
    XQueue::new(QueueId(1), Arc::new(NullQueue::default()), gate, Arc::new(NoScheduler), LevelRequest::Auto)
        .expect("every device offers level 1")
}

fn submit(c: &mut Criterion) {
    let threaded = queue();
    c.bench_function("submit an empty command", |b| {
        b.iter_custom(|commands| {
            let began = Instant::now();
            for _ in 0..commands {
                threaded.submit(|| {}).expect("the queue accepts commands");
                threaded.wait_for_room();
            }
            threaded.wait_all().expect("the null device never fails");
            began.elapsed()
        });
    });
    let unthreaded = queue();
    assert!(unthreaded.launch_where_submitted());
    c.bench_function("submit an empty command, launched by the submitting thread", |b| {
        b.iter(|| unthreaded.submit(|| {}).expect("the queue accepts commands"));
    });
}

criterion_group!(benches, submit);
criterion_main!(benches);
