//! NVIDIA's resource manager (RM), as far as a process and a library that hooks `ioctl` interact with it.
//!
//! ```text
//!   client ─ device ─┬ subdevice
//!                    ├ channel group (compute engine) ─ channels   four channel groups per context:
//!                    └ channel group (copy engine)    ─ channel    the first for compute, the rest for copies
//! ```
//!
//! The vendor's driver calls the `ioctl` that the dynamic loader finds first, so that a library in front of it sees every
//! call. This one does the same, and exports an `ioctl` that acts as the vendor's kernel module. For a hook to reach it,
//! it must come directly behind the hook: preloaded too, or linked. If libc's `ioctl` comes first, the kernel rejects
//! our descriptor, and the call is handled here without having been visible to a hook.

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
use crate::driver::{DriverGuard, Handle, driver};
use crate::runlist::DEFAULT_TIME_SLICE;
use crate::settings::Settings;

/// How long the calls take on real hardware.
const SET_TIMESLICE_DURATION: Duration = Duration::from_micros(148);
const DISABLE_DURATION: Duration = Duration::from_micros(580);
const ENABLE_DURATION: Duration = Duration::from_micros(210);

/// An RM object.
struct Object {
    class: u32,
    parent: u32,
    device: usize,
    engine: u32,
    /// The context of a channel group or channel.
    context: Option<Handle>,
}

/// The RM objects of this process.
#[derive(Default)]
pub(crate) struct Objects {
    all: HashMap<u32, Object>,
    client: u32,
    next: u32,
}

/// The descriptor for the calls; -1 before the first.
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// One context at a time allocates its objects.
static ALLOCATION_LOCK: Mutex<()> = Mutex::new(());

thread_local! {
    /// The context that this thread allocates objects for.
    static ALLOCATING_FOR: Cell<Handle> = const { Cell::new(0) };
}

type Ioctl = unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int;

/// Makes a call as the vendor's driver does: to the `ioctl` that the dynamic loader finds first.
fn call<T>(request: c_ulong, argument: &mut T) {
    let fd = DESCRIPTOR.load(Ordering::Acquire);
    let argument = (&raw mut *argument).cast::<c_void>();
    // SAFETY: the name is a C string; the result is an address or null.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"ioctl".as_ptr()) };
    if !first.is_null() {
        // SAFETY: a function of this name has the signature of `ioctl`.
        let first = unsafe { std::mem::transmute::<*mut c_void, Ioctl>(first) };
        // SAFETY: the argument has the request's type and lives until the call returns.
        if unsafe { first(fd, request, argument) } == 0 {
            return;
        }
    }
    // SAFETY: as above.
    let _ = unsafe { handle(request, argument) };
}

/// Opens the descriptor for the calls.
fn open() -> bool {
    if DESCRIPTOR.load(Ordering::Acquire) >= 0 {
        return true;
    }
    let Ok(fd) = memfd_create("standin-nvidiactl", MemfdFlags::CLOEXEC) else { return false };
    DESCRIPTOR.store(fd.into_raw_fd(), Ordering::Release);
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

/// Allocates the objects of a new context, and on the first one those that all contexts share.
pub(crate) fn allocate_channels(context: Handle, device: usize) {
    if !Settings::get().resource_manager {
        return;
    }
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    if !open() {
        return;
    }
    let Some((mut client, shared)) = driver().ok().map(|driver| {
        let all = &driver.objects.all;
        let shared = all.iter().find(|(_, object)| object.class == DEVICE && object.device == device);
        (driver.objects.client, shared.map(|(handle, _)| *handle))
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
    ALLOCATING_FOR.set(context);
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
    control_with(client, compute, SET_TIMESLICE, &mut (DEFAULT_TIME_SLICE / 1_000));
    ALLOCATING_FOR.set(0);
}

/// Frees the objects of a destroyed context.
pub(crate) fn free_channels(context: Handle) {
    let _lock = ALLOCATION_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let Ok(guard) = driver() else { return };
    let client = guard.objects.client;
    let its = guard.objects.all.iter().filter(|(_, object)| object.context == Some(context));
    let mut its: Vec<_> = its.map(|(handle, object)| (object.class, *handle, object.parent)).collect();
    drop(guard);
    // Channels before their channel groups.
    its.sort_unstable_by_key(|(class, ..)| std::cmp::Reverse(*class));
    for (_, old, parent) in its {
        call(FREE, &mut Free { root: client, parent, old, status: u32::MAX });
    }
}

fn new_object() -> u32 {
    driver().map_or(0, |mut driver| {
        driver.objects.next += 1;
        0x5c00_0000 + driver.objects.next
    })
}

/// Handles calls on our descriptor, and forwards calls on other descriptors to the kernel.
///
/// # Safety
/// The requirements of the system's function of this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if fd >= 0 && fd == DESCRIPTOR.load(Ordering::Acquire) {
        // SAFETY: the caller guarantees that the argument is valid.
        if let Some(result) = unsafe { handle(request, argument) } {
            return result;
        }
    }
    // SAFETY: the caller's arguments, unchanged.
    let result = unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) };
    c_int::try_from(result).unwrap_or(-1)
}

