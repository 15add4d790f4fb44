//! The resource manager, as far as a process and those who watch its calls meet it.
//!
//! ```text
//!   client ─ device ─┬ subdevice
//!                    ├ channel group (compute) ─ channels        four groups per context:
//!                    └ channel group (copies)  ─ channel         the first computes, the others copy
//! ```
//!
//! The vendor's driver reaches it with `ioctl`, through the loader, so that a library in front sees every call. So do we;
//! and the `ioctl` that this library exports answers where the vendor's kernel module would. It has to come next after
//! whoever stands in front: preloaded too, or linked. Where the system's own comes first, it does not know our
//! descriptor, and we answer ourselves without anybody having seen the call.

mod abi;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fd::IntoRawFd as _;
use rustix::fs::{MemfdFlags, memfd_create};

use abi::{
    ALLOC, Alloc, CHANNEL, CHANNEL_GROUP, CLIENT, COMPUTE_CHANNELS, COMPUTE_ENGINE, CONTROL, COPY_CHANNELS,
    Control, DEVICE, DISABLE_CHANNELS, DisableChannels, EXISTS, FIRST_COPY_ENGINE, FREE, Free, GET_TIMESLICE,
    GPU_GET_ID, GPU_GET_PCI_INFO, GROUPS, INSUFFICIENT_PERMISSIONS, INVALID_ARGUMENT, INVALID_CLASS,
    NOT_FOUND, NOT_SUPPORTED, OK, PREEMPT, PciInfo, SCHEDULE, SET_INTERLEAVE_LEVEL, SET_PREEMPTION_MODE,
    SET_TIMESLICE, SHORT_ALLOC, SUBDEVICE, ShortAlloc,
};

use crate::device::pci;
use crate::settings::Settings;
use crate::turns::USUAL_SLICE;
use crate::world::{Handle, Held, world};

/// What the calls take on the real thing.
const SET_TIMESLICE_TAKES: Duration = Duration::from_micros(148);
const DISABLE_TAKES: Duration = Duration::from_micros(580);
const ENABLE_TAKES: Duration = Duration::from_micros(210);

/// Something that was allocated.
struct Object {
    class: u32,
    parent: u32,
    device: usize,
    engine: u32,
    /// Whose channel group it is.
    context: Option<Handle>,
}

/// What was allocated by this process.
#[derive(Default)]
pub(crate) struct Objects {
    all: HashMap<u32, Object>,
    client: u32,
    next: u32,
}

/// The descriptor that the calls are made on; -1 before the first.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// One context at a time makes its objects.
static MAKING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The context whose objects this thread is making.
    static FOR: Cell<Handle> = const { Cell::new(0) };
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// Makes a call as the vendor's driver does: to the `ioctl` that the loader finds first.
fn call<T>(request: c_ulong, argument: &mut T) {
    let fd = DESCRIPTOR.load(Ordering::Acquire);
    let argument = (&raw mut *argument).cast::<c_void>();
    // SAFETY: a C string; the answer is an address or null.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ioctl".as_ptr()) };
    if !first.is_null() {
        // SAFETY: whatever the loader has under this name takes what `ioctl` takes.
        let first = unsafe { std::mem::transmute::<*mut c_void, Ioctl>(first) };
        // SAFETY: the argument is what the request says, and lives until the call returns.
        if unsafe { first(fd, request, argument) } == 0 {
            return;
        }
    }
    // SAFETY: as above.
    let _ = unsafe { answer(request, argument) };
}

/// Opens the descriptor that the calls go to.
fn open() -> bool {
    if DESCRIPTOR.load(Ordering::Acquire) >= 0 {
        return true;
    }
    let Ok(made) = memfd_create("standin-nvidiactl", MemfdFlags::CLOEXEC) else { return false };
    DESCRIPTOR.store(made.into_raw_fd(), Ordering::Release);
    true
}

fn allocate(root: u32, parent: u32, new: u32, class: u32, parameters: &mut [u32]) -> u32 {
    let size = u32::try_from(size_of_val(parameters)).unwrap_or(0);
    let parameters = parameters.as_mut_ptr() as u64;
    let mut alloc =
        Alloc { root, parent, new, class, parameters, size, status: u32::MAX, ..Alloc::default() };
    call(ALLOC, &mut alloc);
    alloc.new
}

