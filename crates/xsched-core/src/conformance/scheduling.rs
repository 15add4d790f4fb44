//! Checks of an XQueue on top of the hardware queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Subject, eventually};
use crate::{
    Gate, Level, LevelRequest, Limit, Nanos, NoScheduler, Order, Outcome, QueueId, QueueState, Resume,
    Suspend, XQueue,
};
use crate::{HwQueue, sync::Shared};

const SHORT: Duration = Duration::from_micros(200);

/// An XQueue the test drives itself, on a fresh hardware queue.
fn driven<S: Subject>(subject: &S, level: LevelRequest) -> (Arc<XQueue>, Arc<S::Queue>) {
    let hw = subject.queue();
    (driven_on(&hw, level), hw)
}

fn driven_on<Q: HwQueue + 'static>(hw: &Arc<Q>, level: LevelRequest) -> Arc<XQueue> {
    let gate = Shared::from(Arc::new(Gate::default()));
    gate.count_all();
    let theirs: Arc<dyn HwQueue> = hw.clone();
    Arc::new(XQueue::new(QueueId(1), theirs, gate, Arc::new(NoScheduler), level).unwrap())
}

/// While suspended nothing is launched; afterwards everything is, once, in order.
pub fn a_suspended_queue_launches_nothing_and_resumes_in_order<S: Subject>(subject: &S) {
    const COMMANDS: usize = 200;
    let (queue, hw) = driven(subject, LevelRequest::Auto);
    let log = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 0..COMMANDS {
                queue.launch(|| {
                    subject.launch(&hw, SHORT);
                    log.lock().unwrap().push(n);
                });
            }
        });
        for _ in 0..10 {
            queue.suspend(Suspend::default()).unwrap();
            let stopped_at = log.lock().unwrap().len();
            std::thread::sleep(Duration::from_millis(3));
            assert_eq!(log.lock().unwrap().len(), stopped_at, "launched while suspended");
            queue.resume(Resume::default()).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    queue.wait_all().unwrap();
    assert_eq!(*log.lock().unwrap(), (0..COMMANDS).collect::<Vec<_>>());
    assert_eq!(subject.finished(&hw), COMMANDS as u64);
    eventually("the queue became idle", || queue.state() == QueueState::Idle);
}

/// After a synchronous suspend the device has nothing left to do.
pub fn suspending_with_sync_leaves_nothing_on_the_device<S: Subject>(subject: &S) {
    let (queue, hw) = driven(subject, LevelRequest::Auto);
    let mut launched = 0;
    for _ in 0..5 {
        for _ in 0..10 {
            queue.launch(|| subject.launch(&hw, SHORT));
            launched += 1;
        }
        queue.suspend(Suspend { sync_hw_queue: true, ..Suspend::default() }).unwrap();
        assert_eq!(subject.finished(&hw), launched);
        queue.resume(Resume::default()).unwrap();
    }
}

/// `wait_all` and `wait_idle` let what was submitted complete before the queue is suspended.
pub fn suspending_waits_for_submitted_commands<S: Subject>(subject: &S) {
    for how in
        [Suspend { wait_all: true, ..Suspend::default() }, Suspend { wait_idle: true, ..Suspend::default() }]
    {
        let (queue, hw) = driven(subject, LevelRequest::Auto);
        let log = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..20)
            .map(|n| {
                let log = Arc::clone(&log);
                queue.submit(move || log.lock().unwrap().push(n)).unwrap()
            })
            .collect();
        subject.launch(&hw, SHORT);
        queue.suspend(how).unwrap();
        assert_eq!(*log.lock().unwrap(), (0..20).collect::<Vec<_>>(), "{how:?}");
        assert_eq!(subject.finished(&hw), 1, "{how:?}");
        assert!(queue.launch_path().gate().is_closed());
        queue.resume(Resume::default()).unwrap();
        for ticket in &tickets {
            assert_eq!(queue.wait(ticket).unwrap(), Outcome::Completed);
        }
    }
}

