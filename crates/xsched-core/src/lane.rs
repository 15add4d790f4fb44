//! One queue's way to the device: gate, window, marker, preemption. The life of one launch is [`Lane::launch`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::gate::{Epoch, Gate, Link, Order};
use crate::hal::{HalError, HwQueue, Marker};
use crate::level::{Level, LevelError, LevelRequest};
use crate::sync::{Movable, Shared};
use crate::time::Nanos;
use crate::window::{Limit, Reservation, Window};

/// How long a thread waits for room in the window before it looks at the gate again.
const ROOM_PATIENCE: Duration = Duration::from_millis(10);

/// After so many looks at a queue that cannot be asked whether it is idle, it counts as idle.
const MOST_BLIND_LOOKS: u32 = 20;
/// A marker that has not come for so long is placed again: a device that has failed refuses it then.
const PROBE_AGAIN: Nanos = Nanos::from_secs(1);

/// What launches go through on their way to one hardware queue.
pub struct Lane {
    hw: Arc<dyn HwQueue>,
    gate: Movable<Gate>,
    /// Held while the program opens or closes the gate, and while the gate moves: neither may miss the other. True once
    /// the gate may be closed no more.
    control: Mutex<bool>,
    /// Gates it moved away from while threads were inside: they launch here still.
    left: Mutex<Vec<Shared<Gate>>>,
    link: Arc<dyn Link>,
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
}

/// What was launched last, and how far the device has come with it.
struct Tail {
    window: Window,
    /// A marker behind everything that had been launched in an epoch.
    probe: Option<Probe>,
    /// Looks at a queue that could not be asked whether it is idle, one after the other.
    blind_looks: u32,
    /// A marker was placed since the queue was held: what is launched now stays behind it.
    fenced: bool,
}

/// What the tail takes note of when somebody launches next. Whoever has news must not wait for the tail: it may be held by
/// a thread that waits inside the driver for a queue which only they can let go on.
struct News {
    /// How the window is to be measured, if somebody said so.
    chosen: Option<Limit>,
    level: Level,
    /// When the queue went on after it had been stopped.
    went_on: Option<Nanos>,
}

impl News {
    fn limit(&self) -> Limit {
        self.chosen.unwrap_or(Limit::suited_to(self.level))
    }
}

struct Probe {
    epoch: Epoch,
    marker: Marker,
    placed: Nanos,
}

struct Stop {
    level: Level,
    /// The level at which the device has been told to stop this queue.
    told: Option<Level>,
    /// The order the device was told of last.
    order: Order,
}

