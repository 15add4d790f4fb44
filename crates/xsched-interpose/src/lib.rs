//! The vendor-independent parts of a hook.
//!
//! ```text
//!   program calls f ──► hook f ──► outermost hook? ──no──► real f        calls made inside a hook
//!                                       │yes
//!                                       ▼
//!                            [`forward_once`]: decide, wait, call real f, record
//!                            a panic before real f: real f is called; after it: its result is returned
//! ```
//!
//! * [`RealFunction`]: the vendor's function behind a hook.
//! * [`OutermostHook`], [`forward_once`], [`run_isolated`]: call it exactly once, and isolate the rest from the program.
//! * [`HandleTable`]: maps a vendor's handle to the library's state, on the launch path.
//! * [`Handle`]: a vendor's handle, which any thread may use.
//! * [`RevocableHandle`]: a vendor's handle that can be withdrawn from the threads that use it.
//! * [`lifetime`]: fork and exit.
//! * [`ReserveAllocator`]: small allocations do not fail when the program's memory is used up.

mod forward;
mod handle;
mod handle_table;
mod hazard;
pub mod lifetime;
mod real_function;
mod reserve;
mod revocable_handle;

pub use forward::{HookDomain, OutermostHook, forward_once, outside_hooks, run_isolated};
pub use handle::Handle;
pub use handle_table::HandleTable;
pub use hazard::Guard;
pub use real_function::RealFunction;
pub use reserve::ReserveAllocator;
pub use revocable_handle::RevocableHandle;