/// Resuming with `drop_commands` discards what waits, and only that.
pub fn waiting_commands_can_be_dropped<S: Subject>(subject: &S) {
    let (queue, _hw) = driven(subject, LevelRequest::Auto);
    let ran = Arc::new(Mutex::new(Vec::new()));
    let submit = |n: u32| {
        let ran = Arc::clone(&ran);
        queue.submit(move || ran.lock().unwrap().push(n)).unwrap()
    };
    let before = submit(1);
    assert_eq!(queue.wait(&before).unwrap(), Outcome::Completed);
    queue.suspend(Suspend::default()).unwrap();
    let dropped = [submit(2), submit(3)];
    queue.resume(Resume { drop_commands: true }).unwrap();
    let after = submit(4);
    assert_eq!(queue.wait(&after).unwrap(), Outcome::Completed);
    for ticket in &dropped {
        assert_eq!(queue.wait(ticket).unwrap(), Outcome::Dropped);
    }
    assert_eq!(*ran.lock().unwrap(), [1, 4]);
}

/// Suspends do not nest, and resuming what runs is nothing.
pub fn suspending_and_resuming_may_be_repeated<S: Subject>(subject: &S) {
    let (queue, hw) = driven(subject, LevelRequest::Auto);
    queue.resume(Resume::default()).unwrap();
    for _ in 0..3 {
        queue.suspend(Suspend::default()).unwrap();
    }
    queue.suspend(Suspend { sync_hw_queue: true, wait_all: true, wait_idle: true }).unwrap();
    queue.resume(Resume::default()).unwrap();
    queue.launch(|| subject.launch(&hw, SHORT));
    queue.resume(Resume::default()).unwrap();
    queue.wait_all().unwrap();
    assert_eq!(subject.finished(&hw), 1);
}

/// Asking for more than the device has names the level it has and the reason.
pub fn a_missing_level_is_an_error_that_says_what_there_is<S: Subject>(subject: &S) {
    let (queue, hw) = driven(subject, LevelRequest::Auto);
    let capabilities = hw.capabilities();
    for level in Level::ALL {
        let answer = queue.launch_path().set_level(LevelRequest::Exactly(level));
        match capabilities.cost(level) {
            Ok(_) => assert_eq!(answer.unwrap(), level),
            Err(reason) => {
                let refusal = answer.expect_err("a level the device lacks was accepted").to_string();
                assert!(refusal.contains(reason), "`{refusal}` does not say why");
                let has = format!("supports level {}", capabilities.highest().number());
                assert!(refusal.contains(&has), "`{refusal}` does not say what there is");
            }
        }
    }
}

/// Under a narrow window, by time or by count, with several threads, everything completes.
pub fn a_paced_queue_completes_everything<S: Subject>(subject: &S) {
    for limit in [Limit::Budget(Nanos::from_micros(500)), Limit::Count { threshold: 4, batch_size: 2 }] {
        let (queue, hw) = driven(subject, LevelRequest::Auto);
        queue.launch_path().set_limit(Some(limit));
        queue.launch_path().gate().give(Order::Throttled);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..60 {
                        queue.launch(|| subject.launch(&hw, SHORT));
                    }
                });
            }
        });
        queue.wait_all().unwrap();
        assert_eq!(subject.finished(&hw), 120, "{limit:?}");
    }
}

/// One XQueue after the other on the same hardware queue, the first still used by a thread: neither takes the other's markers
/// for its own.
pub fn a_queue_that_is_controlled_again_is_waited_for_as_before<S: Subject>(subject: &S) {
    const LENGTH: Duration = Duration::from_millis(20);
    let (first, hw) = driven(subject, LevelRequest::Auto);
    let limit = Limit::Count { threshold: 1, batch_size: 1 };
    first.set_limit(Some(limit));
    let mut launched = 0;
    for _ in 0..10 {
        first.launch(|| subject.launch(&hw, SHORT));
        launched += 1;
    }
    first.wait_all().unwrap();
    let second = driven_on(&hw, LevelRequest::Auto);
    second.set_limit(Some(limit));
    for _ in 0..3 {
        for queue in [&second, &first] {
            queue.launch(|| subject.launch(&hw, LENGTH));
            // It may not be admitted before the one before it is done.
            queue.launch(|| {
                assert!(subject.finished(&hw) > launched, "what was launched before is not done");
                subject.launch(&hw, SHORT);
            });
            launched += 2;
        }
    }
    second.wait_all().unwrap();
    assert_eq!(subject.finished(&hw), launched);
}
