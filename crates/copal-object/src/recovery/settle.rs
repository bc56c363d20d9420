//! What counts: records whose data and frames survived, frames whose commits survived, to a fixed point (OBJ-14).
//!
//! A record that depends on a lost frame ends the journal; a frame that comes after a lost commit ends its stream; each
//! may bring down more of the other. Both only ever get shorter, so it ends.

use super::{Copies, OpenError, Ops, Source, Walked, apply, read_checkpoint, verify};
use crate::{
    broken::Flaw,
    format::{frame, ops::RecordOp, superblock::Superblock},
    run::Run,
    snapshot::Position,
    tables::{Piece, Tables},
    walk::{End, walk},
};
use std::collections::HashMap;

/// The certain state.
pub(crate) struct Settled {
    pub(crate) tables: Tables,
    /// Records that count.
    pub(crate) kept: usize,
    pub(crate) ends: HashMap<u64, End>,
    /// Why the last records do not count: they cannot have been durable.
    pub(crate) dropped: Option<String>,
    /// Why they do not count although they may have been durable.
    pub(crate) lost: Option<String>,
    /// Pages freed by records that count, and those that dropped records name.
    pub(crate) needed: Vec<Run>,
}

/// Pieces of a stream as they were before anything unflushed was trimmed or deleted: its frames are still there (OBJ-5).
struct History {
    pieces: Vec<Piece>,
    trimmed: u64,
}

/// A record's dependency on a frame of a history.
struct Dependency {
    record: usize,
    history: usize,
    frame: u64,
}

