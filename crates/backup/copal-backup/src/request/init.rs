//! Opening and creating a repository: credentials, layout, options, facts about it.

use crate::keys::role::RoleKey;
use crate::request::json;
use copal_chunk::ChunkProfile;
use serde::Serialize;
use zeroize::Zeroizing;

/// Credential that opens a repository.
#[derive(Clone, Debug)]
pub enum Unlock {
    /// The password of one of its key slots.
    Password(Zeroizing<String>),
    /// A role key of it; the key decides the rights.
    Key(RoleKey),
    /// The repository was made with `--insecure-no-password`.
    Insecure,
}

/// The chunks that a snapshot may refer to; fixed for the life of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All chunks of the repository: one exact index, one writer at a time. Best for one host.
    Solo,
    /// The VM's own chunks, and popular ones of the domain. Operations on one VM touch no other, and many
    /// hosts write at once.
    Fleet {
        /// Share of all unique chunks that may be popular, in millionths.
        popular_millionths: u32,
    },
}

impl Layout {
    /// Default share of popular chunks: 4 %.
    pub const DEFAULT_POPULAR_MILLIONTHS: u32 = 40_000;

    /// Whether this is the layout of a fleet.
    pub fn is_fleet(self) -> bool {
        matches!(self, Layout::Fleet { .. })
    }
}

/// Options of a new repository.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// The chunks that a snapshot may refer to.
    pub layout: Layout,
    /// Its first password, or none.
    pub unlock: Unlock,
    /// Chunking profile of its disks; fixed for the life of the repository.
    pub profile: ChunkProfile,
    /// Memory of the password hash, in KiB; 65536 by default.
    pub argon2_memory_kib: u32,
}

impl InitOptions {
    /// The defaults, with this password.
    pub fn new(unlock: Unlock) -> InitOptions {
        InitOptions {
            layout: Layout::Solo,
            unlock,
            profile: ChunkProfile::Default,
            argon2_memory_kib: 65_536,
        }
    }
}

/// Description of a repository.
#[derive(Clone, Debug, Serialize)]
pub struct RepositoryInfo {
    /// Its identity.
    #[serde(serialize_with = "json::text")]
    pub domain: uuid::Uuid,
    /// The chunks that a snapshot may refer to.
    #[serde(skip)]
    pub layout: Layout,
    /// How disks are cut into chunks.
    #[serde(skip)]
    pub profile: ChunkProfile,
    /// Whether a password protects it.
    pub encrypted: bool,
    /// Creation time.
    pub created_ms: u64,
    /// Format version.
    #[serde(skip)]
    pub version: u16,
}

/// Size and shape of a repository.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RepositoryStats {
    /// VMs with at least one snapshot.
    pub vms: u64,
    /// Published snapshots.
    pub snapshots: u64,
    /// Published snapshots with an unreadable manifest.
    pub damaged_snapshots: u64,
    /// Sum of the logical sizes of all other snapshots.
    pub logical_bytes: u64,
    /// Bytes of holes in them.
    pub hole_bytes: u64,
    /// Bytes of chunk packs.
    pub chunk_pack_bytes: u64,
    /// Bytes of recipe packs.
    pub recipe_pack_bytes: u64,
    /// Bytes of manifests, catalog and key slots.
    pub metadata_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Backups that never ended.
    pub unfinished_sessions: u64,
}
