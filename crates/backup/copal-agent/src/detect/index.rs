//! Index run of a partition: updated from the log of popular packs.
//!
//! Invariants
//! - Replaying the log from its start gives the same run, regardless of the merges in between.
//! - Of several checked copies of one id, the one that was checked first counts.
//! - New rows are merged whenever they reach their bound, so that the length of the log costs no memory.

use super::error::{DetectError, Result};
use super::file_name::{self, remove};
use super::format::{FilePartition, RunKind, RunRow};
use super::grants::GrantTable;
use super::popular::{PopularPack, PopularPacks};
use super::run_file::{DamagedRun, RunReader, RunWriter};
use crate::fleet::partition::IdPartitions;
use copal_backup::peers::{Answer, ShortId};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use tracing::warn;

/// Number of tries to create a file that is damaged each time.
pub(crate) const MOST_TRIES: u32 = 3;

/// Row value of an id that is stored and not yet checked.
fn unchecked() -> u32 {
    Answer::CARRY.code()
}

/// Log entries up to which the run of a partition is complete, if the file itself says less: no later entry
/// belonged to the partition.
pub(crate) type CompleteTo = HashMap<u32, u64>;

/// Number of new rows that fit `bytes`.
pub(crate) fn most_rows(bytes: u64) -> usize {
    (bytes as usize / NEW_ROW_BYTES).max(1)
}

/// The index run of one partition.
pub(crate) struct PartitionIndex<'a> {
    pub(crate) dir: &'a Path,
    pub(crate) partitions: IdPartitions,
    pub(crate) partition: u32,
    /// Most unmerged rows in memory.
    pub(crate) most_rows: usize,
    pub(crate) complete_to: &'a mut CompleteTo,
    pub(crate) grants: &'a mut GrantTable,
}

/// A row of the log that is not in the run yet.
#[derive(Clone, Copy)]
struct NewRow {
    id: ShortId,
    /// Its order of entry.
    at: u32,
    value: u32,
}

/// Bytes of a row before its merge.
const NEW_ROW_BYTES: usize = size_of::<NewRow>();

/// Reason why an update stopped.
enum UpdateStop {
    Damaged(DamagedRun),
    Failed(DetectError),
}

impl From<DetectError> for UpdateStop {
    fn from(error: DetectError) -> UpdateStop {
        UpdateStop::Failed(error)
    }
}

impl From<DamagedRun> for UpdateStop {
    fn from(damaged: DamagedRun) -> UpdateStop {
        UpdateStop::Damaged(damaged)
    }
}

impl PartitionIndex<'_> {
    fn belongs(&self) -> FilePartition {
        FilePartition { bits: self.partitions.bits(), partition: self.partition }
    }

    /// Opens the run; `None`: no id is popular yet.
    pub(crate) fn open(&self) -> Result<std::result::Result<Option<RunReader>, DamagedRun>> {
        RunReader::open(self.dir, RunKind::Popular, self.belongs())
    }

    /// Deletes the run; the next update rebuilds it.
    pub(crate) fn discard(&mut self, what: &str) -> Result<()> {
        let path = file_name::path(self.dir, RunKind::Popular.file_prefix(), self.belongs());
        warn!(path = %path.display(), what, "damaged index run deleted, rebuilt from the log of popular packs");
        self.complete_to.remove(&self.partition);
        remove(&path)
    }

    /// Adds the new entries of the log; returns the bytes that new rows took.
    pub(crate) fn update(&mut self, popular: &dyn PopularPacks) -> Result<usize> {
        let mut last = String::new();
        for _ in 0..MOST_TRIES {
            match self.try_update(popular) {
                Ok(rows_bytes) => return Ok(rows_bytes),
                Err(UpdateStop::Failed(error)) => return Err(error),
                Err(UpdateStop::Damaged(damaged)) => {
                    self.discard(&damaged.what)?;
                    last = damaged.what;
                }
            }
        }
        Err(DetectError::KeepsBreaking { partition: self.partition, tries: MOST_TRIES, what: last })
    }

    fn try_update(&mut self, popular: &dyn PopularPacks) -> std::result::Result<usize, UpdateStop> {
        let newest = popular.newest();
        let after = match self.open()?? {
            None => {
                self.complete_to.remove(&self.partition);
                None
            }
            Some(run) => {
                let known = self.complete_to.get(&self.partition).copied().unwrap_or(0);
                Some(run.head().complete_to.max(known))
            }
        };
        match after {
            Some(after) if after == newest => return Ok(0),
            Some(after) if after > newest => {
                let what = format!("it is complete to entry {after} of a log whose last is {newest}");
                let kind = RunKind::Popular;
                return Err(UpdateStop::Damaged(DamagedRun { kind, what }));
            }
            _ => {}
        }
        let mut fresh = UnmergedRows {
            index: self,
            rows: Vec::new(),
            is_missing: after.is_none(),
            last: after.unwrap_or(0),
        };
        let mut stopped = None;
        let read = popular.for_each_since(after.unwrap_or(0), &mut |pack| {
            fresh.enter(&pack).map_err(|stop| {
                stopped = Some(stop);
                io::Error::other("index run not written")
            })
        });
        match (stopped, read) {
            (Some(stop), _) => return Err(stop),
            (None, Err(error)) => return Err(UpdateStop::Failed(DetectError::Popular(error))),
            (None, Ok(())) => {}
        }
        fresh.last = fresh.last.max(newest);
        if fresh.is_missing || !fresh.rows.is_empty() {
            fresh.merge()?;
        }
        let (last, rows) = (fresh.last, fresh.rows.capacity());
        self.complete_to.insert(self.partition, last);
        Ok(rows * NEW_ROW_BYTES)
    }
}

