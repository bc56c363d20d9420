//! Check of an open store: superblock copies, checkpoint, journal, owners of pages, and frames. With `data`,
//! it also compares every byte of every object with its sums.
//!
//! It reads in the background class, one unit at a time, beside other operations. A wrong byte anywhere in
//! the file is found by the check or by the read that uses it, or lies in free space. Free space is
//! everything that no table, journal record or checkpoint needs, such as the journal after a clean close.
//! Units that readers of this opening have verified are left out on request (`state::verified_ranges`).
//! Design: docs/design/object.md#checking
//! Invariants
//! - It never invents data. `repair` rewrites only data that the store knows for certain: superblock copies,
//!   checkpoint, journal.
//! - Memory does not grow with the store, except for the list of damages.
//!
//! Not here: damage that recovery found (`StoreOpenError`, `RecoveryReport`).

use crate::{
    FramePos, ObjectId, StoreError, StoreOpenError,
    check::coverage::{
        RangeCoverage, RangeWitness, SeeRange, SummedData, UnusedSpace, report_unused, rest_of,
    },
    flaw::BrokenRule,
    format::{
        run::{PageRun, pages_of},
        sum_rule::SumRule,
        superblock::{COPIES, SUPERBLOCK_LEN, Superblock},
    },
    recovery::{self, RecoverySource, chunks, damaged_units, derive_space, unit_damage},
    state::StoreCore,
    tables::{ObjectEntry, StreamEntry, TableEntry, map::ObjectExtent, snapshot::CheckpointPosition},
};
use copal_device::DeviceError;
use std::{ops::Range, sync::Arc};

/// Depth of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read and verify all objects too.
    pub data: bool,
    /// Rewrite damaged superblock copies, checkpoint and journal.
    pub repair: bool,
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreDamage {
    /// A superblock copy differs from the others.
    #[error("superblock copy {copy} is damaged")]
    Superblock {
        /// 0 to 3.
        copy: usize,
    },
    /// The checkpoint cannot be read back.
    #[error("the checkpoint is damaged: {what}")]
    Checkpoint {
        /// Description.
        what: String,
    },
    /// One of the two copies of a checkpoint page is damaged; the other one is intact.
    #[error("a copy of the checkpoint is damaged at page {page}")]
    CheckpointCopy {
        /// Its position, in pages of the store.
        page: u64,
    },
    /// A journal record that the next open needs cannot be read back.
    #[error("journal record {seq} is damaged")]
    Journal {
        /// Its number.
        seq: u64,
    },
    /// A page with two owners, or a page that has no owner and is not free.
    #[error("the space accounting is wrong: {what}")]
    Space {
        /// Description of the pages.
        what: String,
    },
    /// Bytes of an object differ from the written ones.
    #[error("object {} is damaged at bytes {} to {}", .id.0, .range.start, .range.end)]
    Object {
        /// The object.
        id: ObjectId,
        /// The damaged unit.
        range: Range<u64>,
    },
    /// Acknowledged frames cannot be read back.
    #[error("stream {} is damaged from frame {} on", .id.0, .frame.0)]
    Stream {
        /// The stream.
        id: ObjectId,
        /// First missing frame.
        frame: FramePos,
    },
}

/// Result of a check.
#[derive(Clone, Debug, Default)]
pub struct StoreCheckReport {
    /// All damages found.
    pub damages: Vec<StoreDamage>,
    /// Number of repaired damages.
    pub repaired: usize,
    /// Number of checked objects and streams.
    pub objects: u64,
    /// Bytes of objects that were read and summed.
    pub bytes_summed: u64,
}

impl StoreCheckReport {
    /// Whether no damage was found, or every damage was repaired.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damages.len() == self.repaired
    }
}

/// Findings of one pass over the metadata; they count if no checkpoint finished meanwhile.
#[derive(Default)]
struct FoundDamage {
    damages: Vec<StoreDamage>,
    seen: Vec<(PageRun, RangeCoverage)>,
}

impl FoundDamage {
    /// Checks the checkpoint that `superblock` names, and the journal behind it.
    /// # Errors
    /// Part of the checkpoint, or the journal as a whole, cannot be read.
    fn check_state(
        &mut self,
        source: &RecoverySource<'_>,
        superblock: &Superblock,
        flushed_seq: u64,
    ) -> Result<(), StoreOpenError> {
        let found = recovery::read_checkpoint(source, superblock, recovery::ChainCopies::Both)?;
        let chain = found.runs.iter();
        self.seen.extend(chain.map(|&run| (run, RangeCoverage::Summed(SummedData::Checkpoint))));
        let copy = |run: &PageRun| StoreDamage::CheckpointCopy { page: run.at };
        self.damages.extend(found.damaged.iter().map(copy));
        self.check_journal(source, superblock, &found.position, flushed_seq)
    }

