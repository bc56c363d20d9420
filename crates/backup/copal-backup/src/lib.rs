//! VM backup: packs, recipes, snapshots, restore, verification, deletion.
//!
//! [`Repository`] is the interface. Disks are read through [`copal_disk::source::Source`] and written through
//! [`copal_disk::target::Target`]. In between they are immutable files of a `copal_volume::VolumeStore`,
//! deduplicated inside a VM and across VMs, compressed and encrypted.
//!
//! Paper: low-profile-dedup.
//! Formats: docs/formats/backup-*.md.
//! Inside, bottom to top:
//! - `keys`: master key, key slots, roles, signatures. `request`: requests, results, errors.
//! - `packs`: the pack format, encryption, volumes, reading and appending. `snapshot`: recipes, trees, manifests.
//! - `catalog`: the logs that determine which snapshots exist. `index`: the locations of each chunk, and the dead
//!   and moved frames of a VM of a fleet.
//! - `steps`: the decisions that keep a fleet safe, as pure functions; the folders below call them, and
//!   `rules::model` tries all orders of them.
//! - `sessions`: locks in the process, leases and heartbeats, and the parts that all operations share.
//! - `backup`, `restore`, `check`, `delete`, `popular`, `retention`: the operations.
//! - `api`: [`Repository`], which calls them, and [`copy`] from one repository to another.
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
    copy,
    key_list::ListedKey,
    repository::{self, FoundRepository, KeptKey, Repository},
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
