//! The decisions that keep a fleet safe, as pure functions: what was read goes in, what may be done comes
//! out.
//!
//! Design: docs/design/backup.md#the-model
//! Invariant: nothing here reads or writes. Whoever does asks here, and so does the model, which tries all
//! orders of what they do (`model`).
//!
//! - [`session`]: opening, publishing, ending. [`removal`]: what takes something away of a VM, and when it
//!   gives way.
//! - [`popular`]: entering packs, checking them, referring to them, removing what writers left;
//!   [`popular_removal`]: removing what nobody needs. [`frames`]: of a VM's own packs.
//! - When a holder may be taken for dead is pure already: `lease::watch`. What the logs amount to: `catalog`.

pub(crate) mod frames;
pub(crate) mod popular;
pub(crate) mod popular_removal;
pub(crate) mod removal;
pub(crate) mod session;
