//! What the threads of one scheduled program share: its queues, and where its scheduler is to be found.
//!
//! A program sits on one page at a time. It begins on a private one, takes a seat on the page of a scheduler when it
//! meets one, stays there when the scheduler is lost, and moves to a new page when another comes.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use xsched_core::{Nanos, Order, QueueId, SchedulerLink};

use crate::agent;
use crate::dependencies::DependencyTracker;
use crate::line::{Identity, Line};
use crate::local::Membership;
use crate::notifier::Notifier;
use crate::page::Page;
use crate::scheduled_queue::ScheduledQueue;

/// A scheduler that gave no sign of life for so long is taken for dead.
pub const PATIENCE: Nanos = Nanos::from_millis(100);

/// How the scheduler of a page is called.
pub(crate) enum Call {
    /// It has a notifier.
    Notifier(Notifier),
    /// It is a scheduler inside this process.
    Local(Arc<Membership>),
    /// It is the service, at the other end of this connection.
    Service(Arc<Line>),
    /// There is none, or none any more.
    Nobody,
}

/// A page, and how its scheduler is called.
pub(crate) struct Seat {
    pub(crate) page: Arc<Page>,
    pub(crate) call: Call,
}

/// See the head of this file.
pub(crate) struct Program {
    seat: RwLock<Arc<Seat>>,
    /// The page it began on, where it sits again when it leaves its scheduler.
    home: Arc<Page>,
    /// Whether its threads run.
    agents: Mutex<bool>,
    queues: Mutex<Vec<Weak<ScheduledQueue>>>,
    last_queue: AtomicU64,
    pub(crate) waits: DependencyTracker,
    /// Some queues of the program are stopped while others run.
    divided: AtomicBool,
    /// That was so once: since then it is written down which queue waits for which.
    tracks_dependencies: AtomicBool,
    /// The watcher comes round only if it is woken.
    watcher_sleeps: AtomicBool,
    inherited: Inherited,
}

