//! Open table: look-ups.
//!
//! Invariants
//! - A look-up reads the filter page of a partition only when no unit of it is loaded and there is room, the index
//!   page when it is not cached, and one data block; two only where one key's versions span blocks.
//! - A key that may stand in a damaged block is an error, never absent.
//!
//! Not here: opening (`open`), what happens behind the filter (`lookup`), pages (`pages`), filters (`filter`).

use super::{
    counters::Count,
    damage::Damages,
    error::TableError,
    fences::Fences,
    filter::{Answer, FilterSlot},
    footer::Footer,
    io::ReadAt,
    lookup::{Asked, Keep},
    meta::TableMeta,
    readahead::TypicalScan,
};
use crate::{
    cache::{FilterCharge, TableCache, TableCharge},
    elastic::AtHand,
    entry::{EntryKind, MAX_SEQ, RangeTombstone},
};
use bytes::Bytes;
use copal_filter::{KeyHash, rules::Outcome};
use copal_object::ObjectId;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// How a table is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Seed of the store's key hash; another than at writing makes every filter unusable.
    pub store_seed: u64,
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
    pub(super) damages: Damages,
    /// Its name in the cache.
    pub(super) number: u64,
    pub(super) resident_bytes: u64,
    pub(super) _charge: TableCharge,
    /// The sequence that all entries have, whatever stands in them: the table was ingested.
    pub(super) ingested_at: OnceLock<u64>,
    pub(super) typical_scan: TypicalScan,
    /// Loaded units of all partitions.
    pub(super) filter_charge: Mutex<FilterCharge>,
}

impl Table {
    /// The newest version of `key` at or below `read_seq`. Range tombstones are not applied. Blocks on reads.
    ///
    /// # Errors
    /// `Corrupt` names the partition and block that are damaged; other keys may still be read.
    pub fn get(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<Found>, TableError> {
        self.get_keeping(key, read_seq, hash, Keep::Blocks)
    }

    /// As [`Table::get`]; `keep` says which blocks stay in the cache.
    pub(crate) fn get_keeping(
        &self,
        key: &[u8],
        read_seq: u64,
        hash: &KeyHash,
        keep: Keep,
    ) -> Result<Option<Found>, TableError> {
        match self.ask(key, read_seq, hash)? {
            None => Ok(None),
            Some(place) => self.find_at(&place, key, keep),
        }
    }

    /// Where `key` has to be looked for; `None`: fences or filter say that it is not there.
    pub(crate) fn ask(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<Asked>, TableError> {
        let read_seq = match self.ingested_at.get().copied() {
            None => read_seq,
            Some(seq) if read_seq < seq => return Ok(None),
            Some(_) => MAX_SEQ,
        };
        let Some(partition) = self.partition_of(key)? else {
            return Ok(None);
        };
        self.cache.count(Count::FilterProbes);
        if self.ask_filter(partition, hash)? == Answer::No {
            self.cache.count(Count::FilterNegatives);
            self.note_probe(partition, Outcome::Negative);
            return Ok(None);
        }
        Ok(Some(Asked { partition, read_seq }))
    }

    /// All entries have this sequence from now on, whatever stands in them: for a table that was ingested, before
    /// anyone reads it.
    pub(crate) fn set_sequence(&self, seq: u64) {
        self.ingested_at.get_or_init(|| seq);
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
    ///
    /// # Errors
    /// The table is damaged as a whole: nothing is known of its range.
    fn partition_of(&self, key: &[u8]) -> Result<Option<u32>, TableError> {
        self.whole()?;
        if !self.meta.covers(key) {
            return Ok(None);
        }
        Ok(self.fences.find(key).map(|partition| partition as u32))
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.elastic().retire(self, 0..self.partitions());
        self.elastic().settle(&AtHand::default());
    }
}