impl Lane {
    /// Puts the parts together. Fails if the device lacks the level asked for.
    pub fn new(
        hw: Arc<dyn HwQueue>,
        gate: Shared<Gate>,
        link: Arc<dyn Link>,
        level: LevelRequest,
    ) -> Result<Self, LevelError> {
        let level = hw.capabilities().negotiate(level)?;
        let mut window = Window::new(Limit::suited_to(level));
        window.suit(level);
        let held_by_device = AtomicBool::new(level > Level::Block && hw.holds_what_is_launched());
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
        })
    }

    /// The gate, for whoever gives orders.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        self.gate.get()
    }

    /// The hardware queue at the end of the lane.
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
            gate.quiet(epoch, &*self.link);
        }
        result
    }

    /// Waits until launching is allowed and keeps the place until the answer is dropped.
    pub(crate) fn admit(&self) -> Admitted<'_> {
        // Whether a marker has come while we waited for it: then we know when.
        let mut just_came = false;
        let mut full = false;
        let mut announced = false;
        loop {
            // From here on the place is given back by `Admitted`, whatever happens.
            let gate = self.gate();
            // Before the device was told, what is launched would run.
            let held_by_device =
                self.held_by_device.load(Ordering::SeqCst) && self.is_told.load(Ordering::SeqCst);
            let wait_at_gate = full || !held_by_device;
            let order = if wait_at_gate { gate.enter(&*self.link) } else { gate.enter_held(&*self.link) };
            let mut admitted = Admitted { lane: self, gate, place: None };
            if !std::ptr::eq(gate, self.gate()) {
                // It moved while we waited: what we waited for no longer counts.
                continue;
            }
            // Before anything that may wait inside the driver: who waits there for a queue that stands still must be known to
            // have work, or nobody would let it go on.
            if std::mem::replace(&mut announced, true) {
                gate.announce_again(&*self.link);
            } else {
                gate.announce(&*self.link);
            }
            if order == Order::Paced || order.stops() {
                match self.reserve(order, just_came) {
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

    fn tail(&self) -> MutexGuard<'_, Tail> {
        let mut tail = lock(&self.tail);
        self.take_note(&mut tail);
        tail
    }

    fn take_note(&self, tail: &mut Tail) {
        if self.has_news.load(Ordering::Acquire) {
            // First, so that what comes meanwhile is not missed.
            self.has_news.store(false, Ordering::SeqCst);
            let mut news = lock(&self.news);
            tail.window.set_limit(news.limit());
            tail.window.suit(news.level);
            if let Some(at) = news.went_on.take() {
                tail.window.resumed(at);
                tail.fenced = false;
            }
        }
    }

    fn tell_tail(&self, news: impl FnOnce(&mut News)) {
        news(&mut lock(&self.news));
        self.has_news.store(true, Ordering::SeqCst);
    }

    /// Takes a place in the window, or says which marker to wait for.
    fn reserve(&self, order: Order, just_came: bool) -> Result<Reservation, Option<Marker>> {
        let mut tail = self.tail();
        if order.stops() && !tail.fenced && self.place_marker(&mut tail.window).is_none() {
            return Err(None);
        }
        tail.fenced = order.stops();
        if let Some(place) = tail.window.reserve() {
            return Ok(place);
        }
        let (progress, now) = (self.hw.progress(), Nanos::now());
        if just_came {
            tail.window.observe(progress, now);
        } else {
            tail.window.observe_late(progress, now);
        }
        if let Some(place) = tail.window.reserve() {
            return Ok(place);
        }
        if tail.window.oldest_marker().is_none() && tail.window.has_unmarked() {
            self.place_marker(&mut tail.window);
        }
        Err(tail.window.oldest_marker())
    }

    /// Answers whether the marker has come.
    fn wait_for_room(&self, marker: Option<Marker>) -> bool {
        match marker.map(|marker| self.hw.wait(marker, ROOM_PATIENCE)) {
            Some(Ok(came)) => return came,
            // The device cannot say how far it is: run on unpaced rather than wait for ever.
            Some(Err(_)) => self.tail().window.abandon(),
            // Other threads hold all places and have not launched yet.
            None => std::thread::yield_now(),
        }
        false
    }

    /// Places the window's next marker on the device. Under the window's lock, so that numbers arrive in order.
    fn place_marker(&self, window: &mut Window) -> Option<Marker> {
        let marker = window.next_marker();
        if self.hw.mark(marker).is_ok() {
            Some(marker)
        } else {
            window.abandon();
            None
        }
    }

    /// Places a marker behind everything this thread has launched.
    pub(crate) fn mark(&self) -> Option<Marker> {
        let gate = self.gate();
        // A queue that is stopped stands there: who waits for it has to be let go on.
        if self.held_by_device.load(Ordering::SeqCst) && !gate.is_free() {
            gate.announce_again(&*self.link);
        }
        self.place_marker(&mut self.tail().window)
    }

    /// Calls `real`, which waits for the device, and takes note if the queue is idle afterwards.
    pub fn synchronized<R>(&self, real: impl FnOnce() -> R) -> R {
        let wait = self.begin_wait();
        let result = real();
        wait.over();
        result
    }

    /// Notes what has been launched, before somebody waits for all of it.
    #[must_use]
    pub fn begin_wait(&self) -> Wait<'_> {
        let gate = self.gate();
        let epoch = gate.epoch();
        // Who is inside now may launch behind the point that is waited for: then nothing can be said.
        Wait { lane: self, gate, covered: (!gate.is_occupied()).then_some(epoch) }
    }

    /// Finds out without waiting whether the queue has become idle; places a marker if none covers the work. To be
    /// called now and then while somebody waits for this queue's gaps and the program does not synchronise.
    pub fn poll_idle(&self) -> bool {
        let gate = self.gate();
        let epoch = gate.epoch();
        if epoch.is_idle() {
            return true;
        }
        if gate.is_occupied() || self.is_preempted() {
            return false;
        }
        let mut tail = match self.tail.try_lock() {
            Ok(tail) => tail,
            Err(TryLockError::Poisoned(tail)) => tail.into_inner(),
            // Somebody launches at this moment.
            Err(TryLockError::WouldBlock) => return false,
        };
        self.take_note(&mut tail);
        let may_mark = self.hw.marks_from_any_thread();
        let now = Nanos::now();
        let marker = match &tail.probe {
            Some(probe) if probe.epoch == epoch && (!may_mark || now < probe.placed + PROBE_AGAIN) => {
                probe.marker
            }
            _ => {
                let Some(marker) = may_mark.then(|| self.place_marker(&mut tail.window)).flatten() else {
                    // A context that was destroyed, or has failed, never answers again: others must not wait for it.
                    tail.blind_looks += 1;
                    return tail.blind_looks >= MOST_BLIND_LOOKS && gate.quiet(epoch, &*self.link);
                };
                tail.probe = Some(Probe { epoch, marker, placed: now });
                marker
            }
        };
        tail.blind_looks = 0;
        let progress = self.hw.progress();
        tail.window.observe_late(progress, now);
        progress.marker >= marker && gate.quiet(epoch, &*self.link)
    }

    /// Work may be in flight that was launched while nobody counted: call it ready until a marker shows otherwise. Where
    /// no marker can show it, the next launch has to.
    pub fn assume_busy(&self) {
        if self.hw.marks_from_any_thread() {
            self.gate().announce(&*self.link);
        }
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

    /// Takes back [`Lane::close`].
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

    /// How the window is measured.
    #[must_use]
    pub fn limit(&self) -> Limit {
        lock(&self.news).limit()
    }

    /// Whether somebody said how the window is measured.
    #[must_use]
    pub fn has_chosen_limit(&self) -> bool {
        lock(&self.news).chosen.is_some()
    }

    /// How many commands are in flight, as far as they were counted.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let mut tail = self.tail();
        tail.window.observe_late(self.hw.progress(), Nanos::now());
        tail.window.in_flight().commands
    }

    /// Measures the window differently from now on; none: as it suits the level.
    pub fn set_limit(&self, limit: Option<Limit>) {
        self.tell_tail(|news| news.chosen = limit);
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
            self.tell(&mut stop, None, true)?;
        }
        stop.level = level;
        let held_by_device = level > Level::Block && self.hw.holds_what_is_launched();
        self.held_by_device.store(held_by_device, Ordering::SeqCst);
        self.tell_tail(|news| news.level = level);
        self.follow(&mut stop)?;
        Ok(level)
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
        let was_counted = stop.order != Order::Free;
        if order != stop.order {
            self.hw.order_changed(order);
            let goes_on = stop.order.stops() && !order.stops();
            stop.order = order;
            if goes_on {
                self.tell_tail(|news| news.went_on = Some(Nanos::now()));
            }
        }
        let gives_way = ordered == Order::Hold && at_interrupt && self.hw.gives_way();
        let stands_still = self.gate().is_closed() || (ordered.stops() && !gives_way);
        // The gate alone is level 1: the device has to be told nothing.
        let wanted = (stands_still && stop.level > Level::Block).then_some(stop.level);
        // Before it is told, which may take until the queue has come to a stop: what is launched meanwhile is behind that.
        self.is_told.store(wanted.is_some() || order.stops(), Ordering::SeqCst);
        let done = if wanted == stop.told { Ok(()) } else { self.tell(stop, wanted, was_counted) };
        if done.is_err() {
            self.is_told.store(stop.told.is_some() || order.stops(), Ordering::SeqCst);
        }
        done
    }

    fn tell(&self, stop: &mut Stop, wanted: Option<Level>, was_counted: bool) -> Result<(), HalError> {
        match wanted {
            // A queue that was free until now looks idle whatever it does: nobody has counted.
            Some(level) if was_counted && self.gate().epoch().is_idle() => self.hw.preempt_idle(level)?,
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
    lane: &'a Lane,
    gate: &'a Gate,
    covered: Option<Epoch>,
}

impl Wait<'_> {
    /// All of it has completed.
    pub fn over(self) {
        if let Some(epoch) = self.covered {
            self.gate.quiet(epoch, &*self.lane.link);
        }
    }
}

