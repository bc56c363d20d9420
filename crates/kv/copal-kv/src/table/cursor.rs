//! Cursor over the entries of one table, in both directions.
//!
//! Invariants
//! - It holds one block at a time, and at most two windows of blocks read ahead.
//! - After an error the cursor is not valid.
//! - Entries of an ingested table have the sequence of the ingest, not their stored one.

use super::{
    readahead::{ReadAhead, ReadWay},
    reader::Table,
    scan::Scan,
};
use crate::format::{
    block_cursor::BlockCursor,
    error::{Damage, DamageAt, TableError},
    index::{BlockAt, IndexPage},
};
use crate::{
    Error,
    format::{
        entry::{Entry, MAX_SEQ},
        entry_cursor::Cursor,
    },
    memory::budget::MemoryCharge,
};
use bytes::Bytes;
use std::sync::Arc;

/// Cursor over one table. Range tombstones are not applied.
pub struct TableCursor {
    table: Arc<Table>,
    scan: Scan,
    partition: u32,
    index: Option<Arc<IndexPage>>,
    block_number: u32,
    block: Option<BlockCursor>,
    ahead: ReadAhead,
    /// Block and index page, which the cache may have evicted.
    held: MemoryCharge,
}

impl Drop for TableCursor {
    fn drop(&mut self) {
        self.ahead.end_scan(&self.table, self.scan);
    }
}

impl TableCursor {
    /// Cursor over all entries of `table`; not valid until it is moved.
    pub fn new(table: &Arc<Table>, scan: Scan) -> TableCursor {
        TableCursor {
            table: table.clone(),
            scan,
            partition: 0,
            index: None,
            block_number: 0,
            block: None,
            ahead: ReadAhead::default(),
            held: table.cache.budget().charge(scan.memory(), 0),
        }
    }

    fn partitions(&self) -> u32 {
        self.table.fences.len() as u32
    }

    fn place(&self) -> DamageAt {
        DamageAt::Block { partition: self.partition, block: self.block_number }
    }

    fn damaged(&mut self, damage: Damage, place: DamageAt) -> TableError {
        self.block = None;
        self.table.blame(self.partition, damage.at(self.table.id, place))
    }

    /// Makes `partition` current and returns its index page.
    fn enter(&mut self, partition: u32) -> Result<Arc<IndexPage>, TableError> {
        if let Some(index) = &self.index
            && self.partition == partition
        {
            return Ok(index.clone());
        }
        self.block = None;
        self.index = None;
        let index = match self.scan.whole {
            true => self.table.index_in_passing(partition, self.scan.class)?,
            false => self.table.index(partition, self.scan.class)?,
        };
        self.held.set(index.heap_bytes() as u64);
        self.partition = partition;
        self.index = Some(index.clone());
        Ok(index)
    }

    /// Makes a block of the current partition current.
    fn take(&mut self, at: BlockAt, way: ReadWay) -> Result<(), TableError> {
        self.block = None;
        self.block_number = at.number;
        let block = self.ahead.take(&self.table, self.scan, self.partition, at, way)?;
        let index_bytes = self.index.as_ref().map_or(0, |index| index.heap_bytes());
        self.held.set((block.heap_bytes() + index_bytes) as u64);
        self.block = Some(BlockCursor::new(block));
        Ok(())
    }

    /// Moves to block `number` of `partition`: forward to its first entry, backward to its last.
    fn enter_block(&mut self, partition: u32, number: u32, way: ReadWay) -> Result<(), TableError> {
        let index = self.enter(partition)?;
        let at = index.block(number).map_err(|damage| self.damaged(damage, DamageAt::Index(partition)))?;
        self.take(at, way)?;
        let place = self.place();
        let Some(block) = &mut self.block else {
            return Ok(());
        };
        let moved = match way {
            ReadWay::Forward => block.first(),
            ReadWay::Backward => block.last(),
        };
        moved.map_err(|damage| self.damaged(damage, place))
    }

    /// Whether the cursor skips the damage of this error.
    fn passes(&self, error: &TableError) -> bool {
        self.scan.past_damage && error.is_corruption()
    }

    /// Moves to the first entry from block `number` of `partition` on.
    fn forward_from(&mut self, mut partition: u32, mut number: u32) -> Result<(), TableError> {
        while partition < self.partitions() {
            match self.enter(partition).map(|index| index.blocks()) {
                Ok(blocks) if number < blocks => {
                    match self.enter_block(partition, number, ReadWay::Forward) {
                        Err(error) if self.passes(&error) => {
                            number += 1;
                            continue;
                        }
                        entered => return entered,
                    }
                }
                Ok(_) => {}
                Err(error) if self.passes(&error) => {}
                Err(error) => return Err(error),
            }
            (partition, number) = (partition + 1, 0);
        }
        self.block = None;
        Ok(())
    }

    /// Moves to the first entry after the current block.
    fn next_block(&mut self) -> Result<(), TableError> {
        self.forward_from(self.partition, self.block_number + 1)
    }

    /// Moves to the first entry whose key is not below `key`, skipping damage: reads from the beginning of
    /// the key's partition.
    fn seek_past_damage(&mut self, key: &[u8]) -> Result<(), TableError> {
        self.block = None;
        let found = self.table.fences.find(key);
        let Some(partition) = found.filter(|_| self.table.whole().is_ok()) else {
            return Ok(());
        };
        self.forward_from(partition as u32, 0)?;
        let is_before = |block: &BlockCursor| block.entry().is_some_and(|entry| entry.key < key);
        while self.block.as_ref().is_some_and(is_before) {
            self.try_next()?;
        }
        Ok(())
    }

