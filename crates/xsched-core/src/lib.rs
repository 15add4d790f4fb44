//! The scheduling core of XSched: queues, gates, windows, tasks, hints and the hardware abstraction. It contains no vendor's
//! code.

pub mod call_gate;
pub mod command;
#[cfg(any(feature = "conformance", test))]
pub mod conformance;
mod control_character;
pub mod deferral;
pub mod gate;
pub mod hal;
pub mod hint;
pub mod histogram;
pub mod ids;
pub mod launch_path;
pub mod level;
pub mod memory_protocol;
pub mod null;
pub mod page_protocol;
mod parse_size;
mod parse_time;
pub mod queue;
pub mod sync;
pub mod task;
pub mod time;
pub mod window;

pub use command::{Outcome, Ticket};
pub use control_character::is_control;
pub use deferral::{Deferral, HoldPoint, NotDeferred};
pub use gate::{
    Bound, BusyEnd, Epoch, FIRST_ORDER_TIMEOUT, Gate, GateCounts, HEARTBEAT, NoScheduler, Order,
    SchedulerLink,
};
pub use hal::{HalError, HwQueue, Marker, Progress};
pub use hint::{Deadline, HintError, Hints, Laxity, Priority, Share, Timeslice};
pub use histogram::Histogram;
pub use ids::{DeviceId, DeviceKind, ProcessId, QueueId, TaskId};
pub use launch_path::{LaunchPath, Wait};
pub use level::{Capabilities, Level, LevelCost, LevelError, LevelRequest};
pub use null::NullQueue;
pub use parse_size::parse_size;
pub use parse_time::{TIME_FORMAT, parse_time};
pub use queue::{QueueError, QueueState, RecordedEvent, Resume, Suspend, XQueue};
pub use task::{Process, Task, TaskTable};
pub use time::Nanos;
pub use window::{DEFAULT_STOP_DISTANCE, Limit, Load, Window};