    fn check_journal(
        &mut self,
        source: &RecoverySource<'_>,
        superblock: &Superblock,
        position: &CheckpointPosition,
        flushed_seq: u64,
    ) -> Result<(), StoreOpenError> {
        let mut window = recovery::JournalWindow::new(source, superblock, position);
        let walked = recovery::walk_journal(&mut window, superblock, position)?;
        let end = position.next_seq + walked.records.len() as u64;
        if end < flushed_seq {
            self.damages.push(StoreDamage::Journal { seq: end });
        }
        let mut records: Vec<(PageRun, u64)> =
            walked.records.iter().map(|record| (record.run, record.header.seq)).collect();
        records.sort_unstable();
        let runs: Vec<PageRun> = records.iter().map(|&(run, _)| run).collect();
        let summed = |(run, seq)| (run, RangeCoverage::Summed(SummedData::Record { seq }));
        self.seen.extend(records.into_iter().map(summed));
        // Records behind damage were not understood.
        if end >= flushed_seq {
            let journal = PageRun::new(superblock.journal_at, superblock.journal_pages as u32);
            let unused = |run| (run, RangeCoverage::Unused(UnusedSpace::Journal));
            self.seen.extend(rest_of(journal, &runs).into_iter().map(unused));
        }
        Ok(())
    }
}

/// Like [`damaged_units`]; a unit that the medium cannot read counts as damaged too.
fn damaged_one_by_one(
    source: &RecoverySource<'_>,
    chunk: PageRun,
    sums: &[u32],
    (rule, unit): (SumRule, u32),
) -> Result<Vec<PageRun>, DeviceError> {
    let mut damaged = Vec::new();
    for (run, sum) in crate::state::pieces(chunk, unit).zip(sums) {
        match damaged_units(source, run, std::slice::from_ref(sum), (rule, unit)) {
            Ok(units) => damaged.extend(units),
            Err(error) if error.is_passing() => return Err(error),
            Err(_) => damaged.push(run),
        }
    }
    Ok(damaged)
}

/// See `Store::check` and `Store::check_coverage`.
pub(crate) fn check(
    store: &Arc<StoreCore>,
    options: &CheckOptions,
    see: Option<SeeRange<'_>>,
) -> Result<StoreCheckReport, StoreError> {
    let mut report = StoreCheckReport::default();
    let mut witness = RangeWitness::new(see, store.shape.page_bytes);
    check_metadata(store, &mut report, &mut witness)?;
    check_space(store, &mut report);
    report_unused(store, &mut witness);
    check_entries(store, options, &mut report, &mut witness)?;
    if options.repair && !store.shape.read_only {
        repair(store, &mut report)?;
    }
    Ok(report)
}

fn source(store: &StoreCore) -> RecoverySource<'_> {
    RecoverySource {
        device: store.device.as_ref(),
        page_bytes: store.shape.page_bytes,
        salvage: store.shape.salvage,
        broken: BrokenRule::default(),
    }
}

/// Checks the metadata that the next opening reads first. While a checkpoint is being written the previous
/// one is still live.
/// # Errors
/// A read failed with a passing error.
pub(super) fn check_metadata(
    store: &Arc<StoreCore>,
    report: &mut StoreCheckReport,
    witness: &mut RangeWitness<'_>,
) -> Result<(), StoreError> {
    let (before, superblock, flushed_seq) = {
        let state = store.state.lock();
        let live = &state.checkpoint;
        (live.finished(), live.superblock().clone(), state.commit.flushed_seq())
    };
    let mut found = FoundDamage::default();
    let copies = recovery::read_superblocks(store.device.as_ref())?;
    for (copy, read) in copies.iter().enumerate() {
        let is_intact = read.good().is_some_and(|read| read.uuid == superblock.uuid);
        if !is_intact {
            found.damages.push(StoreDamage::Superblock { copy });
        }
    }
    match found.check_state(&source(store), &superblock, flushed_seq) {
        Ok(()) => {}
        Err(StoreOpenError::Device(error)) if error.is_passing() => return Err(StoreError::Device(error)),
        Err(error) => {
            let what = error.to_string();
            found.damages.push(StoreDamage::Checkpoint { what });
        }
    }
    // Another checkpoint finished meanwhile: the pages read may have been reused, so the pass is repeated.
    if store.state.lock().checkpoint.finished() != before {
        return check_metadata(store, report, witness);
    }
    report.damages.append(&mut found.damages);
    for (copy, at) in COPIES.into_iter().enumerate() {
        let range = at..at + SUPERBLOCK_LEN as u64;
        witness.bytes(range, RangeCoverage::Summed(SummedData::Superblock { copy }));
    }
    for (run, covered) in found.seen {
        witness.run(run, covered);
    }
    Ok(())
}