    /// Moves to the last entry before the current block.
    fn prev_block(&mut self) -> Result<(), TableError> {
        if self.block_number > 0 {
            self.enter_block(self.partition, self.block_number - 1, ReadWay::Backward)
        } else if self.partition > 0 {
            let blocks = self.enter(self.partition - 1)?.blocks();
            self.enter_block(self.partition, blocks - 1, ReadWay::Backward)
        } else {
            self.block = None;
            Ok(())
        }
    }

    /// Moves to the block that would hold `(key, seq)`; false when the table has no entries.
    fn seek_block(&mut self, key: &[u8], seq: u64, way: ReadWay) -> Result<bool, TableError> {
        self.block = None;
        self.table.whole()?;
        let Some(partition) = self.table.fences.find(key) else {
            return Ok(false);
        };
        let index = self.enter(partition as u32)?;
        let at =
            index.find(key, seq).map_err(|damage| self.damaged(damage, DamageAt::Index(self.partition)))?;
        self.take(at, way)?;
        Ok(true)
    }

    /// Moves inside the current block.
    fn within(
        &mut self,
        step: impl FnOnce(&mut BlockCursor) -> Result<(), Damage>,
    ) -> Result<bool, TableError> {
        let place = self.place();
        let Some(block) = &mut self.block else {
            return Ok(false);
        };
        match step(block) {
            Ok(()) => Ok(block.valid()),
            Err(damage) => Err(self.damaged(damage, place)),
        }
    }

    /// Makes the cursor invalid after any error.
    fn note_end(&mut self, moved: Result<(), TableError>) -> Result<(), Error> {
        moved.map_err(|error| {
            self.block = None;
            error.into()
        })
    }

    fn try_seek(&mut self, key: &[u8], seq: u64) -> Result<(), TableError> {
        let Some(at) = self.table.ingested_at.get().copied() else {
            return self.try_seek_stored(key, seq);
        };
        self.try_seek_stored(key, MAX_SEQ)?;
        if seq < at && self.stands_on(key) {
            self.try_next()?;
        }
        Ok(())
    }

    fn try_seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), TableError> {
        match self.table.ingested_at.get().copied() {
            None => self.try_seek_for_prev_stored(key, seq),
            // An ingested table holds one version of a key: the wanted position is before or after it.
            Some(at) if seq <= at => self.try_seek_for_prev_stored(key, 0),
            Some(_) => self.try_seek_for_prev_stored(key, MAX_SEQ),
        }
    }

    fn stands_on(&self, key: &[u8]) -> bool {
        let entry = self.block.as_ref().and_then(BlockCursor::entry);
        entry.is_some_and(|entry| entry.key == key)
    }

    fn try_seek_stored(&mut self, key: &[u8], seq: u64) -> Result<(), TableError> {
        if self.scan.past_damage {
            return self.seek_past_damage(key);
        }
        if self.seek_block(key, seq, ReadWay::Forward)? && !self.within(|block| block.seek(key, seq))? {
            self.next_block()?;
        }
        Ok(())
    }

    fn try_seek_for_prev_stored(&mut self, key: &[u8], seq: u64) -> Result<(), TableError> {
        if self.seek_block(key, seq, ReadWay::Backward)?
            && !self.within(|block| block.seek_for_prev(key, seq))?
        {
            self.prev_block()?;
        }
        Ok(())
    }

    fn try_next(&mut self) -> Result<(), TableError> {
        if self.block.is_none() {
            return Ok(());
        }
        match self.within(BlockCursor::next) {
            Ok(true) => Ok(()),
            Ok(false) => self.next_block(),
            Err(error) if self.passes(&error) => self.next_block(),
            Err(error) => Err(error),
        }
    }

    fn try_prev(&mut self) -> Result<(), TableError> {
        if self.block.is_some() && !self.within(BlockCursor::prev)? {
            self.prev_block()?;
        }
        Ok(())
    }

    fn try_first(&mut self) -> Result<(), TableError> {
        self.block = None;
        self.table.whole()?;
        if self.partitions() > 0 {
            self.enter_block(0, 0, ReadWay::Forward)?;
        }
        Ok(())
    }

    fn try_last(&mut self) -> Result<(), TableError> {
        self.block = None;
        self.table.whole()?;
        if self.partitions() > 0 {
            let partition = self.partitions() - 1;
            let blocks = self.enter(partition)?.blocks();
            self.enter_block(partition, blocks - 1, ReadWay::Backward)?;
        }
        Ok(())
    }
}

impl Cursor for TableCursor {
    fn first(&mut self) -> Result<(), Error> {
        let moved = self.try_first();
        self.note_end(moved)
    }

    fn last(&mut self) -> Result<(), Error> {
        let moved = self.try_last();
        self.note_end(moved)
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let moved = self.try_seek(key, seq.min(MAX_SEQ));
        self.note_end(moved)
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let moved = self.try_seek_for_prev(key, seq.min(MAX_SEQ));
        self.note_end(moved)
    }

    fn next(&mut self) -> Result<(), Error> {
        let moved = self.try_next();
        self.note_end(moved)
    }

    fn prev(&mut self) -> Result<(), Error> {
        let moved = self.try_prev();
        self.note_end(moved)
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let entry = self.block.as_ref()?.entry()?;
        let seq = self.table.ingested_at.get().copied().unwrap_or(entry.seq);
        Some(Entry { seq, ..entry })
    }

    fn value(&self) -> Bytes {
        self.block.as_ref().map_or_else(Bytes::new, BlockCursor::value)
    }
}
