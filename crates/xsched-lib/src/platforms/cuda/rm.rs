//! The process's own objects in the driver's resource manager, and what can be asked of them.
//!
//! The handles are learnt by watching the process's own calls; what is asked is allowed to every process for its own
//! objects. A layout that we do not know is left alone, and a refusal leads to the next lower level.
//!
//! ```text
//!   client ── device ──┬── subdevice            asked which GPU it is, and to stop channels
//!                      ├── channel group        of the compute engine: has a timeslice
//!                      │     └── channels
//!                      └── channel groups       of the copy engines: left alone
//! ```

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, DeviceKind};

/// `_IOWR('F', nr, size)` without the size.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == (('F' as c_ulong) << 8) | nr
}

const FREE: c_ulong = 0x29;
const ALLOC: c_ulong = 0x2b;
const CONTROL: c_ulong = 0xc020_462a;

const SUBDEVICE: u32 = 0x2080;
const CHANNEL_GROUP: u32 = 0xa06c;
/// All kinds of channels end in this.
const CHANNEL: u32 = 0x6f;

const GET_TIMESLICE: u32 = 0xa06c_0104;
const SET_TIMESLICE: u32 = 0xa06c_0103;
const DISABLE_CHANNELS: u32 = 0x2080_110b;
const GET_GPU_ID: u32 = 0x2080_0142;
const GET_PCI_INFO: u32 = 0x021b;

/// The engines that run kernels; beyond are those that copy, encode and decode.
const COMPUTE_ENGINES: std::ops::RangeInclusive<u32> = 1..=8;

/// One object of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Object {
    fd: c_int,
    client: u32,
    parent: u32,
    handle: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Subdevice,
    ComputeGroup,
    Channel,
}

static OBJECTS: Mutex<Vec<Object>> = Mutex::new(Vec::new());

fn objects() -> MutexGuard<'static, Vec<Object>> {
    OBJECTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches the resource manager's calls go by.
///
/// # Safety
/// The arguments and the answer of a call that the system has just answered.
pub(crate) unsafe fn watch_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void, answer: c_int) {
    let watched = is_call(request, ALLOC) || is_call(request, FREE);
    if answer == 0 && watched && !argument.is_null() {
        let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
        // SAFETY: the kernel has just accepted `size` bytes at `argument`.
        let words = unsafe { Words::at(argument, size) };
        xsched_interpose::run_isolated(|| {
            if is_call(request, ALLOC) { made(fd, &words) } else { freed(&words) }
        });
    }
}

/// What the kernel was given.
struct Words {
    words: [u32; 12],
    size: usize,
}

impl Words {
    /// # Safety
    /// `size` bytes at `place` can be read.
    unsafe fn at(place: *const c_void, size: usize) -> Self {
        let mut words = [0; 12];
        for (n, word) in words.iter_mut().enumerate().take(size / 4) {
            // SAFETY: by the caller's word.
            *word = unsafe { place.cast::<u32>().add(n).read_unaligned() };
        }
        Self { words, size }
    }

    /// The address of the parameters.
    fn parameters(&self) -> *const u32 {
        let address = u64::from(self.words[4]) | (u64::from(self.words[5]) << 32);
        std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0))
    }
}

/// Takes note of an object that was made.
fn made(fd: c_int, call: &Words) {
    // The status is the last word of the short form, and the eleventh of the long one.
    let status = match call.size {
        32 => call.words[7],
        48 => call.words[10],
        _ => return,
    };
    let [client, parent, handle, class, ..] = call.words;
    if status != 0 {
        return;
    }
    let mut objects = objects();
    let kind = match class {
        SUBDEVICE => Kind::Subdevice,
        CHANNEL_GROUP if is_compute(call.parameters(), &objects, client, parent) => Kind::ComputeGroup,
        _ if class & 0xff == CHANNEL && class > 0xff => {
            let of_group = |object: &Object| {
                object.kind == Kind::ComputeGroup && (object.client, object.handle) == (client, parent)
            };
            if !objects.iter().any(of_group) {
                return;
            }
            Kind::Channel
        }
        _ => return,
    };
    objects.push(Object { fd, client, parent, handle, kind });
}