/// Checks that every page has one owner, and that all other pages are free.
fn check_space(store: &StoreCore, report: &mut StoreCheckReport) {
    let state = store.state.lock();
    let live = &state.checkpoint;
    let empty = state.space.placement().emptied();
    match derive_space(&state.tables, live.superblock(), live.runs(), &[], &[], empty) {
        Err(error) => report.damages.push(StoreDamage::Space { what: error.to_string() }),
        Ok((derived, _)) => {
            let space = &state.space;
            let elsewhere = space.quarantine_pages()
                + pages_of(state.commit.open_freed())
                + space.staged_pages()
                + state.cleaner.copy_pages
                + live.pending_pages();
            let expected = space.ownerless_pages() + space.placement().hollow_pages() + elsewhere;
            if derived.ownerless_pages() != expected {
                let what = format!("{} pages are free, {expected} should be", derived.ownerless_pages());
                report.damages.push(StoreDamage::Space { what });
            }
        }
    }
}

fn check_entries(
    store: &Arc<StoreCore>,
    options: &CheckOptions,
    report: &mut StoreCheckReport,
    witness: &mut RangeWitness<'_>,
) -> Result<(), StoreError> {
    let mut from = 0;
    loop {
        let mut state = store.state.lock();
        let Some((id, entry)) = state.tables.entries.iter_from(from).next() else {
            return Ok(());
        };
        let entry = match entry {
            TableEntry::Object(_) if !options.data => None,
            entry => Some(entry.clone()),
        };
        // The pages of the clone are pinned while they are checked.
        let runs = match &entry {
            Some(TableEntry::Object(object)) => object.map.iter().map(|extent| extent.run).collect(),
            Some(TableEntry::Stream(stream)) => stream.pieces.iter().map(|piece| piece.run).collect(),
            None => Vec::new(),
        };
        let ticket = state.space.pin(runs);
        drop(state);
        report.objects += 1;
        let found = match &entry {
            Some(TableEntry::Object(object)) => check_object(store, id, object, report, witness),
            Some(TableEntry::Stream(stream)) => check_stream(store, id, stream, report, witness),
            None => Ok(()),
        };
        store.unpin(ticket);
        found?;
        let Some(next) = id.checked_add(1) else {
            return Ok(());
        };
        from = next;
    }
}

fn check_object(
    store: &StoreCore,
    id: u64,
    object: &ObjectEntry,
    report: &mut StoreCheckReport,
    witness: &mut RangeWitness<'_>,
) -> Result<(), StoreError> {
    let page = store.shape.page_bytes as u64;
    let (rule, unit) = (object.what.sums, object.unit(store.shape.page_bytes));
    let source = source(store);
    let mut damaged: Vec<Range<u64>> = Vec::new();
    if let Some(trailer) = &object.trailer {
        let runs: Vec<PageRun> = object.map.iter().map(|extent| extent.run).collect();
        let mut summed = |run: PageRun, is_data: bool| {
            let what = if is_data { SummedData::Object } else { SummedData::Sums };
            witness.summed(run, what(ObjectId(id)));
        };
        damaged = unit_damage(&source, &runs, object.len, **trailer, &object.what, &mut summed)?;
    } else {
        for extent in object.map.iter() {
            let sums = object.map.sums_of(extent.at, unit);
            for (chunk, sums) in chunks(extent.run, sums, unit) {
                // Bytes still being written belong to a commit newer than this check.
                if store.state.lock().is_unwritten(chunk) {
                    continue;
                }
                for (run, _) in crate::state::pieces(chunk, unit).zip(sums) {
                    witness.summed(run, SummedData::Object(ObjectId(id)));
                }
                for (part, sums) in unverified(store, ObjectId(id), &extent, (chunk, sums), unit) {
                    let units = match damaged_units(&source, part, sums, (rule, unit)) {
                        Ok(units) => units,
                        // A sector is unreadable: the units are read one by one.
                        Err(_) => damaged_one_by_one(&source, part, sums, (rule, unit))?,
                    };
                    damaged.extend(units.into_iter().map(|run| {
                        let at = extent.at + (run.at - extent.run.at);
                        at..at + u64::from(run.pages)
                    }));
                }
            }
        }
    }
    report.bytes_summed += object.map.pages() * page;
    for pages in damaged {
        let end = (pages.end * page).min(object.len.max(pages.start * page + 1));
        report.damages.push(StoreDamage::Object { id: ObjectId(id), range: pages.start * page..end });
    }
    Ok(())
}

