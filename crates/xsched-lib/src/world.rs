//! What the hooks share, from the program's first queue to its exit.
//!
//! ```text
//!   nothing ──first queue──► a world ──exit──► over          over, or never wanted: hooks only forward
//!      ▲                        │
//!      └──── child of a fork ◄──┘   the parent's world is left behind, unused: its threads and its page are not ours
//! ```

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use xsched_core::{DeviceId, Process, ProcessId};
use xsched_interpose::{Table, lifetime};
use xsched_ipc::environment::{Environment, Scheduler};
use xsched_ipc::report::{Severity, report};
use xsched_ipc::threads::without_signals;
use xsched_ipc::{Client, Coordinator, Introduction, JoinedQueue, LocalScheduler, Page, socket};
use xsched_policy::{Params, PolicyInfo};

use crate::station::{Leased, Station};

/// The program's connection to its scheduler, and its queues by the vendor's handles.
pub(crate) struct World {
    environment: Environment,
    client: Client,
    local: Option<LocalScheduler>,
    queues: Table<Station>,
}

/// Null: nothing yet. [`OVER`]: nothing any more. Else a world that is never freed.
static WORLD: AtomicPtr<World> = AtomicPtr::new(ptr::null_mut());
/// The address of no world.
const OVER: *mut World = ptr::without_provenance_mut(1);

/// The world, if hooks are to do anything but forward. Begins it with the program's first queue.
#[inline]
pub(crate) fn world() -> Option<&'static World> {
    // Acquire: who sees the world sees what is in it. Pairs with the Release in `begin`.
    let world = WORLD.load(Ordering::Acquire);
    if world.is_null() {
        return begin();
    }
    if world == OVER {
        return None;
    }
    // SAFETY: neither null nor `OVER`, so it is one that `begin` leaked.
    Some(unsafe { &*world })
}

#[cold]
fn begin() -> Option<&'static World> {
    if !watch_lifetime() {
        return None;
    }
    let new = match World::new() {
        Some(world) => Box::into_raw(Box::new(world)),
        None => OVER,
    };
    match WORLD.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Err(_) if new != OVER => {
            // Another thread was quicker.
            // SAFETY: made above, and shown to nobody.
            drop(unsafe { Box::from_raw(new) });
        }
        _ => {}
    }
    world()
}

/// Asks once to be told of forks and of the exit. Without it nothing can be done safely.
fn watch_lifetime() -> bool {
    static ASKED: AtomicBool = AtomicBool::new(false);
    if ASKED.swap(true, Ordering::AcqRel) {
        return true;
    }
    // Our own faults are ours: the program's standard error is not.
    std::panic::set_hook(Box::new(|fault| report(Severity::Error, format_args!("a fault of ours: {fault}"))));
    lifetime::in_every_child(leave_to_parent) && lifetime::at_exit(leave)
}

/// In a child of the program: begins anew with its next queue.
extern "C" fn leave_to_parent() {
    let world = WORLD.load(Ordering::Acquire);
    if !world.is_null() && world != OVER {
        WORLD.store(ptr::null_mut(), Ordering::Release);
        // SAFETY: as in `world`. It is never dropped, neither here nor in the parent.
        unsafe { &*world }.client.leave_to_parent();
    }
}

/// The program ends: what its exit handlers still do goes straight to the vendor's functions.
extern "C" fn leave() {
    let world = WORLD.swap(OVER, Ordering::AcqRel);
    if !world.is_null() && world != OVER {
        // SAFETY: as in `world`.
        let world = unsafe { &*world };
        if let Some(local) = &world.local {
            local.with(Coordinator::release_all);
        }
        world.client.leave();
        crate::hip::leave();
    }
}