/// Whether a new channel group is one of the compute engine. Where the parameters do not say, the first one of a device is.
fn is_compute(parameters: *const u32, objects: &[Object], client: u32, parent: u32) -> bool {
    const ENGINE: usize = 3;
    if !parameters.is_null() {
        // SAFETY: the kernel has just read the parameters of a channel group there, of which this is the fourth word.
        let engine = unsafe { parameters.add(ENGINE).read_unaligned() };
        if engine != 0 {
            return COMPUTE_ENGINES.contains(&engine);
        }
    }
    let first = |object: &Object| {
        object.kind == Kind::ComputeGroup && (object.client, object.parent) == (client, parent)
    };
    !objects.iter().any(first)
}

/// Forgets an object, and what was made below it.
fn freed(call: &Words) {
    if call.size < 16 || call.words[3] != 0 {
        return;
    }
    let [client, _, handle, ..] = call.words;
    let mut objects = objects();
    let mut gone = vec![handle];
    while let Some(handle) = gone.pop() {
        objects.retain(|object| {
            let below = object.client == client && object.parent == handle;
            if below {
                gone.push(object.handle);
            }
            !below && !(object.client == client && (object.handle == handle || client == handle))
        });
    }
}

/// A control call, as the driver has it.
#[repr(C)]
struct Control {
    client: u32,
    object: u32,
    command: u32,
    flags: u32,
    parameters: u64,
    size: u32,
    status: u32,
}

const _: () = assert!(size_of::<Control>() == 32);

impl Object {
    /// Asks something of the object. `parameters` is laid out as the driver has it for `command`.
    fn control<P>(&self, command: u32, parameters: &mut P) -> Result<(), String> {
        self.control_of(self.handle, command, parameters)
    }

    fn control_of<P>(&self, object: u32, command: u32, parameters: &mut P) -> Result<(), String> {
        let mut control = Control {
            client: self.client,
            object,
            command,
            flags: 0,
            parameters: std::ptr::from_mut(parameters).expose_provenance() as u64,
            size: u32::try_from(size_of::<P>()).unwrap_or(0),
            status: u32::MAX,
        };
        // SAFETY: the driver reads and writes the 32 bytes of the control and `size` bytes of its parameters, all of which
        // live until it returns. A descriptor that was closed or reused since refuses a call of another kind.
        let answer = unsafe { crate::ioctl::real()(self.fd, CONTROL, (&raw mut control).cast()) };
        match (answer, control.status) {
            (0, 0) => Ok(()),
            (0, status) => Err(format!("the driver refuses control {command:#x} (status {status:#x})")),
            _ => Err(format!("control {command:#x}: {}", std::io::Error::last_os_error())),
        }
    }

    /// The GPU that a device's object belongs to; none if the driver does not say.
    fn gpu(&self, objects: &[Object]) -> Option<DeviceId> {
        let beside = |other: &&Object| {
            other.kind == Kind::Subdevice && (other.client, other.parent) == (self.client, self.parent)
        };
        let subdevice = objects.iter().find(beside)?;
        let mut id = 0_u32;
        subdevice.control(GET_GPU_ID, &mut id).ok()?;
        let mut place = Place { id, ..Place::default() };
        subdevice.control_of(self.client, GET_PCI_INFO, &mut place).ok()?;
        Some(pci(place.domain, place.bus.into(), place.slot.into()))
    }
}

/// Where a GPU sits, as the driver tells.
#[repr(C)]
#[derive(Default)]
struct Place {
    id: u32,
    domain: u32,
    bus: u16,
    slot: u16,
}

/// A GPU by its place on the PCI bus.
pub(crate) fn pci(domain: u32, bus: u32, slot: u32) -> DeviceId {
    DeviceId::new(DeviceKind::Gpu, (domain << 16) | (bus << 8) | (slot << 3))
}