/// Parts of a chunk of an object with the sums of their units: all units but those that readers have verified.
fn unverified<'s>(
    store: &StoreCore,
    id: ObjectId,
    extent: &ObjectExtent,
    (chunk, sums): (PageRun, &'s [u32]),
    unit: u32,
) -> Vec<(PageRun, &'s [u32])> {
    let Some(verified) = store.verified.get() else { return vec![(chunk, sums)] };
    let page = store.shape.page_bytes as u64;
    let mut parts: Vec<(PageRun, Range<usize>)> = Vec::new();
    for (index, run) in crate::state::pieces(chunk, unit).enumerate() {
        let start = (extent.at + (run.at - extent.run.at)) * page;
        if verified.covers(id, &(start..start + u64::from(run.pages) * page)) {
            continue;
        }
        match parts.last_mut() {
            Some((last, units)) if last.end() == run.at => {
                last.pages += run.pages;
                units.end = index + 1;
            }
            _ => parts.push((run, index..index + 1)),
        }
    }
    parts.into_iter().map(|(run, units)| (run, sums.get(units).unwrap_or(&[]))).collect()
}

fn check_stream(
    store: &Arc<StoreCore>,
    id: u64,
    stream: &StreamEntry,
    report: &mut StoreCheckReport,
    witness: &mut RangeWitness<'_>,
) -> Result<(), StoreError> {
    let mut reader = match crate::FrameReader::new(store, ObjectId(id), FramePos(0)) {
        Ok(reader) => reader,
        Err(StoreError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error),
    };
    if witness.is_asked() {
        reader.note_seen();
    }
    loop {
        match reader.next_frame() {
            Ok(Some((_, payload))) => report.bytes_summed += payload.len() as u64,
            Ok(None) => {
                report_frames(id, stream, &reader.take_seen(), witness);
                return Ok(());
            }
            Err(StoreError::NotFound(_)) => return Ok(()),
            Err(StoreError::Corrupt { range, .. }) => {
                let frame = FramePos(range.start);
                report.damages.push(StoreDamage::Stream { id: ObjectId(id), frame });
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

/// Reports the frames that were read, and the rest of the stream's extents as unused.
fn report_frames(id: u64, stream: &StreamEntry, frames: &[PageRun], witness: &mut RangeWitness<'_>) {
    for &frame in frames {
        witness.summed(frame, SummedData::Frame(ObjectId(id)));
    }
    for piece in &stream.pieces {
        let mut within: Vec<PageRun> =
            frames.iter().filter(|frame| frame.overlaps(piece.run)).copied().collect();
        within.sort_unstable();
        for run in rest_of(piece.run, &within) {
            witness.unused(run, UnusedSpace::Stream);
        }
    }
}

/// Writes a new checkpoint from memory, and all superblock copies.
fn repair(store: &Arc<StoreCore>, report: &mut StoreCheckReport) -> Result<(), StoreError> {
    let repairable = |damage: &StoreDamage| {
        matches!(
            damage,
            StoreDamage::Superblock { .. }
                | StoreDamage::Checkpoint { .. }
                | StoreDamage::CheckpointCopy { .. }
                | StoreDamage::Journal { .. }
        )
    };
    let count = report.damages.iter().filter(|damage| repairable(damage)).count();
    if count == 0 {
        return Ok(());
    }
    crate::engine::close::checkpoint_now(store)?;
    crate::open::repair_superblocks(store, &[0, 1, 2, 3])?;
    report.repaired = count;
    Ok(())
}
