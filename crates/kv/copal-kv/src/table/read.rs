//! Look-ups in an open table.
//!
//! Invariants
//! - A look-up reads the filter page of a partition only when no unit of it is loaded and there is room, the
//!   index page when it is not cached, and one data block; two only where one key's versions span blocks.
//! - A key that may stand in a damaged block is an error, never absent.
//!
//! Not here: what happens behind the filter (`lookup`), pages (`pages`), filters (`filter`).

use super::{
    filter::Answer,
    lookup::{Asked, Found, Keep},
    opened::Table,
};
use crate::format::entry::MAX_SEQ;
use crate::format::error::TableError;
use crate::session::read_counters::Count;
use copal_filter::{KeyHash, rules::Outcome};

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
