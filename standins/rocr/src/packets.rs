//! AQL packets.

use std::sync::atomic::{AtomicU32, Ordering};

/// The types of packets.
pub(crate) const VENDOR_SPECIFIC: u16 = 0;
pub(crate) const INVALID: u16 = 1;
pub(crate) const KERNEL_DISPATCH: u16 = 2;
pub(crate) const BARRIER_AND: u16 = 3;
pub(crate) const AGENT_DISPATCH: u16 = 4;
pub(crate) const BARRIER_OR: u16 = 5;

/// The vendor-specific format of a barrier that waits for a value.
const BARRIER_VALUE: u32 = 2;

/// A slot of a queue's ring: the layout of a barrier packet.
#[repr(C, align(64))]
pub(crate) struct Packet {
    /// The header in the lower half, written last; the setup, or the vendor's format, in the upper half.
    first: AtomicU32,
    words_32: [u32; 1],
    words: [u64; 7],
}

const _: () = assert!(size_of::<Packet>() == 64);

impl Packet {
    /// An empty slot.
    pub(crate) fn empty() -> Self {
        Self { first: AtomicU32::new(INVALID.into()), words_32: [0], words: [0; 7] }
    }

    /// The type; `INVALID` if the packet has not been written yet.
    pub(crate) fn kind(&self) -> u16 {
        (self.first.load(Ordering::Acquire) & 0xff) as u16
    }

    /// Frees the slot.
    pub(crate) fn invalidate(&self) {
        self.first.store(INVALID.into(), Ordering::Release);
    }

    /// What the packet says. Its header must have been read before.
    pub(crate) fn read(&self) -> Content {
        let first = self.first.load(Ordering::Acquire);
        Content { first, shape: self.words_32[0], words: self.words }
    }
}

/// The contents of a packet.
#[derive(Clone, Copy)]
pub(crate) struct Content {
    first: u32,
    shape: u32,
    words: [u64; 7],
}

fn low(word: u64) -> u32 {
    (word & 0xffff_ffff) as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

impl Content {
    pub(crate) fn kind(&self) -> u16 {
        (self.first & 0xff) as u16
    }

    /// The packet starts after all earlier packets of its queue have completed.
    pub(crate) fn has_barrier_bit(&self) -> bool {
        self.first & (1 << 8) != 0
    }

    /// The signal that is decremented when the packet completes.
    pub(crate) fn completion_signal(&self) -> u64 {
        self.words[6]
    }

    /// The sizes of a kernel's workgroups.
    pub(crate) fn workgroup(&self) -> [u16; 3] {
        let sizes = [self.shape & 0xffff, self.shape >> 16, low(self.words[0]) & 0xffff];
        sizes.map(|size| u16::try_from(size).unwrap_or(u16::MAX).max(1))
    }

    /// The sizes of a kernel's grid, in work-items.
    pub(crate) fn grid(&self) -> [u32; 3] {
        [high(self.words[0]), low(self.words[1]), high(self.words[1])].map(|size| size.max(1))
    }

    /// The address of a kernel's descriptor.
    pub(crate) fn kernel_object(&self) -> u64 {
        self.words[3]
    }

    /// The address of a kernel's arguments.
    pub(crate) fn kernarg(&self) -> u64 {
        self.words[4]
    }

    /// The signals that a barrier waits for; 0 for none.
    pub(crate) fn dependencies(&self) -> [u64; 5] {
        [self.words[0], self.words[1], self.words[2], self.words[3], self.words[4]]
    }

    /// The vendor's format.
    pub(crate) fn is_barrier_value(&self) -> bool {
        self.kind() == VENDOR_SPECIFIC && (self.first >> 16) & 0xff == BARRIER_VALUE
    }

    /// The signal, value, mask and condition of a barrier that waits for a value.
    pub(crate) fn awaited_value(&self) -> (u64, i64, i64, u32) {
        (self.words[0], self.words[1].cast_signed(), self.words[2].cast_signed(), low(self.words[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet with the bytes of AMD's structures at their offsets.
    fn packet(fields: &[(usize, u64, usize)]) -> Content {
        let mut bytes = [0_u8; 64];
        for (offset, value, size) in fields {
            bytes[*offset..offset + size].copy_from_slice(&value.to_le_bytes()[..*size]);
        }
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let words = [8, 16, 24, 32, 40, 48, 56].map(word);
        Content { first: low(word(0)), shape: high(word(0)), words }
    }

    #[test]
    fn kernel_dispatch_is_read_at_the_offsets_of_the_specification() {
        let packet = packet(&[
            (0, 2 | 1 << 8, 2),
            (4, 64, 2),
            (6, 4, 2),
            (8, 2, 2),
            (12, 640, 4),
            (16, 8, 4),
            (20, 6, 4),
            (32, 0x7f00_0000_1000, 8),
            (40, 0x7f00_0000_2000, 8),
            (56, 0x7f00_0000_3000, 8),
        ]);
        assert_eq!((packet.kind(), packet.has_barrier_bit()), (KERNEL_DISPATCH, true));
        assert_eq!((packet.workgroup(), packet.grid()), ([64, 4, 2], [640, 8, 6]));
        assert_eq!((packet.kernel_object(), packet.kernarg()), (0x7f00_0000_1000, 0x7f00_0000_2000));
        assert_eq!(packet.completion_signal(), 0x7f00_0000_3000);
    }

    #[test]
    fn barrier_value_is_a_vendor_packet_of_its_format() {
        let fields = [(2, 2, 1), (8, 0x1000, 8), (16, 7, 8), (24, u64::MAX, 8), (32, 3, 4)];
        let packet = packet(&fields);
        assert!(packet.is_barrier_value() && !packet.has_barrier_bit());
        assert_eq!(packet.awaited_value(), (0x1000, 7, -1, 3));
    }
}
