//! One queue's way to the device: gate, window, marker, preemption. The life of one launch is [`LaunchPath::launch`].

mod rest;
mod tail;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::gate::{Epoch, Gate, Order, SchedulerLink};
use crate::hal::{HalError, HwQueue, Marker};
use crate::level::{Level, LevelError, LevelRequest};
use crate::sync::{Movable, Shared};
use crate::time::Nanos;
use crate::window::{Limit, Reservation, Window};
use rest::Rest;
use tail::{News, Probe, Tail};

/// How long it takes at most, on a machine that is not overloaded, until the device is told of an order.
const TOLD_WITHIN: Nanos = Nanos::from_millis(1);
const LOOK_AGAIN: Duration = Duration::from_micros(20);
/// How long it is left to a thread that waits for a queue to see its end. Not for ever: default streams wait for others, too,
/// which may stand still until this one is seen to be idle.
const SEEN_TO_FOR: Nanos = Nanos::from_millis(10);

/// What launches go through on their way to one hardware queue.
pub struct LaunchPath {
    hw: Arc<dyn HwQueue>,
    gate: Movable<Gate>,
    /// Held while the program opens or closes the gate, and while the gate moves: neither may miss the other. True once
    /// the gate may be closed no more.
    control: Mutex<bool>,
    /// Gates it moved away from while threads were inside: they launch here still.
    left: Mutex<Vec<Shared<Gate>>>,
    link: Arc<dyn SchedulerLink>,
    /// Held while a marker is placed, and so for as long as the driver likes.
    tail: Mutex<Tail>,
    news: Mutex<News>,
    /// The tail has not taken note of all that is in `news`.
    has_news: AtomicBool,
    stop: Mutex<Stop>,
    /// A copy of `stop.told.is_some()` that can be read without waiting for a preemption under way.
    preempted: AtomicBool,
    /// What is launched while the queue is held can wait on the device instead of at the gate.
    held_by_device: AtomicBool,
    /// The device has been told to hold the queue, or to have it give way.
    is_told: AtomicBool,
    /// Up to then a thread that waits for the queue is trusted to see its end.
    seen_to_until: AtomicU64,
    /// Held while the device is told whether there is work: whoever comes last has seen the latest.
    showing_work: Mutex<()>,
    rest: Rest,
}

struct Stop {
    level: Level,
    /// The level at which the device has been told to stop this queue.
    told: Option<Level>,
    /// The order the device was told of last.
    order: Order,
}

impl LaunchPath {
    /// Puts the parts together. Fails if the device lacks the level asked for.
    pub fn new(
        hw: Arc<dyn HwQueue>,
        gate: Shared<Gate>,
        link: Arc<dyn SchedulerLink>,
        level: LevelRequest,
    ) -> Result<Self, LevelError> {
        let level = hw.capabilities().negotiate(level)?;
        let mut window = Window::new(Limit::for_level(level));
        window.suit(level);
        let held_by_device = AtomicBool::new(level > Level::Block && hw.accepts_launches_while_stopped());
        Ok(Self {
            hw,
            gate: Movable::new(gate),
            control: Mutex::new(false),
            left: Mutex::default(),
            link,
            tail: Mutex::new(Tail { window, probe: None, blind_looks: 0, fenced: false }),
            news: Mutex::new(News { chosen: None, level, went_on: None }),
            has_news: AtomicBool::new(false),
            stop: Mutex::new(Stop { level, told: None, order: Order::Free }),
            preempted: AtomicBool::new(false),
            held_by_device,
            is_told: AtomicBool::new(false),
            seen_to_until: AtomicU64::new(0),
            showing_work: Mutex::default(),
            rest: Rest::default(),
        })
    }

