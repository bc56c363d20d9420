//! Look-ups of one key in a table, step by step, and the pages they read.
//!
//! A look-up of one key runs all steps at once ([`Table::get`]). Look-ups of many keys run step by step, so
//! that the pages of all of them are read together (`multi_get`).
//!
//! Invariants
//! - A look-up reads a partition's filter page only when no unit is loaded and some fit. It reads the index
//!   page when it is not cached. It reads one data block, or two where one key's versions span blocks.
//! - A key that may be in a damaged block is an error, never absent.
//! - A part whose checksum differs is read once more before it counts as damaged.
//! - A damaged index page is rebuilt from the blocks of its partition; a damaged block is an error.
//!
//! Not here: filters (`filter`).

use super::filter::FilterAnswer;
use super::io::{ReadSizes, again_if_damaged};
use super::reader::Table;
use crate::{
    format::{
        block::{DataBlock, len_of_last},
        block_cursor::BlockCursor,
        entry::{EntryKind, MAX_SEQ},
        error::{Damage, DamageAt, TableError},
        fences::PartitionPlace,
        index::{BlockAt, IndexBuilder, IndexPage},
    },
    memory::{
        budget::{MemoryCharge, MemoryClass as Memory},
        cache::{Page, PageKey},
        elastic::PredictedPartition,
    },
    session::read_counters::ReadCount,
};
use bytes::Bytes;
use copal_device::{Completion, IoClass};
use copal_filter::{KeyHash, rules::Outcome};
use copal_object::StoreError;
use std::{ops::Range, sync::Arc};

/// A version that a look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableHit {
    /// Sequence of the version.
    pub seq: u64,
    /// Kind of the version.
    pub kind: EntryKind,
    /// Value of the version, sharing the memory of its block.
    pub value: Bytes,
}

/// Blocks that a look-up caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeepPolicy {
    /// All blocks it reads.
    Blocks,
    /// Blocks with a pointer that it searched for: the value itself is cached elsewhere or not at all. The others
    /// only for a while (`memory::recent_blocks`).
    Pointers,
    /// None.
    Nothing,
}

impl KeepPolicy {
    fn wants(self, found: Option<&TableHit>) -> bool {
        match self {
            KeepPolicy::Blocks => true,
            KeepPolicy::Pointers => found.is_some_and(|found| found.kind == EntryKind::Pointer),
            KeepPolicy::Nothing => false,
        }
    }
}

/// A partition whose filter let a key pass, and the sequence to search for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LookupPlace {
    pub(crate) partition: u32,
    pub(super) read_seq: u64,
}

/// A block, and whether it was in memory.
#[derive(Clone)]
pub(crate) struct TakenBlock {
    at: BlockAt,
    block: DataBlock,
    pub(crate) cached: bool,
}

impl Table {
    /// Searches the partition for the wanted version of `key`; true: its block was not in memory. Blocks on reads.
    pub(crate) fn find_at(
        &self,
        asked: &LookupPlace,
        key: &[u8],
        keep: KeepPolicy,
    ) -> Result<(Option<TableHit>, bool), TableError> {
        let index = self.index(asked.partition, IoClass::Foreground)?;
        let at = self.block_of(&index, asked, key)?;
        let taken = self.take(asked.partition, at)?;
        let was_read = !taken.cached;
        Ok((self.search(asked, &index, taken, key, keep)?, was_read))
    }

    /// The block that holds the key, if the partition does.
    pub(crate) fn block_of(
        &self,
        index: &IndexPage,
        asked: &LookupPlace,
        key: &[u8],
    ) -> Result<BlockAt, TableError> {
        let found = index.find(key, asked.read_seq);
        found.map_err(|damage| damage.at(self.id, DamageAt::Index(asked.partition)))
    }

    /// The index page of a partition, if it is cached.
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

    /// Decodes an index page that was read already; reads it again, or rebuilds it, if it is damaged.
    pub(crate) fn index_from(&self, partition: u32, stored: &[u8]) -> Result<Arc<IndexPage>, TableError> {
        let at = self.partition(partition);
        match IndexPage::decode(stored, at.uid, at.data_len) {
            Ok(page) => {
                self.cache.count(ReadCount::IndexPageReads);
                Ok(self.keep_index(self.index_key(partition), page))
            }
            Err(_) => self.index(partition, IoClass::Foreground),
        }
    }

    /// A block, if it is cached or was read lately.
    pub(crate) fn cached_block(&self, partition: u32, at: BlockAt) -> Option<TakenBlock> {
        let key = self.block_key(partition, at.number);
        match self.cache.get(key) {
            Some(Page::Block(block)) => Some(TakenBlock { at, block, cached: true }),
            _ => self.cache.recent(key).map(|block| TakenBlock { at, block, cached: false }),
        }
    }

