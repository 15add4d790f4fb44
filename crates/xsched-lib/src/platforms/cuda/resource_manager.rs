//! This process's objects in the kernel driver's resource manager, and the control calls on them.
//!
//! Handles are learnt by watching the process's own `ioctl` calls. The control calls are those that the resource manager
//! allows every process on its own objects. A layout that is not recognized is ignored. If the driver refuses a control, the
//! GPU is scheduled at the next lower level.
//!
//! ```text
//!   client ── device ──┬── subdevice            reports the GPU's PCI address, and disables channels
//!                      ├── channel group        of the compute engine: has a time slice
//!                      │     └── channels
//!                      └── channel groups       of the copy engines: not touched
//! ```

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use xsched_core::{DeviceId, DeviceKind};

/// Whether a request is `_IOWR('F', nr, size)` of any size.
const fn is_call(request: c_ulong, nr: c_ulong) -> bool {
    request & 0xffff == (('F' as c_ulong) << 8) | nr
}

/// `NV_ESC_RM_FREE` and `NV_ESC_RM_ALLOC`.
const FREE: c_ulong = 0x29;
const ALLOC: c_ulong = 0x2b;
/// `NV_ESC_RM_CONTROL`, with its size.
const CONTROL: c_ulong = 0xc020_462a;

/// Classes of objects.
const SUBDEVICE: u32 = 0x2080;
const CHANNEL_GROUP: u32 = 0xa06c;
/// The low byte of all channel classes.
const CHANNEL: u32 = 0x6f;

/// Control commands.
const GET_TIME_SLICE: u32 = 0xa06c_0104;
const SET_TIME_SLICE: u32 = 0xa06c_0103;
const DISABLE_CHANNELS: u32 = 0x2080_110b;
const GET_GPU_ID: u32 = 0x2080_0142;
const GET_PCI_INFO: u32 = 0x021b;

/// The engine types that run kernels. Higher numbers are engines that copy, encode and decode.
const COMPUTE_ENGINES: std::ops::RangeInclusive<u32> = 1..=8;

/// One object of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Object {
    fd: c_int,
    client: u32,
    parent: u32,
    handle: u32,
    kind: Kind,
    /// Of a compute channel group, once it was queried.
    gpu: Option<DeviceId>,
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

/// Watches the process's calls to the resource manager.
///
/// # Safety
/// The arguments and the result of an `ioctl` call that has just returned.
pub(crate) unsafe fn watch_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void, result: c_int) {
    let is_watched = is_call(request, ALLOC) || is_call(request, FREE);
    if result == 0 && is_watched && !argument.is_null() {
        let size = usize::try_from((request >> 16) & 0x3fff).unwrap_or(0);
        // SAFETY: the kernel has just accepted `size` bytes at `argument`.
        let call = unsafe { CallArguments::read(argument, size) };
        xsched_interpose::run_isolated(|| {
            if is_call(request, ALLOC) { record_allocation(fd, &call) } else { record_free(&call) }
        });
    }
}

/// A copy of the structure that was passed to the kernel.
struct CallArguments {
    words: [u32; 12],
    size: usize,
}

impl CallArguments {
    /// # Safety
    /// `size` bytes at `address` can be read.
    unsafe fn read(address: *const c_void, size: usize) -> Self {
        let mut words = [0; 12];
        for (n, word) in words.iter_mut().enumerate().take(size / 4) {
            // SAFETY: the caller guarantees `size` readable bytes.
            *word = unsafe { address.cast::<u32>().add(n).read_unaligned() };
        }
        Self { words, size }
    }

    /// The address of the class's own parameters.
    fn parameters(&self) -> *const u32 {
        let address = u64::from(self.words[4]) | (u64::from(self.words[5]) << 32);
        std::ptr::with_exposed_provenance(usize::try_from(address).unwrap_or(0))
    }
}

fn record_allocation(fd: c_int, call: &CallArguments) {
    // The status is the last word of the short form, and the eleventh of the long form.
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
        CHANNEL_GROUP if is_compute_group(call.parameters(), &objects, client, parent) => Kind::ComputeGroup,
        _ if class & 0xff == CHANNEL && class > 0xff => {
            let is_its_group = |object: &Object| {
                object.kind == Kind::ComputeGroup && (object.client, object.handle) == (client, parent)
            };
            if !objects.iter().any(is_its_group) {
                return;
            }
            Kind::Channel
        }
        _ => return,
    };
    objects.push(Object { fd, client, parent, handle, kind, gpu: None });
}

