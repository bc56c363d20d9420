//! The catalog: logs of immutable records that determine which VMs and snapshots exist.
//!
//! Format: docs/formats/backup-catalog.md v4
//! - [`record`]: the records and their bytes; [`fields`]: fields that other formats share.
//! - [`log`]: appending and reading. [`replay`]: replay from the newest [`checkpoint`], cached.
//! - [`domain`], [`vm`], [`popular`]: states of the logs.
//! - `epoch`: counter of changes to packs. [`removals`]: packs listed for removal.
//! - [`heartbeats`]: heartbeats of processes with open sessions. [`agents`]: agents of a fleet.
//! - `salvage`: recovery without lost records. [`split`]: the change to signatures with the first role key.
//!
//! Invariants
//! - A record is created under the next number of its log, exclusively: an append is a compare-and-swap by a
//!   process that has read the log to its end.
//! - Every record carries a MAC over its file name and content.
//! - A snapshot exists from its Publish record to a Forget record, independent of other files.

pub(crate) mod agents;
pub(crate) mod checkpoint;
pub(crate) mod directory;
pub(crate) mod domain;
mod epoch;
pub(crate) mod fields;
pub(crate) mod fold;
pub(crate) mod heartbeats;
pub(crate) mod log;
pub(crate) mod pins;
pub(crate) mod popular;
pub(crate) mod record;
pub(crate) mod removals;
pub(crate) mod replay;
mod salvage;
pub(crate) mod split;
pub(crate) mod vm;