fn control_with<T>(client: u32, object: u32, command: u32, parameters: &mut T) {
    let size = u32::try_from(size_of::<T>()).unwrap_or(0);
    let parameters = (&raw mut *parameters) as u64;
    call(CONTROL, &mut Control { client, object, command, flags: 0, parameters, size, status: u32::MAX });
}

/// Makes the objects of a new context, and those that all contexts share if it is the first.
pub(crate) fn make_channels(context: Handle, device: usize) {
    if !Settings::get().resource_manager {
        return;
    }
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if !open() {
        return;
    }
    let Some((mut client, shared)) = world().ok().map(|world| {
        let all = &world.objects.all;
        let shared = all.iter().find(|(_, object)| object.class == DEVICE && object.device == device);
        (world.objects.client, shared.map(|(handle, _)| *handle))
    }) else {
        return;
    };
    if client == 0 {
        client = allocate(0, 0, 0, CLIENT, &mut []);
    }
    let device = shared.unwrap_or_else(|| {
        let made = allocate(client, client, new_object(), DEVICE, &mut [u32::try_from(device).unwrap_or(0)]);
        allocate(client, made, new_object(), SUBDEVICE, &mut [0]);
        made
    });
    FOR.set(context);
    let mut compute = 0;
    for group in 0..GROUPS {
        let (engine, channels) = match group {
            0 => (COMPUTE_ENGINE, COMPUTE_CHANNELS),
            copies => (FIRST_COPY_ENGINE + copies - 1, COPY_CHANNELS),
        };
        let made = allocate(client, device, new_object(), CHANNEL_GROUP, &mut [0, 0, 0, engine, 0]);
        for _ in 0..channels {
            allocate(client, made, new_object(), CHANNEL, &mut [0; 4]);
        }
        control_with(client, made, SCHEDULE, &mut [1_u8, 0, 0]);
        if engine == COMPUTE_ENGINE {
            compute = made;
        }
    }
    control_with(client, compute, SET_TIMESLICE, &mut (USUAL_SLICE / 1_000));
    FOR.set(0);
}

/// Frees the objects of a context that has ended.
pub(crate) fn free_channels(context: Handle) {
    let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(held) = world() else { return };
    let client = held.objects.client;
    let its = held.objects.all.iter().filter(|(_, object)| object.context == Some(context));
    let mut its: Vec<_> = its.map(|(handle, object)| (object.class, *handle, object.parent)).collect();
    drop(held);
    // Channels before the groups they are in.
    its.sort_unstable_by_key(|(class, ..)| std::cmp::Reverse(*class));
    for (_, old, parent) in its {
        call(FREE, &mut Free { root: client, parent, old, status: u32::MAX });
    }
}

fn new_object() -> u32 {
    world().map_or(0, |mut world| {
        world.objects.next += 1;
        0x5c00_0000 + world.objects.next
    })
}

/// Answers calls on our descriptor, and hands on all others.
///
/// # Safety
/// As the system's function of this name demands.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if fd >= 0 && fd == DESCRIPTOR.load(Ordering::Acquire) {
        // SAFETY: the caller vouches for the argument.
        if let Some(answer) = unsafe { answer(request, argument) } {
            return answer;
        }
    }
    // SAFETY: the caller's own arguments.
    let answer = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) };
    c_int::try_from(answer).unwrap_or(-1)
}

/// What the vendor's kernel module would do; none if it is not one of its calls, or not from the process that opened it.
unsafe fn answer(request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    let world = world().ok()?;
    if argument.is_null() {
        return None;
    }
    // SAFETY: the request says what the argument points at, and the caller vouches that it does.
    unsafe {
        match request {
            ALLOC => {
                let alloc = &mut *argument.cast::<Alloc>();
                let first = first_words(alloc.parameters, alloc.size);
                (alloc.new, alloc.status) = make(world, alloc.parent, alloc.new, alloc.class, first);
            }
            SHORT_ALLOC => {
                let alloc = &mut *argument.cast::<ShortAlloc>();
                let first = first_words(alloc.parameters, alloc.size);
                (alloc.new, alloc.status) = make(world, alloc.parent, alloc.new, alloc.class, first);
            }
            CONTROL => {
                let control = &mut *argument.cast::<Control>();
                control.status = self::control(world, control);
            }
            FREE => {
                let free = &mut *argument.cast::<Free>();
                free.status = remove(world, free.old);
            }
            _ => return None,
        }
    }
    Some(0)
}