/// The compute channel groups of this process on one GPU, with their channels. One whose GPU is not known counts as this
/// one's.
pub(crate) struct Groups {
    all: Vec<Object>,
    channels: Vec<Object>,
    subdevices: Vec<Object>,
}

impl Groups {
    /// Those there are now.
    pub(crate) fn on(device: DeviceId) -> Self {
        let objects = objects().clone();
        let mut found = Self { all: Vec::new(), channels: Vec::new(), subdevices: Vec::new() };
        for group in objects.iter().filter(|object| object.kind == Kind::ComputeGroup) {
            if group.gpu(&objects).is_some_and(|gpu| gpu != device) {
                continue;
            }
            found.all.push(*group);
            let of_group = |object: &&Object| {
                object.kind == Kind::Channel && (object.client, object.parent) == (group.client, group.handle)
            };
            found.channels.extend(objects.iter().filter(of_group));
            let beside = |object: &&Object| {
                object.kind == Kind::Subdevice
                    && (object.client, object.parent) == (group.client, group.parent)
            };
            found.subdevices.extend(objects.iter().find(beside));
        }
        found.subdevices.dedup();
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The timeslice of the first, in microseconds: an answer shows that the driver talks to us about them.
    pub(crate) fn timeslice(&self) -> Result<u64, String> {
        let mut us = 0_u64;
        self.all.first().ok_or("no channel group was seen")?.control(GET_TIMESLICE, &mut us)?;
        Ok(us)
    }

    /// Gives them a timeslice.
    pub(crate) fn set_timeslice(&self, us: u64) -> Result<(), String> {
        let set = |group: &Object| group.control(SET_TIMESLICE, &mut us.clone());
        self.all.iter().map(set).fold(Ok(()), Result::and)
    }

    /// Stops all that runs on their channels where it is, or lets it go on.
    pub(crate) fn disable(&self, disable: bool) -> Result<(), String> {
        if self.subdevices.is_empty() || self.channels.is_empty() {
            return Err("no channels were seen".to_owned());
        }
        let mut done = Ok(());
        for subdevice in &self.subdevices {
            let theirs: Vec<_> =
                self.channels.iter().filter(|channel| channel.client == subdevice.client).collect();
            for some in theirs.chunks(MOST_CHANNELS) {
                done = done.and(subdevice.disable(disable, some));
            }
        }
        done
    }
}

impl Object {
    /// On a subdevice: stops some channels, or lets them go on. One that is gone must not keep the others from it.
    fn disable(&self, disable: bool, channels: &[&Self]) -> Result<(), String> {
        let ask = |some: &[&Self]| self.control(DISABLE_CHANNELS, &mut Disable::new(disable, some));
        let Err(why) = ask(channels) else { return Ok(()) };
        let each = channels.iter().map(|channel| ask(&[channel]).is_ok());
        let done = each.filter(|done| *done).count();
        if done == 0 { Err(why) } else { Ok(()) }
    }
}

const MOST_CHANNELS: usize = 64;

/// The parameters of [`DISABLE_CHANNELS`].
#[repr(C)]
struct Disable {
    stop: u8,
    unused: [u8; 3],
    count: u32,
    only_scheduling: u8,
    rewind: u8,
    unused_too: [u8; 6],
    event: u64,
    clients: [u32; MOST_CHANNELS],
    channels: [u32; MOST_CHANNELS],
}

const _: () = assert!(size_of::<Disable>() == 536 && std::mem::offset_of!(Disable, event) == 16);

impl Disable {
    fn new(stop: bool, some: &[&Object]) -> Self {
        let mut call = Self {
            stop: stop.into(),
            unused: [0; 3],
            count: u32::try_from(some.len()).unwrap_or(0),
            only_scheduling: 0,
            rewind: 0,
            unused_too: [0; 6],
            event: 0,
            clients: [0; MOST_CHANNELS],
            channels: [0; MOST_CHANNELS],
        };
        for (n, channel) in some.iter().enumerate().take(MOST_CHANNELS) {
            call.clients[n] = channel.client;
            call.channels[n] = channel.handle;
        }
        call
    }
}
