//! Checks of an XQueue on the hardware queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Subject, eventually};
use crate::{
    Gate, Level, LevelRequest, Limit, Nanos, NoScheduler, Order, Outcome, QueueId, QueueState, Resume,
    Suspend, XQueue,
};
use crate::{HwQueue, sync::Shared};

const SHORT_COMMAND: Duration = Duration::from_micros(200);

/// An XQueue that the test suspends itself, on a new hardware queue.
fn controlled_queue<S: Subject>(subject: &S, level: LevelRequest) -> (Arc<XQueue>, Arc<S::Queue>) {
    let hw = subject.queue();
    (control(&hw, level), hw)
}

fn control<Q: HwQueue + 'static>(hw: &Arc<Q>, level: LevelRequest) -> Arc<XQueue> {
    let gate = Shared::from(Arc::new(Gate::default()));
    gate.count_all();
    let hw: Arc<dyn HwQueue> = hw.clone();
    Arc::new(XQueue::new(QueueId(1), hw, gate, Arc::new(NoScheduler), level).unwrap())
}

/// A suspended queue launches nothing. After it is resumed, every command is launched once, in order.
pub fn suspended_queue_launches_nothing_and_resumes_in_order<S: Subject>(subject: &S) {
    const COMMANDS: usize = 200;
    let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
    let log = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for n in 0..COMMANDS {
                queue.launch(|| {
                    subject.launch(&hw, SHORT_COMMAND);
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

/// After `suspend` with `sync_hw_queue` everything launched has completed.
pub fn suspending_with_sync_leaves_nothing_on_the_device<S: Subject>(subject: &S) {
    let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
    let mut launched = 0;
    for _ in 0..5 {
        for _ in 0..10 {
            queue.launch(|| subject.launch(&hw, SHORT_COMMAND));
            launched += 1;
        }
        queue.suspend(Suspend { sync_hw_queue: true, ..Suspend::default() }).unwrap();
        assert_eq!(subject.finished(&hw), launched);
        queue.resume(Resume::default()).unwrap();
    }
}

/// With `wait_all` or `wait_idle`, submitted commands complete before the queue is suspended.
pub fn suspending_waits_for_submitted_commands<S: Subject>(subject: &S) {
    for how in
        [Suspend { wait_all: true, ..Suspend::default() }, Suspend { wait_idle: true, ..Suspend::default() }]
    {
        let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
        let log = Arc::new(Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..20)
            .map(|n| {
                let log = Arc::clone(&log);
                queue.submit(move || log.lock().unwrap().push(n)).unwrap()
            })
            .collect();
        subject.launch(&hw, SHORT_COMMAND);
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

/// Resuming with `drop_commands` discards exactly the pending commands.
pub fn pending_commands_can_be_dropped<S: Subject>(subject: &S) {
    let (queue, _hw) = controlled_queue(subject, LevelRequest::Auto);
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

/// Suspending twice is undone by resuming once, and resuming a queue that runs has no effect.
pub fn suspending_and_resuming_may_be_repeated<S: Subject>(subject: &S) {
    let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
    queue.resume(Resume::default()).unwrap();
    for _ in 0..3 {
        queue.suspend(Suspend::default()).unwrap();
    }
    queue.suspend(Suspend { sync_hw_queue: true, wait_all: true, wait_idle: true }).unwrap();
    queue.resume(Resume::default()).unwrap();
    queue.launch(|| subject.launch(&hw, SHORT_COMMAND));
    queue.resume(Resume::default()).unwrap();
    queue.wait_all().unwrap();
    assert_eq!(subject.finished(&hw), 1);
}

/// The error for a level that the device lacks names the highest level that it offers, and the reason.
pub fn missing_level_is_rejected_with_the_highest_level_and_the_reason<S: Subject>(subject: &S) {
    let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
    let capabilities = hw.capabilities();
    for level in Level::ALL {
        let result = queue.launch_path().set_level(LevelRequest::Exactly(level));
        match capabilities.cost(level) {
            Ok(_) => assert_eq!(result.unwrap(), level),
            Err(reason) => {
                let error = result.expect_err("a level that the device lacks was accepted").to_string();
                assert!(error.contains(reason), "`{error}` does not state the reason");
                let has = format!("supports level {}", capabilities.highest().number());
                assert!(error.contains(&has), "`{error}` does not name the highest level");
            }
        }
    }
}

/// With a small window, in time or in commands, and several threads everything completes.
pub fn throttled_queue_completes_everything<S: Subject>(subject: &S) {
    for limit in [Limit::Budget(Nanos::from_micros(500)), Limit::Count { threshold: 4, batch_size: 2 }] {
        let (queue, hw) = controlled_queue(subject, LevelRequest::Auto);
        queue.launch_path().set_limit(Some(limit));
        queue.launch_path().gate().set_order(Order::Throttled);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    for _ in 0..60 {
                        queue.launch(|| subject.launch(&hw, SHORT_COMMAND));
                    }
                });
            }
        });
        queue.wait_all().unwrap();
        assert_eq!(subject.finished(&hw), 120, "{limit:?}");
    }
}

/// Two queues of type `XQueue` on the same hardware queue, created one after the other: neither mistakes a marker of the other
/// queue for its own.
pub fn two_xqueues_on_one_hardware_queue_wait_for_their_own_markers<S: Subject>(subject: &S) {
    const LONG_COMMAND: Duration = Duration::from_millis(20);
    let (first, hw) = controlled_queue(subject, LevelRequest::Auto);
    let limit = Limit::Count { threshold: 1, batch_size: 1 };
    first.set_limit(Some(limit));
    let mut launched = 0;
    for _ in 0..10 {
        first.launch(|| subject.launch(&hw, SHORT_COMMAND));
        launched += 1;
    }
    first.wait_all().unwrap();
    let second = control(&hw, LevelRequest::Auto);
    second.set_limit(Some(limit));
    for _ in 0..3 {
        for queue in [&second, &first] {
            queue.launch(|| subject.launch(&hw, LONG_COMMAND));
            // Admitted only after the command before it has completed.
            queue.launch(|| {
                assert!(subject.finished(&hw) > launched, "the command before has not completed");
                subject.launch(&hw, SHORT_COMMAND);
            });
            launched += 2;
        }
    }
    second.wait_all().unwrap();
    assert_eq!(subject.finished(&hw), launched);
}
