//! The scheduler's orders and the bits of the gate's word.

/// What the scheduler allows a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The task is alone on its device: launch without counting or reporting anything.
    #[default]
    Free,
    /// Launch, and report when the queue becomes busy or idle: tasks of lower precedence wait for the gaps.
    Leader,
    /// As leader, beside other tasks of the same precedence.
    Peer,
    /// Launch, but keep little work in flight: another task may preempt this one.
    Throttled,
    /// Do not launch: a task of higher precedence runs, and preempts this one by time slice where the device can do that.
    Yield,
    /// As yield, and leave the device at once: the leader is sync-bound and would have to preempt again after each gap.
    Evict,
    /// Do not launch, and report when the device runs nothing of this task: the next task starts after that report, or a user
    /// suspended this one.
    Drain,
}

pub(super) const LEADER: u32 = 1;
pub(super) const THROTTLED: u32 = 1 << 1;
pub(super) const YIELD: u32 = 1 << 2;
/// Valid only with `YIELD`.
pub(super) const DRAIN: u32 = 1 << 3;
/// Valid only with `LEADER`.
pub(super) const PEER: u32 = 1 << 4;
/// Valid only with `YIELD`.
pub(super) const EVICT: u32 = 1 << 5;
pub(super) const ORDERS: u32 = LEADER | PEER | THROTTLED | YIELD | EVICT | DRAIN;
/// The program has suspended this queue.
pub(super) const CLOSED: u32 = 1 << 16;
/// The program suspends this queue itself: no launch takes the free path, so that `close` can be waited for.
pub(super) const COUNTED: u32 = 1 << 17;
/// The program limits the in-flight window, whatever the order.
pub(super) const THROTTLED_BY_PROGRAM: u32 = 1 << 18;
/// The queue has moved to another gate: a thread that still reads this one must not take the free path.
pub(super) const RETIRED: u32 = 1 << 19;
/// The queue is new and its scheduler has not decided about it: its first launch waits for that, for a limited time.
pub(super) const UNDECIDED: u32 = 1 << 20;

impl Order {
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::Free => 0,
            Self::Leader => LEADER,
            Self::Peer => LEADER | PEER,
            Self::Throttled => THROTTLED,
            Self::Yield => YIELD,
            Self::Evict => YIELD | EVICT,
            Self::Drain => YIELD | DRAIN,
        }
    }

    /// Whether the order stops launches.
    #[must_use]
    pub const fn stops(self) -> bool {
        matches!(self, Self::Yield | Self::Evict | Self::Drain)
    }

    /// Every word has a meaning: the strictest order in it counts.
    pub(super) const fn of(word: u32) -> Self {
        if word & YIELD != 0 && word & DRAIN != 0 {
            Self::Drain
        } else if word & YIELD != 0 && word & EVICT != 0 {
            Self::Evict
        } else if word & YIELD != 0 {
            Self::Yield
        } else if word & (THROTTLED | THROTTLED_BY_PROGRAM) != 0 {
            Self::Throttled
        } else if word & LEADER != 0 && word & PEER != 0 {
            Self::Peer
        } else if word & LEADER != 0 {
            Self::Leader
        } else {
            Self::Free
        }
    }
}