/// Whether a new channel group belongs to the compute engine. If the parameters do not name the engine, the first channel
/// group of a device does: the driver allocates it before those of the copy engines.
fn is_compute_group(parameters: *const u32, objects: &[Object], client: u32, parent: u32) -> bool {
    const ENGINE_TYPE: usize = 3;
    if !parameters.is_null() {
        // SAFETY: the kernel has just read the parameters of a channel group there; the engine type is their fourth word.
        let engine = unsafe { parameters.add(ENGINE_TYPE).read_unaligned() };
        if engine != 0 {
            return COMPUTE_ENGINES.contains(&engine);
        }
    }
    let is_on_same_device = |object: &Object| {
        object.kind == Kind::ComputeGroup && (object.client, object.parent) == (client, parent)
    };
    !objects.iter().any(is_on_same_device)
}

/// Removes an object and all objects below it.
fn record_free(call: &CallArguments) {
    if call.size < 16 || call.words[3] != 0 {
        return;
    }
    let [client, _, handle, ..] = call.words;
    let mut objects = objects();
    let mut freed = vec![handle];
    while let Some(handle) = freed.pop() {
        objects.retain(|object| {
            let is_child = object.client == client && object.parent == handle;
            if is_child {
                freed.push(object.handle);
            }
            !is_child && !(object.client == client && (object.handle == handle || client == handle))
        });
    }
}

/// `NVOS54_PARAMETERS`.
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
    /// Sends a control call to the object. `P` has the driver's layout for `command`.
    fn control<P>(&self, command: u32, parameters: &mut P) -> Result<(), String> {
        self.control_object(self.handle, command, parameters)
    }

    /// Sends a control call to an object of the same client.
    fn control_object<P>(&self, object: u32, command: u32, parameters: &mut P) -> Result<(), String> {
        let mut control = Control {
            client: self.client,
            object,
            command,
            flags: 0,
            parameters: std::ptr::from_mut(parameters).expose_provenance() as u64,
            size: u32::try_from(size_of::<P>()).unwrap_or(0),
            status: u32::MAX,
        };
        // SAFETY: the driver accesses the 32 bytes of `control` and `size` bytes of `parameters`, which live until the call
        // returns. If the program has closed or reused the descriptor, the call fails.
        let result = unsafe { crate::ioctl::real()(self.fd, CONTROL, (&raw mut control).cast()) };
        match (result, control.status) {
            (0, 0) => Ok(()),
            (0, status) => Err(format!("the driver refuses control {command:#x} (status {status:#x})")),
            _ => Err(format!("control {command:#x}: {}", std::io::Error::last_os_error())),
        }
    }

    /// Queries the GPU that a channel group belongs to; none if the driver does not report it.
    fn query_gpu(&self, objects: &[Self]) -> Option<DeviceId> {
        let is_sibling = |other: &&Self| {
            other.kind == Kind::Subdevice && (other.client, other.parent) == (self.client, self.parent)
        };
        let subdevice = objects.iter().find(is_sibling)?;
        let mut gpu_id = 0_u32;
        subdevice.control(GET_GPU_ID, &mut gpu_id).ok()?;
        let mut info = PciInfo { gpu_id, ..PciInfo::default() };
        subdevice.control_object(self.client, GET_PCI_INFO, &mut info).ok()?;
        Some(pci_device(info.domain, info.bus.into(), info.slot.into()))
    }
}

/// The parameters of [`GET_PCI_INFO`].
#[repr(C)]
#[derive(Default)]
struct PciInfo {
    gpu_id: u32,
    domain: u32,
    bus: u16,
    slot: u16,
}

/// The GPU at a PCI address.
pub(crate) fn pci_device(domain: u32, bus: u32, slot: u32) -> DeviceId {
    DeviceId::new(DeviceKind::Gpu, (domain << 16) | (bus << 8) | (slot << 3))
}

/// A copy of all objects. The GPU of a new channel group is queried once: later calls for one GPU must not wait for a
/// control call on another. The list is not locked during the query.
fn objects_with_gpus() -> Vec<Object> {
    let mut copy = objects().clone();
    let is_unknown = |object: &Object| object.kind == Kind::ComputeGroup && object.gpu.is_none();
    for index in 0..copy.len() {
        let group = copy[index];
        if is_unknown(&group)
            && let Some(gpu) = group.query_gpu(&copy)
        {
            copy[index].gpu = Some(gpu);
            objects().iter_mut().filter(|object| **object == group).for_each(|object| object.gpu = Some(gpu));
        }
    }
    copy
}

