//! How a program's hints reach whoever schedules it, and what becomes of them.
//!
//! Each has taken effect, or was refused, when the call returns: the next launch obeys it. A service that does not answer is
//! waited for once, and not for long. What is said while nobody schedules is kept by the queues and told to the next
//! scheduler.

use std::time::Duration;

use xsched_core::HintError;

use crate::program::Call;
use crate::protocol::{HintRequest, Request};

/// How long the service may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Why a hint did not take effect.
#[derive(Debug, thiserror::Error)]
pub enum HintFailure {
    /// It is out of range.
    #[error(transparent)]
    OutOfRange(#[from] HintError),
    /// The scheduler knows no such queue.
    #[error("the scheduler does not know the queue: it is gone, or one too many")]
    UnknownQueue,
    /// Too many queues have hint_request of their own.
    #[error(
        "{} queues of this program have hints of their own: no more can",
        crate::coordinator::OWN_TASKS_PER_PROGRAM
    )]
    TooManyQueueHints,
    /// The service does not allow it.
    #[error("the service refused: {0}")]
    Refused(String),
    /// The service did not answer.
    #[error("the service did not answer")]
    NoReply,
}

/// Tells the scheduler what the queue in a slot would like.
pub(crate) fn hint_queue(call: &Call, slot: usize, hint_request: &HintRequest) -> Result<(), HintFailure> {
    match call {
        Call::Local(member) => member.hint_queue(slot, hint_request),
        Call::Service(line) => line.ask(&Request::QueueHint { slot, hint_request: hint_request.clone() }),
        // Whoever has nothing but the notifier is told by other ways; whoever has nobody keeps it for later.
        Call::Notifier(_) | Call::Nobody => Ok(()),
    }
}

/// A queue has given its slot back. Who had hint_request of its own waits until the scheduler has seen it: the slot's next queue
/// is another, and has none.
pub(crate) fn queue_left(call: &Call, had_wishes: bool) {
    match call {
        Call::Local(member) if had_wishes => member.look(),
        Call::Service(_) if had_wishes => sync_with_scheduler(call),
        Call::Notifier(_) | Call::Local(_) | Call::Service(_) | Call::Nobody => {}
    }
}

/// Dependencies until the scheduler has seen all that the program shows and has said, and has given its orders.
pub(crate) fn sync_with_scheduler(call: &Call) {
    match call {
        Call::Local(member) => member.sync_with_scheduler(),
        Call::Service(line) => {
            // Whatever it is asked, it looks at the program first. One that is gone or silent schedules nobody.
            let _ = line.ask(&Request::Policy { name: None, timeslice_us: None, k: None });
        }
        Call::Notifier(_) | Call::Nobody => {}
    }
}