    /// The gate, for whoever gives orders.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        self.gate.get()
    }

    /// The hardware queue at the end of the launch_path.
    #[must_use]
    pub fn hw(&self) -> &dyn HwQueue {
        &*self.hw
    }

    /// Calls `real` on this thread, exactly once, as soon as launching is allowed.
    #[inline]
    pub fn launch<R>(&self, real: impl FnOnce() -> R) -> R {
        if self.gate().is_free() {
            return real();
        }
        let mut admitted = self.admit();
        let result = real();
        admitted.launched();
        result
    }

    /// The same for a `real` that takes its time to get to the device, as with a graph of many commands.
    pub fn launch_large<R>(&self, real: impl FnOnce() -> R) -> R {
        let gate = self.gate();
        // Who has to wait, or shares the device with equals, would take it from them for nothing.
        if gate.order() == Order::Leader && gate.epoch().is_idle() {
            self.hw.trigger_context_switch();
        }
        self.launch(real)
    }

    /// The same for a `real` that returns only when what it launched is done, and all that was launched before it. Takes
    /// note if the queue is idle then.
    pub fn launch_and_finish<R>(&self, real: impl FnOnce() -> R) -> R {
        if self.gate().is_free() {
            return real();
        }
        let mut admitted = self.admit();
        let gate = admitted.gate;
        let epoch = gate.epoch();
        // As in `synchronized`, but for ourselves.
        let covered = gate.occupants() == 1;
        let result = real();
        admitted.launched();
        drop(admitted);
        if covered {
            self.completed(gate, epoch);
        }
        result
    }

    /// Dependencies until launching is allowed and keeps the place until the answer is dropped.
    pub(crate) fn admit(&self) -> Admitted<'_> {
        if let Some(sync_bound) = self.rest.end() {
            self.gate().set_sync_bound(sync_bound, &*self.link);
        }
        // Whether a marker has come while we waited for it: then we know when.
        let mut just_came = false;
        let mut full = false;
        let mut announced = false;
        let mut was_patient = false;
        loop {
            // From here on the place is given back by `Admitted`, whatever happens.
            let gate = self.gate();
            let wait_at_gate = full || !self.held_by_device.load(Ordering::SeqCst);
            let order = if wait_at_gate { gate.enter(&*self.link) } else { gate.enter_held(&*self.link) };
            let is_held = order.stops() && self.is_told.load(Ordering::SeqCst);
            // What is launched before the device was told runs. Then what comes next is to stand behind it.
            let runs_on = order.stops() && !is_held;
            let mut admitted = Admitted { launch_path: self, gate, place: None, mark: runs_on };
            if !std::ptr::eq(gate, self.gate()) {
                // It moved while we waited: what we waited for no longer counts.
                continue;
            }
            // Before anything that may wait inside the driver: who waits there for a queue that stands still must be known to
            // have work, or nobody would let it go on.
            if std::mem::replace(&mut announced, true) {
                gate.mark_busy_again(&*self.link);
            } else {
                gate.mark_busy(&*self.link);
            }
            if runs_on && !std::mem::replace(&mut was_patient, true) {
                drop(admitted);
                self.wait_until_told();
                continue;
            }
            if order.stops() {
                // It is to stand behind what is placed next.
                self.show_work();
            }
            if order == Order::Throttled || order.stops() {
                match self.reserve(is_held, just_came) {
                    Ok(place) => admitted.place = Some(place),
                    Err(_) if order.stops() => {
                        full = true;
                        continue;
                    }
                    Err(marker) => {
                        drop(admitted);
                        just_came = self.wait_for_room(marker);
                        continue;
                    }
                }
            }
            return admitted;
        }
    }

    /// Dependencies for a moment until the device has been told of an order that stops the queue, or the order is another.
    #[cold]
    fn wait_until_told(&self) {
        let patience = Nanos::now() + TOLD_WITHIN;
        let is_untold = || !self.is_told.load(Ordering::SeqCst) && self.gate().order().stops();
        while is_untold() && Nanos::now() < patience {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Calls `real`, which waits for the queue, and takes note if it is idle afterwards.
    pub fn synchronized<R>(&self, real: impl FnOnce() -> R) -> R {
        let wait = self.begin_wait();
        self.seen_to_until.store((Nanos::now() + SEEN_TO_FOR).0, Ordering::SeqCst);
        let result = real();
        self.seen_to_until.store(0, Ordering::SeqCst);
        wait.over();
        result
    }

    /// Notes what has been launched, before somebody waits for all of it.
    #[must_use]
    pub fn begin_wait(&self) -> Wait<'_> {
        let gate = self.gate();
        let epoch = gate.epoch();
        // Who is inside now may launch behind the point that is waited for: then nothing can be said.
        Wait { launch_path: self, gate, covered: (!gate.is_occupied()).then_some(epoch) }
    }

    /// Work may be in flight that was launched while nobody counted: call it ready until a marker shows otherwise. Where
    /// no marker can show it, the next launch has to.
    pub fn assume_busy(&self) {
        if self.hw.can_mark_from_any_thread() {
            self.gate().mark_busy(&*self.link);
            self.show_work();
        }
    }

    /// Everything that was launched before the epoch has completed. Answers whether the queue is idle now.
    fn mark_idle(&self, gate: &Gate, epoch: Epoch) -> bool {
        let idle = gate.mark_idle(epoch, &*self.link);
        if idle && self.is_told.load(Ordering::SeqCst) {
            self.show_work();
        }
        idle
    }

    /// Tells the device whether there is work. To be called after every change of that while the queue is stopped.
    fn show_work(&self) {
        let _last = lock(&self.showing_work);
        self.hw.set_has_work(!self.gate().epoch().is_idle());
    }

    /// Lets no new launch through. Answers whether that can still be done.
    pub(crate) fn shut(&self) -> bool {
        let let_go = lock(&self.control);
        if *let_go {
            return false;
        }
        self.gate().count_all();
        self.gate().close();
        true
    }

    /// Lets no new launch through, and waits until nobody is launching any more.
    pub(crate) fn close(&self) {
        if !self.shut() {
            return;
        }
        // Once the device holds the queue stopped, what slips into it does no harm and may never come out.
        let give_up = || self.is_preempted();
        self.gate().settle(give_up);
        let left = lock(&self.left).clone();
        for gate in &left {
            gate.settle(give_up);
        }
        lock(&self.left).retain(|gate| gate.is_occupied());
    }

    /// Takes back [`LaunchPath::close`].
    pub(crate) fn open(&self) {
        let _control = lock(&self.control);
        self.gate().open();
    }

    /// Opens the gate for good: nobody is left who could.
    pub(crate) fn let_go(&self) {
        let mut let_go = lock(&self.control);
        *let_go = true;
        self.gate().open();
    }

    /// Goes through another gate from now on: the scheduler has been replaced, and with it the page its gates lie in.
    /// What the program wanted of the old gate holds for the new one; whoever waits at the old one comes to the new.
    pub fn move_to(&self, gate: Shared<Gate>) {
        let _control = lock(&self.control);
        let old = self.gate();
        gate.adopt(old);
        let old_gate = self.gate.point_at(gate);
        let busy = !old.epoch().is_idle() || old.is_occupied();
        {
            let mut left = lock(&self.left);
            left.retain(|gate| gate.is_occupied());
            left.extend(old_gate.filter(|gate| gate.is_occupied()));
        }
        if busy {
            // What is in flight was counted there.
            self.assume_busy();
        }
        old.give(Order::Free);
        old.open();
    }

    /// The level in force.
    #[must_use]
    pub fn level(&self) -> Level {
        lock(&self.stop).level
    }

    /// Changes how deep this queue is stopped, also while it is.
    pub fn set_level(&self, request: LevelRequest) -> Result<Level, HalError> {
        let level = self.hw.capabilities().negotiate(request)?;
        let mut stop = lock(&self.stop);
        if stop.told.is_some_and(|told| told != level) {
            self.tell(&mut stop, None)?;
        }
        stop.level = level;
        self.held_by_device.store(self.can_hold(level), Ordering::SeqCst);
        self.tell_tail(|news| news.level = level);
        self.follow(&mut stop)?;
        Ok(level)
    }

    /// Whether what is launched while the queue is stopped at a level can wait on the device.
    fn can_hold(&self, level: Level) -> bool {
        level > Level::Block && self.hw.accepts_launches_while_stopped()
    }

    /// Whether the device holds this queue stopped.
    #[must_use]
    pub fn is_preempted(&self) -> bool {
        self.preempted.load(Ordering::SeqCst)
    }

    /// Makes the device follow the gate. Called by whoever changed the gate, or saw that it had changed.
    pub fn enforce(&self) -> Result<(), HalError> {
        self.follow(&mut lock(&self.stop))
    }

    fn follow(&self, stop: &mut Stop) -> Result<(), HalError> {
        let at_interrupt = stop.level == Level::Interrupt;
        let ordered = self.gate().order();
        let order = if at_interrupt { ordered } else { Order::Free };
        let preempts_by_time_slice =
            ordered == Order::Yield && at_interrupt && self.hw.preempts_by_time_slice();
        let stands_still = self.gate().is_closed() || (ordered.stops() && !preempts_by_time_slice);
        // The gate alone is level 1: the device has to be told nothing.
        let wanted = (stands_still && stop.level > Level::Block).then_some(stop.level);
        if order == stop.order && wanted == stop.told {
            return Ok(());
        }
        if order != stop.order {
            self.hw.order_changed(order);
            let goes_on = stop.order.stops() && !order.stops();
            stop.order = order;
            if goes_on {
                self.tell_tail(|news| news.went_on = Some(Nanos::now()));
            }
        }
        // Before it is told, which may take until the queue has come to a stop: what is launched meanwhile is behind that.
        self.is_told.store(wanted.is_some() || order.stops(), Ordering::SeqCst);
        if self.gate().has_uncounted() && self.hw.can_mark_from_any_thread() {
            // Whatever it does it looks idle.
            self.hw.set_has_work(true);
        } else {
            self.show_work();
        }
        let done = if wanted == stop.told { Ok(()) } else { self.tell(stop, wanted) };
        if done.is_err() {
            self.is_told.store(stop.told.is_some() || order.stops(), Ordering::SeqCst);
        }
        // One that refuses leaves it to the gate.
        self.held_by_device.store(done.is_ok() && self.can_hold(stop.level), Ordering::SeqCst);
        done
    }

    fn tell(&self, stop: &mut Stop, wanted: Option<Level>) -> Result<(), HalError> {
        match wanted {
            Some(level) => self.hw.preempt(level)?,
            None => self.hw.restore()?,
        }
        stop.told = wanted;
        self.preempted.store(wanted.is_some(), Ordering::SeqCst);
        if wanted.is_none() {
            self.tell_tail(|news| news.went_on = Some(Nanos::now()));
        }
        Ok(())
    }
}

