//! Data node: volumes of immutable files on the key-value engine.
//!
//! Here is the embedded node, [`LocalStore`]: all of
//! [`VolumeStore`](copal_volume::VolumeStore) in one `copal-kv` store, one process, no network.
//! Rows, keys and keyspaces are those of a data server, with the group number 0, one member and
//! a constant epoch; journal, digests and gossip are off.
//!
//! Format: docs/formats/data-rows.md v1
//!
//! Invariants
//! - One operation is one atomic batch: a name, its file's head and the last of its pieces appear
//!   together or not at all (VOL-3).
//! - Acknowledged means durable on the device (VOL-5).
//! - Nothing is read before it is checked: heads against a checksum that covers their key, bodies
//!   against theirs (VOL-6).
//!
//! Design: docs/design/volume.md#rows
//!
//! Not here: replication and its rules, servers (not built yet); ids, names and the promises
//! of a volume store (`copal-volume`).

mod check;
mod error;
mod format;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod local;
mod name_locks;
mod rescue;
mod spaces;
mod spare;
mod times;

pub use check::{CheckOptions, CheckReport, Damage};
pub use local::{LocalOptions, LocalStore};
pub use rescue::{Rescued, rescue};
