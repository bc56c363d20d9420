//! Writer of a table: entries in, bytes out, memory bounded by one partition's separators and hashes.
//!
//! Format: docs/formats/kv-table.md v1
//! Invariants
//! - Entries ascend strictly by (key, newest first). They may come from other tables, so an entry out of
//!   order is an error, not a panic.
//! - A partition ends before a new user key, never between two versions of one.

use super::io::Sink;
use crate::format::entry::{Entry, EntryKind, RangeTombstone, compare, pointer_head};
use crate::format::{
    block::{BlockBuilder, TARGET_BYTES},
    error::TableError,
    fences::{ALIGN, PartitionFences, PartitionPlace},
    footer::{FOOTER_BYTES, FooterSection, TableFooter},
    index::{IndexBuilder, shortest_after},
    meta::{TableMeta, ValueUse},
    tombstones,
};
use bytes::Bytes;
use copal_codec::{Put, crc32c};
use copal_filter::{FilterFit, FilterPage, KeyHash, Kind, PartitionFilterBuilder};
use copal_object::{
    CreateOptions, ObjectId, ObjectKind, ObjectLifetime, ObjectWriter, ReadCheck, StagedObject, Store,
};
use std::{cmp::Ordering, collections::BTreeMap};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of data blocks at which a partition ends.
pub(crate) const PARTITION_BYTES: u64 = 8 << 20;
/// Bytes collected before they are written to the device.
const FLUSH_BYTES: usize = 64 << 10;

/// Bytes of the builder's own buffers: unwritten data, the filter of one partition, its index.
const OWN_BYTES: u64 = 192 << 10;

/// Options of a new table.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// Compress data blocks with lz4 where that saves an eighth.
    pub compress: bool,
    /// Kind of filter units.
    pub filter: Kind,
    /// Seed of the store's key hash; must be the same for writing and reading.
    pub store_seed: u64,
    /// Expected lifetime of the table.
    pub lifetime: ObjectLifetime,
    /// Expected bytes of the table, approximate.
    pub expected_bytes: u64,
}

/// A just written partition.
pub(crate) struct NewPartition<'a> {
    pub(crate) index: u32,
    pub(crate) first: &'a [u8],
    pub(crate) last: &'a [u8],
    pub(crate) keys: u32,
    pub(crate) kind: Kind,
    pub(crate) page: &'a FilterPage,
    /// Stored index page, for `data_len` bytes of data.
    pub(crate) index_page: &'a [u8],
    pub(crate) data_len: u64,
    pub(crate) uid: u64,
    pub(crate) store_seed: u64,
}

/// Observer of the partitions of a table that is being written.
pub(crate) trait PartitionObserver: Send {
    /// Called when a partition is complete.
    fn partition(&self, partition: &NewPartition<'_>);
}

/// Builder of one table, into a sink.
pub struct TableBuilder<S = ObjectWriter> {
    sink: S,
    options: TableOptions,
    buffer: Vec<u8>,
    /// Bytes before the buffer.
    flushed: u64,
    /// CRC32C of everything before the buffer.
    object_crc: u32,

    block: BlockBuilder,
    block_first: (Vec<u8>, u64),
    /// Last key of the preceding block in the same partition.
    block_before: Option<Vec<u8>>,
    index: IndexBuilder,
    filter: PartitionFilterBuilder,
    partition: OpenPartition,
    fences: PartitionFences,
    observer: Option<Box<dyn PartitionObserver>>,

    last: Option<(Vec<u8>, u64)>,
    tombstones: Vec<RangeTombstone>,
    value_objects: BTreeMap<ObjectId, ValueUse>,
    meta: TableMeta,
}

/// The partition that is being written.
#[derive(Default)]
struct OpenPartition {
    offset: u64,
    fence: Vec<u8>,
    first_key: Vec<u8>,
    uid: u64,
    entries: u64,
    keys: u64,
}

impl TableBuilder<ObjectWriter> {
    /// Starts a table that becomes object `id` of `objects` once its [`StagedObject`] is published.
    ///
    /// # Errors
    /// The object layer refuses to write.
    pub fn new(objects: &Store, id: ObjectId, options: TableOptions) -> Result<TableBuilder, TableError> {
        let create = CreateOptions {
            kind: ObjectKind::Sealed,
            lifetime: options.lifetime,
            expected_bytes: options.expected_bytes,
            // Every part has its own checksum, so the object layer need not read whole pages to verify them.
            check: ReadCheck::Caller,
            label: *b"kv table\0\0\0\0\0\0\0\0",
        };
        Ok(TableBuilder::with_sink(objects.writer(id, create)?, id, options))
    }