impl World {
    /// None: this program's queues are not to be scheduled.
    fn new() -> Option<Self> {
        let complain = |line: String| report(Severity::Warning, format_args!("{line}"));
        let environment = Environment::read(|name| std::env::var(name).ok(), complain);
        if !environment.every_queue {
            return None;
        }
        let made = match environment.scheduler {
            Scheduler::Program => return None,
            Scheduler::Service => service(&environment),
            Scheduler::Local(policy, params) => local(&environment, policy, params),
        };
        match made {
            Ok((client, local)) => {
                crate::copies::mention_another();
                Some(Self { environment, client, local, queues: Table::default() })
            }
            Err(why) => {
                report(Severity::Error, format_args!("running unscheduled: {why}"));
                None
            }
        }
    }

    /// Takes note of a queue. `take` makes what the core needs of it, or answers none if that cannot be done.
    pub(crate) fn adopt<H: Leased + 'static>(&self, handle: usize, take: impl FnOnce() -> Option<H>) -> bool {
        let Some(hw) = take() else { return false };
        let station = Station::new(&self.client, hw, self.environment.level, self.environment.limit);
        match self.queues.insert(handle, station) {
            Ok(()) => true,
            // Another thread was quicker, or there is no room for more.
            Err(station) => {
                drop(station);
                false
            }
        }
    }

    /// Calls `work` with what is known about a queue.
    #[inline]
    pub(crate) fn with<R>(&self, handle: usize, work: impl FnOnce(Option<&Station>) -> R) -> R {
        self.queues.with(handle, work)
    }

    /// Calls `real`, which waits for everything on a device.
    pub(crate) fn synchronize(&self, device: DeviceId, real: &mut dyn FnMut()) {
        self.client.synchronized(device, real, |()| true);
    }

    /// The program has seen that some work of its is done.
    pub(crate) fn look_soon(&self) {
        self.client.look_soon();
    }

    /// Whether a queue is scheduled.
    pub(crate) fn knows(&self, handle: usize) -> bool {
        self.with(handle, |station| station.is_some())
    }

    fn queue(&self, handle: usize) -> Option<Arc<JoinedQueue>> {
        self.with(handle, |station| station.and_then(Station::queue))
    }

    /// What is launched on a queue from now on waits for what is on another already.
    pub(crate) fn waits_for(&self, waiter: usize, holder: usize) {
        if let (Some(waiter), Some(holder)) = (self.queue(waiter), self.queue(holder))
            && let Some(point) = holder.record()
        {
            waiter.waits_for(&holder, point);
        }
    }

    /// Whether it matters who waits for whom.
    pub(crate) fn is_divided(&self) -> bool {
        self.client.is_divided()
    }

    /// What was put on a queue last may wait for any thread of the program.
    pub(crate) fn waits_for_anybody(&self, waiter: usize) {
        if let Some(waiter) = self.queue(waiter) {
            waiter.waits_for_anybody();
        }
    }

    /// The program has waited for something on a queue: it may have become idle.
    pub(crate) fn look_for_idle(&self, handle: usize) {
        if let Some(queue) = self.queue(handle)
            && !queue.lane().gate().is_free()
        {
            queue.lane().poll_idle();
        }
    }

    /// A queue is about to be destroyed.
    pub(crate) fn retire(&self, handle: usize) {
        self.queues.remove(handle, Station::retire);
    }
}

type Made = Result<(Client, Option<LocalScheduler>), Box<dyn std::error::Error>>;

fn service(environment: &Environment) -> Made {
    let introduction = Introduction {
        sockets: socket::candidates(),
        name: environment.name.clone(),
        wishes: environment.wishes.clone(),
    };
    Ok((Client::of_service(introduction)?, None))
}

fn local(environment: &Environment, policy: &'static PolicyInfo, params: Params) -> Made {
    let scheduler = without_signals(|| LocalScheduler::start(policy))?;
    let page = Page::create()?;
    let process = Process { id: ProcessId(std::process::id()), ..Process::default() };
    scheduler.with(|coordinator| coordinator.configure(params));
    // It is scheduled for as long as it lives.
    let _ = scheduler.admit(process, std::sync::Arc::clone(&page), environment.hints());
    let client = Client::new(page, scheduler.bell().try_clone()?);
    Ok((client, Some(scheduler)))
}
