//! Sequence of tables that a flush or a merge writes.
//!
//! Invariants
//! - A table ends between two user keys, at `table_bytes` or where the keyspace's compression changes.
//! - The ranges of the tables of one step are disjoint and together cover the step's range; range tombstones
//!   are clipped to them.

use super::version_gc::SurvivingVersions;
use crate::{
    Error,
    engine::Engine,
    format::entry::{Entry, KeyRange, KeyspaceId, RangeTombstone, keyspace_of, successor},
    memory::{
        budget::{MemoryCharge, MemoryClass},
        elastic::PredictedPartition,
    },
    table::{TableBuilder, TableOptions},
    tree::{
        inheritance::{HeatInheritance, UnitPredictor},
        manifest::format::TableMeta,
    },
};
use bytes::Bytes;
use copal_object::{ObjectId, ObjectLifetime, StagedObject};
use parking_lot::Mutex;
use std::sync::Arc;

/// A written table, not yet published.
pub(crate) struct WrittenTable {
    pub(crate) staged: StagedObject,
    pub(crate) meta: TableMeta,
    pub(crate) range: KeyRange,
    /// Initial filter units and heat of its partitions.
    pub(crate) predicted: Vec<PredictedPartition>,
}

/// Writer of the tables of one step.
pub(crate) struct RunOutput<'a> {
    engine: &'a Engine,
    lifetime: ObjectLifetime,
    /// Source of the filters' inherited heat, and the level of the target run as the filter rules see it.
    heirs: (Arc<HeatInheritance>, u8),
    table_bytes: u64,
    /// Memory of the buffers of one table.
    buffer_bytes: u64,
    /// Start of the current table's range.
    start: Bytes,
    current: Option<CurrentTable>,
    pub(crate) written: Vec<WrittenTable>,
}

struct CurrentTable {
    object: ObjectId,
    builder: TableBuilder,
    _charge: MemoryCharge,
    droppable: u64,
    keyspace: Option<KeyspaceId>,
    compress: bool,
    last_key: Vec<u8>,
    predicted: Arc<Mutex<Vec<PredictedPartition>>>,
}

impl<'a> RunOutput<'a> {
    /// Tables from `start` on. `long`: they go to the bottom. `heirs`: source of the filters' inherited heat,
    /// and the level of their run as the filter rules see it. `buffer_bytes`: memory of the buffers.
    pub(crate) fn new(
        engine: &'a Engine,
        start: Bytes,
        long: bool,
        heirs: (Arc<HeatInheritance>, u8),
        buffer_bytes: u64,
    ) -> RunOutput<'a> {
        let lifetime = if long { ObjectLifetime::Long } else { ObjectLifetime::Medium };
        RunOutput {
            engine,
            lifetime,
            heirs,
            table_bytes: engine.table_bytes(),
            buffer_bytes,
            start,
            current: None,
            written: Vec::new(),
        }
    }

    fn open(&mut self, compress: bool, keyspace: Option<KeyspaceId>) -> Result<&mut CurrentTable, Error> {
        if self.current.is_none() {
            let object = self.engine.new_object();
            let options = TableOptions {
                compress,
                filter: self.engine.options.filters.kind,
                store_seed: self.engine.seed,
                lifetime: self.lifetime,
                expected_bytes: self.table_bytes,
            };
            let bytes = self.buffer_bytes;
            let charge = self.engine.budget.charge(MemoryClass::Merges, bytes);
            let mut builder = TableBuilder::new(&self.engine.objects, object, options)?.with_buffers(bytes);
            let predicted = Arc::new(Mutex::new(Vec::new()));
            builder.observe(Box::new(UnitPredictor {
                budget: self.engine.budget.clone(),
                elastic: self.engine.caches.cache.elastic().clone(),
                from: self.heirs.0.clone(),
                level: self.heirs.1,
                predicted: predicted.clone(),
            }));
            let last_key = Vec::new();
            self.current = Some(CurrentTable {
                object,
                builder,
                _charge: charge,
                droppable: 0,
                keyspace,
                compress,
                last_key,
                predicted,
            });
        }
        self.current.as_mut().ok_or(Error::Closed)
    }

    /// Ends the table before the next key.
    pub(crate) fn end_soon(&mut self) {
        self.table_bytes = 0;
    }

    /// Whether the table should end before `key`.
    pub(crate) fn is_full_before(&self, key: &[u8]) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        if *key == current.last_key[..] {
            return false;
        }
        let keyspace = keyspace_of(key);
        let other_kind = keyspace != current.keyspace
            && keyspace.is_some_and(|id| self.engine.keyspace_options(id).compress != current.compress);
        current.builder.estimated_bytes() >= self.table_bytes || other_kind
    }

    pub(crate) fn add(&mut self, entry: Entry<'_>, droppable: bool) -> Result<(), Error> {
        let keyspace = keyspace_of(entry.key);
        let known = self.current.as_ref().is_some_and(|current| current.keyspace == keyspace);
        let compress = match (&self.current, keyspace) {
            (Some(current), _) if known => current.compress,
            (_, Some(id)) => self.engine.keyspace_options(id).compress,
            (_, None) => false,
        };
        let current = self.open(compress, keyspace)?;
        current.keyspace = keyspace;
        current.droppable += u64::from(droppable);
        if entry.key != current.last_key {
            current.last_key.clear();
            current.last_key.extend_from_slice(entry.key);
        }
        current.builder.add(entry)?;
        Ok(())
    }

    /// Ends the current table at `end` and adds the range tombstones up to there.
    pub(crate) fn cut(&mut self, survivors: &SurvivingVersions, end: Bytes) -> Result<(), Error> {
        let range = KeyRange { start: std::mem::replace(&mut self.start, end.clone()), end };
        let tombstones = survivors.tombstones(&range);
        if !tombstones.is_empty() {
            self.open(false, None)?;
        }
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        current.droppable += tombstones.len() as u64;
        tombstones
            .into_iter()
            .for_each(|tombstone: RangeTombstone| current.builder.add_range_tombstone(tombstone));
        let (staged, meta) = current.builder.finish()?;
        let end = if meta.largest_is_exclusive { meta.largest.clone() } else { successor(&meta.largest) };
        let values = meta.value_objects.iter().map(|used| (used.object, used.bytes)).collect();
        let own = KeyRange { start: meta.smallest.clone(), end };
        let range = own.shortened_within(&range);
        let meta = TableMeta {
            object: current.object,
            bytes: meta.bytes,
            entries: meta.entries,
            droppable: current.droppable,
            max_seq: meta.max_seq,
            start: range.start.clone(),
            end: range.end.clone(),
            values,
            ingested_at: None,
        };
        let predicted = std::mem::take(&mut *current.predicted.lock());
        self.written.push(WrittenTable { staged, meta, range, predicted });
        Ok(())
    }
}
