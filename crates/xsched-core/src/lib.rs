//! The scheduling core of XSched, without a word of any vendor in it.

pub mod gate;
pub mod hal;
pub mod hint;
pub mod ids;
pub mod level;
pub mod sync;
pub mod time;
pub mod window;

pub use gate::{Gate, GateCounts, HEARTBEAT, Link, Order, Unlinked};
pub use hal::{HalError, HwQueue, Marker, Progress};
pub use hint::{Deadline, HintError, Hints, Laxity, Priority, Timeslice, Utilization};
pub use ids::{DeviceId, DeviceKind, ProcessId, QueueId, TaskId};
pub use level::{Capabilities, Level, LevelCost, LevelError, LevelRequest};
pub use time::Nanos;
pub use window::{Limit, Load, Window};
