//! The resource manager's interface: ioctl numbers, classes, control commands, parameters and status codes.

use std::ffi::c_ulong;

/// The ioctls. Their numbers include the sizes of their parameters.
pub(super) const FREE: c_ulong = 0xc010_4629;
pub(super) const CONTROL: c_ulong = 0xc020_462a;
pub(super) const ALLOC: c_ulong = 0xc030_462b;
pub(super) const SHORT_ALLOC: c_ulong = 0xc020_462b;

pub(super) const CLIENT: u32 = 0x41;
pub(super) const DEVICE: u32 = 0x80;
pub(super) const SUBDEVICE: u32 = 0x2080;
pub(super) const CHANNEL_GROUP: u32 = 0xa06c;
pub(super) const CHANNEL: u32 = 0xc86f;

pub(super) const SCHEDULE: u32 = 0xa06c_0101;
pub(super) const SET_TIMESLICE: u32 = 0xa06c_0103;
pub(super) const GET_TIMESLICE: u32 = 0xa06c_0104;
pub(super) const PREEMPT: u32 = 0xa06c_0105;
pub(super) const SET_INTERLEAVE_LEVEL: u32 = 0xa06c_0107;
pub(super) const SET_PREEMPTION_MODE: u32 = 0x2080_1210;
pub(super) const DISABLE_CHANNELS: u32 = 0x2080_110b;
pub(super) const GPU_GET_ID: u32 = 0x2080_0142;
pub(super) const GPU_GET_PCI_INFO: u32 = 0x0000_021b;

/// Engine types of channel groups.
pub(super) const COMPUTE_ENGINE: u32 = 1;
pub(super) const FIRST_COPY_ENGINE: u32 = 0xb;
pub(super) const GROUPS: u32 = 4;
pub(super) const COMPUTE_CHANNELS: u32 = 8;
pub(super) const COPY_CHANNELS: u32 = 4;

/// Status codes.
pub(super) const OK: u32 = 0;
pub(super) const EXISTS: u32 = 0x19;
pub(super) const INSUFFICIENT_PERMISSIONS: u32 = 0x1b;
pub(super) const INVALID_ARGUMENT: u32 = 0x1f;
pub(super) const INVALID_CLASS: u32 = 0x22;
pub(super) const NOT_SUPPORTED: u32 = 0x56;
pub(super) const NOT_FOUND: u32 = 0x57;

#[repr(C)]
#[derive(Default)]
pub(super) struct Alloc {
    pub(super) root: u32,
    pub(super) parent: u32,
    pub(super) new: u32,
    pub(super) class: u32,
    pub(super) parameters: u64,
    pub(super) rights: u64,
    pub(super) size: u32,
    pub(super) flags: u32,
    pub(super) status: u32,
    pub(super) unused: u32,
}

const _: () = assert!(size_of::<Alloc>() == 48 && std::mem::offset_of!(Alloc, status) == 40);

#[repr(C)]
#[derive(Default)]
pub(super) struct ShortAlloc {
    pub(super) root: u32,
    pub(super) parent: u32,
    pub(super) new: u32,
    pub(super) class: u32,
    pub(super) parameters: u64,
    pub(super) size: u32,
    pub(super) status: u32,
}

const _: () = assert!(size_of::<ShortAlloc>() == 32);

#[repr(C)]
pub(super) struct Control {
    pub(super) client: u32,
    pub(super) object: u32,
    pub(super) command: u32,
    pub(super) flags: u32,
    pub(super) parameters: u64,
    pub(super) size: u32,
    pub(super) status: u32,
}

const _: () = assert!(size_of::<Control>() == 32);

#[repr(C)]
pub(super) struct Free {
    pub(super) root: u32,
    pub(super) parent: u32,
    pub(super) old: u32,
    pub(super) status: u32,
}

const _: () = assert!(size_of::<Free>() == 16);

#[repr(C)]
pub(super) struct DisableChannels {
    pub(super) disable: u8,
    pub(super) count: u32,
    pub(super) only_disable_scheduling: u8,
    pub(super) rewind: u8,
    pub(super) event: u64,
    pub(super) clients: [u32; 64],
    pub(super) channels: [u32; 64],
}

const _: () = assert!(
    size_of::<DisableChannels>() == 536
        && std::mem::offset_of!(DisableChannels, clients) == 24
        && std::mem::offset_of!(DisableChannels, channels) == 280
);

#[repr(C)]
pub(super) struct PciInfo {
    pub(super) gpu: u32,
    pub(super) domain: u32,
    pub(super) bus: u16,
    pub(super) slot: u16,
}
