//! Index pages and data blocks of an open table: from the cache, from the device, or made anew.
//!
//! Invariants
//! - A part whose checksum differs is read once more before it counts as damaged.
//! - A damaged index page is made anew from the blocks of its partition; a damaged block is an error.

use super::opened::Table;
use crate::format::{
    block::{Block, len_of_last},
    block_cursor::BlockCursor,
    error::{Damage, DamageAt, TableError},
    fences::Partition,
    index::{BlockAt, IndexBuilder, IndexPage},
};
use crate::memory::{
    budget::{Charge, Class as Memory},
    cache::{Page, PageKey},
    elastic::Predicted,
};
use crate::session::read_counters::Count;
use bytes::Bytes;
use copal_device::{Class, Completion};
use copal_object::StoreError;
use std::{ops::Range, sync::Arc};

impl Table {
    pub(super) fn partition(&self, partition: u32) -> &Partition {
        self.fences.partition(partition as usize)
    }

    pub(super) fn read(&self, range: Range<u64>, class: Class) -> Result<Bytes, TableError> {
        Ok(self.source.read_at(range, class)?)
    }

    /// As [`Table::read`], for later.
    pub(super) fn read_soon(&self, range: Range<u64>, class: Class) -> Completion<Result<Bytes, StoreError>> {
        self.source.read_soon(range, class)
    }

    /// Charges a read and what is decoded from it.
    fn charge_read(&self, len: u64) -> Charge {
        self.cache.budget().charge(Memory::Reads, 2 * len)
    }

    /// Index page of a partition, from the cache or the device; rebuilt when it is damaged.
    pub(super) fn index(&self, partition: u32, class: Class) -> Result<Arc<IndexPage>, TableError> {
        if let Some(page) = self.cached_index(partition) {
            return Ok(page);
        }
        let page = self.read_index(partition, class)?;
        Ok(self.keep_index(self.index_key(partition), page))
    }

    /// As [`Table::index`], for who takes everything once: what was not in the cache does not go there.
    pub(super) fn index_in_passing(
        &self,
        partition: u32,
        class: Class,
    ) -> Result<Arc<IndexPage>, TableError> {
        match self.cached_index(partition) {
            Some(page) => Ok(page),
            None => self.read_index(partition, class).map(Arc::new),
        }
    }

    fn read_index(&self, partition: u32, class: Class) -> Result<IndexPage, TableError> {
        let at = self.partition(partition);
        let _reading = self.charge_read(u64::from(at.index_len));
        self.cache.count(Count::IndexPageReads);
        let once = || {
            let bytes = self.read(at.index(), class)?;
            let decoded = IndexPage::decode(&bytes, at.uid, at.data_len);
            decoded.map_err(|damage| damage.at(self.id, DamageAt::Index(partition)))
        };
        match again_if_damaged(once) {
            Err(error) if error.is_corruption() => {
                self.rebuild_index(partition, &error, class).map_err(|error| self.blame(partition, error))
            }
            page => page,
        }
    }

    /// Puts the index pages that were kept as the table was written into the cache.
    pub(crate) fn attach_index_pages(&self, predicted: &mut [Predicted]) {
        for Predicted { index, page, .. } in predicted {
            if let Some(page) = page.take() {
                page.hand_over(|page| drop(self.keep_index(self.index_key(*index), page)));
            }
        }
    }

    /// Whether the index page of a partition is in the cache.
    pub(crate) fn has_index(&self, partition: u32) -> bool {
        self.cache.holds(self.index_key(partition))
    }

    pub(super) fn index_key(&self, partition: u32) -> PageKey {
        PageKey { table: self.number, partition, block: PageKey::INDEX }
    }

    pub(super) fn keep_index(&self, key: PageKey, page: IndexPage) -> Arc<IndexPage> {
        let page = Arc::new(page);
        self.cache.insert(key, Page::Index(page.clone()));
        page
    }

    /// Makes the index page anew from the data blocks, found from the last to the first by their trailers.
    fn rebuild_index(&self, partition: u32, why: &TableError, class: Class) -> Result<IndexPage, TableError> {
        let at = self.partition(partition);
        tracing::warn!(table = self.id.0, partition, %why, "index page damaged, rebuilding it from the blocks");
        self.cache.count(Count::RebuiltIndexes);
        let _reading = self.charge_read(at.data_len);
        let data = self.read(at.data(), class)?;
        let broken = |damage: Damage| damage.at(self.id, DamageAt::Partition(partition));
        let mut starts = Vec::new();
        let mut end = data.len();
        while end > 0 {
            end -= len_of_last(&data[..end]).ok_or_else(|| broken(Damage::Field("block length")))?;
            starts.push(end);
        }
        starts.reverse();
        let (mut index, mut last, mut first_key) = (IndexBuilder::default(), None::<Vec<u8>>, Vec::new());
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).copied().unwrap_or(data.len());
            let place = DamageAt::Block { partition, block: number as u32 };
            let broken = |damage: Damage| damage.at(self.id, place);
            let block =
                Block::decode_shared(&data.slice(start..end), at.uid, number as u32).map_err(broken)?;
            let mut cursor = BlockCursor::new(block);
            cursor.first().map_err(broken)?;
            let first = cursor.entry().ok_or_else(|| broken(Damage::Field("entries")))?;
            if number == 0 {
                first_key = first.key.to_vec();
            }
            index.add(last.as_deref(), first.position(), (end - start) as u64);
            cursor.last().map_err(broken)?;
            last = cursor.entry().map(|entry| entry.key.to_vec());
        }
        let last = last.ok_or_else(|| broken(Damage::Field("data length")))?;
        let mut page = Vec::new();
        index.finish(&mut page, &first_key, &last, at.uid);
        IndexPage::decode(&page, at.uid, at.data_len).map_err(broken)
    }

    /// One data block, from the cache or the device.
    pub(super) fn block(&self, partition: u32, at: BlockAt, class: Class) -> Result<Block, TableError> {
        let key = self.block_key(partition, at.number);
        if let Some(Page::Block(block)) = self.cache.get(key) {
            return Ok(block);
        }
        self.cache.count(Count::DataBlockReads);
        let block = self.read_block(partition, at, class)?;
        self.cache.insert(key, Page::Block(block.clone()));
        Ok(block)
    }

    pub(super) fn block_key(&self, partition: u32, block: u32) -> PageKey {
        PageKey { table: self.number, partition, block }
    }

    /// Reads and checks a block, twice if need be.
    pub(super) fn read_block(&self, partition: u32, at: BlockAt, class: Class) -> Result<Block, TableError> {
        let (start, uid) = (self.partition(partition).offset, self.partition(partition).uid);
        let range = start + at.offset..start + at.range().end;
        let block = at.number;
        let _reading = self.charge_read(at.len);
        let once = || {
            let stored = self.read(range.clone(), class)?;
            let decoded = Block::decode(&stored, uid, block);
            decoded.map_err(|damage| damage.at(self.id, DamageAt::Block { partition, block }))
        };
        again_if_damaged(once).map_err(|error| self.blame(partition, error))
    }
}

/// Reads a second time what differed: a device that errs once is not damaged.
pub(super) fn again_if_damaged<T>(once: impl Fn() -> Result<T, TableError>) -> Result<T, TableError> {
    once().or_else(|error| if error.is_corruption() { once() } else { Err(error) })
}