/// Rows that an update has read and not yet merged.
struct UnmergedRows<'a, 'b> {
    index: &'a mut PartitionIndex<'b>,
    rows: Vec<NewRow>,
    is_missing: bool,
    /// Last log entry of which all rows are in the run or here.
    last: u64,
}

impl UnmergedRows<'_, '_> {
    fn enter(&mut self, pack: &PopularPack) -> std::result::Result<(), UpdateStop> {
        if pack.position <= self.last {
            let what = format!("its entry {} follows entry {}", pack.position, self.last);
            let error = io::Error::new(io::ErrorKind::InvalidData, what);
            return Err(UpdateStop::Failed(DetectError::Popular(error)));
        }
        for (slot, id) in pack.ids.iter().enumerate() {
            self.index.grants.is_stored(id);
            if self.index.partitions.of(id) != self.index.partition {
                continue;
            }
            let ordinal = u32::try_from(slot).ok().and_then(|slot| pack.first_ordinal.checked_add(slot));
            let Some(hit) = ordinal.and_then(Answer::hit) else {
                warn!(position = pack.position, "ordinals of a popular pack exceed their range, ignored");
                break;
            };
            if self.rows.is_empty() {
                self.rows.reserve_exact(self.index.most_rows);
            } else if self.rows.len() == self.index.most_rows {
                self.merge()?;
            }
            let value = if pack.is_checked { hit.code() } else { unchecked() };
            let at = self.rows.len() as u32;
            self.rows.push(NewRow { id: *id, at, value });
        }
        self.last = pack.position;
        Ok(())
    }

    /// Merges the new rows into the run.
    fn merge(&mut self) -> std::result::Result<(), UpdateStop> {
        self.rows.sort_unstable_by_key(|row| (row.id, row.at));
        let (dir, belongs) = (self.index.dir, self.index.belongs());
        let mut old = self.index.open()??;
        let mut out = RunWriter::create(dir, RunKind::Popular, belongs)?;
        for same in self.rows.chunk_by(|a, b| a.id == b.id) {
            let mut row = RunRow {
                id: same[0].id,
                value: same
                    .iter()
                    .map(|row| row.value)
                    .find(|value| *value != unchecked())
                    .unwrap_or(unchecked()),
            };
            while let Some(run) = &mut old
                && let Some(before) = run.peek().copied()
                && before.id <= row.id
            {
                run.advance()?;
                if before.id < row.id {
                    out.push(&before)?;
                } else if before.value != unchecked() {
                    row.value = before.value;
                }
            }
            out.push(&row)?;
        }
        while let Some(run) = &mut old
            && let Some(row) = run.advance()?
        {
            out.push(&row)?;
        }
        out.finish(self.last)?;
        self.rows.clear();
        self.is_missing = false;
        Ok(())
    }
}