    /// Bytes of the object that hold a block.
    pub(crate) fn block_range(&self, partition: u32, at: BlockAt) -> Range<u64> {
        let start = self.partition(partition).offset;
        start + at.offset..start + at.range().end
    }

    /// Decodes a block that was read already; reads it again if it is damaged.
    pub(crate) fn block_from(
        &self,
        partition: u32,
        at: BlockAt,
        stored: &[u8],
    ) -> Result<TakenBlock, TableError> {
        self.cache.count(ReadCount::DataBlockReads);
        let block = match DataBlock::decode(stored, self.partition(partition).uid, at.number) {
            Ok(block) => block,
            Err(_) => self.read_block(partition, at, IoClass::Foreground)?,
        };
        Ok(TakenBlock { at, block, cached: false })
    }

    fn take(&self, partition: u32, at: BlockAt) -> Result<TakenBlock, TableError> {
        if let Some(taken) = self.cached_block(partition, at) {
            return Ok(taken);
        }
        self.cache.count(ReadCount::DataBlockReads);
        let block = self.read_block(partition, at, IoClass::Foreground)?;
        Ok(TakenBlock { at, block, cached: false })
    }

    /// Searches for the key in the block that would hold it.
    pub(crate) fn search(
        &self,
        asked: &LookupPlace,
        index: &IndexPage,
        mut taken: TakenBlock,
        key: &[u8],
        keep: KeepPolicy,
    ) -> Result<Option<TableHit>, TableError> {
        let LookupPlace { partition, read_seq } = *asked;
        let damaged = |block| {
            move |damage: Damage| {
                self.blame(partition, damage.at(self.id, DamageAt::Block { partition, block }))
            }
        };
        let mut cursor = BlockCursor::new(taken.block.clone());
        cursor.seek(key, read_seq).map_err(damaged(taken.at.number))?;
        if !cursor.valid() && taken.at.number + 1 < index.blocks() {
            // The block ends before (key, read_seq). The wanted version can begin the next block only if this
            // block ends with newer versions of the same key.
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
                (Some(TableHit { seq, kind, value }), Outcome::Hit)
            }
            _ => (None, self.outcome_of_absence(&mut cursor, key, read_seq)),
        };
        self.note_probe(partition, outcome);
        if !taken.cached {
            let key = self.block_key(partition, taken.at.number);
            match keep {
                keep if keep.wants(found.as_ref()) => self.cache.insert(key, Page::Block(taken.block)),
                KeepPolicy::Pointers => self.cache.keep_recent(key, &taken.block),
                KeepPolicy::Blocks | KeepPolicy::Nothing => {}
            }
        }
        Ok(found)
    }

    /// Outcome of a probe that found no visible version. If only newer versions are there, that was no false
    /// positive of the filter.
    fn outcome_of_absence(&self, cursor: &mut BlockCursor, key: &[u8], read_seq: u64) -> Outcome {
        let newer = read_seq < MAX_SEQ
            && cursor.seek(key, MAX_SEQ).is_ok()
            && cursor.entry().is_some_and(|entry| entry.key == key);
        if newer {
            return Outcome::Hit;
        }
        self.cache.count(ReadCount::FalsePositives);
        Outcome::FalsePositive
    }
}

impl Table {
    /// The newest version of `key` at or below `read_seq`. Range tombstones are not applied. Blocks on reads.
    ///
    /// # Errors
    /// `Corrupt` names the damaged partition and block; other keys may still be readable.
    pub fn get(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<TableHit>, TableError> {
        match self.ask(key, read_seq, hash)? {
            None => Ok(None),
            Some(place) => Ok(self.find_at(&place, key, KeepPolicy::Blocks)?.0),
        }
    }

    /// The partition to search for `key`; `None`: fences or filter exclude the key.
    pub(crate) fn ask(
        &self,
        key: &[u8],
        read_seq: u64,
        hash: &KeyHash,
    ) -> Result<Option<LookupPlace>, TableError> {
        let read_seq = match self.ingested_at.get().copied() {
            None => read_seq,
            Some(seq) if read_seq < seq => return Ok(None),
            Some(_) => MAX_SEQ,
        };
        let Some(partition) = self.partition_of(key)? else {
            return Ok(None);
        };
        self.cache.count(ReadCount::FilterProbes);
        if self.ask_filter(partition, hash)? == FilterAnswer::No {
            self.cache.count(ReadCount::FilterNegatives);
            self.note_probe(partition, Outcome::Negative);
            return Ok(None);
        }
        Ok(Some(LookupPlace { partition, read_seq }))
    }

    /// The partition that would hold `key`; `None` outside the table's range.
    ///
    /// # Errors
    /// The whole table is damaged: its range is unknown.
    fn partition_of(&self, key: &[u8]) -> Result<Option<u32>, TableError> {
        self.whole()?;
        if !self.meta.covers(key) {
            return Ok(None);
        }
        Ok(self.fences.find(key).map(|partition| partition as u32))
    }
}

impl Table {
    pub(super) fn partition(&self, partition: u32) -> &PartitionPlace {
        self.fences.partition(partition as usize)
    }