/// A launch that was let through. Leaves the gate when dropped, and gives its place in the window back unless it was
/// used.
pub(crate) struct Admitted<'a> {
    lane: &'a Lane,
    gate: &'a Gate,
    place: Option<Reservation>,
}

impl Admitted<'_> {
    /// The launch happened. Answers the marker behind it, if one was placed.
    pub(crate) fn launched(&mut self) -> Option<Marker> {
        let alone = !self.lane.hw.marks_from_any_thread();
        if self.place.is_none() && !alone {
            return None;
        }
        let mut tail = self.lane.tail();
        let due = self.place.take().is_some_and(|place| tail.window.launched(place, Nanos::now));
        if !due && !alone {
            return None;
        }
        let marker = self.lane.place_marker(&mut tail.window);
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
            self.lane.tail().window.cancel(place);
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
mod tests {
    use super::*;
    use crate::gate::Unlinked;
    use crate::hal::Progress;
    use crate::ids::DeviceId;
    use crate::level::{Capabilities, LevelCost};

    /// Notes how it is stopped.
    struct Device {
        capabilities: Capabilities,
        told: Mutex<Vec<&'static str>>,
        /// Placing a marker returns only once the queue was let go on, as in a driver whose queue is full.
        is_full: bool,
    }

    impl Device {
        fn note(&self, what: &'static str) {
            lock(&self.told).push(what);
        }
    }

    impl HwQueue for Device {
        fn device(&self) -> DeviceId {
            DeviceId(1)
        }
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
        fn mark(&self, _: Marker) -> Result<(), HalError> {
            self.note("mark");
            while self.is_full && !lock(&self.told).contains(&"restore") {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }
        fn progress(&self) -> Progress {
            Progress::default()
        }
        fn holds_what_is_launched(&self) -> bool {
            self.is_full
        }
        fn wait(&self, _: Marker, _: Duration) -> Result<bool, HalError> {
            Ok(false)
        }
        fn synchronize(&self) -> Result<(), HalError> {
            Ok(())
        }
        fn preempt(&self, _: Level) -> Result<(), HalError> {
            self.note("preempt");
            Ok(())
        }
        fn preempt_idle(&self, _: Level) -> Result<(), HalError> {
            self.note("preempt idle");
            Ok(())
        }
        fn restore(&self) -> Result<(), HalError> {
            self.note("restore");
            Ok(())
        }
    }

    fn lane(is_full: bool) -> (Arc<Device>, Lane) {
        let capabilities = Capabilities::block_only("d", "").with_interrupt(Ok(LevelCost::default()));
        let device = Arc::new(Device { capabilities, told: Mutex::default(), is_full });
        let gate = Shared::from(Arc::new(Gate::default()));
        let lane = Lane::new(device.clone(), gate, Arc::new(Unlinked), LevelRequest::Auto).unwrap();
        (device, lane)
    }

    #[test]
    fn who_waits_inside_the_driver_does_not_keep_the_queue_from_going_on() {
        let (device, lane) = lane(true);
        lane.gate().give(Order::Stop);
        lane.enforce().unwrap();
        let lane = Arc::new(lane);
        let launching = std::thread::spawn({
            let lane = Arc::clone(&lane);
            move || lane.launch(|| ())
        });
        while !lock(&device.told).contains(&"mark") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(lane.gate().is_ready(), "who waits there has work");
        // On a thread of its own: it would wait for ever.
        let (sender, done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            lane.set_limit(Some(Limit::Budget(Nanos::from_millis(1))));
            lane.set_level(LevelRequest::Auto).unwrap();
            lane.gate().give(Order::Watched);
            lane.enforce().unwrap();
            sender.send(lane.limit()).unwrap();
        });
        let limit = done.recv_timeout(Duration::from_secs(30)).expect("the order is carried out");
        assert_eq!(limit, Limit::Budget(Nanos::from_millis(1)));
        launching.join().unwrap();
    }

    #[test]
    fn a_queue_that_stands_at_a_marker_has_work() {
        let (_device, lane) = lane(true);
        lane.gate().give(Order::Stop);
        lane.enforce().unwrap();
        lane.gate().give(Order::Paced);
        lane.enforce().unwrap();
        assert!(!lane.gate().is_ready());
        lane.mark().expect("a marker");
        assert!(lane.gate().is_ready());
        assert_eq!(lane.gate().counts().passes, 0, "and yet nothing was launched");
    }

    #[test]
    fn a_queue_that_nobody_has_counted_is_not_taken_for_idle() {
        let (device, lane) = lane(false);
        for order in [Order::Stop, Order::Watched, Order::Stop, Order::Free] {
            lane.gate().give(order);
            lane.enforce().unwrap();
        }
        assert_eq!(*lock(&device.told), ["preempt", "restore", "preempt idle", "restore"]);
    }
}
