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

use xsched_core::{HEARTBEAT, Link as _, Order};

use crate::joined::JoinedQueue;
use crate::program::Program;
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
        let (lane, gate) = (queue.lane(), queue.lane().gate());
        if gate.order().stops() {
            sleep = HEARTBEAT;
            if !program.alive() {
                gate.give(Order::Free);
            }
        }
        lane.tell_what_was_kept_back();
        // A device that refuses leaves the queue at level 1: the gate still holds. It is asked again: one that was to run on
        // must not stay stopped.
        if lane.enforce().is_err() {
            sleep = HEARTBEAT;
        }
    }
    // Only now: a device may stop what runs once the last of its queues was told to.
    let mut news = false;
    for queue in &queues {
        news |= queue.show_off(queue.lane().gate().order() == Order::Stop);
    }
    if news {
        program.ring();
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
        queues.iter().partition(|queue| queue.lane().gate().order().stops());
    if program.note_divided(!stopped.is_empty() && !running.is_empty()) {
        if program.begin_account() {
            // Nobody has done so while all had the same order.
            for queue in running {
                queue.waits_for_anybody();
            }
        }
        // What was written down before concerns somebody now.
        program.ring();
    }
    if program.waits.forget_what_is_over() {
        program.ring();
    }
    program.note_watcher_sleeps(sleep > LOOK_FOR_IDLE);
    sleep
}

/// Looks at one queue. Answers how soon to look again.
fn watch_queue(queue: &Arc<JoinedQueue>, program: &Program) -> Duration {
    let lane = queue.lane();
    let gate = lane.gate();
    let (order, epoch) = (gate.order(), gate.epoch());
    let last_epoch = queue.note_look(epoch);
    if order != Order::Free && gate.take_uncounted() {
        // There may be work, and it may wait for any of our queues.
        lane.assume_busy();
        if let Some(point) = queue.record() {
            program.waits.add_unknown(queue, point);
        }
        return LOOK_FOR_IDLE;
    }
    // Whoever still launches needs no question to the device.
    let silent = epoch == last_epoch;
    match order {
        Order::Free | Order::Hold | Order::Freeze | Order::Stop => LONG_SLEEP,
        _ if epoch.is_idle() || (silent && lane.poll_idle()) => LONG_SLEEP,
        Order::Watched | Order::Shared | Order::Paced if silent || lane.may_keep_back() => LOOK_AGAIN,
        Order::Watched | Order::Shared | Order::Paced => LOOK_FOR_IDLE,
    }
}
