//! The device in real time, within one process. The tests compare model times, never the host's clock.

use std::time::Duration;

use xsched_core::{HalError, HwQueue, Level, LevelCost, Nanos};
use xsched_sim::{Config, SimDevice, SimQueue, SpanKind};

const WAIT_LIMIT: Duration = Duration::from_secs(100);

fn device() -> SimDevice {
    SimDevice::create(&Config::default()).unwrap()
}

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Places a marker, waits for it and returns when it completed.
fn completion(queue: &SimQueue, marker: u64) -> Nanos {
    assert_eq!(queue.mark(), Ok(marker));
    assert!(queue.wait(marker, WAIT_LIMIT).unwrap());
    let progress = queue.progress();
    assert_eq!(progress.marker, marker);
    progress.at.unwrap()
}

#[test]
fn commands_take_exactly_their_length() {
    let queue = device().queue().unwrap();
    queue.launch(us(700)).unwrap();
    queue.mark().unwrap();
    queue.launch(us(300)).unwrap();
    queue.launch(us(50)).unwrap();
    assert!(queue.wait(1, WAIT_LIMIT).unwrap());
    let first = queue.progress().at.unwrap();
    // If the host was so slow that the work has completed already, there is nothing to compare.
    let was_in_time = queue.pending().unwrap() == 2;
    let second = completion(&queue, 2);
    if was_in_time {
        assert_eq!(second - first, us(350).into());
    }
    assert_eq!(queue.busy().unwrap(), us(1050).into());
}

#[test]
fn launch_on_a_full_queue_blocks_until_there_is_room() {
    let device = device();
    let queue = device.queue().unwrap();
    for _ in 0..1100 {
        queue.launch(us(20)).unwrap();
    }
    queue.synchronize().unwrap();
    assert_eq!(queue.busy().unwrap(), us(22_000).into());
    let mut spans = Vec::new();
    device.timeline().drain(&mut spans).unwrap();
    assert_eq!(spans.iter().filter(|span| span.kind == SpanKind::Finished).count(), 1100);
}

#[test]
fn stopped_queue_makes_no_progress_until_it_is_restored() {
    let queue = device().queue().unwrap();
    queue.launch(Duration::from_millis(20)).unwrap();
    queue.mark().unwrap();
    queue.preempt(Level::Interrupt).unwrap();
    let busy = queue.busy().unwrap();
    assert!(!queue.wait(1, us(30_000)).unwrap());
    assert_eq!(queue.busy().unwrap(), busy);
    assert_eq!(queue.progress().marker, 0);
    queue.restore().unwrap();
    queue.synchronize().unwrap();
    assert_eq!(queue.progress().marker, 1);
    assert_eq!(queue.busy().unwrap(), Nanos::from_millis(20));
}

#[test]
fn waiting_threads_are_woken_by_a_restore_and_by_a_later_marker() {
    let queue = device().queue().unwrap();
    queue.preempt(Level::Deactivate).unwrap();
    queue.launch(us(100)).unwrap();
    std::thread::scope(|scope| {
        // Without a notification both threads would sleep until the test times out.
        let waits = scope.spawn(|| queue.wait(1, WAIT_LIMIT));
        let synchronizes = scope.spawn(|| queue.synchronize());
        queue.restore().unwrap();
        synchronizes.join().unwrap().unwrap();
        queue.mark().unwrap();
        assert_eq!(waits.join().unwrap(), Ok(true));
    });
}

#[test]
fn queue_waits_for_the_marker_of_another_queue() {
    let device = device();
    let [first, second] = [(); 2].map(|()| device.queue().unwrap());
    second.wait_for(&first, 1).unwrap();
    second.launch(us(10)).unwrap();
    second.mark().unwrap();
    assert!(!second.wait(1, us(1000)).unwrap());
    first.launch(us(500)).unwrap();
    let released = completion(&first, 1);
    assert!(second.wait(1, WAIT_LIMIT).unwrap());
    assert_eq!(second.progress().at.unwrap() - released, us(10).into());
}

#[test]
fn contexts_of_one_process_are_distinct_and_end_with_their_handles() {
    let device = device();
    let other = SimDevice::from_fd(device.fd().try_clone_to_owned().unwrap()).unwrap();
    let queue = other.queue().unwrap();
    queue.launch(us(10)).unwrap();
    queue.synchronize().unwrap();
    let context = other.context();
    let usage = device.usage().unwrap();
    assert_eq!(usage.iter().map(|usage| usage.attached).collect::<Vec<_>>(), [true, true]);
    assert_eq!(usage[context as usize].busy, us(10).into());
    drop(other);
    assert!(device.usage().unwrap()[context as usize].attached, "its queue keeps it");
    drop(queue);
    assert!(!device.usage().unwrap()[context as usize].attached);
}

#[test]
fn unsupported_level_is_rejected_with_the_reason() {
    let config = Config { deactivate: Some(LevelCost::default()), interrupt: None, ..Config::default() };
    let device = SimDevice::create(&config).unwrap();
    let queue = device.queue().unwrap();
    assert_eq!(queue.capabilities().highest(), Level::Deactivate);
    let error = queue.preempt(Level::Interrupt).unwrap_err();
    assert!(matches!(error, HalError::Level(_)));
    assert_eq!(
        error.to_string(),
        "simulated device 0000:00:00.0 supports level 2, not 3: it was created without"
    );
    queue.preempt(Level::Block).unwrap();
    assert_eq!(device.config(), &config);
}

#[test]
fn device_rejects_more_than_256_queues() {
    let device = device();
    let queues: Vec<_> = (0..256).map(|_| device.queue().unwrap()).collect();
    let error = device.queue().unwrap_err().to_string();
    assert_eq!(error, "simulated device 0000:00:00.0 has 256 queues open, which is all it holds");
    drop(queues);
    device.queue().unwrap();
}

#[test]
fn several_threads_can_use_one_queue() {
    let queue = device().queue().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    queue.launch(us(2)).unwrap();
                    queue.progress();
                }
                queue.synchronize().unwrap();
            });
        }
    });
    assert_eq!(queue.busy().unwrap(), us(1600).into());
    assert_eq!(queue.pending().unwrap(), 0);
}
