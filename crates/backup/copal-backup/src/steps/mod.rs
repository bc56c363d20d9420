//! Safety decisions of a fleet as pure functions: they map the state that was read to the allowed step.
//!
//! Design: docs/design/backup.md#the-model
//! Invariant: nothing here reads or writes. The code that does asks these functions, and so does the model,
//! which tries all orders of their steps (`model`).
//!
//! - [`session`]: opening, publishing and ending sessions. [`removal`]: removal of a VM's data, and when it
//!   gives way.
//! - [`popular`]: entering, checking and using popular packs, and sweeping those of dead writers;
//!   [`popular_removal`]: removing unneeded ones. [`frames`]: a VM's own packs.
//! - `lease::watch` decides when a holder counts as dead. `catalog` has the states of the logs.

pub(crate) mod frames;
pub(crate) mod popular;
pub(crate) mod popular_removal;
pub(crate) mod removal;
pub(crate) mod session;
