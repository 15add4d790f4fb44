//! Converts the scheduler's events to a trace file for Perfetto.
//!
//! * [`convert`]: events in, slices and counters out. Uses no clock and no socket.
//! * [`activity`]: the state of a task or a queue, changed by events. The dashboard uses it too.
//! * [`chrome`]: the file format.
//! * [`symbol`]: readable names of kernels.
//! * [`page`]: the same as an HTML page that draws the timeline.

pub(crate) mod activity;
mod chrome;
mod convert;
mod page;
mod symbol;

pub(crate) use convert::Converter;
pub(crate) use page::PageWriter;
