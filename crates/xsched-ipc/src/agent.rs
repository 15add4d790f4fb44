//! The two threads a scheduled program has, started with its first queue.
//!
//! * The *enforcer* makes the devices follow the orders, and frees everybody if the scheduler has died. It calls nothing
//!   that waits for the device's own progress, so that an order to stop is carried out at once.
//! * The *watcher* finds out which queues fell silent, and which waits are over. It places markers, and a queue that is
//!   full makes it wait, as it would make any launch wait.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use xsched_core::{Epoch, HEARTBEAT, Link as _, Order};

use crate::client::{JoinedQueue, Members, PageLink};
use crate::page::SLOTS;

/// How often the watcher looks whether busy queues have become idle, while somebody waits for that.
const LOOK_FOR_IDLE: Duration = Duration::from_millis(1);
/// How long both sleep when nothing is to be expected but a new order.
const LONG_SLEEP: Duration = Duration::from_secs(1);

/// What a thread does each time it comes round; answers how soon to come again.
type Tend = Box<dyn FnMut(&Members, &PageLink) -> Duration + Send>;

/// Starts both. They end when `members` is gone and somebody bumps the page's orders.
pub(crate) fn start(link: &Arc<PageLink>, members: &Arc<Members>) -> std::io::Result<()> {
    let spawn = |name: &str, mut tend: Tend| {
        let (link, members) = (Arc::clone(link), Arc::downgrade(members));
        let rounds = move || go_round(&link, &members, &mut tend);
        std::thread::Builder::new().name(name.to_owned()).spawn(rounds).map(drop)
    };
    spawn("xsched-enforce", Box::new(enforce))?;
    let mut last_look = vec![Look { order: Order::Free, epoch: Epoch::default() }; SLOTS];
    spawn("xsched-watch", Box::new(move |members, link| watch(members, link, &mut last_look)))
}

/// Tends to the members again whenever an order has changed, and no later than `tend` says.
fn go_round(link: &PageLink, members: &Weak<Members>, tend: &mut dyn FnMut(&Members, &PageLink) -> Duration) {
    let orders = link.page.orders();
    loop {
        let seen = orders.word().load(Ordering::SeqCst);
        let Some(members) = members.upgrade() else { return };
        let sleep = tend(&members, link);
        drop(members);
        orders.wait(seen, Some(sleep));
    }
}

fn enforce(members: &Members, link: &PageLink) -> Duration {
    let mut sleep = LONG_SLEEP;
    for queue in members.living() {
        let (lane, gate) = (queue.lane(), queue.lane().gate());
        if gate.order() == Order::Hold {
            sleep = HEARTBEAT;
            if !link.alive() {
                gate.give(Order::Free);
            }
        }
        // A device that refuses leaves the queue at level 1: the gate still holds.
        let _ = lane.enforce();
    }
    sleep
}

/// What the watcher saw of a queue when it looked last.
#[derive(Clone, Copy)]
struct Look {
    order: Order,
    epoch: Epoch,
}

fn watch(members: &Members, link: &PageLink, last_look: &mut [Look]) -> Duration {
    let mut sleep = LONG_SLEEP;
    for queue in members.living() {
        let last = &mut last_look[queue.slot()];
        sleep = sleep.min(watch_queue(&queue, members, last));
    }
    if members.waits.forget_what_is_over() {
        link.ring();
    }
    sleep
}

/// Looks at one queue. Answers how soon to look again.
fn watch_queue(queue: &Arc<JoinedQueue>, members: &Members, last: &mut Look) -> Duration {
    let (lane, order) = (queue.lane(), queue.lane().gate().order());
    if last.order == Order::Free && order != Order::Free {
        // Nobody has counted until now. There may be work, and it may wait for any of our queues.
        lane.assume_busy();
        if let Some(point) = queue.record() {
            members.waits.add_unknown(queue, point);
        }
    }
    let epoch = lane.gate().epoch();
    // Whoever still launches needs no question to the device.
    let silent = epoch == last.epoch;
    *last = Look { order, epoch };
    match order {
        Order::Free | Order::Hold => LONG_SLEEP,
        Order::Watched | Order::Paced if epoch.is_idle() || (silent && lane.poll_idle()) => LONG_SLEEP,
        Order::Watched | Order::Paced => LOOK_FOR_IDLE,
    }
}
