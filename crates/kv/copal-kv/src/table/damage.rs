//! Damage of an open table: parts of it, or the whole table.
//!
//! Invariants
//! - Only bytes that differed at a second reading count, and they count as long as the table is open.
//! - A table whose own description is damaged returns an error for every look-up and every step of a cursor:
//!   its entries may be newer than those below it.
//!
//! Not here: key ranges of the tree that are unreadable for it (`quarantine`).

use crate::format::{error::TableError, fences::PartitionFences};
use bytes::Bytes;
use copal_object::ObjectId;
use parking_lot::Mutex;
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

/// Damage found in one table; see the module.
#[derive(Default)]
pub(super) struct DamageNotes {
    /// The table could not be opened.
    whole: Option<TableError>,
    any: AtomicBool,
    partitions: Mutex<BTreeMap<u32, TableError>>,
}

/// Keys of a table that may be lost.
#[derive(Clone, Debug)]
pub(crate) struct LostKeys {
    /// The first of these keys; empty: from the beginning of the table.
    pub(crate) start: Bytes,
    /// Exclusive end of these keys; `None`: to the end of the table.
    pub(crate) end: Option<Bytes>,
    /// The error that revealed the damage.
    pub(crate) error: TableError,
}

impl DamageNotes {
    /// Damage of a table that could not be opened.
    pub(super) fn of_whole(error: TableError) -> DamageNotes {
        DamageNotes { whole: Some(error), ..DamageNotes::default() }
    }

    /// # Errors
    /// The whole table is damaged.
    pub(super) fn whole(&self) -> Result<(), TableError> {
        match &self.whole {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Records that a partition is damaged, if the error says so, and returns the error.
    pub(super) fn blame(&self, table: ObjectId, partition: u32, error: TableError) -> TableError {
        if error.is_corruption() {
            let mut partitions = self.partitions.lock();
            partitions.entry(partition).or_insert_with(|| {
                tracing::info!(table = table.0, partition, %error, "a key range is damaged and quarantined");
                error.clone()
            });
            self.any.store(true, Ordering::Release);
        }
        error
    }

    /// Lost keys found so far, ascending.
    pub(super) fn lost_keys(&self, fences: &PartitionFences) -> Vec<LostKeys> {
        if let Some(error) = &self.whole {
            return vec![LostKeys { start: Bytes::new(), end: None, error: error.clone() }];
        }
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let partitions = self.partitions.lock();
        let lost = partitions.iter().map(|(&partition, error)| {
            let fence = |i: usize| Bytes::copy_from_slice(fences.fence(i));
            let next = partition as usize + 1;
            LostKeys {
                start: fence(partition as usize),
                end: (next < fences.len()).then(|| fence(next)),
                error: error.clone(),
            }
        });
        lost.collect()
    }
}
