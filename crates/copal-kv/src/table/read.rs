//! Open table: look-ups.
//!
//! Invariants
//! - A look-up reads the filter page at most once per partition while the filter budget has room, the index
//!   page when it is not cached, and one data block; two only where one key's versions span blocks.
//! - A key that may stand in a damaged block is an error, never absent.
//!
//! Not here: opening (`open`), reading and mending pages (`pages`), filters (`filter`).

use super::{
    block_cursor::BlockCursor,
    counters::Count,
    error::{Place, TableError},
    fences::Fences,
    filter::FilterSlot,
    footer::Footer,
    io::ReadAt,
    meta::TableMeta,
};
use crate::{
    cache::TableCache,
    entry::{EntryKind, MAX_SEQ, RangeTombstone},
};
use bytes::Bytes;
use copal_device::Class;
use copal_filter::KeyHash;
use copal_object::ObjectId;
use std::sync::Arc;

/// How a table is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Seed of the store's key hash; another than at writing makes every filter unusable.
    pub store_seed: u64,
    /// Filter units per partition that look-ups load, at most what the page has.
    pub filter_columns: u8,
}

/// A version found by a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its sequence.
    pub seq: u64,
    /// What it says.
    pub kind: EntryKind,
    /// Its value, sharing the block it came from.
    pub value: Bytes,
}

/// An open table; shared by all readers.
pub struct Table {
    pub(super) id: ObjectId,
    pub(super) source: Box<dyn ReadAt>,
    pub(super) cache: Arc<TableCache>,
    pub(super) options: ReadOptions,
    pub(super) meta: TableMeta,
    pub(super) fences: Fences,
    pub(super) filters: Box<[FilterSlot]>,
    pub(super) object_crc: u32,
    pub(super) footer: Footer,
    pub(super) tombstones: Vec<RangeTombstone>,
    /// Its name in the cache.
    pub(super) number: u64,
    pub(super) resident_bytes: u64,
    /// One filter unit of each partition.
    pub(super) one_unit_bytes: u64,
    /// The sequence that all entries have, whatever stands in them: the table was ingested.
    pub(super) ingested_at: Option<u64>,
}

impl Table {
    /// The newest version of `key` at or below `read_seq`. Range tombstones are not applied. Blocks on reads.
    ///
    /// # Errors
    /// `Corrupt` names the partition and block that are damaged; other keys may still be read.
    pub fn get(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<Found>, TableError> {
        match self.ingested_at {
            None => self.get_stored(key, read_seq, hash),
            Some(seq) if read_seq < seq => Ok(None),
            Some(seq) => {
                let found = self.get_stored(key, MAX_SEQ, hash)?;
                Ok(found.map(|found| Found { seq, ..found }))
            }
        }
    }

    /// As [`Table::get`], by the sequences that stand in the entries.
    fn get_stored(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<Found>, TableError> {
        let Some(partition) = self.partition_of(key) else {
            return Ok(None);
        };
        self.cache.count(Count::FilterProbes);
        if !self.filter_admits(partition, hash)? {
            self.cache.count(Count::FilterNegatives);
            return Ok(None);
        }
        let index = self.index(partition, Class::Foreground)?;
        let at = index
            .find(key, read_seq)
            .map_err(|damage| damage.at(self.id, Place::Index(partition)))?;
        let mut cursor = BlockCursor::new(self.block(partition, at, Class::Foreground)?);
        let place = |block| Place::Block { partition, block };
        cursor
            .seek(key, read_seq)
            .map_err(|damage| damage.at(self.id, place(at.number)))?;
        if !cursor.valid() && at.number + 1 < index.blocks() {
            // The block ends before (key, read_seq). Only if it ends with newer versions of this very key can
            // the wanted one open the next block.
            cursor
                .last()
                .map_err(|damage| damage.at(self.id, place(at.number)))?;
            if cursor.entry().is_some_and(|entry| entry.key == key) {
                let next = index
                    .block(at.number + 1)
                    .map_err(|damage| damage.at(self.id, Place::Index(partition)))?;
                cursor = BlockCursor::new(self.block(partition, next, Class::Foreground)?);
                cursor
                    .seek(key, read_seq)
                    .map_err(|damage| damage.at(self.id, place(next.number)))?;
            }
        }
        match cursor.entry() {
            Some(entry) if entry.key == key && entry.seq <= read_seq => Ok(Some(Found {
                seq: entry.seq,
                kind: entry.kind,
                value: cursor.value(),
            })),
            _ => {
                self.count_false_positive(&mut cursor, key, read_seq);
                Ok(None)
            }
        }
    }

    /// All entries have this sequence from now on, whatever stands in them: for a table that was ingested, before
    /// anyone reads it.
    pub(crate) fn set_sequence(&mut self, seq: u64) {
        self.ingested_at = Some(seq);
    }

    /// Range tombstones of the table, by start, newest first.
    pub fn range_tombstones(&self) -> &[RangeTombstone] {
        &self.tombstones
    }

    /// Summary of the table.
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// The object it is stored in.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Bytes of memory it holds as long as it is open, filters and cached pages apart.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// The partition that would hold `key`; `None` outside the table's range.
    fn partition_of(&self, key: &[u8]) -> Option<u32> {
        if !self.meta.covers(key) {
            return None;
        }
        self.fences.find(key).map(|partition| partition as u32)
    }

    /// A key whose newer versions alone are here was no false alarm of the filter.
    fn count_false_positive(&self, cursor: &mut BlockCursor, key: &[u8], read_seq: u64) {
        let newer = read_seq < MAX_SEQ
            && cursor.seek(key, MAX_SEQ).is_ok()
            && cursor.entry().is_some_and(|entry| entry.key == key);
        if !newer {
            self.cache.count(Count::FalsePositives);
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.release_table(self.resident_bytes, self.one_unit_bytes);
    }
}
