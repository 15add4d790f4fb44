//! Ids, each with a type of its own so that they cannot be confused.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $show:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $show, self.0)
            }
        }
    };
}

id!(
    /// One scheduled task: by default all queues of one process on one device.
    TaskId(u64), "task {}"
);
id!(
    /// One XQueue.
    QueueId(u64), "queue {:#x}"
);
id!(
    /// An operating-system process.
    ProcessId(u32), "pid {}"
);

/// What kind of accelerator a device is. The values are those of the original C++ XSched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum DeviceKind {
    /// Not known.
    #[default]
    Unknown = 0,
    /// A processor driven through an accelerator interface.
    Cpu = 1,
    /// A graphics processor.
    Gpu = 2,
    /// A neural processor.
    Npu = 3,
    /// A programmable gate array.
    Fpga = 4,
    /// A fixed-function chip.
    Asic = 5,
    /// A multi-channel accelerator.
    Mca = 6,
}

/// One accelerator of this machine: its kind in the upper half, its PCI address (or another number that is unique
/// among its kind) in the lower half, as in the original C++ XSched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct DeviceId(pub u64);

impl DeviceId {
    /// Combines a kind and an address.
    #[must_use]
    pub const fn new(kind: DeviceKind, address: u32) -> Self {
        Self(((kind as u64) << 32) | address as u64)
    }

    /// The id of a device without a PCI address: a hash of its name, which is the same in every process.
    #[must_use]
    pub fn named(kind: DeviceKind, name: &str) -> Self {
        // FNV-1a.
        let spread = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        Self::new(kind, name.bytes().fold(0x811c_9dc5, spread))
    }

    /// The lower half: the PCI address, or the number that replaces it.
    #[must_use]
    pub const fn address(self) -> u32 {
        (self.0 & 0xffff_ffff) as u32
    }
}

impl fmt::Display for DeviceId {
    /// As `lspci` prints it: domain, bus, device and function. A processor has no PCI address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let a = self.address();
        if self.0 >> 32 == DeviceKind::Cpu as u64 {
            return write!(f, "cpu-{a:08x}");
        }
        write!(f, "{:04x}:{:02x}:{:02x}.{}", a >> 16, (a >> 8) & 0xff, (a >> 3) & 0x1f, a & 7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_printed_as_a_pci_address() {
        let device = DeviceId::new(DeviceKind::Gpu, 0x0000_0030);
        assert_eq!(device.to_string(), "0000:00:06.0");
        assert_eq!(device.0 >> 32, 2);
        assert_eq!(DeviceId::new(DeviceKind::Cpu, 0x30).to_string(), "cpu-00000030");
    }

    #[test]
    fn device_without_an_address_has_the_same_id_in_every_process() {
        let device = |name| DeviceId::named(DeviceKind::Cpu, name);
        assert_eq!(device("pthread (PoCL)"), device("pthread (PoCL)"));
        assert_ne!(device("pthread (PoCL)"), device("basic (PoCL)"));
    }
}
