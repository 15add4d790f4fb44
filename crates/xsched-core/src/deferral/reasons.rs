//! Why launches are not deferred.

/// Why the launches of a process are not deferred: another program, or a CPU, may see their progress without waiting for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NotDeferred {
    /// Ranks of a collective wait for each other.
    Collectives,
    /// Another process can wait for its events, or read memory that it writes.
    Exported,
    /// Another device can access its memory.
    PeerAccess,
    /// The program can read what kernels write to memory of the host.
    HostMemory,
    /// A tool waits for each launch.
    Tool,
    /// The slack is zero.
    NoSlack,
}

impl NotDeferred {
    /// All reasons.
    pub const ALL: [Self; 6] =
        [Self::Collectives, Self::Exported, Self::PeerAccess, Self::HostMemory, Self::Tool, Self::NoSlack];

    /// Its bit in a set of reasons.
    #[must_use]
    pub const fn bit(self) -> u32 {
        1 << self as u32
    }

    /// The reasons in a set. Other bits mean nothing.
    pub fn in_bits(bits: u32) -> impl Iterator<Item = Self> + use<> {
        Self::ALL.into_iter().filter(move |reason| bits & reason.bit() != 0)
    }

    /// The reason in a few words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Collectives => "collectives",
            Self::Exported => "shared memory or events",
            Self::PeerAccess => "peer access",
            Self::HostMemory => "host memory written by kernels",
            Self::Tool => "a tool",
            Self::NoSlack => "no slack",
        }
    }
}
