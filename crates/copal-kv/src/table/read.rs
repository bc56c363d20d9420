//! Open table: look-ups.
//!
//! Invariants
//! - A look-up reads the filter page at most once per partition while the filter budget has room, the index
//!   page when it is not cached, and one data block; two only where one key's versions span blocks.
//! - A part whose checksum differs is read once more before it counts as damaged.

use super::{
    block::{Block, BlockCursor, len_of_last},
    counters::Count,
    error::{Damage, Place, TableError},
    fences::{Fences, Partition},
    filter::FilterSlot,
    footer::{FOOTER_BYTES, Footer, Section},
    index::{BlockAt, IndexBuilder, IndexPage},
    io::{ObjectSource, ReadAt},
    meta::TableMeta,
    tombstones,
};
use crate::{
    cache::{Page, PageKey, TableCache},
    entry::{EntryKind, MAX_SEQ, RangeTombstone},
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_device::Class;
use copal_filter::KeyHash;
use copal_object::{ObjectId, Store};
use std::{ops::Range, sync::Arc};

/// Bytes read from the end of a table when it is opened; fences and properties are often among them.
const TAIL_BYTES: u64 = 64 << 10;

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
    tombstones: Vec<RangeTombstone>,
    /// Its name in the cache.
    number: u64,
    resident_bytes: u64,
}

impl Table {
    /// Opens object `id`: one or two reads, blocking.
    ///
    /// # Errors
    /// `Corrupt`: footer, fences, properties or tombstones are damaged. `Unsupported`: newer format.
    pub fn open(
        objects: &Store,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        let source = Box::new(ObjectSource {
            store: objects.clone(),
            id,
        });
        Table::open_source(source, id, cache, options)
    }

