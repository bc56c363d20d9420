//! Looking for a key in one partition, once its filter has let it pass: index page, then one block.
//!
//! Invariants
//! - One data block is read; two only where one key's versions span blocks.
//! - A key that may stand in a damaged block is an error, never absent.
//!
//! Not here: which partition (`read`), reading and mending pages (`pages`).

use super::{
    block::Block,
    block_cursor::BlockCursor,
    counters::Count,
    error::{Damage, Place, TableError},
    index::{BlockAt, IndexPage},
    read::{Found, Table},
};
use crate::{
    cache::Page,
    entry::{EntryKind, MAX_SEQ},
};
use copal_device::Class;
use copal_filter::rules::Outcome;

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

/// A block and whether the cache has it.
struct Taken {
    at: BlockAt,
    block: Block,
    cached: bool,
}

impl Table {
    /// The newest version of `key` at or below `read_seq` in `partition`. Blocks on reads.
    pub(super) fn find_in(
        &self,
        partition: u32,
        key: &[u8],
        read_seq: u64,
        keep: Keep,
    ) -> Result<Option<Found>, TableError> {
        let index = self.index(partition, Class::Foreground)?;
        let at = self.block_of(&index, partition, key, read_seq)?;
        let taken = self.take(partition, at)?;
        self.search(partition, &index, taken, key, read_seq, keep)
    }

    /// Where `(key, read_seq)` stands if it is in the partition.
    fn block_of(
        &self,
        index: &IndexPage,
        partition: u32,
        key: &[u8],
        seq: u64,
    ) -> Result<BlockAt, TableError> {
        let found = index.find(key, seq);
        found.map_err(|damage| damage.at(self.id, Place::Index(partition)))
    }

    fn take(&self, partition: u32, at: BlockAt) -> Result<Taken, TableError> {
        if let Some(Page::Block(block)) = self.cache.get(self.block_key(partition, at.number)) {
            let cached = true;
            return Ok(Taken { at, block, cached });
        }
        self.cache.count(Count::DataBlockReads);
        let block = self.read_block(partition, at, Class::Foreground)?;
        Ok(Taken {
            at,
            block,
            cached: false,
        })
    }

    fn search(
        &self,
        partition: u32,
        index: &IndexPage,
        mut taken: Taken,
        key: &[u8],
        read_seq: u64,
        keep: Keep,
    ) -> Result<Option<Found>, TableError> {
        let damaged = |block| {
            move |damage: Damage| self.blame(partition, damage.at(self.id, Place::Block { partition, block }))
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
                    .map_err(|damage| damage.at(self.id, Place::Index(partition)))?;
                taken = self.take(partition, next)?;
                cursor = BlockCursor::new(taken.block.clone());
                cursor.seek(key, read_seq).map_err(damaged(next.number))?;
            }
        }
        let (found, outcome) = match cursor.entry() {
            Some(entry) if entry.key == key && entry.seq <= read_seq => {
                let (seq, kind, value) = (entry.seq, entry.kind, cursor.value());
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
