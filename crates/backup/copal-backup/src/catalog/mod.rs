//! The catalog: logs of immutable records that say which VMs and snapshots there are.
//!
//! Format: docs/formats/backup-catalog.md v4
//! - [`record`]: the records and their bytes; [`fields`]: what they have in common with others. [`log`]:
//!   appending and reading. [`domain`], [`vm`], [`popular`]: what a log amounts to. `epoch`: whether packs
//!   came or went. [`removals`]: which are to go. [`replay`]: reading it from its newest [`checkpoint`], and
//!   keeping that. [`beats`]: signs of life of whoever has sessions open. [`agents`]: which agents a fleet
//!   has. `salvage`: going on without records that are lost. [`split`]: signatures, from the first role key
//!   on.
//!
//! Invariants
//! - A record is created under the next number of its log, exclusively: an append is a compare-and-swap
//!   by whoever has read to the end.
//! - Every record carries a MAC over its place and content.
//! - A snapshot exists from its Publish record to a Forget record, whatever else is stored.

pub(crate) mod agents;
pub(crate) mod beats;
pub(crate) mod checkpoint;
pub(crate) mod directory;
pub(crate) mod domain;
mod epoch;
pub(crate) mod fields;
pub(crate) mod fold;
pub(crate) mod log;
pub(crate) mod pins;
pub(crate) mod popular;
pub(crate) mod record;
pub(crate) mod removals;
pub(crate) mod replay;
mod salvage;
pub(crate) mod split;
pub(crate) mod vm;
