//! What programs and their scheduler share, and the two ends of it.
//!
//! * [`page`]: the memory they share, one page per program.
//! * [`bell`]: how programs call the scheduler.
//! * [`client`]: the program's end.
//! * [`coordinator`]: the scheduler's end, one round at a time.
//! * [`local`]: the scheduler on a thread of this process.
//! * [`protocol`], [`socket`]: what is said between a program, a tool and the service, and how.

mod agent;
pub mod bell;
pub mod client;
pub mod coordinator;
pub mod local;
pub mod page;
pub mod protocol;
pub mod socket;
mod waits;

pub use bell::Bell;
pub use client::{Client, JoinError, JoinedQueue};
pub use coordinator::{ClientId, Coordinator};
pub use local::LocalScheduler;
pub use page::{Page, PageError};
