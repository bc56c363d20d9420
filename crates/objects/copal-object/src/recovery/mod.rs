//! Recovery: derives one certain state from the device after a crash.
//!
//! Steps: flush; newest superblock; checkpoint; walk the journal; verify unflushed data; find the ends of
//! streams and their dependencies, to a fixed point; derive free space; mount.
//! Design: docs/design/object.md#recovery OBJ-1, OBJ-2, OBJ-4, OBJ-9, OBJ-10, OBJ-11, OBJ-13, OBJ-14
//! Invariants
//! - Running it again after a crash inside it gives the same state.
//! - It drops only data that was never acknowledged as durable; if acknowledged data is damaged, it refuses.

use crate::{
    ObjectId, RecoveryReport, StoreOpenError,
    flaw::StoreFlaw,
    format::{
        run::PageRun,
        superblock::{BACKEND_LOG, Superblock},
    },
    space::segment_table::SegmentTable,
    stream::walk::StreamEnd,
    tables::ObjectTables,
};
use std::{collections::HashMap, ops::Range};

mod chain;
mod checkpoint;
mod ends;
mod free;
mod histories;
mod journal_window;
mod log_end;
mod segment_places;
mod source;
mod superblocks;
mod unplaced;
mod verify;

pub(crate) use chain::{WalkedJournal, WalkedRecord, apply, walk_journal};
pub(crate) use checkpoint::{ChainCopies, FoundCheckpoint, read_checkpoint};
pub(crate) use free::derive_space;
pub(crate) use journal_window::JournalWindow;
use log_end::LogEnd;
pub(crate) use segment_places::FoundSegments;
pub(crate) use source::RecoverySource;
pub(crate) use superblocks::{FoundCopy, newest_superblock, older_superblocks, read_superblocks};
pub(crate) use unplaced::UnplacedData;
pub(crate) use verify::{chunks, damaged_units, unit_damage};

/// The recovered state in memory; nothing is written yet.
pub(crate) struct RecoveredStore {
    pub(crate) superblock: Superblock,
    /// Superblock copies to rewrite.
    pub(crate) stale_copies: Vec<usize>,
    pub(crate) checkpoint_runs: Vec<PageRun>,
    pub(crate) tables: ObjectTables,
    /// Runs of written zones.
    pub(crate) zones: Vec<PageRun>,
    /// Hollow pages, except those that have an owner.
    pub(crate) hollow: Vec<Range<u64>>,
    pub(crate) ends: HashMap<u64, StreamEnd>,
    pub(crate) last_lsn: u64,
    /// Number, position and chain of the next record.
    pub(crate) next_seq: u64,
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) previous: u64,
    /// Segments of records; `None` for a ring.
    pub(crate) segments: Option<FoundSegments>,
    /// Largest epoch found.
    pub(crate) epoch: u64,
    /// Free pages that this recovery reads: they must not be written before the mount is durable.
    pub(crate) needed: Vec<PageRun>,
    /// Inline data that is perhaps not at its place.
    pub(crate) inline: UnplacedData,
    pub(crate) report: RecoveryReport,
}

/// Reads all state after `superblock`, the newest, and decides which records count.
pub(crate) fn recover(
    source: &RecoverySource<'_>,
    superblock: Superblock,
    stale_copies: Vec<usize>,
    accept_tail_loss: bool,
) -> Result<RecoveredStore, StoreOpenError> {
    let FoundCheckpoint {
        tables: checkpoint,
        position,
        zones,
        hollow,
        runs: checkpoint_runs,
        damaged: damaged_checkpoint,
    } = read_checkpoint(source, &superblock, ChainCopies::AsNeeded)?;
    let mut window = JournalWindow::new(source, &superblock, &position);
    let walked = walk_journal(&mut window, &superblock, &position)?;
    if let Some(seq) = walked.lost_durable
        && !accept_tail_loss
    {
        return Err(StoreOpenError::TailLoss { what: format!("journal record {seq}") });
    }
    let log_end =
        log_end::find_log_end(&mut window, &superblock, &walked, checkpoint, &position, accept_tail_loss)?;
    let report = RecoveryReport {
        superblock_copies_repaired: stale_copies.len() as u32,
        checkpoint_pages_repaired: damaged_checkpoint.len() as u32,
        ..report(&walked, &log_end)
    };
    let last = walked.records[..log_end.kept].last();
    let head = last.map_or(position.journal_head, |record| record.end);
    let segments = match superblock.backend {
        BACKEND_LOG => {
            let segment_pages = superblock.segment_bytes / superblock.page_bytes;
            let table = SegmentTable::new(log_end.tables.pages, segment_pages, source.page_bytes);
            match window.segments(position.journal_head, head, &table) {
                Err(StoreOpenError::Damaged { .. }) if source.salvage => {
                    Some(FoundSegments::without_chain(head))
                }
                found => found?,
            }
        }
        _ => None,
    };
    Ok(RecoveredStore {
        last_lsn: last.map_or(position.lsn, |record| record.last_lsn().max(position.lsn)),
        next_seq: last.map_or(position.next_seq, |record| record.header.seq + 1),
        head,
        segments,
        tail: position.journal_head,
        previous: last.map_or(superblock.chain_seed, WalkedRecord::hash),
        epoch: largest_epoch(source, &walked, log_end.kept).max(position.epoch),
        superblock,
        stale_copies,
        checkpoint_runs,
        tables: log_end.tables,
        needed: log_end.needed,
        inline: log_end.inline,
        zones,
        hollow,
        ends: log_end.ends,
        report,
    })
}

/// The counting part of the journal and the streams, and the reasons for the rest.
fn report(walked: &WalkedJournal, log_end: &LogEnd) -> RecoveryReport {
    let lost_durable = walked
        .lost_durable
        .map(|seq| format!("journal record {seq} is missing, and later ones show that it was durable"));
    let damaged = log_end.ends.iter().filter(|(_, end)| end.damaged);
    let mut damaged_streams: Vec<ObjectId> = damaged.map(|(&id, _)| ObjectId(id)).collect();
    damaged_streams.sort_unstable();
    RecoveryReport {
        records_replayed: log_end.kept as u64,
        tail_dropped: log_end.dropped.clone().or(walked.end_reason.clone()),
        tail_lost: log_end.lost.clone().or(lost_durable),
        damaged_streams,
        ..RecoveryReport::default()
    }
}

/// Largest epoch of any record, including dropped ones: none is reused (OBJ-10).
fn largest_epoch(source: &RecoverySource<'_>, walked: &WalkedJournal, kept: usize) -> u64 {
    let seen = if source.broken.by(StoreFlaw::KeptRecordsOnly) {
        &walked.records[..kept]
    } else {
        &walked.records[..]
    };
    seen.iter().map(|record| record.header.epoch.max(record.header.flushed_epoch)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
