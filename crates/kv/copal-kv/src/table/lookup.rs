//! Looking for a key in one partition, once its filter has let it pass: index page, then one block.
//!
//! Invariants
//! - One data block is read; two only where one key's versions span blocks.
//! - A key that may stand in a damaged block is an error, never absent.
//!
//! A look-up of one key does it all at once ([`Table::find_at`]). Those of many keys take it step by step, so
//! that somebody else reads the pages of all of them together (`multi_get`).
//!
//! Not here: which partition (`read`), reading and mending pages (`pages`).

use super::opened::Table;
use crate::format::{
    block::Block,
    block_cursor::BlockCursor,
    error::{Damage, DamageAt, TableError},
    index::{BlockAt, IndexPage},
};
use crate::session::read_counters::Count;
use crate::{
    format::entry::{EntryKind, MAX_SEQ},
    memory::cache::Page,
};
use bytes::Bytes;
use copal_device::Class;
use copal_filter::rules::Outcome;
use std::{ops::Range, sync::Arc};

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

/// Which blocks a look-up leaves in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All it reads.
    Blocks,
    /// Those that hold the pointer it looked for: the value is kept elsewhere or not at all.
    Pointers,
    /// None.
    Nothing,
}

impl Keep {
    fn wants(self, found: Option<&Found>) -> bool {
        match self {
            Keep::Blocks => true,
            Keep::Pointers => found.is_some_and(|found| found.kind == EntryKind::Pointer),
            Keep::Nothing => false,
        }
    }
}

/// A partition whose filter let a key pass, and the sequence to look for in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) partition: u32,
    pub(super) read_seq: u64,
}

/// A block and whether the cache has it.
#[derive(Clone)]
pub(crate) struct Taken {
    at: BlockAt,
    block: Block,
    cached: bool,
}

impl Table {
    /// The version of `key` that was asked for. Blocks on reads.
    pub(super) fn find_at(&self, asked: &Asked, key: &[u8], keep: Keep) -> Result<Option<Found>, TableError> {
        let index = self.index(asked.partition, Class::Foreground)?;
        let at = self.block_of(&index, asked, key)?;
        let taken = self.take(asked.partition, at)?;
        self.search(asked, &index, taken, key, keep)
    }

    /// The block in which the key stands if it is in the partition.
    pub(crate) fn block_of(
        &self,
        index: &IndexPage,
        asked: &Asked,
        key: &[u8],
    ) -> Result<BlockAt, TableError> {
        let found = index.find(key, asked.read_seq);
        found.map_err(|damage| damage.at(self.id, DamageAt::Index(asked.partition)))
    }

    /// The index page of a partition if it is in the cache.
    pub(crate) fn cached_index(&self, partition: u32) -> Option<Arc<IndexPage>> {
        match self.cache.get(self.index_key(partition)) {
            Some(Page::Index(page)) => Some(page),
            _ => None,
        }
    }

    /// Bytes of the object that hold the index page of a partition.
    pub(crate) fn index_range(&self, partition: u32) -> Range<u64> {
        self.partition(partition).index()
    }

    /// The index page out of bytes somebody read; read again, or made anew, when they are damaged.
    pub(crate) fn index_from(&self, partition: u32, stored: &[u8]) -> Result<Arc<IndexPage>, TableError> {
        let at = self.partition(partition);
        match IndexPage::decode(stored, at.uid, at.data_len) {
            Ok(page) => {
                self.cache.count(Count::IndexPageReads);
                Ok(self.keep_index(self.index_key(partition), page))
            }
            Err(_) => self.index(partition, Class::Foreground),
        }
    }

    /// A block if it is in the cache.
    pub(crate) fn cached_block(&self, partition: u32, at: BlockAt) -> Option<Taken> {
        match self.cache.get(self.block_key(partition, at.number)) {
            Some(Page::Block(block)) => Some(Taken { at, block, cached: true }),
            _ => None,
        }
    }

    /// Bytes of the object that hold a block.
    pub(crate) fn block_range(&self, partition: u32, at: BlockAt) -> Range<u64> {
        let start = self.partition(partition).offset;
        start + at.offset..start + at.range().end
    }

    /// A block out of bytes somebody read; read again when they are damaged.
    pub(crate) fn block_from(&self, partition: u32, at: BlockAt, stored: &[u8]) -> Result<Taken, TableError> {
        self.cache.count(Count::DataBlockReads);
        let block = match Block::decode(stored, self.partition(partition).uid, at.number) {
            Ok(block) => block,
            Err(_) => self.read_block(partition, at, Class::Foreground)?,
        };
        Ok(Taken { at, block, cached: false })
    }

    fn take(&self, partition: u32, at: BlockAt) -> Result<Taken, TableError> {
        if let Some(taken) = self.cached_block(partition, at) {
            return Ok(taken);
        }
        self.cache.count(Count::DataBlockReads);
        let block = self.read_block(partition, at, Class::Foreground)?;
        Ok(Taken { at, block, cached: false })
    }

    /// Looks for the key in the block in which it stands if it is there.
    pub(crate) fn search(
        &self,
        asked: &Asked,
        index: &IndexPage,
        mut taken: Taken,
        key: &[u8],
        keep: Keep,
    ) -> Result<Option<Found>, TableError> {
        let Asked { partition, read_seq } = *asked;
        let damaged = |block| {
            move |damage: Damage| {
                self.blame(partition, damage.at(self.id, DamageAt::Block { partition, block }))
            }
        };
        let mut cursor = BlockCursor::new(taken.block.clone());
        cursor.seek(key, read_seq).map_err(damaged(taken.at.number))?;
        if !cursor.valid() && taken.at.number + 1 < index.blocks() {
            // The block ends before (key, read_seq). Only if it ends with newer versions of this very key can
            // the wanted one open the next block.
            cursor.last().map_err(damaged(taken.at.number))?;
            if cursor.entry().is_some_and(|entry| entry.key == key) {
                let next = index
                    .block(taken.at.number + 1)
                    .map_err(|damage| damage.at(self.id, DamageAt::Index(partition)))?;
                taken = self.take(partition, next)?;
                cursor = BlockCursor::new(taken.block.clone());
                cursor.seek(key, read_seq).map_err(damaged(next.number))?;
            }
        }
        let (found, outcome) = match cursor.entry() {
            Some(entry) if entry.key == key && entry.seq <= read_seq => {
                let seq = self.ingested_at.get().copied().unwrap_or(entry.seq);
                let (kind, value) = (entry.kind, cursor.value());
                (Some(Found { seq, kind, value }), Outcome::Hit)
            }
            _ => (None, self.outcome_of_absence(&mut cursor, key, read_seq)),
        };
        self.note_probe(partition, outcome);
        if !taken.cached && keep.wants(found.as_ref()) {
            let key = self.block_key(partition, taken.at.number);
            self.cache.insert(key, Page::Block(taken.block));
        }
        Ok(found)
    }

    /// A key whose newer versions alone are here was no false alarm of the filter.
    fn outcome_of_absence(&self, cursor: &mut BlockCursor, key: &[u8], read_seq: u64) -> Outcome {
        let newer = read_seq < MAX_SEQ
            && cursor.seek(key, MAX_SEQ).is_ok()
            && cursor.entry().is_some_and(|entry| entry.key == key);
        if newer {
            return Outcome::Hit;
        }
        self.cache.count(Count::FalsePositives);
        Outcome::FalsePositive
    }
}