/// Reads the records, drops the first that does not count with all behind it, and begins again, until nothing is
/// dropped any more. Each round reads the whole journal again: a crash takes a round or two, but a journal made so that
/// each record depends on a frame that counts only with the record behind it takes as many rounds as it has records.
pub(crate) fn settle(
    source: &Source<'_>,
    superblock: &Superblock,
    walked: &Walked,
    checkpoint: Tables,
    position: &Position,
    accept_tail_loss: bool,
) -> Result<Settled, OpenError> {
    let mut checkpoint = Some(checkpoint);
    let mut kept = walked.records.len();
    let mut dropped = None;
    let mut lost = None;
    let mut verified = false;
    let mut reader = Ops::new(source, superblock);
    loop {
        let mut tables = match checkpoint.take() {
            Some(tables) => tables,
            None => read_checkpoint(source, superblock, Copies::AsNeeded)?.tables,
        };
        let mut histories = Histories::default();
        let mut needed = Vec::new();
        for index in 0..kept {
            let record = &walked.records[index];
            let ops = reader.of(record)?;
            let in_tail = record.header.epoch > walked.flushed_epoch;
            if in_tail {
                histories.note(&tables, index, &ops);
            }
            apply(&mut tables, record, &ops, &mut needed)?;
            if verified || !in_tail || source.broken.by(Flaw::NoDataSum) {
                continue;
            }
            let there = verify::data_is_there(source, record, &ops, walked.flushed_epoch);
            match there {
                Ok(true) => {}
                Ok(false) => {
                    dropped = Some(format!(
                        "data of record {} was not written whole",
                        record.header.seq
                    ));
                    kept = index;
                    break;
                }
                Err(error) if accept_tail_loss => {
                    lost = Some(format!(
                        "data of journal record {} cannot be read: {error}",
                        record.header.seq
                    ));
                    kept = index;
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        if !verified && kept < walked.records.len() {
            // Data of what is left was verified on the way; the tables hold one record too many.
            verified = true;
            continue;
        }
        verified = true;
        let last_lsn = walked.records[..kept]
            .last()
            .map_or(position.lsn, |record| record.last_lsn().max(position.lsn));
        let limit = if source.broken.by(Flaw::AfterIgnored) {
            u64::MAX
        } else {
            last_lsn
        };
        if !source.broken.by(Flaw::DepIgnored)
            && let Some(index) = histories.first_lost(source, &tables, limit)?
        {
            dropped = Some(format!(
                "record {} came after a frame that was lost",
                walked.records[index].header.seq
            ));
            kept = index;
            continue;
        }
        let mut ends = HashMap::new();
        for (id, stream) in tables.streams() {
            let mut end = end_of(source, &tables, &stream.pieces, stream.trimmed, limit)?;
            end.damaged |= end.next < stream.durable;
            if end.damaged && is_cut(source, &stream.pieces) {
                return Err(truncated(source, &tables));
            }
            ends.insert(id, end);
        }
        for record in &walked.records[kept..] {
            needed.extend(reader.of(record)?.iter().flat_map(runs_of));
        }
        return Ok(Settled {
            tables,
            kept,
            ends,
            dropped,
            lost,
            needed,
        });
    }
}

/// Pages an operation names.
fn runs_of(op: &RecordOp) -> Vec<Run> {
    match op {
        RecordOp::Map { run, .. } | RecordOp::StreamExtent { run, .. } => vec![*run],
        RecordOp::Publish { runs, .. } => runs.clone(),
        _ => Vec::new(),
    }
}

/// Where the frames of `pieces` end. Of a device that was cut off, what is left of the pieces is looked at.
/// # Errors
/// `Truncated`: a frame that was acknowledged may have been cut off. `Device`.
fn end_of(
    source: &Source<'_>,
    tables: &Tables,
    pieces: &[Piece],
    trimmed: u64,
    last_lsn: u64,
) -> Result<End, OpenError> {
    if !is_cut(source, pieces) {
        return end_of_whole(source, pieces, trimmed, last_lsn);
    }
    let left: Vec<Piece> = pieces
        .iter()
        .map(|piece| piece.within(source.whole_pages()))
        .collect();
    let end = end_of_whole(source, &left, trimmed, last_lsn)?;
    if ends_in_sight(source, pieces, &end, trimmed)? {
        Ok(end)
    } else {
        Err(truncated(source, tables))
    }
}

/// Whether the device ends before one of the pieces does. Who saves what can be saved asks for no more than there is.
fn is_cut(source: &Source<'_>, pieces: &[Piece]) -> bool {
    let pages = source.whole_pages();
    !source.salvage && pieces.iter().any(|piece| piece.run.end() > pages)
}

fn truncated(source: &Source<'_>, tables: &Tables) -> OpenError {
    OpenError::Truncated {
        store_bytes: tables.pages.saturating_mul(source.page_bytes as u64),
        device_bytes: source.device.geometry().size,
    }
}

/// Whether the page where the next frame would begin is there, and holds none. Frames follow one another page by page, so
/// none lay behind it either: what was cut off held no frame. When that page is gone, nothing tells a frame that was
/// acknowledged from space that was never used.
fn ends_in_sight(source: &Source<'_>, pieces: &[Piece], end: &End, trimmed: u64) -> Result<bool, OpenError> {
    let Some(piece) = pieces.get(end.piece) else {
        return Ok(true);
    };
    let is_last = end.piece + 1 == pieces.len();
    // Where trimmed frames are gone, the page of the next one is not known.
    let is_passed_over = end.used == 0 && end.next <= trimmed && end.next > piece.first;
    // A stream without frames may be a place: all of it is somebody's, and nothing says which bytes count.
    let is_place = end.used == 0 && end.piece == 0;
    if end.damaged || !is_last || is_passed_over || is_place {
        return Ok(false);
    }
    if end.used == piece.run.pages {
        return Ok(true);
    }
    let at = piece.run.at + u64::from(end.used);
    if at >= source.whole_pages() {
        return Ok(false);
    }
    let page = source.read(Run::new(at, 1))?;
    let is_frame = frame::claimed(&page).is_ok_and(|(header, _)| header.incarnation == piece.incarnation);
    Ok(!is_frame)
}

fn end_of_whole(
    source: &Source<'_>,
    pieces: &[Piece],
    trimmed: u64,
    last_lsn: u64,
) -> Result<End, OpenError> {
    let read = |run: Run| source.read(run);
    let trimmed = if source.broken.by(Flaw::TrimBehindTheEnd) {
        0
    } else {
        trimmed
    };
    Ok(walk(
        pieces,
        trimmed,
        last_lsn,
        source.page_bytes,
        source.salvage,
        &read,
        |_, _| {},
    )?)
}

#[derive(Default)]
struct Histories {
    all: Vec<History>,
    current: HashMap<u64, usize>,
    dependencies: Vec<Dependency>,
}

impl Histories {
    /// Before `ops` of record `index` are applied to `tables`: remembers what later checks need.
    fn note(&mut self, tables: &Tables, index: usize, ops: &[RecordOp]) {
        for op in ops {
            match op {
                RecordOp::Create { id, .. } => {
                    self.all.push(History {
                        pieces: Vec::new(),
                        trimmed: 0,
                    });
                    self.current.insert(*id, self.all.len() - 1);
                }
                RecordOp::StreamExtent {
                    id,
                    run,
                    first,
                    incarnation,
                } => {
                    let piece = Piece {
                        run: *run,
                        first: *first,
                        incarnation: *incarnation,
                        lsn: 0,
                    };
                    let history = self.of(tables, *id);
                    self.all[history].pieces.push(piece);
                }
                RecordOp::StreamTrim { id, .. } | RecordOp::Delete { id } => drop(self.of(tables, *id)),
                RecordOp::Dep { id, frame } => {
                    let history = self.of(tables, *id);
                    self.dependencies.push(Dependency {
                        record: index,
                        history,
                        frame: *frame,
                    });
                }
                _ => {}
            }
        }
    }

    fn of(&mut self, tables: &Tables, id: u64) -> usize {
        if let Some(&history) = self.current.get(&id) {
            return history;
        }
        let history = match tables.stream(id) {
            Some(stream) => History {
                pieces: stream.pieces.clone(),
                trimmed: stream.trimmed,
            },
            None => History {
                pieces: Vec::new(),
                trimmed: 0,
            },
        };
        self.all.push(history);
        self.current.insert(id, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The first record that depends on a frame that is lost.
    fn first_lost(
        &self,
        source: &Source<'_>,
        tables: &Tables,
        last_lsn: u64,
    ) -> Result<Option<usize>, OpenError> {
        let mut ends: HashMap<usize, u64> = HashMap::new();
        for dependency in &self.dependencies {
            let history = &self.all[dependency.history];
            let end = match ends.get(&dependency.history) {
                Some(&end) => end,
                None => {
                    let end = end_of(source, tables, &history.pieces, history.trimmed, last_lsn)?.next;
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
