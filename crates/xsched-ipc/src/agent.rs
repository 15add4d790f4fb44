//! The two threads a scheduled program has, started when there is somebody to give orders.
//!
//! * The *enforcer* makes the devices follow the orders, and frees everybody if the scheduler has died. It calls nothing
//!   that waits for the device's own progress, so that an order to stop is carried out at once.
//! * The *watcher* finds out which queues fell silent, and which waits are over. It places markers, and a queue that is
//!   full makes it wait, as it would make any launch wait.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::{HEARTBEAT, Link as _, Order};

use crate::joined::{JoinedQueue, Look};
use crate::program::Program;
use crate::threads;

/// How often the watcher looks whether busy queues have become idle, while somebody waits for that.
const LOOK_FOR_IDLE: Duration = Duration::from_millis(1);
/// How soon it looks again at one that has fallen silent: its end is what others wait for.
const LOOK_AGAIN: Duration = Duration::from_micros(250);
/// How long both sleep when nothing is to be expected but a new order.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// What a thread does each time it comes round; answers how soon to come again.
type Tend = fn(&Program) -> Duration;

/// Starts both. They end when the program is gone and somebody bumps the orders of its page.
pub(crate) fn start(program: &Arc<Program>) -> std::io::Result<()> {
    let agents: [(&str, Tend); 2] = [("xsched-enforce", enforce), ("xsched-watch", watch)];
    for (name, tend) in agents {
        let program = Arc::downgrade(program);
        threads::start(name, move || go_round(&program, tend))?;
    }
    Ok(())
}

/// Tends to the queues again whenever an order has changed, and no later than `tend` says.
fn go_round(program: &Weak<Program>, tend: Tend) {
    loop {
        let Some(program) = program.upgrade() else { return };
        let seat = program.seat();
        let orders = seat.page.orders();
        let seen = orders.word().load(Ordering::SeqCst);
        if !Arc::ptr_eq(&seat, &program.seat()) {
            // Who moves bumps the old page afterwards; that may have been before we looked at it.
            continue;
        }
        let sleep = tend(&program);
        drop(program);
        orders.wait(seen, Some(sleep));
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
    sleep
}

/// Looks at one queue. Answers how soon to look again.
fn watch_queue(queue: &Arc<JoinedQueue>, program: &Program) -> Duration {
    let lane = queue.lane();
    let gate = lane.gate();
    let (order, epoch) = (gate.order(), gate.epoch());
    let seen = Look { gate: std::ptr::from_ref(gate).addr(), order, epoch };
    let last = queue.note_look(seen);
    let was_free = last.order == Order::Free || last.gate != seen.gate;
    if was_free && order != Order::Free {
        // Nobody has counted until now. There may be work, and it may wait for any of our queues.
        lane.assume_busy();
        if let Some(point) = queue.record() {
            program.waits.add_unknown(queue, point);
        }
        return LOOK_FOR_IDLE;
    }
    // Whoever still launches needs no question to the device.
    let silent = epoch == last.epoch;
    match order {
        Order::Free | Order::Hold | Order::Stop => LONG_SLEEP,
        _ if epoch.is_idle() || (silent && lane.poll_idle()) => LONG_SLEEP,
        Order::Watched | Order::Shared | Order::Paced if silent => LOOK_AGAIN,
        Order::Watched | Order::Shared | Order::Paced => LOOK_FOR_IDLE,
    }
}
