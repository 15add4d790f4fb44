//! What every hook needs and no vendor's name is in.
//!
//! ```text
//!   program calls f ──► our f ──► outermost? ──no──► real f          the vendor's own calls among its functions
//!                                   │yes
//!                                   ▼
//!                        [`forward_once`]: decide, wait, real f, take note
//!                        a panic before real f: real f is called; after it: its answer stands
//! ```
//!
//! * [`Real`]: the function a hook stands in front of.
//! * [`OutermostHook`], [`forward_once`], [`aside`]: how a hook calls it, exactly once, and what else it does.
//! * [`Table`]: from a vendor's handle to what we know about it, on the launch path.
//! * [`Handle`]: a vendor's handle, which any thread may use.
//! * [`RevocableHandle`]: a vendor's handle that can be taken away from those who use it.
//! * [`lifetime`]: fork and exit.

mod forward;
mod handle;
mod handle_table;
mod hazard;
pub mod lifetime;
mod real_function;
mod revocable_handle;

pub use forward::{OutermostHook, forward_once, outside_hooks, run_isolated};
pub use handle::Handle;
pub use handle_table::Table;
pub use real_function::RealFunction;
pub use revocable_handle::RevocableHandle;
