//! The chain of journal records after a checkpoint: walking, re-reading, applying.
//!
//! Invariants
//! - In memory are the places and hashes of all records, and encoded operations of at most 8 MiB. The operations
//!   of other records are read again.

use super::journal_window::{JournalWindow, RecordPlaces};
use crate::{
    StoreOpenError,
    flaw::StoreFlaw,
    format::{
        group, hash64,
        ops::RecordOp,
        record::{self, RecordHeader},
        run::PageRun,
        superblock::Superblock,
    },
    tables::{ObjectTables, OpEffect, snapshot::CheckpointPosition},
};

/// Most bytes of encoded operations that are kept from the walk to the replay. Tests also read some again.
const KEPT_BYTES_MAX: usize = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// A record that continues the chain.
pub(crate) struct WalkedRecord {
    pub(crate) header: RecordHeader,
    /// Position of the page behind it, and its pages on the device.
    pub(crate) end: u64,
    pub(crate) run: PageRun,
    hash: u64,
    /// Its encoded operations, if they are kept.
    kept: Option<Box<[u8]>>,
    /// Data inside the record, and its CRC32C.
    pub(crate) data: Option<(PageRun, u32)>,
}

impl WalkedRecord {
    /// Its operations. Cheap if they are requested in the order of the records: a journal may be many times
    /// larger than the memory for an opening. Blocks.
    /// # Errors
    /// `Damaged`: it reads differently than before. `Device`.
    pub(crate) fn ops(&self, window: &mut JournalWindow<'_>) -> Result<Vec<RecordOp>, StoreOpenError> {
        if let Some(kept) = &self.kept
            && let Ok(ops) = record::decode_ops(kept)
        {
            return Ok(ops);
        }
        let position = self.end - u64::from(self.run.pages);
        let found = record_at(window, position, u64::MAX)?.filter(|(record, _)| record.hash == self.hash);
        found.map(|(_, ops)| ops).ok_or_else(|| StoreOpenError::Damaged {
            what: format!("journal record {} reads differently than before", self.header.seq),
        })
    }

    /// Hash of its bytes: the next record carries it.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        (self.header.first_lsn + u64::from(self.header.transactions)).saturating_sub(1)
    }
}

/// The chain of records after a checkpoint.
pub(crate) struct WalkedJournal {
    pub(crate) records: Vec<WalkedRecord>,
    /// Everything of epochs up to this is durable.
    pub(crate) flushed_epoch: u64,
    /// A missing record that a later one calls durable.
    pub(crate) lost_durable: Option<u64>,
    pub(crate) end_reason: Option<String>,
}

/// Walks the journal after a checkpoint.
pub(crate) fn walk_journal(
    window: &mut JournalWindow<'_>,
    superblock: &Superblock,
    position: &CheckpointPosition,
) -> Result<WalkedJournal, StoreOpenError> {
    JournalWalk::new(window, superblock, position).run()
}

struct JournalWalk<'a, 'w> {
    window: &'w mut JournalWindow<'a>,
    store: u64,
    position: u64,
    seq: u64,
    previous: u64,
    /// Last commit so far.
    lsn: u64,
    mount: u64,
    flushed_epoch: u64,
    /// Most pages of the next record. Only that of a mount follows the last checkpoint of a closed store.
    next_pages: u64,
}

impl<'a, 'w> JournalWalk<'a, 'w> {
    fn new(
        window: &'w mut JournalWindow<'a>,
        superblock: &Superblock,
        position: &CheckpointPosition,
    ) -> JournalWalk<'a, 'w> {
        JournalWalk {
            window,
            store: superblock.uuid as u64,
            position: position.journal_head,
            seq: position.next_seq,
            previous: superblock.chain_seed,
            lsn: position.lsn,
            mount: superblock.mount,
            flushed_epoch: position.epoch,
            next_pages: match position.mount_pages {
                0 => u64::MAX,
                pages => pages.into(),
            },
        }
    }