/// What a child after fork finds and must not use, kept where it can be read whatever locks the parent's threads held.
struct Inherited {
    /// The page sat on, and while moving the one before.
    pages: [AtomicPtr<std::ffi::c_void>; 2],
    /// The connection to the service, or -1; and which socket that is.
    socket: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Program {
    pub(crate) fn new(page: Arc<Page>, call: Call) -> Self {
        let inherited = Inherited {
            pages: [AtomicPtr::new(page.address()), AtomicPtr::default()],
            socket: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
        };
        Self {
            home: Arc::clone(&page),
            seat: RwLock::new(Arc::new(Seat { page, call })),
            agents: Mutex::new(false),
            queues: Mutex::default(),
            last_queue: AtomicU64::new(0),
            waits: DependencyTracker::default(),
            divided: AtomicBool::new(false),
            tracks_dependencies: AtomicBool::new(false),
            watcher_sleeps: AtomicBool::new(true),
            inherited,
        }
    }

    /// Where the program sits now.
    pub(crate) fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A name for a queue that no other queue of this program ever had.
    pub(crate) fn next_queue_id(&self) -> QueueId {
        QueueId(self.last_queue.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Has `make` make a queue on the page the program sits on. The program does not move meanwhile.
    pub(crate) fn add<E>(
        &self,
        make: impl FnOnce(&Arc<Page>) -> Result<Arc<ScheduledQueue>, E>,
    ) -> Result<Arc<ScheduledQueue>, E> {
        let mut queues = lock(&self.queues);
        let queue = make(&self.seat().page)?;
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// The queues that still exist.
    pub(crate) fn living(&self) -> Vec<Arc<ScheduledQueue>> {
        lock(&self.queues).iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes whether some queues are stopped while others run. Answers whether that has just become so.
    pub(crate) fn note_divided(&self, divided: bool) -> bool {
        !self.divided.swap(divided, Ordering::SeqCst) && divided
    }

    /// Whether some queues are stopped while others run.
    pub(crate) fn is_divided(&self) -> bool {
        self.divided.load(Ordering::SeqCst)
    }

    /// From now on it is written down which queue waits for which. Answers whether it was not before.
    pub(crate) fn start_dependency_tracking(&self) -> bool {
        !self.tracks_dependencies.swap(true, Ordering::SeqCst)
    }

    /// Whether it is written down which queue waits for which.
    pub(crate) fn tracks_dependencies(&self) -> bool {
        self.tracks_dependencies.load(Ordering::SeqCst)
    }

    /// Notes whether the watcher comes round only if it is woken, just before that is so.
    pub(crate) fn note_watcher_sleeps(&self, sleeps: bool) {
        self.watcher_sleeps.store(sleeps, Ordering::SeqCst);
    }

    /// Has the watcher come round at once.
    pub(crate) fn poll_now(&self) {
        let seat = self.seat();
        let orders = seat.page.orders();
        orders.word().fetch_add(1, Ordering::SeqCst);
        orders.wake(agent::WATCHER);
    }

    /// Starts the threads that carry out a scheduler's orders, unless they run already.
    pub(crate) fn start_agents(self: &Arc<Self>) -> std::io::Result<()> {
        let mut started = lock(&self.agents);
        if !*started {
            agent::start(self)?;
            *started = true;
        }
        Ok(())
    }

    /// Moves to the page of a scheduler that was just met, with all queues, unless it is no longer wanted.
    pub(crate) fn take_seat(&self, page: &Arc<Page>, call: Call, wanted: impl FnOnce() -> bool) -> bool {
        let queues = lock(&self.queues);
        if !wanted() {
            return false;
        }
        let moving: Vec<_> = queues.iter().filter_map(Weak::upgrade).collect();
        let [current, before] = &self.inherited.pages;
        before.store(current.load(Ordering::SeqCst), Ordering::SeqCst);
        current.store(page.address(), Ordering::SeqCst);
        let old = self.sit(Seat { page: Arc::clone(page), call });
        if !Arc::ptr_eq(&old.page, page) {
            for queue in &moving {
                queue.move_to(page);
            }
            self.waits.publish_again(&moving);
        }
        before.store(std::ptr::null_mut(), Ordering::SeqCst);
        drop(queues);
        // The threads that sleep on the old page look for the new one. The last handle on a queue is dropped unlocked.
        old.page.orders().bump();
        self.notify();
        self.poll_now();
        true
    }

    /// Leaves the scheduler: the program alone decides from now on.
    pub(crate) fn go_home(&self) {
        let left = self.seat();
        self.take_seat(&self.home, Call::Nobody, || true);
        self.part_from(&left);
        self.free_all();
    }

    /// The scheduler is gone: everybody is free at once.
    pub(crate) fn lose_scheduler(&self) {
        let page = Arc::clone(&self.seat().page);
        let lost = self.sit(Seat { page: Arc::clone(&page), call: Call::Nobody });
        self.part_from(&lost);
        drop(lost);
        self.free_all();
        page.orders().bump();
    }

    /// The service at the other end of this connection is gone. Another scheduler stays.
    pub(crate) fn lose_service(&self, line: &Arc<Line>) {
        if matches!(&self.seat().call, Call::Service(ours) if Arc::ptr_eq(ours, line)) {
            self.lose_scheduler();
        } else {
            line.hang_up();
        }
    }

    /// It is over for the scheduler too, if that still listens.
    pub(crate) fn part_from(&self, seat: &Seat) {
        match &seat.call {
            Call::Service(line) => {
                self.note_connection(None);
                line.hang_up();
            }
            Call::Local(member) => member.look(),
            Call::Notifier(_) | Call::Nobody => {}
        }
    }

    /// Frees every queue, and has the devices run on.
    pub(crate) fn free_all(&self) {
        let queues = self.living();
        for queue in &queues {
            queue.launch_path().gate().give(Order::Free);
        }
        for queue in &queues {
            // A device that refuses now is asked again by the enforcer.
            let _ = queue.launch_path().enforce();
        }
    }

    /// The program has closed the connection under us: nobody can be called from here on, so nobody may hold us either.
    fn stand_up_from(&self, seat: &Arc<Seat>) {
        let mut now = self.seat.write().unwrap_or_else(PoisonError::into_inner);
        if Arc::ptr_eq(&now, seat) {
            *now = Arc::new(Seat { page: Arc::clone(&seat.page), call: Call::Nobody });
        }
    }

    fn sit(&self, seat: Seat) -> Arc<Seat> {
        std::mem::replace(&mut *self.seat.write().unwrap_or_else(PoisonError::into_inner), Arc::new(seat))
    }

    /// Notes the connection before anything is said on it, so that a child leaves it alone; and that there is none
    /// any more, before it is closed.
    pub(crate) fn note_connection(&self, line: Option<&Line>) {
        let noted = &self.inherited;
        noted.socket.store(-1, Ordering::SeqCst);
        if let Some(Identity { fd, device, inode }) = line.map(Line::identity) {
            noted.device.store(device, Ordering::SeqCst);
            noted.inode.store(inode, Ordering::SeqCst);
            noted.socket.store(fd, Ordering::SeqCst);
        }
    }

    /// Called in a child after fork, before anything else: the page and the connection stay the parent's. Takes no
    /// lock. The program's queues are free in the child, and neither they nor this may be dropped there.
    pub(crate) fn detach_in_child(&self) {
        for page in &self.inherited.pages {
            let address = page.swap(std::ptr::null_mut(), Ordering::SeqCst);
            if !address.is_null() {
                // SAFETY: both pages were mapped when the parent forked: `seat` holds the current one, and `take_seat`
                // the one before for as long as it is noted here. A child has one thread.
                unsafe { Page::detach_in_child(address) };
            }
        }
        let noted = &self.inherited;
        let socket = Identity {
            fd: noted.socket.swap(-1, Ordering::SeqCst),
            device: noted.device.load(Ordering::SeqCst),
            inode: noted.inode.load(Ordering::SeqCst),
        };
        if socket.fd >= 0 && socket.holds() {
            // Closed, not shut down: the connection is the parent's too.
            // SAFETY: the number stands for the connection of the parent's seat, which nobody in this child uses or
            // closes any more.
            unsafe { rustix::io::close(socket.fd) };
        }
    }
}

impl SchedulerLink for Program {
    fn notify(&self) {
        let seat = self.seat();
        match &seat.call {
            Call::Notifier(notifier) => notifier.notify(),
            Call::Local(member) => member.notify(),
            // Rung and not yet looked at: once more says nothing new.
            Call::Service(line) if seat.page.notify() => match line.connection() {
                Ok(connection) => connection.notify(),
                Err(_) => self.stand_up_from(&seat),
            },
            Call::Service(_) | Call::Nobody => {}
        }
    }

    fn watch(&self) {
        let seat = self.seat();
        let orders = seat.page.orders();
        // Changed first: a watcher who is about to sleep for long either sees that, or is seen here.
        orders.word().fetch_add(1, Ordering::SeqCst);
        if self.watcher_sleeps.load(Ordering::SeqCst) {
            orders.wake(agent::WATCHER);
        }
    }

    fn alive(&self) -> bool {
        let seat = self.seat();
        !matches!(seat.call, Call::Nobody) && Nanos::now() - seat.page.last_heartbeat() < PATIENCE
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Its threads hold no handle on it while they sleep: they end when they wake and find it gone.
        let seat = self.seat();
        seat.page.orders().bump();
        if let Call::Service(line) = &seat.call {
            line.hang_up();
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Connection;

    #[test]
    fn a_child_leaves_the_page_and_the_connection_to_its_parent() {
        let (ours, theirs) = rustix::net::socketpair(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            rustix::net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let (ours, theirs) = (Connection::from_fd(ours), Connection::from_fd(theirs));
        let ours = Arc::new(Line::new(ours).unwrap());
        let program = Program::new(Page::private().unwrap(), Call::Nobody);
        let page = Page::create().unwrap();
        program.note_connection(Some(&ours));
        assert!(program.take_seat(&page, Call::Service(Arc::clone(&ours)), || true));
        let gate = &page.slot(3).unwrap().gate;
        gate.give(Order::Throttled);
        // SAFETY: the child makes system calls and writes atomics, then ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            program.detach_in_child();
            let was_free = gate.order() == Order::Free;
            gate.give(Order::Yield);
            page.orders().bump();
            let closed = ours.connection().is_err();
            // SAFETY: ends the child without running anything of the test's process.
            unsafe { libc::_exit(i32::from(!(was_free && closed))) };
        }
        let mut status = -1;
        // SAFETY: waits for the child made above.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child still had the page or the connection");
        assert_eq!(gate.order(), Order::Throttled, "the child wrote into its parent's page");
        // Nobody hung up: what was rung before is still to be had, and then nothing.
        while let Some(packet) = theirs.receive::<crate::protocol::Request>(false).unwrap() {
            assert!(matches!(packet, crate::socket::Packet::Ring));
        }
    }
}
