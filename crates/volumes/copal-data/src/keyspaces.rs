//! Keyspaces of a data node, with their options.
//!
//! Invariants
//! - Heads stay in tables; bodies above [`INLINE_BYTES`](crate::format::INLINE_BYTES) go to value objects.
//! - Bodies are grouped by volume: removing a volume drops whole value objects without reading them
//!   (docs/decisions/2026-11-21-value-groups-per-volume.md).

use crate::error::{of_engine, read_only};
use crate::keys::{GROUP_LEN, VOLUME_PREFIX_LEN};
use copal_kv::{Keyspace, KeyspaceOptions, Store};
use copal_volume::VolumeError;

/// Name of the keyspace of second copies.
pub(crate) const SECOND_COPIES: &str = "spare";

/// Handles of all keyspaces; cheap to clone.
#[derive(Clone)]
pub(crate) struct DataKeyspaces {
    /// gid vid name -> head, and the body of a small file.
    pub(crate) files: Keyspace,
    /// gid vid fid index -> 4 MiB piece of a body.
    pub(crate) extents: Keyspace,
    /// gid vid fid index -> checksums of the blocks of a piece.
    pub(crate) sums: Keyspace,
    /// gid vid fid -> start time of an upload.
    pub(crate) uploads: Keyspace,
    /// gid vid -> parent, name, state and options of a volume.
    pub(crate) volumes: Keyspace,
    /// gid parent name -> vid.
    pub(crate) names: Keyspace,
    /// gid -> epoch and role of the group.
    pub(crate) groups: Keyspace,
    /// Identity, next volume id, clock marks.
    pub(crate) node: Keyspace,
    /// Second copies of some rows of the other keyspaces; `None` for a read-only store without any.
    pub(crate) spare: Option<Keyspace>,
}

/// Options for values that never leave the tables.
fn rows() -> KeyspaceOptions {
    KeyspaceOptions {
        group_prefix_len: 0,
        separate_from_bytes: u32::MAX,
        direct_from_bytes: u32::MAX,
        ..KeyspaceOptions::default()
    }
}

impl DataKeyspaces {
    /// Opens all keyspaces of an embedded store and creates the missing ones.
    pub(crate) fn open(kv: &Store) -> Result<DataKeyspaces, VolumeError> {
        DataKeyspaces::grouped_by(kv, VOLUME_PREFIX_LEN)
    }

    /// Opens all keyspaces of a data server. Its bodies share value objects by group: it has too many volumes
    /// for separate objects.
    pub(crate) fn of_member(kv: &Store) -> Result<DataKeyspaces, VolumeError> {
        DataKeyspaces::grouped_by(kv, GROUP_LEN)
    }

    fn grouped_by(kv: &Store, prefix_len: usize) -> Result<DataKeyspaces, VolumeError> {
        let space = |name: &str, options: KeyspaceOptions| {
            if let Some(space) = kv.open_keyspace(name).map_err(|e| of_engine(&e))? {
                return Ok(space);
            }
            match kv.keyspace(name, options) {
                Ok(space) => Ok(space),
                Err(error) if of_engine(&error) == read_only() => Err(VolumeError::Denied {
                    reason: "the store holds no volumes and is open read-only".to_owned(),
                }),
                Err(error) => Err(of_engine(&error)),
            }
        };
        let bodies = KeyspaceOptions { group_prefix_len: prefix_len as u8, ..KeyspaceOptions::default() };
        Ok(DataKeyspaces {
            files: space("files", rows())?,
            extents: space("extents", bodies)?,
            sums: space("sums", rows())?,
            uploads: space("uploads", rows())?,
            volumes: space("volumes", rows())?,
            names: space("names", rows())?,
            groups: space("groups", rows())?,
            node: space("node", rows())?,
            spare: match space(SECOND_COPIES, rows()) {
                Ok(spare) => Some(spare),
                Err(VolumeError::Denied { .. }) => None,
                Err(error) => return Err(error),
            },
        })
    }

    /// All keyspaces with first copies.
    pub(crate) fn all(&self) -> [&Keyspace; 8] {
        [
            &self.groups,
            &self.node,
            &self.volumes,
            &self.names,
            &self.files,
            &self.sums,
            &self.uploads,
            &self.extents,
        ]
    }

    /// Keyspaces of file rows: their keys begin with group and volume.
    pub(crate) fn of_files(&self) -> [&Keyspace; 4] {
        [&self.files, &self.extents, &self.sums, &self.uploads]
    }
}
