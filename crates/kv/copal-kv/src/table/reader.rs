//! An open table: opening it, and its resident memory.
//!
//! Invariant: footer, range tombstones, fences and properties take one read if they fit 64 KiB, and one more
//! read for each that does not.
//!
//! Not here: look-ups and pages (`lookup`), cursors (`cursor`), filters (`filter`).

use super::io::again_if_damaged;
use super::{
    damage::{DamageNotes, LostKeys},
    io::{ObjectSource, ReadAt},
    typical_scan::TypicalScan,
};
use crate::{
    format::{
        entry::RangeTombstone,
        error::{Damage, DamageAt, TableError},
        fences::PartitionFences,
        footer::{FOOTER_BYTES, FooterSection, TableFooter},
        meta::TableMeta,
        tombstones,
    },
    memory::{
        cache::{FilterCharge, TableCache, TableCharge},
        elastic::{AtHand, ElasticFilters, FilterSlot, FilteredTable, PredictedPartition},
    },
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_device::IoClass;
use copal_filter::Kind;
use copal_object::{ObjectId, Store};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Options for reading tables.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    /// Seed of the store's key hash; with a seed other than the writer's every filter is unusable.
    pub store_seed: u64,
}

/// An open table; shared by all readers.
pub struct Table {
    pub(super) id: ObjectId,
    pub(super) source: Box<dyn ReadAt>,
    pub(super) cache: Arc<TableCache>,
    pub(super) options: ReadOptions,
    pub(super) meta: TableMeta,
    pub(super) fences: PartitionFences,
    pub(super) filters: Box<[FilterSlot]>,
    pub(super) object_crc: u32,
    pub(super) footer: TableFooter,
    pub(super) tombstones: Vec<RangeTombstone>,
    pub(super) damages: DamageNotes,
    /// Number of the table in the cache.
    pub(super) number: u64,
    pub(super) resident_bytes: u64,
    pub(super) _charge: TableCharge,
    /// Sequence of all entries of an ingested table, instead of their stored ones.
    pub(super) ingested_at: OnceLock<u64>,
    pub(super) typical_scan: TypicalScan,
    /// Charge of the loaded units of all partitions.
    pub(super) filter_charge: Mutex<FilterCharge>,
}

impl Table {
    /// Sets the sequence of all entries of an ingested table. Must be called before the first read.
    pub(crate) fn set_sequence(&self, seq: u64) {
        self.ingested_at.get_or_init(|| seq);
    }

    /// Range tombstones of the table, by start, newest first.
    pub fn range_tombstones(&self) -> &[RangeTombstone] {
        &self.tombstones
    }

    /// Metadata of the table.
    pub fn meta(&self) -> &TableMeta {
        &self.meta
    }

    /// Object of the table.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Bytes of memory that the table holds while it is open, without filters and cached pages.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// Number of the table in the cache; no other open table ever has it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Number of its partitions.
    pub(crate) fn partitions(&self) -> u32 {
        self.fences.len() as u32
    }

    /// # Errors
    /// The whole table is damaged.
    pub(super) fn whole(&self) -> Result<(), TableError> {
        self.damages.whole()
    }

    /// Records that a partition is damaged, if the error says so, and returns the error.
    pub(super) fn blame(&self, partition: u32, error: TableError) -> TableError {
        self.damages.blame(self.id, partition, error)
    }

