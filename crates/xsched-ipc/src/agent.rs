//! The two threads a scheduled program has, started when there is somebody to give orders.
//!
//! * The *enforcer* makes the devices follow the orders, and frees everybody if the scheduler has died. It calls nothing
//!   that waits for the device's own progress, so that an order to stop is carried out at once.
//! * The *watcher* finds out which queues fell silent, and which waits are over. It places markers, and a queue that is
//!   full makes it wait, as it would make any launch wait.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::{HEARTBEAT, Order, SchedulerLink as _};

use crate::program::Program;
use crate::scheduled_queue::ScheduledQueue;
use crate::threads;

/// How often the watcher looks whether busy queues have become idle, while somebody waits for that.
const LOOK_FOR_IDLE: Duration = Duration::from_millis(1);
/// How soon it looks again at one that has fallen silent: its end is what others wait for.
const LOOK_AGAIN: Duration = Duration::from_micros(250);
/// How long both sleep when nothing is to be expected but a new order.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// One of the two threads.
#[derive(Clone, Copy)]
struct Agent {
    name: &'static str,
    /// What it does each time it comes round; answers how soon to come again.
    tend: fn(&Program) -> Duration,
    sleeps_as: NonZeroU32,
}

const AGENTS: [Agent; 2] = [
    Agent { name: "xsched-enforce", tend: enforce, sleeps_as: NonZeroU32::new(1).unwrap() },
    Agent { name: "xsched-watch", tend: watch, sleeps_as: WATCHER },
];
/// What the watcher sleeps as: it can be woken without the enforcer.
pub(crate) const WATCHER: NonZeroU32 = NonZeroU32::new(2).unwrap();

/// Starts both. They end when the program is gone and somebody bumps the orders of its page.
pub(crate) fn start(program: &Arc<Program>) -> std::io::Result<()> {
    for agent in AGENTS {
        let program = Arc::downgrade(program);
        threads::start(agent.name, move || go_round(&program, agent))?;
    }
    Ok(())
}

/// Tends to the queues again whenever an order has changed, and no later than `tend` says.
fn go_round(program: &Weak<Program>, agent: Agent) {
    loop {
        let Some(program) = program.upgrade() else { return };
        let seat = program.seat();
        let orders = seat.page.orders();
        let seen = orders.word().load(Ordering::SeqCst);
        if !Arc::ptr_eq(&seat, &program.seat()) {
            // Who moves bumps the old page afterwards; that may have been before we looked at it.
            continue;
        }
        let sleep = (agent.tend)(&program);
        drop(program);
        orders.wait_as(agent.sleeps_as, seen, sleep);
    }
}

fn enforce(program: &Program) -> Duration {
    let mut sleep = LONG_SLEEP;
    let queues = program.living();
    for queue in &queues {
        let (launch_path, gate) = (queue.launch_path(), queue.launch_path().gate());
        if gate.order().stops() {
            sleep = HEARTBEAT;
            if !program.alive() {
                gate.give(Order::Free);
            }
        }
        launch_path.report_deferred_idle();
        // A device that refuses leaves the queue at level 1: the gate still holds. It is asked again: one that was to run on
        // must not stay stopped.
        if launch_path.enforce().is_err() {
            sleep = HEARTBEAT;
        }
    }
    // Only now: a device may stop what runs once the last of its queues was told to.
    let mut news = false;
    for queue in &queues {
        news |= queue.show_off(queue.launch_path().gate().order() == Order::Drain);
    }
    if news {
        program.notify();
    }
    sleep
}

fn watch(program: &Program) -> Duration {
    let mut sleep = LONG_SLEEP;
    let queues = program.living();
    for queue in &queues {
        sleep = sleep.min(watch_queue(queue, program));
    }
    let (stopped, running): (Vec<_>, Vec<_>) =
        queues.iter().partition(|queue| queue.launch_path().gate().order().stops());
    if program.note_divided(!stopped.is_empty() && !running.is_empty()) {
        if program.start_dependency_tracking() {
            // Nobody has done so while all had the same order.
            for queue in running {
                queue.depends_on_any();
            }
        }
        // What was written down before concerns somebody now.
        program.notify();
    }
    if program.waits.forget_what_is_over() {
        program.notify();
    }
    program.note_watcher_sleeps(sleep > LOOK_FOR_IDLE);
    sleep
}

/// Looks at one queue. Answers how soon to look again.
fn watch_queue(queue: &Arc<ScheduledQueue>, program: &Program) -> Duration {
    let launch_path = queue.launch_path();
    let gate = launch_path.gate();
    let (order, epoch) = (gate.order(), gate.epoch());
    let last_epoch = queue.note_look(epoch);
    if order != Order::Free && gate.take_uncounted() {
        // There may be work, and it may wait for any of our queues.
        launch_path.assume_busy();
        if let Some(point) = queue.record() {
            program.waits.add_unknown(queue, point);
        }
        return LOOK_FOR_IDLE;
    }
    // Whoever still launches needs no question to the device.
    let silent = epoch == last_epoch;
    match order {
        Order::Free | Order::Yield | Order::Evict | Order::Drain => LONG_SLEEP,
        _ if epoch.is_idle() || (silent && launch_path.poll_idle()) => LONG_SLEEP,
        Order::Leader | Order::Peer | Order::Throttled if silent || launch_path.may_have_deferred_idle() => {
            LOOK_AGAIN
        }
        Order::Leader | Order::Peer | Order::Throttled => LOOK_FOR_IDLE,
    }
}
