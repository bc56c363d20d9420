//! The log end: records whose data and frames survived, and frames whose commits survived, to a fixed point
//! (OBJ-14).
//!
//! A record that depends on a lost frame ends the journal; a frame that comes after a lost commit ends its
//! stream. Each may end more of the other. Both only become shorter, so the iteration ends.

use super::{
    ChainCopies, JournalWindow, RecoverySource, WalkedJournal, WalkedRecord, apply,
    ends::{end_of, is_cut, truncated},
    histories::StreamHistories,
    read_checkpoint,
    unplaced::{UnplacedData, UnplacedPages},
    verify,
};
use crate::{
    StoreOpenError,
    flaw::StoreFlaw,
    format::{ops::RecordOp, run::PageRun, superblock::Superblock},
    stream::walk::StreamEnd,
    tables::{ObjectTables, StreamEntry, snapshot::CheckpointPosition},
};
use std::collections::HashMap;

/// The certain state.
pub(crate) struct LogEnd {
    pub(crate) tables: ObjectTables,
    /// Records that count.
    pub(crate) kept: usize,
    pub(crate) ends: HashMap<u64, StreamEnd>,
    /// Reason why the last records do not count: they cannot have been durable.
    pub(crate) dropped: Option<String>,
    /// Reason why they do not count although they may have been durable.
    pub(crate) lost: Option<String>,
    /// Pages freed by records that count, and pages that dropped records name.
    pub(crate) needed: Vec<PageRun>,
    /// Inline data that is perhaps not at its place.
    pub(crate) inline: UnplacedData,
}

/// Reads the records, drops the first one that does not count and all later ones, and repeats until nothing
/// is dropped. Each round reads the whole journal again. After a crash a round or two are enough. A crafted
/// journal, in which each record depends on a frame that counts only with the next record, takes one round
/// per record.
pub(crate) fn find_log_end(
    window: &mut JournalWindow<'_>,
    superblock: &Superblock,
    walked: &WalkedJournal,
    checkpoint: ObjectTables,
    position: &CheckpointPosition,
    accept_tail_loss: bool,
) -> Result<LogEnd, StoreOpenError> {
    let source = window.source();
    let mut rounds = ReplayRounds {
        source,
        walked,
        position,
        accept_tail_loss,
        window,
        kept: walked.records.len(),
        dropped: None,
        lost: None,
        verified: false,
    };
    let mut checkpoint = Some(checkpoint);
    loop {
        let tables = match checkpoint.take() {
            Some(tables) => tables,
            None => read_checkpoint(source, superblock, ChainCopies::AsNeeded)?.tables,
        };
        let Some(replayed) = rounds.replay(tables)? else {
            continue;
        };
        if rounds.loses_a_frame(&replayed)? {
            continue;
        }
        return rounds.end(replayed);
    }
}

/// State between rounds.
struct ReplayRounds<'a, 's> {
    source: &'s RecoverySource<'s>,
    walked: &'a WalkedJournal,
    position: &'a CheckpointPosition,
    accept_tail_loss: bool,
    window: &'a mut JournalWindow<'s>,
    /// Records that count so far.
    kept: usize,
    dropped: Option<String>,
    lost: Option<String>,
    /// The data of the counting records was verified.
    verified: bool,
}

/// The records of one round, applied.
struct ReplayedRecords {
    tables: ObjectTables,
    histories: StreamHistories,
    needed: Vec<PageRun>,
    unplaced: UnplacedPages,
}

impl ReplayRounds<'_, '_> {
    /// Applies the records that count so far, and verifies their data the first time. `None`: the data of one
    /// is lost, and the tables hold one record too many.
    fn replay(&mut self, mut tables: ObjectTables) -> Result<Option<ReplayedRecords>, StoreOpenError> {
        let verifies =
            !std::mem::replace(&mut self.verified, true) && !self.source.broken.by(StoreFlaw::NoDataSum);
        let walked = self.walked;
        let mut histories = StreamHistories::default();
        let mut needed = Vec::new();
        let mut unplaced = UnplacedPages::default();
        for (index, record) in walked.records[..self.kept].iter().enumerate() {
            let ops = record.ops(self.window)?;
            let in_tail = record.header.epoch > walked.flushed_epoch;
            if in_tail {
                histories.note(&tables, index, &ops);
            }
            let before = needed.len();
            apply(&mut tables, record, &ops, &mut needed)?;
            unplaced.note(index, record.last_lsn(), &ops)?;
            if !self.source.broken.by(StoreFlaw::InlineOfFreedPages) {
                unplaced.forget(&needed[before..]);
            }
            if verifies && in_tail && !self.data_counts(record, &ops)? {
                self.kept = index;
                return Ok(None);
            }
        }
        Ok(Some(ReplayedRecords { tables, histories, needed, unplaced }))
    }

