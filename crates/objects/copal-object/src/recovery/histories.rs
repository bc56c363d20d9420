//! Earlier states of streams, from the records after the last flush. They show whether a frame that a record
//! depends on is lost.

use super::{RecoverySource, ends::end_of};
use crate::{
    CreateOptions, StoreOpenError,
    format::{
        ops::{ObjectTraits, RecordOp},
        sum_rule::SumRule,
    },
    tables::{ObjectTables, StreamEntry, StreamPiece},
};
use std::collections::HashMap;

/// A record's dependency on a frame of a history.
struct FrameDependency {
    record: usize,
    history: usize,
    frame: u64,
}

#[derive(Default)]
pub(super) struct StreamHistories {
    /// Streams before any unflushed trim, cut or delete: their frames still exist (OBJ-5, OBJ-37).
    all: Vec<StreamEntry>,
    current: HashMap<u64, usize>,
    dependencies: Vec<FrameDependency>,
}

impl StreamHistories {
    /// Called before `ops` of record `index` are applied to `tables`: stores the pieces for later checks.
    pub(super) fn note(&mut self, tables: &ObjectTables, index: usize, ops: &[RecordOp]) {
        for op in ops {
            match op {
                RecordOp::Create { id, what } => {
                    self.all.push(StreamEntry::new(*what, 0));
                    self.current.insert(*id, self.all.len() - 1);
                }
                RecordOp::StreamExtent { id, run, first, incarnation } => {
                    let piece = StreamPiece { run: *run, first: *first, incarnation: *incarnation, lsn: 0 };
                    let history = self.of(tables, *id);
                    self.all[history].pieces.push(piece);
                }
                RecordOp::StreamTruncate { id, cut } => {
                    // Later frames with the same numbers are others.
                    let before = self.of(tables, *id);
                    let mut history = self.all[before].clone();
                    // A cut that does not fit is refused when the record is applied.
                    let _ = history.truncate(cut, 0, &mut Vec::new());
                    self.all.push(history);
                    self.current.insert(*id, self.all.len() - 1);
                }
                RecordOp::StreamTrim { id, .. } | RecordOp::Delete { id } => drop(self.of(tables, *id)),
                RecordOp::Dep { id, frame } => {
                    let history = self.of(tables, *id);
                    self.dependencies.push(FrameDependency { record: index, history, frame: *frame });
                }
                _ => {}
            }
        }
    }

    fn of(&mut self, tables: &ObjectTables, id: u64) -> usize {
        if let Some(&history) = self.current.get(&id) {
            return history;
        }
        let none = || StreamEntry::new(ObjectTraits::of(&CreateOptions::default(), SumRule::Hashes), 0);
        self.all.push(tables.stream(id).cloned().unwrap_or_else(none));
        self.current.insert(id, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The first record that depends on a lost frame.
    pub(super) fn first_lost(
        &self,
        source: &RecoverySource<'_>,
        tables: &ObjectTables,
        last_lsn: u64,
    ) -> Result<Option<usize>, StoreOpenError> {
        let mut ends: HashMap<usize, u64> = HashMap::new();
        for dependency in &self.dependencies {
            let history = &self.all[dependency.history];
            let end = match ends.get(&dependency.history) {
                Some(&end) => end,
                None => {
                    let end = end_of(source, tables, history, last_lsn)?.next;
                    ends.insert(dependency.history, end);
                    end
                }
            };
            if dependency.frame >= end.max(history.trimmed) {
                return Ok(Some(dependency.record));
            }
        }
        Ok(None)
    }
}
