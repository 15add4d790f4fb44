//! The vendor's types, codes and functions, as `toy.h` declares them.

use xsched_interpose::Handle;

use crate::hooks::functions;

/// `int`, the result of every function.
pub(crate) type Code = i32;
/// `toy_queue_t`.
pub(crate) type Queue = Handle;
/// `toy_event_t`.
pub(crate) type Event = Handle;

pub(crate) const SUCCESS: Code = 0;
/// `TOY_ERROR_UNKNOWN`.
pub(crate) const UNKNOWN: Code = 99;

functions! {
    library super::LIBRARY;

    fn toy_event_record(Queue, *mut Event) -> Code = EVENT_RECORD;
    fn toy_event_query(Event) -> Code = EVENT_QUERY;
    fn toy_event_destroy(Event) -> Code = EVENT_DESTROY;
    fn toy_synchronize(Queue) -> Code = SYNCHRONIZE;
}