    /// Limits the memory of the builder's buffers, independent of the table's size.
    #[must_use]
    pub fn with_buffers(mut self, bytes: u64) -> TableBuilder {
        self.sink = self.sink.with_buffers(bytes.saturating_sub(OWN_BYTES));
        self
    }

    /// Writes the remaining data. It is on the device then, but has no name until it is published. Blocks.
    ///
    /// # Errors
    /// The device failed or is full.
    ///
    /// # Panics
    /// When nothing was added.
    pub fn finish(self) -> Result<(StagedObject, TableMeta), TableError> {
        let (writer, meta) = self.finish_sink()?;
        Ok((writer.finish()?, meta))
    }
}

impl<S: Sink> TableBuilder<S> {
    /// Starts a table in any sink; `id` is its future object.
    pub fn with_sink(sink: S, id: ObjectId, options: TableOptions) -> TableBuilder<S> {
        let filter = PartitionFilterBuilder::new(options.filter, options.store_seed);
        TableBuilder {
            sink,
            buffer: Vec::with_capacity(FLUSH_BYTES + 2 * TARGET_BYTES),
            flushed: 0,
            object_crc: 0,
            block: BlockBuilder::default(),
            block_first: (Vec::new(), 0),
            block_before: None,
            index: IndexBuilder::default(),
            filter,
            partition: OpenPartition::default(),
            fences: PartitionFences::default(),
            observer: None,
            last: None,
            tombstones: Vec::new(),
            value_objects: BTreeMap::new(),
            meta: empty_meta(id, options.filter),
            options,
        }
    }

    /// Appends an entry, which must follow the previous one in the internal order.
    ///
    /// # Errors
    /// The device failed or is full, or entries do not ascend; the builder is unusable afterwards.
    pub fn add(&mut self, entry: Entry<'_>) -> Result<(), TableError> {
        let order = self.last.as_ref().map(|(key, seq)| compare((key, *seq), entry.position()));
        if order.is_some_and(|order| order != Ordering::Less) {
            return Err(TableError::OutOfOrder { object: self.meta.object });
        }
        let new_key = self.last.as_ref().is_none_or(|(key, _)| key != entry.key);
        if new_key {
            self.start_key(entry)?;
        } else if self.block.is_full_for(&entry) && !self.block.is_empty() {
            self.end_block()?;
        }
        if self.block.is_empty() {
            self.block_first.0.clear();
            self.block_first.0.extend_from_slice(entry.key);
            self.block_first.1 = entry.seq;
        }
        self.block.add(&entry);
        self.partition.entries += 1;
        self.account(&entry);
        let (key, seq) = self.last.get_or_insert_default();
        key.clear();
        key.extend_from_slice(entry.key);
        *seq = entry.seq;
        Ok(())
    }

    /// Sets the observer of complete partitions.
    pub(crate) fn observe(&mut self, observer: Box<dyn PartitionObserver>) {
        self.observer = Some(observer);
    }

    /// Adds a range tombstone; in any order, at any time before the end. An empty range adds nothing.
    pub fn add_range_tombstone(&mut self, tombstone: RangeTombstone) {
        if tombstone.start < tombstone.end {
            self.tombstones.push(tombstone);
        }
    }

    /// Approximate bytes of the table if it ended here.
    pub fn estimated_bytes(&self) -> u64 {
        self.position() + (self.block.bytes() + self.index.bytes()) as u64 + ALIGN + 2 * FOOTER_BYTES as u64
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.last.is_none() && self.tombstones.is_empty()
    }

