//! Inline data of the journal that is perhaps not at its place (OBJ-38).
//!
//! Invariant: a page that lost its owner is not here, since it may have another one whose data no record has.

use super::{JournalWindow, WalkedRecord, verify::inline_of};
use crate::{
    StoreOpenError,
    format::{ops::RecordOp, run::PageRun},
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Pages with their bytes, and the last commit of their record.
pub(crate) type UnplacedData = Vec<(PageRun, Bytes, u64)>;

/// Pages that an object gets.
fn mapped_run(op: &RecordOp) -> Option<PageRun> {
    match op {
        RecordOp::Map { run, .. } => Some(*run),
        _ => None,
    }
}

/// Pages by address, with the index of their record and its last commit.
#[derive(Default)]
pub(super) struct UnplacedPages(BTreeMap<u64, (usize, u64)>);

impl UnplacedPages {
    /// The operations of record `index`, whose last commit is `lsn`.
    /// # Errors
    /// `Damaged`: inline data is not for pages that an object got with the record.
    pub(super) fn note(&mut self, index: usize, lsn: u64, ops: &[RecordOp]) -> Result<(), StoreOpenError> {
        let mapped: Vec<PageRun> = ops.iter().filter_map(mapped_run).collect();
        let is_mapped = |run: &PageRun| mapped.iter().any(|map| map.at <= run.at && run.end() <= map.end());
        for op in ops {
            match op {
                RecordOp::Inline { run, .. } if !is_mapped(run) => {
                    let what =
                        format!("inline data for page {} of commit {lsn} belongs to no object", run.at);
                    return Err(StoreOpenError::Damaged { what });
                }
                RecordOp::Inline { run, .. } => {
                    self.0.extend((run.at..run.end()).map(|page| (page, (index, lsn))));
                }
                RecordOp::InlinePlaced { upto } => self.0.retain(|_, (_, lsn)| *lsn > *upto),
                _ => {}
            }
        }
        Ok(())
    }

    /// The pages have no owner any more.
    pub(super) fn forget(&mut self, freed: &[PageRun]) {
        for run in freed {
            let pages: Vec<u64> = self.0.range(run.at..run.end()).map(|(&at, _)| at).collect();
            pages.iter().for_each(|at| {
                self.0.remove(at);
            });
        }
    }

    /// Reads the data again from `records`.
    /// # Errors
    /// As `WalkedRecord::ops`.
    pub(super) fn read(
        self,
        records: &[WalkedRecord],
        window: &mut JournalWindow<'_>,
    ) -> Result<UnplacedData, StoreOpenError> {
        let mut found = Vec::new();
        let mut indices: Vec<usize> = self.0.values().map(|(index, _)| *index).collect();
        indices.sort_unstable();
        indices.dedup();
        for index in indices {
            let ops = records[index].ops(window)?;
            for (run, bytes) in inline_of(&ops) {
                let page_bytes = bytes.len() / (run.pages as usize).max(1);
                for (nth, at) in (run.at..run.end()).enumerate() {
                    if let Some(&(holder, lsn)) = self.0.get(&at)
                        && holder == index
                    {
                        let page = bytes.slice(nth * page_bytes..(nth + 1) * page_bytes);
                        found.push((PageRun::new(at, 1), page, lsn));
                    }
                }
            }
        }
        Ok(found)
    }
}