/// Does what the vendor's kernel module would. None if the request is not one of its calls, or if the driver is not
/// initialized in this process.
unsafe fn handle(request: c_ulong, argument: *mut c_void) -> Option<c_int> {
    let driver = driver().ok()?;
    if argument.is_null() {
        return None;
    }
    // SAFETY: the request determines the argument's type, and the caller guarantees that it points to one.
    unsafe {
        match request {
            ALLOC => {
                let alloc = &mut *argument.cast::<Alloc>();
                let first = first_words(alloc.parameters, alloc.size);
                (alloc.new, alloc.status) = create(driver, alloc.parent, alloc.new, alloc.class, first);
            }
            SHORT_ALLOC => {
                let alloc = &mut *argument.cast::<ShortAlloc>();
                let first = first_words(alloc.parameters, alloc.size);
                (alloc.new, alloc.status) = create(driver, alloc.parent, alloc.new, alloc.class, first);
            }
            CONTROL => {
                let control = &mut *argument.cast::<Control>();
                control.status = self::control(driver, control);
            }
            FREE => {
                let free = &mut *argument.cast::<Free>();
                free.status = remove(driver, free.old);
            }
            _ => return None,
        }
    }
    Some(0)
}

/// The first words of an allocation's parameters; zero where the parameters are shorter.
unsafe fn first_words(parameters: u64, size: u32) -> [u32; 4] {
    let mut words = [0; 4];
    if parameters != 0 {
        let length = usize::try_from(size).unwrap_or(0).min(size_of_val(&words));
        // SAFETY: the caller guarantees `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(parameters as *const u8, words.as_mut_ptr().cast(), length) };
    }
    words
}

fn create(mut driver: DriverGuard, parent: u32, new: u32, class: u32, parameters: [u32; 4]) -> (u32, u32) {
    let objects = &mut driver.objects;
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
            let context = Some(ALLOCATING_FOR.get()).filter(|context| *context != 0);
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

fn remove(mut driver: DriverGuard, old: u32) -> u32 {
    let objects = &mut driver.objects.all;
    if objects.remove(&old).is_none() {
        return NOT_FOUND;
    }
    // Freeing an object frees its children.
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

/// Performs a control call. Returns its status.
unsafe fn control(driver: DriverGuard, control: &Control) -> u32 {
    let Some(object) = driver.objects.all.get(&control.object) else { return NOT_FOUND };
    if control.client != driver.objects.client {
        return NOT_FOUND;
    }
    let (class, device, engine, context) = (object.class, object.device, object.engine, object.context);
    let carries = |size: usize| control.parameters != 0 && usize::try_from(control.size) == Ok(size);
    let parameters = control.parameters as *mut c_void;
    match (control.command, class) {
        (SET_TIMESLICE, CHANNEL_GROUP) if carries(8) => {
            // The time slice that the driver itself sets for a new context is always allowed.
            if !Settings::get().timeslices && ALLOCATING_FOR.get() == 0 {
                return INSUFFICIENT_PERMISSIONS;
            }
            // SAFETY: the caller guarantees parameters of this size.
            let us = unsafe { parameters.cast::<u64>().read_unaligned() };
            if us == 0 {
                return INVALID_ARGUMENT;
            }
            let its = context
                .filter(|_| engine == COMPUTE_ENGINE)
                .and_then(|context| driver.contexts.get(&context));
            if let Some(context) = its {
                context.entry.set_time_slice_us(us);
                context.entry.wake();
            }
            drop(driver);
            std::thread::sleep(SET_TIMESLICE_DURATION);
            OK
        }
        (GET_TIMESLICE, CHANNEL_GROUP) if carries(8) => {
            let its = context
                .filter(|_| engine == COMPUTE_ENGINE)
                .and_then(|context| driver.contexts.get(&context));
            let us = its.map_or(DEFAULT_TIME_SLICE / 1_000, |context| context.entry.time_slice_us());
            // SAFETY: as above.
            unsafe { parameters.cast::<u64>().write_unaligned(us) };
            OK
        }
        (DISABLE_CHANNELS, SUBDEVICE) if !Settings::get().channel_stops => INSUFFICIENT_PERMISSIONS,
        (DISABLE_CHANNELS, SUBDEVICE) if carries(size_of::<DisableChannels>()) => {
            // SAFETY: as above.
            disable(driver, &unsafe { parameters.cast::<DisableChannels>().read_unaligned() })
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
        // These succeed on real hardware and have no effect on what is modelled here.
        (SCHEDULE | PREEMPT | SET_INTERLEAVE_LEVEL, CHANNEL_GROUP) | (SET_PREEMPTION_MODE, SUBDEVICE) => OK,
        (SET_TIMESLICE | GET_TIMESLICE | DISABLE_CHANNELS | GPU_GET_ID | GPU_GET_PCI_INFO, _) => {
            INVALID_ARGUMENT
        }
        _ => NOT_SUPPORTED,
    }
}

/// The RM's id of a GPU, derived from its PCI address.
fn gpu_id(device: usize) -> u32 {
    let (domain, bus, slot) = pci(device);
    (domain << 16) | (u32::from(bus) << 8) | u32::from(slot)
}

/// Disables or enables the contexts whose compute channels are all listed.
fn disable(mut driver: DriverGuard, wanted: &DisableChannels) -> u32 {
    let count = usize::try_from(wanted.count).unwrap_or(usize::MAX);
    if count > wanted.channels.len() || wanted.event != 0 {
        return INVALID_ARGUMENT;
    }
    let listed = &wanted.channels[..count];
    let client = driver.objects.client;
    let known = |channel: &u32| driver.objects.all.get(channel).is_some_and(|object| object.class == CHANNEL);
    if !listed.iter().all(known) || wanted.clients[..count].iter().any(|one| *one != client) {
        return NOT_FOUND;
    }
    let all = &driver.objects.all;
    let whole: Vec<_> = driver
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
        if let Some(context) = driver.contexts.get_mut(&context) {
            context.is_disabled = disable;
            // At once, before the executor runs: no device time passes for it until its channels are enabled.
            context.entry.report(None, 0);
            context.entry.wake();
        }
    }
    drop(driver);
    std::thread::sleep(if disable { DISABLE_DURATION } else { ENABLE_DURATION });
    OK
}
