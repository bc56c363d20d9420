//! Second copies of the rows without which nothing else can be read: what the store is, its volumes, and
//! small files of volumes made for it.
//!
//! They stand in a keyspace of their own, behind a row longer than a block of a table, so that no block holds
//! both copies; and in a batch of their own behind the first copy's, so that no frame of a log does. Only a
//! rescue reads them. Invariants
//! - What is deleted loses its second copy first: a copy never outlives what it is of (VOL-9).
//! - A second copy may be missing after a kill. It is never needed while the first can be read.
//!
//! Not here: reading them back (`rescue`).

use crate::{
    error::of_engine,
    format::{GROUP_KEY_LEN, IDENTITY_KEY, NEXT_VID_KEY, VolumeRow},
    keys::{self, GROUP},
    spaces::Spaces,
};
use bytes::Bytes;
use copal_kv::{Batch, Durability, Keyspace, Store};
use copal_volume::VolumeError;

/// The keyspace.
pub(crate) const NAME: &str = "spare";

/// Longer than a block of a table, and not to be compressed.
const SEPARATOR_BYTES: usize = 64 << 10;
const SEPARATOR_KEY: &[u8] = &[0];
/// Bytes of rows in a batch of many.
const BATCH_BYTES: usize = 256 << 10;

/// Whose row a copy is of; the first byte of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    Groups = 1,
    Node = 2,
    Volumes = 3,
    Files = 4,
}

impl Of {
    pub(crate) const ALL: [Of; 4] = [Of::Groups, Of::Node, Of::Volumes, Of::Files];

    /// Where the first copies stand.
    pub(crate) fn space(self, spaces: &Spaces) -> &Keyspace {
        match self {
            Of::Groups => &spaces.groups,
            Of::Node => &spaces.node,
            Of::Volumes => &spaces.volumes,
            Of::Files => &spaces.files,
        }
    }

    fn key(self, key: &[u8]) -> Vec<u8> {
        [&[self as u8], key].concat()
    }
}

/// Adds the second copy of a row to a batch that is committed behind the row's own.
pub(crate) fn put(spaces: &Spaces, batch: &mut Batch, of: Of, key: &[u8], row: Bytes) {
    if let Some(spare) = &spaces.spare {
        batch.put(spare, &of.key(key), row);
    }
}

/// Deletes the second copy of a row in a batch that is committed before the row's own.
pub(crate) fn delete(spaces: &Spaces, batch: &mut Batch, of: Of, key: &[u8]) {
    if let Some(spare) = &spaces.spare {
        batch.delete(spare, &of.key(key));
    }
}

/// Deletes the second copies of all files below `prefix`. Blocks.
/// # Errors
/// `Failed`.
pub(crate) fn delete_files(spaces: &Spaces, prefix: &[u8]) -> Result<(), VolumeError> {
    let Some(spare) = &spaces.spare else { return Ok(()) };
    spare.purge_prefix(&Of::Files.key(prefix), Durability::Deferred).map_err(|e| of_engine(&e))
}

/// The rows of which `spare` holds second copies of that kind, and those copies. Blocks.
pub(crate) fn copies(
    spare: &Keyspace,
    of: Of,
) -> impl Iterator<Item = Result<(Bytes, Bytes), copal_kv::Error>> {
    spare.prefix(&[of as u8]).map(|row| row.map(|(key, row)| (key.slice(1..), row)))
}

/// Makes all second copies in a store that never had any. What is damaged has none. Blocks.
/// # Errors
/// `Denied`: it is open read-only. `Failed`, `NoSpace`.
pub(crate) fn fill(kv: &Store, spaces: &Spaces) -> Result<(), VolumeError> {
    let Some(spare) = &spaces.spare else { return Ok(()) };
    if spare.contains(SEPARATOR_KEY).map_err(|e| of_engine(&e))? {
        return Ok(());
    }
    let mut fill = Fill { kv, batch: kv.batch(), bytes: 0 };
    let group_key: [u8; GROUP_KEY_LEN] = GROUP.to_be_bytes();
    for (of, key) in [(Of::Groups, &group_key[..]), (Of::Node, IDENTITY_KEY), (Of::Node, NEXT_VID_KEY)] {
        if let Ok(Some(row)) = of.space(spaces).get(key) {
            fill.row(spaces, of, key, row)?;
        }
    }
    for volume in readable(spaces.volumes.prefix(&[])) {
        let (key, row) = volume;
        let is_spared = VolumeRow::parse(&key, &row).is_ok_and(|row| row.spare_copies);
        fill.row(spaces, Of::Volumes, &key, row)?;
        let Some((vid, [])) = keys::split(&key).filter(|_| is_spared) else {
            continue;
        };
        for (key, row) in readable(spaces.files.prefix(&keys::volume(vid))) {
            fill.row(spaces, Of::Files, &key, row)?;
        }
    }
    fill.batch.put(spare, SEPARATOR_KEY, Bytes::from(separator()));
    fill.commit()
}

fn readable(
    rows: impl Iterator<Item = Result<(Bytes, Bytes), copal_kv::Error>>,
) -> impl Iterator<Item = (Bytes, Bytes)> {
    rows.map_while(Result::ok)
}

struct Fill<'a> {
    kv: &'a Store,
    batch: Batch,
    bytes: usize,
}

impl Fill<'_> {
    fn row(&mut self, spaces: &Spaces, of: Of, key: &[u8], row: Bytes) -> Result<(), VolumeError> {
        self.bytes += key.len() + row.len();
        put(spaces, &mut self.batch, of, key, row);
        if self.bytes > BATCH_BYTES {
            return self.commit();
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), VolumeError> {
        self.bytes = 0;
        let batch = std::mem::replace(&mut self.batch, self.kv.batch());
        batch.commit(Durability::Deferred).map_err(|e| of_engine(&e))
    }
}

/// Bytes that no compression makes shorter, by the mixing function of SplitMix64.
fn separator() -> Vec<u8> {
    let word = |at: u64| {
        let mut word = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)).to_le_bytes()
    };
    (0..SEPARATOR_BYTES as u64 / 8).flat_map(word).collect()
}
