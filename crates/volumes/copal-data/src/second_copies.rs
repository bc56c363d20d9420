//! Second copies of the rows without which a store is unreadable: its identity, its volumes, and small files
//! of volumes with `spare_copies`.
//!
//! They have a keyspace of their own, behind a row longer than a table block, so no block holds both copies.
//! They are committed in a separate batch after the first copies, so no frame of a log holds both either.
//! Only a rescue reads them.
//!
//! Invariants
//! - A deleted row loses its second copy first: no copy outlives its row (VOL-9).
//! - A second copy may be missing after a kill. It is never needed while the first one is readable.
//!
//! Not here: reading the copies (`rescue`).

use crate::{
    error::of_engine,
    format::{GROUP_KEY_LEN, IDENTITY_KEY, NEXT_VID_KEY, VolumeRow},
    keys::{self, GROUP},
    keyspaces::DataKeyspaces,
};
use bytes::Bytes;
use copal_kv::{Batch, Durability, Keyspace, Store};
use copal_volume::VolumeError;

/// Longer than a block of a table, and incompressible.
const SEPARATOR_BYTES: usize = 64 << 10;
const SEPARATOR_KEY: &[u8] = &[0];
/// Bytes of rows in one batch of `fill`.
const BATCH_BYTES: usize = 256 << 10;

/// Kind of the copied row; the first byte of the copy's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopiedRows {
    Groups = 1,
    Node = 2,
    Volumes = 3,
    Files = 4,
}

impl CopiedRows {
    pub(crate) const ALL: [CopiedRows; 4] =
        [CopiedRows::Groups, CopiedRows::Node, CopiedRows::Volumes, CopiedRows::Files];

    /// The keyspace of the first copies.
    pub(crate) fn space(self, spaces: &DataKeyspaces) -> &Keyspace {
        match self {
            CopiedRows::Groups => &spaces.groups,
            CopiedRows::Node => &spaces.node,
            CopiedRows::Volumes => &spaces.volumes,
            CopiedRows::Files => &spaces.files,
        }
    }

    fn key(self, key: &[u8]) -> Vec<u8> {
        [&[self as u8], key].concat()
    }
}

/// Adds the second copy of a row to a batch that is committed after the row's own.
pub(crate) fn put(spaces: &DataKeyspaces, batch: &mut Batch, of: CopiedRows, key: &[u8], row: Bytes) {
    if let Some(spare) = &spaces.spare {
        batch.put(spare, &of.key(key), row);
    }
}

/// Deletes the second copy of a row in a batch that is committed before the row's own.
pub(crate) fn delete(spaces: &DataKeyspaces, batch: &mut Batch, of: CopiedRows, key: &[u8]) {
    if let Some(spare) = &spaces.spare {
        batch.delete(spare, &of.key(key));
    }
}

/// Deletes the second copies of all files below `prefix`. Blocks.
/// # Errors
/// `Failed`.
pub(crate) fn delete_files(spaces: &DataKeyspaces, prefix: &[u8]) -> Result<(), VolumeError> {
    let Some(spare) = &spaces.spare else { return Ok(()) };
    spare.purge_prefix(&CopiedRows::Files.key(prefix), Durability::Deferred).map_err(|e| of_engine(&e))
}

/// All second copies of a kind in `spare`, with the keys of the first copies. Blocks.
pub(crate) fn copies(
    spare: &Keyspace,
    of: CopiedRows,
) -> impl Iterator<Item = Result<(Bytes, Bytes), copal_kv::Error>> {
    spare.prefix(&[of as u8]).map(|row| row.map(|(key, row)| (key.slice(1..), row)))
}

/// Creates all second copies in a store without any. A damaged row gets none. Blocks.
/// # Errors
/// `Denied`: the store is open read-only. `Failed`, `NoSpace`.
pub(crate) fn fill(kv: &Store, spaces: &DataKeyspaces) -> Result<(), VolumeError> {
    let Some(spare) = &spaces.spare else { return Ok(()) };
    if spare.contains(SEPARATOR_KEY).map_err(|e| of_engine(&e))? {
        return Ok(());
    }
    let mut fill = CopyFill { kv, batch: kv.batch(), bytes: 0 };
    let group_key: [u8; GROUP_KEY_LEN] = GROUP.to_be_bytes();
    for (of, key) in [
        (CopiedRows::Groups, &group_key[..]),
        (CopiedRows::Node, IDENTITY_KEY),
        (CopiedRows::Node, NEXT_VID_KEY),
    ] {
        if let Ok(Some(row)) = of.space(spaces).get(key) {
            fill.row(spaces, of, key, row)?;
        }
    }
    for volume in readable(spaces.volumes.prefix(&[])) {
        let (key, row) = volume;
        let has_second_copies = VolumeRow::parse(&key, &row).is_ok_and(|row| row.spare_copies);
        fill.row(spaces, CopiedRows::Volumes, &key, row)?;
        let Some((vid, [])) = keys::split(&key).filter(|_| has_second_copies) else {
            continue;
        };
        for (key, row) in readable(spaces.files.prefix(&keys::volume(vid))) {
            fill.row(spaces, CopiedRows::Files, &key, row)?;
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

struct CopyFill<'a> {
    kv: &'a Store,
    batch: Batch,
    bytes: usize,
}

impl CopyFill<'_> {
    fn row(
        &mut self,
        spaces: &DataKeyspaces,
        of: CopiedRows,
        key: &[u8],
        row: Bytes,
    ) -> Result<(), VolumeError> {
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

/// Incompressible bytes, from the mixing function of SplitMix64.
fn separator() -> Vec<u8> {
    let word = |at: u64| {
        let mut word = at.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)).to_le_bytes()
    };
    (0..SEPARATOR_BYTES as u64 / 8).flat_map(word).collect()
}