/// Somebody waits for everything that a queue has launched.
pub struct Wait<'a> {
    launch_path: &'a LaunchPath,
    gate: &'a Gate,
    covered: Option<Epoch>,
}

impl Wait<'_> {
    /// All of it has completed.
    pub fn over(self) {
        if let Some(epoch) = self.covered {
            self.launch_path.completed(self.gate, epoch);
        }
    }
}

/// A launch that was let through. Leaves the gate when dropped, and gives its place in the window back unless it was
/// used.
pub(crate) struct Admitted<'a> {
    launch_path: &'a LaunchPath,
    gate: &'a Gate,
    place: Option<Reservation>,
    /// A marker is to be placed behind it in any case.
    mark: bool,
}

impl Admitted<'_> {
    /// The launch happened. Answers the marker behind it, if one was placed.
    pub(crate) fn launched(&mut self) -> Option<Marker> {
        let alone = !self.launch_path.hw.can_mark_from_any_thread();
        if self.place.is_none() && !alone {
            return None;
        }
        let mut tail = self.launch_path.tail();
        let due = self.place.take().is_some_and(|place| tail.window.launched(place, Nanos::now)) || self.mark;
        if !due && !alone {
            return None;
        }
        // Now and then, for whoever never has to wait for room.
        tail.window.observe_late(self.launch_path.hw.progress(), Nanos::now());
        let marker = self.launch_path.place_marker(&mut tail);
        if alone {
            // Nobody else can place one later: this has to show when the queue has become idle.
            let (epoch, placed) = (self.gate.epoch(), Nanos::now());
            tail.probe = marker.map(|marker| Probe { epoch, marker, placed });
        }
        marker
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            self.launch_path.tail().window.cancel(place);
        }
        self.gate.leave();
    }
}

/// A panic in a program's callback must not take the queue with it: the state behind these locks is valid after
/// every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests;
