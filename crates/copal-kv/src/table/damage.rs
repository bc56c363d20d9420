//! What of an open table was found damaged, and tables of which nothing can be read.
//!
//! Invariants
//! - Only what differed at a second reading counts, and it counts as long as the table is open.
//! - A table whose own description is damaged answers every look-up and every step of a cursor with an error:
//!   what it held may be newer than what lies below it.
//!
//! Not here: which key ranges of the tree that makes unreadable (`quarantine`).

use super::{
    error::TableError,
    fences::Fences,
    footer::{Footer, Section},
    io::ObjectSource,
    meta::TableMeta,
    read::{ReadOptions, Table},
};
use crate::cache::TableCache;
use bytes::Bytes;
use copal_filter::Kind;
use copal_object::{ObjectId, Store};
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// See the module.
#[derive(Default)]
pub(super) struct Damages {
    /// The table could not be opened.
    whole: Option<TableError>,
    any: AtomicBool,
    partitions: Mutex<BTreeMap<u32, TableError>>,
}

/// Keys of a table that may be lost.
#[derive(Clone, Debug)]
pub(crate) struct LostKeys {
    /// The first of them; empty: from the beginning of the table.
    pub(crate) start: Bytes,
    /// The first key behind them; `None`: to the end of the table.
    pub(crate) end: Option<Bytes>,
    /// What was found.
    pub(crate) error: TableError,
}

impl Table {
    /// A table of which nothing can be read, standing for `object` in the tree.
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
        let none = Section::default();
        let footer = Footer {
            object: id,
            partitions_end: 0,
            tombstones: none,
            fences: none,
            properties: none,
        };
        let source = Box::new(ObjectSource {
            store: objects.clone(),
            id,
        });
        let damages = Damages {
            whole: Some(error),
            ..Damages::default()
        };
        Table::assemble(
            source,
            cache,
            options,
            meta,
            Fences::default(),
            footer,
            0,
            Vec::new(),
            damages,
        )
    }

    /// # Errors
    /// The table is damaged as a whole.
    pub(super) fn whole(&self) -> Result<(), TableError> {
        match &self.damages.whole {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Notes that a partition is damaged, if that is what the error says, and returns the error.
    pub(super) fn blame(&self, partition: u32, error: TableError) -> TableError {
        if error.is_corruption() {
            let mut partitions = self.damages.partitions.lock();
            partitions.entry(partition).or_insert_with(|| {
                tracing::info!(table = self.id.0, partition, %error, "a key range is damaged and set apart");
                error.clone()
            });
            self.damages.any.store(true, Ordering::Release);
        }
        error
    }

    /// What was found damaged so far, ascending.
    pub(crate) fn lost_keys(&self) -> Vec<LostKeys> {
        if let Some(error) = &self.damages.whole {
            return vec![LostKeys {
                start: Bytes::new(),
                end: None,
                error: error.clone(),
            }];
        }
        if !self.damages.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let partitions = self.damages.partitions.lock();
        let lost = partitions.iter().map(|(&partition, error)| {
            let fence = |i: usize| Bytes::copy_from_slice(self.fences.fence(i));
            let next = partition as usize + 1;
            LostKeys {
                start: fence(partition as usize),
                end: (next < self.fences.len()).then(|| fence(next)),
                error: error.clone(),
            }
        });
        lost.collect()
    }
}