/// The first words of an allocation's parameters; zero where there are none.
unsafe fn first_words(parameters: u64, size: u32) -> [u32; 4] {
    let mut words = [0; 4];
    if parameters != 0 {
        let length = usize::try_from(size).unwrap_or(0).min(size_of_val(&words));
        // SAFETY: the caller vouches for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(parameters as *const u8, words.as_mut_ptr().cast(), length) };
    }
    words
}

fn make(mut world: Held, parent: u32, new: u32, class: u32, parameters: [u32; 4]) -> (u32, u32) {
    let objects = &mut world.objects;
    let of_class = |handle: u32, class: u32| objects.all.get(&handle).filter(|object| object.class == class);
    let object = |device: usize, engine: u32, context: Option<Handle>| Object {
        class,
        parent,
        device,
        engine,
        context,
    };
    let made = match class {
        0 | CLIENT => {
            let client = 0xc1d0_0000 | (std::process::id() & 0xffff);
            objects.client = client;
            objects.all.insert(client, object(0, 0, None));
            return (client, OK);
        }
        DEVICE if parent == objects.client => usize::try_from(parameters[0])
            .ok()
            .filter(|device| *device < Settings::get().devices)
            .map(|device| object(device, 0, None)),
        SUBDEVICE => of_class(parent, DEVICE).map(|device| object(device.device, 0, None)),
        CHANNEL_GROUP => {
            let context = Some(FOR.get()).filter(|context| *context != 0);
            of_class(parent, DEVICE).map(|device| object(device.device, parameters[3], context))
        }
        CHANNEL => {
            of_class(parent, CHANNEL_GROUP).map(|group| object(group.device, group.engine, group.context))
        }
        _ => return (new, INVALID_CLASS),
    };
    let Some(made) = made else { return (new, NOT_FOUND) };
    if objects.all.contains_key(&new) {
        return (new, EXISTS);
    }
    objects.all.insert(new, made);
    (new, OK)
}

fn remove(mut world: Held, old: u32) -> u32 {
    let objects = &mut world.objects.all;
    if objects.remove(&old).is_none() {
        return NOT_FOUND;
    }
    // With an object goes what was made in it.
    let mut gone = vec![old];
    while let Some(parent) = gone.pop() {
        let children: Vec<_> =
            objects.iter().filter(|(_, object)| object.parent == parent).map(|(handle, _)| *handle).collect();
        for child in children {
            objects.remove(&child);
            gone.push(child);
        }
    }
    OK
}

