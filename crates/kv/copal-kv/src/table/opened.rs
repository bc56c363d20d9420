//! An open table: what it holds for as long as it is open.
//!
//! Not here: opening (`open`), look-ups (`read`), walking (`cursor`), reading and mending pages (`pages`),
//! filters (`filter`).

use super::{
    damage::{Damages, LostKeys},
    io::ReadAt,
    typical_scan::TypicalScan,
};
use crate::format::{error::TableError, fences::Fences, footer::Footer, meta::TableMeta};
use crate::{
    format::entry::RangeTombstone,
    memory::{
        cache::{FilterCharge, TableCache, TableCharge},
        elastic::{AtHand, FilterSlot},
    },
};
use copal_object::ObjectId;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// How a table is read.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Seed of the store's key hash; another than at writing makes every filter unusable.
    pub store_seed: u64,
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
    /// All entries have this sequence from now on, whatever stands in them: for a table that was ingested,
    /// before anyone reads it.
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

    /// Its name in the cache; no other open table has it, ever.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Partitions it has.
    pub(crate) fn partitions(&self) -> u32 {
        self.fences.len() as u32
    }

    /// # Errors
    /// The table is damaged as a whole.
    pub(super) fn whole(&self) -> Result<(), TableError> {
        self.damages.whole()
    }

    /// Notes that a partition is damaged, if that is what the error says, and returns the error.
    pub(super) fn blame(&self, partition: u32, error: TableError) -> TableError {
        self.damages.blame(self.id, partition, error)
    }

    /// What was found damaged so far, ascending.
    pub(crate) fn lost_keys(&self) -> Vec<LostKeys> {
        self.damages.lost_keys(&self.fences)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.elastic().retire(self, 0..self.partitions());
        self.elastic().adjust_to_budget(&AtHand::default());
    }
}
