//! VM backup: packs, recipes, snapshots, restore, verification, deletion.
//!
//! [`Repository`] is the whole of it for a caller: disks go in through [`source::Source`], come out through
//! [`target::Target`], and lie in between as immutable files of a `copal_volume::VolumeStore`, deduplicated
//! inside a VM and across VMs, compressed and encrypted.
//!
//! Paper: low-profile-dedup. Formats: docs/formats/backup-*.md.
//! Inside, bottom to top:
//! - `keys`, `key_slot`, `role`, `role_key`, `roles`, `signing`, `unlock`, `pack_cipher`: keys, who has
//!   which, and encryption. `volumes`: what the volumes are called.
//! - `pack`, `recipe`, `manifest`, `catalog`: the formats. `index`: where is this chunk?
//! - `doubt`: what a backup went on in spite of. `pack_store`, `tree`, `fetch`, `pack_appender`: reading
//!   frames, trees, segments; writing packs.
//! - `lease`: who holds sessions, and whether it is alive.
//! - `dead_frames`, `moved_frames` (files by `list_file`): what a VM of a fleet has no more, and where it is
//!   instead. `vm_index`: a VM's index by them.
//! - `steps`: the decisions that keep a fleet safe, pure; what follows asks there. `model` tries all orders
//!   of them.
//! - `lookup`, `backup`, `restore`, `serve`, `check`, `affected`, `mark`, `prune`, `cleanup`, `unneeded`,
//!   `reindex`: what a user asks for.
//!
//! Not here: chunking (`copal-chunk`), the concrete store (`copal-data`), the command line (`copal`);
//! rounds, detectors and agents on several hosts (`copal-agent`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod affected;
mod backup;
mod broken;
mod catalog;
mod check;
mod cleanup;
mod dead_frames;
mod directory;
mod doubt;
pub mod error;
mod fetch;
mod freeing;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
#[cfg(test)]
mod golden;
mod index;
mod key_list;
mod key_slot;
mod keys;
mod lease;
mod list_file;
mod lookup;
mod manifest;
mod mark;
#[cfg(test)]
mod model;
mod moved_frames;
mod open_session;
mod pack;
mod pack_appender;
mod pack_cipher;
mod pack_store;
mod parts;
pub mod peers;
pub mod popular;
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
mod role;
mod role_key;
mod roles;
mod scan;
mod scheme;
mod seen;
pub mod serve;
mod signing;
pub mod source;
mod steps;
pub mod summary;
pub mod target;
mod tree;
mod unlock;
mod unneeded;
mod vm_index;
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

pub use backup::{Collaboration, parts_of_disk};
pub use catalog::agents::ListedAgent;
pub use copal_chunk::Profile;
pub use doubt::{Doubt, DoubtKind};
pub use error::{Error, Result};
pub use index::IndexHome;
pub use key_list::ListedKey;
pub use lease::{beating::Beating, watch::LeaseWatch};
pub use open_session::{Holder, HolderId, HolderInfo, OpenSession, Session};
pub use progress::{CancelFlag, Progress, Silent, Stage};
pub use repository::{KeptKey, Repository};
pub use request::*;
pub use role::{KeyId, Role, RoleKey};
pub use roles::Roles;
pub use scheme::scheme_of;
pub use source::Content;
pub use words::is_deceptive;