    /// Like [`TableBuilder::finish`], but returns the sink.
    ///
    /// # Errors
    /// The device failed or is full.
    ///
    /// # Panics
    /// When nothing was added.
    pub fn finish_sink(mut self) -> Result<(S, TableMeta), TableError> {
        assert!(!self.is_empty(), "a table must not be empty");
        if self.last.is_some() {
            self.end_partition()?;
        }
        let partitions_end = self.position();
        tombstones::arrange(&mut self.tombstones);
        let list = std::mem::take(&mut self.tombstones);
        self.complete_meta(&list);

        let mut section = Vec::new();
        tombstones::encode(&list, &mut section);
        let tombstones = self.put_section(&mut section);
        self.fences.encode(&mut section);
        let fences = self.put_section(&mut section);
        let crc = crc32c(self.object_crc, &self.buffer);
        section.put_u32(crc);
        self.meta.encode(&mut section);
        let properties = self.put_section(&mut section);

        let padding = self.position().next_multiple_of(FOOTER_BYTES as u64) - self.position();
        self.buffer.put_zeros(padding as usize);
        let footer =
            TableFooter { object: self.meta.object, partitions_end, tombstones, fences, properties }.encode();
        self.buffer.put_bytes(&footer);
        self.buffer.put_bytes(&footer);
        self.meta.bytes = self.position();
        self.flush()?;
        Ok((self.sink, self.meta))
    }