    fn run(mut self) -> Result<WalkedJournal, StoreOpenError> {
        let mut records: Vec<WalkedRecord> = Vec::new();
        let (mut pages_used, mut kept_bytes) = (0, 0);
        while let Some(mut record) = self.next()? {
            pages_used += self.window.places.distance(self.position, record.end, record.run);
            if pages_used > self.window.places.pages() {
                break;
            }
            self.position = record.end;
            self.next_pages = u64::MAX;
            self.seq += 1;
            self.previous = record.hash;
            self.lsn = self.lsn.max(record.last_lsn());
            self.mount = record.header.mount;
            self.flushed_epoch = self.flushed_epoch.max(record.header.flushed_epoch);
            kept_bytes += record.kept.as_ref().map_or(0, |ops| ops.len());
            record.kept = record.kept.filter(|_| kept_bytes <= KEPT_BYTES_MAX);
            records.push(record);
        }
        let (lost_durable, torn) = self.find_later_records()?;
        let end_reason = (torn && lost_durable.is_none())
            .then(|| format!("record {} was not written completely", self.seq));
        Ok(WalkedJournal { records, flushed_epoch: self.flushed_epoch, lost_durable, end_reason })
    }

    /// The record that continues the chain.
    fn next(&mut self) -> Result<Option<WalkedRecord>, StoreOpenError> {
        for start in self.window.starts(self.position)? {
            if let Some((record, ops)) = record_at(self.window, start, self.next_pages)?
                && self.continues(&record.header, &ops)
            {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn continues(&self, header: &RecordHeader, ops: &[RecordOp]) -> bool {
        let chained =
            header.previous == self.previous || self.window.source().broken.by(StoreFlaw::SequenceOnly);
        let mounts =
            ops.iter().any(|op| matches!(op, RecordOp::Mount { mount, .. } if *mount == header.mount));
        header.store == self.store
            && header.seq == self.seq
            && chained
            && !self.skips_commits(header)
            && (header.mount == self.mount
                || mounts
                || self.window.source().broken.by(StoreFlaw::SequenceOnly))
    }

    /// Whether commits are missing before a record: those that only a later checkpoint holds.
    fn skips_commits(&self, header: &RecordHeader) -> bool {
        header.first_lsn > self.lsn + 1 && !self.window.source().broken.by(StoreFlaw::SequenceOnly)
    }

    /// Searches for later records behind the end of the chain. Damage is shown by a record that calls the
    /// missing one durable, or by the next record if commits before it are missing. Any other later record
    /// shows a crash.
    fn find_later_records(&mut self) -> Result<(Option<u64>, bool), StoreOpenError> {
        if self.is_segment_lost()? {
            return Ok((Some(self.seq), true));
        }
        let mut torn = false;
        for range in self.window.second_starts(self.position, self.next_pages)? {
            let mut at = range.start;
            while at < range.end {
                let found = record_at(self.window, at, range.end - at)?;
                let Some((WalkedRecord { header, end, .. }, _)) = found else {
                    at += 1;
                    continue;
                };
                let ours = header.store == self.store;
                let later = ours && header.seq > self.seq;
                let next = ours && header.seq == self.seq && header.previous == self.previous;
                if later && header.flushed_seq > self.seq || next && self.skips_commits(&header) {
                    return Ok((Some(self.seq), true));
                }
                torn |= later && header.mount == self.mount;
                at = end;
            }
        }
        Ok((None, torn))
    }

    /// Whether the header of the next segment is damaged: it was durable before any record or header behind it
    /// (OBJ-32).
    fn is_segment_lost(&mut self) -> Result<bool, StoreOpenError> {
        let source = self.window.source();
        let Some(places) = self.window.segment_places() else { return Ok(false) };
        let Some(headless) = places.headless(source, self.position)? else { return Ok(false) };
        let range = places.first_places(headless);
        if places.was_written(source, headless)? {
            return Ok(true);
        }
        for at in range.clone() {
            if let Some((WalkedRecord { header, .. }, _)) = record_at(self.window, at, range.end - at)?
                && header.store == self.store
                && header.seq >= self.seq
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A record with a valid sum at `position`, and its operations. Up to `ahead` pages are searched next.
fn record_at(
    window: &mut JournalWindow<'_>,
    position: u64,
    ahead: u64,
) -> Result<Option<(WalkedRecord, Vec<RecordOp>)>, StoreOpenError> {
    match &window.places {
        RecordPlaces::Ring(ring) => {
            let most = ring.record_bytes_max(window.source().page_bytes);
            ring_record_at(window, position, ahead, most)
        }
        RecordPlaces::Segments(segments) => {
            let most = segments.record_pages_max(position);
            group_record_at(window, position, ahead, most)
        }
    }
}

/// A record of the ring, of at most `most` bytes.
fn ring_record_at(
    window: &mut JournalWindow<'_>,
    position: u64,
    ahead: u64,
    most: usize,
) -> Result<Option<(WalkedRecord, Vec<RecordOp>)>, StoreOpenError> {
    let page_bytes = window.source().page_bytes;
    let Some(first) = window.pages(position, 1, ahead)? else {
        return Ok(None);
    };
    let Ok(len) = record::claimed_len(first, most) else {
        return Ok(None);
    };
    let pages = len.div_ceil(page_bytes) as u64;
    let Some(run) = window.places.run(position, pages) else {
        return Ok(None);
    };
    let Some(bytes) = window.pages(position, pages, ahead)? else {
        return Ok(None);
    };
    let Ok((header, ops)) = record::decode(bytes) else {
        return Ok(None);
    };
    let kept = Some(bytes[record::HEADER_LEN..len].into());
    let record = WalkedRecord { header, end: position + pages, run, hash: hash64(bytes), kept, data: None };
    Ok(Some((record, ops)))
}

/// A record with the data of its group, of at most `most` pages. Its data is not read.
fn group_record_at(
    window: &mut JournalWindow<'_>,
    position: u64,
    ahead: u64,
    most: u64,
) -> Result<Option<(WalkedRecord, Vec<RecordOp>)>, StoreOpenError> {
    let Some(place) = window.places.run(position, 1) else {
        return Ok(None);
    };
    let Some(first) = window.pages(position, 1, ahead)? else {
        return Ok(None);
    };
    let Ok(shape) = group::claimed_shape(first, place.at, most) else {
        return Ok(None);
    };
    let first = first.to_vec();
    let rest = match shape.rest_pages {
        0 => Vec::new(),
        pages => match window.pages(position + 1 + u64::from(shape.data_pages), pages.into(), ahead)? {
            Some(rest) => rest.to_vec(),
            None => return Ok(None),
        },
    };
    let Ok(found) = group::decode(&first, &rest) else {
        return Ok(None);
    };
    let data = PageRun::new(place.at + 1, shape.data_pages);
    let record = WalkedRecord {
        header: found.header.record,
        end: position + shape.pages(),
        run: PageRun::new(place.at, shape.pages() as u32),
        hash: found.hash,
        kept: Some(found.encoded.into()),
        data: Some((data, found.header.data_sum)),
    };
    Ok(Some((record, found.ops)))
}

/// Applies one record to the tables; adds to `freed` the pages it frees.
pub(crate) fn apply(
    tables: &mut ObjectTables,
    record: &WalkedRecord,
    ops: &[RecordOp],
    freed: &mut Vec<PageRun>,
) -> Result<(), StoreOpenError> {
    let mut effect = OpEffect::default();
    for op in ops {
        tables.apply(op, record.last_lsn(), &mut effect).map_err(|misfit| StoreOpenError::Damaged {
            what: format!("journal record {}: {misfit}", record.header.seq),
        })?;
    }
    freed.append(&mut effect.freed);
    Ok(())
}