/// What a control call asks of an object. Answers its status.
unsafe fn control(world: Held, control: &Control) -> u32 {
    let Some(object) = world.objects.all.get(&control.object) else { return NOT_FOUND };
    if control.client != world.objects.client {
        return NOT_FOUND;
    }
    let (class, device, engine, context) = (object.class, object.device, object.engine, object.context);
    let carries = |size: usize| control.parameters != 0 && usize::try_from(control.size) == Ok(size);
    let parameters = control.parameters as *mut c_void;
    match (control.command, class) {
        (SET_TIMESLICE, CHANNEL_GROUP) if carries(8) => {
            // What the driver itself sets when the context is made is always allowed.
            if !Settings::get().timeslices && FOR.get() == 0 {
                return INSUFFICIENT_PERMISSIONS;
            }
            // SAFETY: the caller vouches for parameters of this size.
            let us = unsafe { parameters.cast::<u64>().read_unaligned() };
            if us == 0 {
                return INVALID_ARGUMENT;
            }
            let its =
                context.filter(|_| engine == COMPUTE_ENGINE).and_then(|context| world.contexts.get(&context));
            if let Some(context) = its {
                context.seat.set_slice_us(us);
                context.seat.wake();
            }
            drop(world);
            std::thread::sleep(SET_TIMESLICE_TAKES);
            OK
        }
        (GET_TIMESLICE, CHANNEL_GROUP) if carries(8) => {
            let its =
                context.filter(|_| engine == COMPUTE_ENGINE).and_then(|context| world.contexts.get(&context));
            let us = its.map_or(USUAL_SLICE / 1_000, |context| context.seat.slice_us());
            // SAFETY: as above.
            unsafe { parameters.cast::<u64>().write_unaligned(us) };
            OK
        }
        (DISABLE_CHANNELS, SUBDEVICE) if !Settings::get().channel_stops => INSUFFICIENT_PERMISSIONS,
        (DISABLE_CHANNELS, SUBDEVICE) if carries(size_of::<DisableChannels>()) => {
            // SAFETY: as above.
            disable(world, &unsafe { parameters.cast::<DisableChannels>().read_unaligned() })
        }
        (GPU_GET_ID, SUBDEVICE) if carries(4) => {
            // SAFETY: as above.
            unsafe { parameters.cast::<u32>().write_unaligned(gpu_id(device)) };
            OK
        }
        (GPU_GET_PCI_INFO, CLIENT | 0) if carries(size_of::<PciInfo>()) => {
            let info = parameters.cast::<PciInfo>();
            // SAFETY: as above.
            let gpu = unsafe { (&raw const (*info).gpu).read_unaligned() };
            let Some(device) = (0..Settings::get().devices).find(|device| gpu_id(*device) == gpu) else {
                return INVALID_ARGUMENT;
            };
            let (domain, bus, slot) = pci(device);
            // SAFETY: as above.
            unsafe { info.write_unaligned(PciInfo { gpu, domain, bus, slot }) };
            OK
        }
        // They succeed on the real thing, and nothing that matters here comes of it.
        (SCHEDULE | PREEMPT | SET_INTERLEAVE_LEVEL, CHANNEL_GROUP) | (SET_PREEMPTION_MODE, SUBDEVICE) => OK,
        (SET_TIMESLICE | GET_TIMESLICE | DISABLE_CHANNELS | GPU_GET_ID | GPU_GET_PCI_INFO, _) => {
            INVALID_ARGUMENT
        }
        _ => NOT_SUPPORTED,
    }
}

/// How the resource manager calls a device: by where it is.
fn gpu_id(device: usize) -> u32 {
    let (domain, bus, slot) = pci(device);
    (domain << 16) | (u32::from(bus) << 8) | u32::from(slot)
}

/// Stops contexts all of whose compute channels are listed, or lets them go on.
fn disable(mut world: Held, wanted: &DisableChannels) -> u32 {
    let count = usize::try_from(wanted.count).unwrap_or(usize::MAX);
    if count > wanted.channels.len() || wanted.event != 0 {
        return INVALID_ARGUMENT;
    }
    let listed = &wanted.channels[..count];
    let client = world.objects.client;
    let known = |channel: &u32| world.objects.all.get(channel).is_some_and(|object| object.class == CHANNEL);
    if !listed.iter().all(known) || wanted.clients[..count].iter().any(|one| *one != client) {
        return NOT_FOUND;
    }
    let all = &world.objects.all;
    let whole: Vec<_> = world
        .contexts
        .keys()
        .copied()
        .filter(|context| {
            let mut its = all.iter().filter(|(_, object)| {
                object.class == CHANNEL && object.engine == COMPUTE_ENGINE && object.context == Some(*context)
            });
            its.clone().next().is_some() && its.all(|(handle, _)| listed.contains(handle))
        })
        .collect();
    let disable = wanted.disable != 0;
    for context in whole {
        if let Some(context) = world.contexts.get_mut(&context) {
            context.suspended = disable;
            // At once, not when the executor comes to look: no time passes for it until it is let go on.
            context.seat.look(None);
            context.seat.wake();
        }
    }
    drop(world);
    std::thread::sleep(if disable { DISABLE_TAKES } else { ENABLE_TAKES });
    OK
}