/// The compute channel groups of this process on one GPU, with their channels. A group whose GPU the driver does not report
/// is included.
pub(crate) struct ComputeChannels {
    groups: Vec<Object>,
    channels: Vec<Object>,
    subdevices: Vec<Object>,
}

impl ComputeChannels {
    /// The channels that exist now.
    pub(crate) fn on(device: DeviceId) -> Self {
        let objects = objects_with_gpus();
        let mut found = Self { groups: Vec::new(), channels: Vec::new(), subdevices: Vec::new() };
        for group in objects.iter().filter(|object| object.kind == Kind::ComputeGroup) {
            if group.gpu.is_some_and(|gpu| gpu != device) {
                continue;
            }
            found.groups.push(*group);
            let is_in_group = |object: &&Object| {
                object.kind == Kind::Channel && (object.client, object.parent) == (group.client, group.handle)
            };
            found.channels.extend(objects.iter().filter(is_in_group));
            let is_sibling = |object: &&Object| {
                object.kind == Kind::Subdevice
                    && (object.client, object.parent) == (group.client, group.parent)
            };
            found.subdevices.extend(objects.iter().find(is_sibling));
        }
        found.subdevices.dedup();
        found
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The time slice of the first channel group, in microseconds.
    pub(crate) fn time_slice(&self) -> Result<u64, String> {
        let mut us = 0_u64;
        self.groups.first().ok_or("no channel group was seen")?.control(GET_TIME_SLICE, &mut us)?;
        Ok(us)
    }

    /// Sets the time slice of all channel groups.
    pub(crate) fn set_time_slice(&self, us: u64) -> Result<(), String> {
        let set = |group: &Object| group.control(SET_TIME_SLICE, &mut us.clone());
        self.groups.iter().map(set).fold(Ok(()), Result::and)
    }

    /// Disables all channels, which suspends the kernels that run on them; or enables them, which resumes the kernels.
    pub(crate) fn set_disabled(&self, disabled: bool) -> Result<(), String> {
        if self.subdevices.is_empty() || self.channels.is_empty() {
            return Err("no channels were seen".to_owned());
        }
        let mut result = Ok(());
        for subdevice in &self.subdevices {
            let channels: Vec<_> =
                self.channels.iter().filter(|channel| channel.client == subdevice.client).collect();
            for chunk in channels.chunks(MAX_CHANNELS_PER_CALL) {
                result = result.and(subdevice.set_channels_disabled(disabled, chunk));
            }
        }
        result
    }
}

impl Object {
    /// On a subdevice: disables or enables channels. One channel that no longer exists makes the driver refuse the whole call;
    /// then each channel is tried by itself.
    fn set_channels_disabled(&self, disabled: bool, channels: &[&Self]) -> Result<(), String> {
        let set = |channels: &[&Self]| {
            self.control(DISABLE_CHANNELS, &mut DisableChannels::new(disabled, channels))
        };
        let Err(why) = set(channels) else { return Ok(()) };
        let succeeded = channels.iter().filter(|channel| set(&[channel]).is_ok()).count();
        if succeeded == 0 { Err(why) } else { Ok(()) }
    }
}

const MAX_CHANNELS_PER_CALL: usize = 64;

/// The parameters of [`DISABLE_CHANNELS`].
#[repr(C)]
struct DisableChannels {
    disable: u8,
    padding: [u8; 3],
    count: u32,
    only_disable_scheduling: u8,
    rewind: u8,
    more_padding: [u8; 6],
    event: u64,
    clients: [u32; MAX_CHANNELS_PER_CALL],
    channels: [u32; MAX_CHANNELS_PER_CALL],
}

const _: () =
    assert!(size_of::<DisableChannels>() == 536 && std::mem::offset_of!(DisableChannels, event) == 16);

impl DisableChannels {
    fn new(disable: bool, channels: &[&Object]) -> Self {
        let mut call = Self {
            disable: disable.into(),
            padding: [0; 3],
            count: u32::try_from(channels.len()).unwrap_or(0),
            only_disable_scheduling: 0,
            rewind: 0,
            more_padding: [0; 6],
            event: 0,
            clients: [0; MAX_CHANNELS_PER_CALL],
            channels: [0; MAX_CHANNELS_PER_CALL],
        };
        for (n, channel) in channels.iter().enumerate().take(MAX_CHANNELS_PER_CALL) {
            call.clients[n] = channel.client;
            call.channels[n] = channel.handle;
        }
        call
    }
}
