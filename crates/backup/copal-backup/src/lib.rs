//! VM backup: packs, recipes, snapshots, restore, verification, deletion.
//!
//! [`Repository`] is the interface. Disks are read through [`copal_disk::source::Source`] and written through
//! [`copal_disk::target::Target`]. In between they are immutable files of a `copal_volume::VolumeStore`,
//! deduplicated inside a VM and across VMs, compressed and encrypted.
//!
//! Paper: low-profile-dedup.
//! Formats: docs/formats/backup-*.md.
//! Inside, bottom to top:
//! - `keys`, `key_slot`, `role`, `role_key`, `roles`, `signing`, `unlock`, `pack_cipher`: keys, who has
//!   which, and encryption. `volumes`: what the volumes are called.
//! - `pack`, `recipe`, `manifest`, `catalog`: the formats. `index`: where is this chunk?
//! - `json`: summaries as JSON. `doubt`: what a backup went on in spite of. `pack_store`, `tree`, `fetch`,
//!   `pack_appender`: reading frames, trees, segments; writing packs.
//! - `lease`: who holds sessions, and whether it is alive.
//! - `dead_frames`, `moved_frames` (files by `list_file`): what a VM of a fleet has no more, and where it is
//!   instead. `vm_index`: a VM's index by them.
//! - `steps`: the decisions that keep a fleet safe, pure; what follows asks there. `model` tries all orders
//!   of them.
//! - `lookup`, `backup`, `restore`, `serve`, `check`, `affected`, `mark`, `prune`, `cleanup`, `unneeded`,
//!   `reindex`: what a user asks for.
//!
//! Not here: chunking (`copal-chunk`), the concrete store (`copal-data`), the command line (`copal`); rounds,
//! detectors and agents on several hosts (`copal-agent`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod api;
mod backup;
mod catalog;
mod check;
mod delete;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod index;
mod keys;
mod packs;
pub mod popular;
pub mod request;
mod restore;
pub mod retention;
mod rules;
mod sessions;
mod snapshot;
mod steps;
#[cfg(test)]
#[path = "../tests/it/world.rs"]
#[expect(dead_code, reason = "the integration tests use all of it")]
mod world;

/// The name of this crate in the module `world` of the integration tests.
#[cfg(test)]
extern crate self as copal_backup;

pub use api::{
    key_list::ListedKey,
    repository::{self, KeptKey, Repository},
};
pub use backup::{Collaboration, parts_of_disk};
pub use catalog::agents::ListedAgent;
pub use copal_chunk::ChunkProfile;
pub use delete::summary;
pub use index::IndexHome;
pub use keys::{
    role::{KeyId, Role, RoleKey},
    roles::Roles,
};
pub use request::{
    error::{Error, Result},
    open_session::{Holder, HolderId, HolderInfo, OpenSession, Session},
    progress::{CancelFlag, Progress, Silent, Stage},
    scheme::scheme_of,
    words::is_deceptive,
    *,
};
pub use restore::serve;
pub use sessions::lease::{heartbeat::HeartbeatGuard, watch::LeaseWatch};