    fn position(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Ends the block or partition if the new key requires it, and adds the key to the filter.
    fn start_key(&mut self, entry: Entry<'_>) -> Result<(), TableError> {
        let hash = KeyHash::new(entry.key, self.options.store_seed);
        let large = self.partition.entries > 0
            && self.position() - self.partition.offset + self.block.bytes() as u64 >= PARTITION_BYTES;
        if large {
            self.end_partition()?;
        } else if !self.block.is_empty() && self.block.is_full_for(&entry) {
            self.end_block()?;
        }
        if self.partition.entries == 0 {
            self.start_partition(entry);
        }
        if self.filter.add(hash) == FilterFit::Full {
            self.end_partition()?;
            self.start_partition(entry);
            let fit = self.filter.add(hash);
            assert!(fit == FilterFit::Fits, "an empty partition takes any key");
        }
        self.partition.keys += 1;
        Ok(())
    }

    fn start_partition(&mut self, entry: Entry<'_>) {
        let padding = self.position().next_multiple_of(ALIGN) - self.position();
        self.buffer.put_zeros(padding as usize);
        let mut identity = entry.key.to_vec();
        identity.put_u64(entry.seq);
        identity.put_u64(self.meta.object.0);
        identity.put_u32(self.fences.len() as u32);
        self.partition.uid = xxh3_64_with_seed(&identity, self.options.store_seed);
        self.partition.offset = self.position();
        self.partition.first_key = entry.key.to_vec();
        self.partition.fence = match &self.last {
            None => Vec::new(),
            Some((last, _)) => shortest_after(last, entry.key).to_vec(),
        };
    }

    fn end_block(&mut self) -> Result<(), TableError> {
        let number = self.index.blocks();
        let before = self.buffer.len();
        self.block.finish(&mut self.buffer, self.options.compress, self.partition.uid, number);
        let len = (self.buffer.len() - before) as u64;
        self.index.add(self.block_before.as_deref(), (&self.block_first.0, self.block_first.1), len);
        // The last added key is the last of this block.
        let (last, _) = self.last.as_ref().expect("a block that ends has entries");
        let before = self.block_before.get_or_insert_default();
        before.clear();
        before.extend_from_slice(last);
        if self.buffer.len() >= FLUSH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn end_partition(&mut self) -> Result<(), TableError> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let open = std::mem::take(&mut self.partition);
        let data_len = self.position() - open.offset;
        let (last, _) = self.last.as_ref().expect("a partition that ends has entries");
        let mut index = Vec::new();
        self.index.finish(&mut index, &open.first_key, last, open.uid);
        let page = self.filter.finish(open.uid);
        let partition = PartitionPlace {
            offset: open.offset,
            data_len,
            index_len: index.len() as u32,
            filter_len: page.as_ref().map_or(0, |page| page.as_bytes().len() as u32),
            uid: open.uid,
            keys: u32::try_from(open.keys).unwrap_or(u32::MAX),
            entries: open.entries,
        };
        let index_at = partition.index().start;
        self.buffer.put_zeros((index_at - self.position()) as usize);
        self.buffer.put_bytes(&index);
        if let Some(page) = page {
            self.buffer.put_bytes(page.as_bytes());
            if let Some(observer) = &self.observer {
                observer.partition(&NewPartition {
                    index: self.fences.len() as u32,
                    first: &open.first_key,
                    last,
                    keys: partition.keys,
                    kind: self.options.filter,
                    page: &page,
                    index_page: &index,
                    data_len,
                    uid: open.uid,
                    store_seed: self.options.store_seed,
                });
            }
        }
        self.fences.push(&open.fence, partition);
        self.meta.keys += open.keys;
        self.block_before = None;
        self.flush()
    }

    fn flush(&mut self) -> Result<(), TableError> {
        self.sink.append(&self.buffer)?;
        self.object_crc = crc32c(self.object_crc, &self.buffer);
        self.flushed += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn put_section(&mut self, bytes: &mut Vec<u8>) -> FooterSection {
        let section = FooterSection::of(self.position(), bytes);
        self.buffer.append(bytes);
        section
    }

    fn account(&mut self, entry: &Entry<'_>) {
        if self.meta.entries == 0 {
            self.meta.smallest = Bytes::copy_from_slice(entry.key);
        }
        self.meta.entries += 1;
        self.meta.min_seq = self.meta.min_seq.min(entry.seq);
        self.meta.max_seq = self.meta.max_seq.max(entry.seq);
        self.meta.key_bytes += entry.key.len() as u64;
        match entry.kind {
            EntryKind::Delete => self.meta.deletes += 1,
            EntryKind::Put => self.meta.value_bytes += entry.value.len() as u64,
            EntryKind::Pointer => {
                let Some((object, len)) = pointer_head(entry.value) else {
                    return;
                };
                let none = ValueUse { object, values: 0, bytes: 0, key_bytes: 0 };
                let used = self.value_objects.entry(object).or_insert(none);
                used.values += 1;
                used.bytes += u64::from(len);
                used.key_bytes += entry.key.len() as u64;
            }
        }
    }

    /// Range, counts and value objects of the whole table.
    fn complete_meta(&mut self, tombstones: &[RangeTombstone]) {
        let meta = &mut self.meta;
        meta.partitions = self.fences.len() as u32;
        meta.range_tombstones = tombstones.len() as u64;
        meta.value_objects = std::mem::take(&mut self.value_objects).into_values().collect();
        let mut smallest: Option<Bytes> = None;
        if let Some((last, _)) = &self.last {
            smallest = Some(meta.smallest.clone());
            meta.largest = Bytes::copy_from_slice(last);
        }
        for tombstone in tombstones.iter() {
            meta.min_seq = meta.min_seq.min(tombstone.seq);
            meta.max_seq = meta.max_seq.max(tombstone.seq);
            if smallest.as_ref().is_none_or(|smallest| tombstone.start < smallest) {
                smallest = Some(tombstone.start.clone());
            }
            if tombstone.end > meta.largest {
                meta.largest = tombstone.end.clone();
                meta.largest_is_exclusive = true;
            }
        }
        meta.smallest = smallest.unwrap_or_default();
    }
}

fn empty_meta(object: ObjectId, filter: Kind) -> TableMeta {
    TableMeta {
        object,
        bytes: 0,
        smallest: Bytes::new(),
        largest: Bytes::new(),
        largest_is_exclusive: false,
        entries: 0,
        keys: 0,
        deletes: 0,
        range_tombstones: 0,
        min_seq: u64::MAX,
        max_seq: 0,
        key_bytes: 0,
        value_bytes: 0,
        partitions: 0,
        filter,
        value_objects: Vec::new(),
    }
}
