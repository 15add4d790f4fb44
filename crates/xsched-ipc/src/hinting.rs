//! How the hints of a process reach its scheduler.
//!
//! A hint has taken effect, or was refused, when the call returns: the next launch obeys it. A service that does not reply is
//! waited for once, for [`SERVICE_REPLY_TIMEOUT`]. Queues keep hints that were given without a scheduler, and send them to the
//! next one.

use std::time::Duration;

use xsched_core::HintError;

use crate::protocol::{HintRequest, Request};
use crate::scheduled_process::SchedulerEndpoint;

/// How long a thread of the program waits for the service to reply to a request.
pub(crate) const SERVICE_REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Why a hint did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum HintFailure {
    /// A value is out of range.
    #[error(transparent)]
    OutOfRange(#[from] HintError),
    /// The scheduler has no such queue.
    #[error(
        "the scheduler does not know this queue: it was destroyed, or the process has more queues than can be scheduled"
    )]
    UnknownQueue,
    /// Too many queues have hints of their own.
    #[error(
        "{} queues of this process have hints of their own, which is the maximum: set hints for the process instead",
        crate::coordinator::OWN_TASKS_PER_PROGRAM
    )]
    TooManyQueueHints,
    /// The service does not allow it.
    #[error("the service refused the request: {0}")]
    Refused(String),
    /// The service did not reply.
    #[error("the service did not reply within {} s: is it stopped or overloaded?", SERVICE_REPLY_TIMEOUT.as_secs())]
    NoReply,
}

/// Sends the hints of the queue in a slot to the scheduler.
pub(crate) fn hint_queue(
    endpoint: &SchedulerEndpoint,
    slot: usize,
    hint_request: &HintRequest,
) -> Result<(), HintFailure> {
    match endpoint {
        SchedulerEndpoint::Local(member) => member.hint_queue(slot, hint_request),
        SchedulerEndpoint::Service(connection) => {
            connection.request(&Request::QueueHint { slot, hint_request: hint_request.clone() })
        }
        // The owner of a notifier sets hints itself. Without a scheduler the queue keeps them.
        SchedulerEndpoint::Notifier(_) | SchedulerEndpoint::None => Ok(()),
    }
}

/// A queue has released its slot. If it had hints of its own, this waits until the scheduler has seen that: the next queue in
/// the slot must not inherit them.
pub(crate) fn on_slot_released(endpoint: &SchedulerEndpoint, had_hints: bool) {
    match endpoint {
        SchedulerEndpoint::Local(member) if had_hints => member.look(),
        SchedulerEndpoint::Service(_) if had_hints => sync_with_scheduler(endpoint),
        SchedulerEndpoint::Notifier(_)
        | SchedulerEndpoint::Local(_)
        | SchedulerEndpoint::Service(_)
        | SchedulerEndpoint::None => {}
    }
}

/// Waits until the scheduler has read the page and written its orders.
pub(crate) fn sync_with_scheduler(endpoint: &SchedulerEndpoint) {
    match endpoint {
        SchedulerEndpoint::Local(member) => member.sync_with_scheduler(),
        SchedulerEndpoint::Service(connection) => {
            // The service reads the page before it handles any request. If it is gone or does not reply, there are no orders
            // to wait for.
            let _ = connection.request(&Request::Policy { name: None, timeslice_us: None, k: None });
        }
        SchedulerEndpoint::Notifier(_) | SchedulerEndpoint::None => {}
    }
}
