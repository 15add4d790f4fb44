//! Converts the scheduler's events to a trace file for Perfetto.
//!
//! * [`convert`]: events in, slices and counters out. Uses no clock and no socket.
//! * [`chrome`]: the file format.

mod chrome;
mod convert;

pub(crate) use convert::Converter;