    /// Lost keys found so far, ascending.
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

/// Bytes read from the end of a table at opening; often they include fences and properties.
const TAIL_BYTES: u64 = 64 << 10;

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
        let table = Table::open_object(objects, id, cache, options)?;
        table.attach_filters(0, &mut Vec::new(), &mut AtHand::default());
        table.elastic().adjust_to_budget(&AtHand::default());
        Ok(table)
    }

    /// Like [`Table::open`], but its filters are not adjusted until [`Table::attach_filters`].
    pub(crate) fn open_object(
        objects: &Store,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        let source = Box::new(ObjectSource { store: objects.clone(), id });
        Table::open_source(source, id, cache, options)
    }

    /// Registers the partitions for filter units, beginning with the predicted ones. `level`: level of the
    /// table's run for the filter rules.
    pub(crate) fn attach_filters(
        self: &Arc<Self>,
        level: u8,
        predicted: &mut Vec<PredictedPartition>,
        at_hand: &mut AtHand,
    ) {
        let table: Arc<dyn FilteredTable> = self.clone();
        self.elastic().clone().adopt(&table, level, predicted, at_hand);
    }

    /// Opens a table in memory, for tests and tools.
    ///
    /// # Errors
    /// As [`Table::open`].
    pub fn open_bytes(
        bytes: Bytes,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        let table = Table::open_source(Box::new(bytes), id, cache, options)?;
        table.attach_filters(0, &mut Vec::new(), &mut AtHand::default());
        table.elastic().adjust_to_budget(&AtHand::default());
        Ok(table)
    }

    pub(super) fn open_source(
        source: Box<dyn ReadAt>,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
    ) -> Result<Arc<Table>, TableError> {
        let len = source.len()?;
        let described = || {
            let tail = TableTail::read(&*source, id, len)?;
            let last = tail.bytes.len().saturating_sub(2 * FOOTER_BYTES);
            let footer = TableFooter::from_tail(&tail.bytes[last..], id, len)?;
            Ok((tail, footer))
        };
        let (tail, footer) = again_if_damaged(described)?;
        let tombstones = tail.section(&*source, footer.tombstones, "range tombstones", tombstones::decode)?;
        let fences = tail.section(&*source, footer.fences, "fences", |bytes| {
            PartitionFences::decode(bytes, footer.partitions_end)
        })?;
        let (object_crc, mut meta) = tail.section(&*source, footer.properties, "properties", properties)?;
        if meta.object != id || meta.partitions as usize != fences.len() {
            return Err(
                Damage::Field("object or number of partitions").at(id, DamageAt::Section("properties"))
            );
        }
        meta.bytes = len;
        meta.cut_bounds();
        let damages = DamageNotes::default();
        Ok(Table::assemble(source, cache, options, meta, fences, footer, object_crc, tombstones, damages))
    }

    /// An unreadable table, in place of `object` in the tree.
    pub(crate) fn broken(
        objects: &Store,
        id: ObjectId,
        cache: Arc<TableCache>,
        options: ReadOptions,
        error: TableError,
    ) -> Arc<Table> {
        let meta = TableMeta {
            object: id,
            bytes: objects.stat(id).map_or(0, |stat| stat.len),
            smallest: Bytes::new(),
            largest: Bytes::new(),
            largest_is_exclusive: true,
            entries: 0,
            keys: 0,
            deletes: 0,
            range_tombstones: 0,
            min_seq: 0,
            max_seq: 0,
            key_bytes: 0,
            value_bytes: 0,
            partitions: 0,
            filter: Kind::Ribbon,
            value_objects: Vec::new(),
        };
        let none = FooterSection::default();
        let footer =
            TableFooter { object: id, partitions_end: 0, tombstones: none, fences: none, properties: none };
        let source = Box::new(ObjectSource { store: objects.clone(), id });
        let damages = DamageNotes::of_whole(error);
        Table::assemble(
            source,
            cache,
            options,
            meta,
            PartitionFences::default(),
            footer,
            0,
            Vec::new(),
            damages,
        )
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of a table, each read from its own place")]
    fn assemble(
        source: Box<dyn ReadAt>,
        cache: Arc<TableCache>,
        options: ReadOptions,
        meta: TableMeta,
        fences: PartitionFences,
        footer: TableFooter,
        object_crc: u32,
        tombstones: Vec<RangeTombstone>,
        damages: DamageNotes,
    ) -> Arc<Table> {
        let filters: Box<[FilterSlot]> = (0..fences.len()).map(|_| FilterSlot::default()).collect();
        let resident_bytes =
            (size_of::<Table>() + fences.heap_bytes() + meta.heap_bytes() + size_of_val(&*filters)) as u64
                + fences.len() as u64 * ElasticFilters::PART_BYTES;
        let tombstone_bytes = tombstones::heap_bytes(&tombstones) as u64;
        let charge = cache.charge_table(resident_bytes, tombstone_bytes);
        let filter_charge = Mutex::new(cache.filter_charge());
        let number = cache.new_table();
        Arc::new(Table {
            id: meta.object,
            source,
            cache,
            options,
            meta,
            fences,
            filters,
            object_crc,
            footer,
            tombstones,
            damages,
            number,
            resident_bytes: resident_bytes + tombstone_bytes,
            _charge: charge,
            filter_charge,
            ingested_at: OnceLock::new(),
            typical_scan: TypicalScan::default(),
        })
    }
}

/// The last bytes of a table, from one read.
struct TableTail {
    bytes: Bytes,
    start: u64,
    id: ObjectId,
}

impl TableTail {
    fn read(source: &dyn ReadAt, id: ObjectId, len: u64) -> Result<TableTail, TableError> {
        let start = len.saturating_sub(TAIL_BYTES);
        Ok(TableTail { bytes: source.read_at(start..len, IoClass::Foreground)?, start, id })
    }

    /// Decodes a section, from the tail if that contains it. Reads it once more if it is damaged.
    fn section<T>(
        &self,
        source: &dyn ReadAt,
        section: FooterSection,
        name: &'static str,
        decode: impl Fn(&[u8]) -> Result<T, Damage>,
    ) -> Result<T, TableError> {
        let decode = |bytes: &[u8]| section.check(bytes).and_then(|()| decode(bytes));
        let in_tail = section.offset.checked_sub(self.start).and_then(|from| {
            let from = usize::try_from(from).ok()?;
            self.bytes.get(from..from.checked_add(usize::try_from(section.len).ok()?)?)
        });
        if let Some(Ok(decoded)) = in_tail.map(&decode) {
            return Ok(decoded);
        }
        again_if_damaged(|| {
            let bytes = source.read_at(section.range(), IoClass::Foreground)?;
            decode(&bytes).map_err(|damage| damage.at(self.id, DamageAt::Section(name)))
        })
    }
}

/// Checksum of everything before the properties, and the metadata.
fn properties(section: &[u8]) -> Result<(u32, TableMeta), Damage> {
    let mut from = Reader::new(section);
    let crc = from.u32()?;
    let meta = TableMeta::decode(&mut from)?;
    from.finish()?;
    Ok((crc, meta))
}