    /// Opens a table held in memory: tests and tools.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn open_bytes(
        bytes: Bytes,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        Table::open_source(Box::new(bytes), id, cache, options)
    }

    pub(super) fn open_source(
        source: Box<dyn ReadAt>,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        let len = source.len()?;
        let tail = Tail::read(&*source, id, len)?;
        let last = tail.bytes.len().saturating_sub(2 * FOOTER_BYTES);
        let footer = Footer::from_tail(&tail.bytes[last..], id, len)?;
        let tombstones = tail.section(
            &*source,
            footer.tombstones,
            "range tombstones",
            tombstones::decode,
        )?;
        let fences = tail.section(&*source, footer.fences, "fences", |bytes| {
            Fences::decode(bytes, footer.partitions_end)
        })?;
        let (object_crc, mut meta) = tail.section(&*source, footer.properties, "properties", properties)?;
        if meta.object != id || meta.partitions as usize != fences.len() {
            return Err(Damage::Field("object or number of partitions").at(id, Place::Section("properties")));
        }
        meta.bytes = len;
        let filters: Box<[FilterSlot]> = (0..fences.len()).map(|_| FilterSlot::default()).collect();
        let resident_bytes = (size_of::<Table>()
            + fences.heap_bytes()
            + size_of_val(&*filters)
            + tombstones::heap_bytes(&tombstones)) as u64;
        let number = cache.register_table(resident_bytes);
        Ok(Arc::new(Table {
            id,
            source,
            cache,
            options,
            meta,
            fences,
            filters,
            object_crc,
            footer,
            tombstones,
            number,
            resident_bytes,
        }))
    }

    /// The newest version of `key` at or below `read_seq`. Range tombstones are not applied. Blocks on reads.
    ///
    /// # Errors
    /// `Corrupt` names the partition and block that are damaged; other keys may still be read.
    pub fn get(&self, key: &[u8], read_seq: u64, hash: &KeyHash) -> Result<Option<Found>, TableError> {
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

    pub(super) fn partition(&self, partition: u32) -> &Partition {
        self.fences.partition(partition as usize)
    }

    pub(super) fn read(&self, range: Range<u64>, class: Class) -> Result<Bytes, TableError> {
        Ok(self.source.read_at(range, class)?)
    }

    /// Index page of a partition, from the cache or the device; rebuilt when it is damaged.
    pub(super) fn index(&self, partition: u32, class: Class) -> Result<Arc<IndexPage>, TableError> {
        let key = self.index_key(partition);
        if let Some(Page::Index(page)) = self.cache.get(key) {
            return Ok(page);
        }
        let at = self.partition(partition);
        self.cache.count(Count::IndexPageReads);
        let decode = |bytes: &Bytes| IndexPage::decode(bytes, at.uid, at.data_len);
        let page = match decode(&self.read(at.index(), class)?) {
            Ok(page) => page,
            Err(_) => match decode(&self.read(at.index(), class)?) {
                Ok(page) => page,
                Err(damage) => self.rebuild_index(partition, &damage, class)?,
            },
        };
        Ok(self.keep_index(key, page))
    }

    pub(super) fn index_key(&self, partition: u32) -> PageKey {
        PageKey {
            table: self.number,
            partition,
            block: PageKey::INDEX,
        }
    }

    pub(super) fn keep_index(&self, key: PageKey, page: IndexPage) -> Arc<IndexPage> {
        let page = Arc::new(page);
        self.cache.insert(key, Page::Index(page.clone()));
        page
    }

    /// Makes the index page anew from the data blocks, found from the last to the first by their trailers.
    fn rebuild_index(&self, partition: u32, why: &Damage, class: Class) -> Result<IndexPage, TableError> {
        let at = self.partition(partition);
        tracing::warn!(table = self.id.0, partition, %why, "index page damaged, rebuilding it from the blocks");
        self.cache.count(Count::RebuiltIndexes);
        let data = self.read(at.data(), class)?;
        let broken = |damage: Damage| damage.at(self.id, Place::Partition(partition));
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
            let place = Place::Block {
                partition,
                block: number as u32,
            };
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
        PageKey {
            table: self.number,
            partition,
            block,
        }
    }

    /// Reads and checks a block, twice if need be.
    pub(super) fn read_block(&self, partition: u32, at: BlockAt, class: Class) -> Result<Block, TableError> {
        let (start, uid) = (self.partition(partition).offset, self.partition(partition).uid);
        let range = start + at.offset..start + at.range().end;
        let stored = self.read(range.clone(), class)?;
        if let Ok(block) = Block::decode(&stored, uid, at.number) {
            return Ok(block);
        }
        let stored = self.read(range, class)?;
        Block::decode(&stored, uid, at.number).map_err(|damage| {
            damage.at(
                self.id,
                Place::Block {
                    partition,
                    block: at.number,
                },
            )
        })
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.cache.release_table(self.resident_bytes);
    }
}

/// The last bytes of a table, read at once.
struct Tail {
    bytes: Bytes,
    start: u64,
    id: ObjectId,
}

impl Tail {
    fn read(source: &dyn ReadAt, id: ObjectId, len: u64) -> Result<Tail, TableError> {
        let start = len.saturating_sub(TAIL_BYTES);
        Ok(Tail {
            bytes: source.read_at(start..len, Class::Foreground)?,
            start,
            id,
        })
    }

    /// Decodes a section, out of the tail if it lies there, reading it once more if it is damaged.
    fn section<T>(
        &self,
        source: &dyn ReadAt,
        section: Section,
        name: &'static str,
        decode: impl Fn(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, TableError> {
        let decode = |bytes: &[u8]| section.check(bytes).and_then(|()| decode(bytes));
        let in_tail = section.offset.checked_sub(self.start).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            self.bytes
                .get(from..from.checked_add(usize::try_from(section.len).ok()?)?)
        });
        if let Some(Ok(decoded)) = in_tail.map(&decode) {
            return Ok(decoded);
        }
        let bytes = source.read_at(section.range(), Class::Foreground)?;
        decode(&bytes).map_err(|damage| damage.at(self.id, Place::Section(name)))
    }
}

/// Checksum of everything before the properties, and the summary.
fn properties(section: &[u8]) -> Result<(u32, TableMeta), Damage> {
    let mut from = Reader::new(section);
    let crc = from.u32()?;
    let meta = TableMeta::decode(&mut from)?;
    from.finish()?;
    Ok((crc, meta))
}