    /// Sizes of reads that suit its source.
    pub(super) fn read_sizes(&self) -> ReadSizes {
        self.source.sizes()
    }

    pub(super) fn read(&self, range: Range<u64>, class: IoClass) -> Result<Bytes, TableError> {
        Ok(self.source.read_at(range, class)?)
    }

    /// Like [`Table::read`], without waiting.
    pub(super) fn read_soon(
        &self,
        range: Range<u64>,
        class: IoClass,
    ) -> Completion<Result<Bytes, StoreError>> {
        self.source.read_soon(range, class)
    }

    /// Charges the bytes of a read and of its decoded form.
    fn charge_read(&self, len: u64) -> MemoryCharge {
        self.cache.budget().charge(Memory::Reads, 2 * len)
    }

    /// Index page of a partition, from the cache or the device; rebuilt if it is damaged.
    pub(super) fn index(&self, partition: u32, class: IoClass) -> Result<Arc<IndexPage>, TableError> {
        if let Some(page) = self.cached_index(partition) {
            return Ok(page);
        }
        let page = self.read_index(partition, class)?;
        Ok(self.keep_index(self.index_key(partition), page))
    }

    /// Like [`Table::index`], for callers that read everything once: does not cache the page.
    pub(super) fn index_in_passing(
        &self,
        partition: u32,
        class: IoClass,
    ) -> Result<Arc<IndexPage>, TableError> {
        match self.cached_index(partition) {
            Some(page) => Ok(page),
            None => self.read_index(partition, class).map(Arc::new),
        }
    }

    fn read_index(&self, partition: u32, class: IoClass) -> Result<IndexPage, TableError> {
        let at = self.partition(partition);
        let _reading = self.charge_read(u64::from(at.index_len));
        self.cache.count(ReadCount::IndexPageReads);
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

    /// Caches the index pages that were kept while the table was written.
    pub(crate) fn attach_index_pages(&self, predicted: &mut [PredictedPartition]) {
        for PredictedPartition { index, page, .. } in predicted {
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

    /// Rebuilds the index page from the data blocks, found from the last to the first by their trailers.
    fn rebuild_index(
        &self,
        partition: u32,
        why: &TableError,
        class: IoClass,
    ) -> Result<IndexPage, TableError> {
        let at = self.partition(partition);
        tracing::warn!(table = self.id.0, partition, %why, "index page damaged, rebuilding it from the blocks");
        self.cache.count(ReadCount::RebuiltIndexes);
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
                DataBlock::decode_shared(&data.slice(start..end), at.uid, number as u32).map_err(broken)?;
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
    pub(super) fn block(&self, partition: u32, at: BlockAt, class: IoClass) -> Result<DataBlock, TableError> {
        let key = self.block_key(partition, at.number);
        if let Some(Page::Block(block)) = self.cache.get(key) {
            return Ok(block);
        }
        self.cache.count(ReadCount::DataBlockReads);
        let block = self.read_block(partition, at, class)?;
        self.cache.insert(key, Page::Block(block.clone()));
        Ok(block)
    }

    pub(super) fn block_key(&self, partition: u32, block: u32) -> PageKey {
        PageKey { table: self.number, partition, block }
    }

    /// Reads and checks a block, at most twice.
    pub(super) fn read_block(
        &self,
        partition: u32,
        at: BlockAt,
        class: IoClass,
    ) -> Result<DataBlock, TableError> {
        let (start, uid) = (self.partition(partition).offset, self.partition(partition).uid);
        let range = start + at.offset..start + at.range().end;
        let block = at.number;
        let _reading = self.charge_read(at.len);
        let once = || {
            let stored = self.read(range.clone(), class)?;
            let decoded = DataBlock::decode(&stored, uid, block);
            decoded.map_err(|damage| damage.at(self.id, DamageAt::Block { partition, block }))
        };
        again_if_damaged(once).map_err(|error| self.blame(partition, error))
    }
}
