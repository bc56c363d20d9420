//! VM backup: packs, recipes, snapshots, restore, verification, deletion.
//!
//! [`Repository`] is the whole of it for a caller: disks go in through [`source::Source`], come out through
//! [`target::Target`], and lie in between as immutable files of a `copal_volume::VolumeStore`, deduplicated
//! inside a VM and across VMs, compressed and encrypted.
//!
//! Paper: low-profile-dedup. Formats: docs/formats/backup-*.md.
//! Inside, bottom to top:
//! - `keys`, `key_slot`, `unlock`, `pack_cipher`: keys and encryption. `volumes`: what the volumes are called.
//! - `pack`, `recipe`, `manifest`, `catalog`: the formats. `index`: where is this chunk?
//! - `pack_store`, `tree`, `fetch`, `pack_appender`: reading frames, trees, segments; writing packs.
//! - `lookup`, `backup`, `restore`, `check`, `affected`, `mark`, `prune`, `reindex`: what a user asks for.
//!
//! Not here: chunking (`copal-chunk`), the concrete store (`copal-data`), the command line (`copal`);
//! rounds, popular chunks, summary vectors and agents on several hosts (not built yet).

mod affected;
mod backup;
mod broken;
mod catalog;
mod check;
mod dead_frames;
mod directory;
pub mod error;
mod fetch;
mod freeing;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod golden;
mod index;
mod key_slot;
mod keys;
mod lookup;
mod manifest;
mod mark;
mod pack;
mod pack_appender;
mod pack_cipher;
mod pack_store;
mod parts;
pub mod progress;
mod prune;
mod recipe;
mod references;
mod reindex;
pub mod repository;
mod repository_locks;
pub mod request;
mod restore;
pub mod retention;
mod scan;
mod seen;
pub mod source;
pub mod summary;
pub mod target;
mod tree;
mod unlock;
mod vms;
mod volumes;
mod words;
#[cfg(test)]
#[path = "../tests/it/world.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
mod world;

/// The name by which the tests' world knows this crate.
#[cfg(test)]
extern crate self as copal_backup;

pub use copal_chunk::Profile;
pub use error::{Error, Result};
pub use index::IndexHome;
pub use progress::{CancelFlag, Progress, Silent, Stage};
pub use repository::Repository;
pub use request::*;
pub use words::is_deceptive;
