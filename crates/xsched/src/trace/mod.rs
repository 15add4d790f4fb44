//! Recording what the scheduler does: from its events to a file that Perfetto opens.
//!
//! * [`convert`]: events in, slices and counters out. Knows no clock and no socket.
//! * [`chrome`]: the file's format.

mod chrome;
mod convert;

pub(crate) use convert::Converter;
