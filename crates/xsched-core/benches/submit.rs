//! What a callback command costs, from its submission until it has completed on a device that takes no time.

use std::sync::Arc;
use std::time::Instant;

use criterion::{Criterion, criterion_group, criterion_main};
use xsched_core::sync::Shared;
use xsched_core::{Gate, LevelRequest, NoScheduler, NullQueue, QueueId, XQueue};

fn queue() -> XQueue {
    let gate = Shared::from(Arc::new(Gate::default()));
    XQueue::new(QueueId(1), Arc::new(NullQueue::default()), gate, Arc::new(NoScheduler), LevelRequest::Auto)
        .expect("the null device has level 1")
}

fn submit(c: &mut Criterion) {
    let threaded = queue();
    c.bench_function("submit an empty command", |b| {
        b.iter_custom(|commands| {
            let began = Instant::now();
            for _ in 0..commands {
                threaded.submit(|| {}).expect("it takes commands");
                threaded.wait_for_room();
            }
            threaded.wait_all().expect("the null device never fails");
            began.elapsed()
        });
    });
    let here = queue();
    assert!(here.launch_where_submitted());
    c.bench_function("submit an empty command that is launched here", |b| {
        b.iter(|| here.submit(|| {}).expect("it takes commands"));
    });
}

criterion_group!(benches, submit);
criterion_main!(benches);