    /// Whether the data of `record` is present; otherwise stores the reason.
    fn data_counts(&mut self, record: &WalkedRecord, ops: &[RecordOp]) -> Result<bool, StoreOpenError> {
        let seq = record.header.seq;
        match verify::data_is_there(self.source, record, ops, self.walked.flushed_epoch) {
            Ok(true) => Ok(true),
            Ok(false) => {
                self.dropped = Some(format!("data of record {seq} was not written completely"));
                Ok(false)
            }
            Err(error) if self.accept_tail_loss && !error.is_passing() => {
                self.lost = Some(format!("data of journal record {seq} cannot be read: {error}"));
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Last commit that a frame may come after.
    fn limit(&self) -> u64 {
        if self.source.broken.by(StoreFlaw::AfterIgnored) {
            return u64::MAX;
        }
        self.walked.records[..self.kept]
            .last()
            .map_or(self.position.lsn, |record| record.last_lsn().max(self.position.lsn))
    }

    /// Drops the first record that came after a lost frame; `true` if there is one.
    fn loses_a_frame(&mut self, replayed: &ReplayedRecords) -> Result<bool, StoreOpenError> {
        if self.source.broken.by(StoreFlaw::DepIgnored) {
            return Ok(false);
        }
        let first = replayed.histories.first_lost(self.source, &replayed.tables, self.limit())?;
        let Some(index) = first else {
            return Ok(false);
        };
        self.dropped = Some(format!(
            "record {} came after a frame that was lost",
            self.walked.records[index].header.seq
        ));
        self.kept = index;
        Ok(true)
    }

    /// Result once a round dropped nothing: ends of the streams, and the collected reasons.
    fn end(self, replayed: ReplayedRecords) -> Result<LogEnd, StoreOpenError> {
        let ReplayedRecords { tables, mut needed, unplaced, .. } = replayed;
        let mut ends = HashMap::new();
        for (id, stream) in tables.streams() {
            let mut end = match stream.rides() {
                true => end_of_named_frames(stream),
                false => end_of(self.source, &tables, stream, self.limit())?,
            };
            end.damaged |= end.next < stream.durable.next;
            if end.damaged && is_cut(self.source, &stream.pieces) {
                return Err(truncated(self.source, &tables));
            }
            ends.insert(id, end);
        }
        for record in &self.walked.records[self.kept..] {
            needed.extend(record.ops(self.window)?.iter().flat_map(runs_of));
        }
        let inline = match self.source.broken.by(StoreFlaw::InlineForgotten) {
            true => Vec::new(),
            false => unplaced.read(&self.walked.records, self.window)?,
        };
        Ok(LogEnd { tables, kept: self.kept, ends, dropped: self.dropped, lost: self.lost, needed, inline })
    }
}

/// The end of a stream whose frames are named by records.
fn end_of_named_frames(stream: &StreamEntry) -> StreamEnd {
    StreamEnd {
        next: stream.durable.next.max(stream.trimmed),
        piece: stream.pieces.len().saturating_sub(1),
        used: stream.pieces.last().map_or(0, |piece| piece.run.pages),
        last: None,
        damaged: false,
    }
}

/// Pages an operation names.
fn runs_of(op: &RecordOp) -> Vec<PageRun> {
    match op {
        RecordOp::Map { run, .. }
        | RecordOp::StreamExtent { run, .. }
        | RecordOp::StreamFrame { run, .. } => vec![*run],
        RecordOp::Publish { runs, .. } => runs.clone(),
        RecordOp::Move { to, .. } => vec![*to],
        _ => Vec::new(),
    }
}
