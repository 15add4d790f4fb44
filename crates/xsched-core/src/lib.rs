//! The scheduling core of XSched, without a word of any vendor in it.

pub mod hal;
pub mod hint;
pub mod ids;
pub mod level;
pub mod time;

pub use hal::{HalError, HwQueue, Marker, Progress};
pub use hint::{Deadline, HintError, Hints, Laxity, Priority, Timeslice, Utilization};
pub use ids::{DeviceId, DeviceKind, ProcessId, QueueId, TaskId};
pub use level::{Capabilities, Level, LevelCost, LevelError, LevelRequest};
pub use time::Nanos;
