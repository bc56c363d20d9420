//! The chain of journal records after a checkpoint: walking, re-reading, applying.
//!
//! Invariants
//! - In memory are the places and hashes of all records, and the operations of one.

use super::RecoverySource;
use crate::{
    StoreOpenError,
    flaw::StoreFlaw,
    format::{
        hash64,
        ops::RecordOp,
        record::{self, RecordHeader},
        run::PageRun,
        superblock::Superblock,
    },
    tables::{OpEffect, Tables, snapshot::CheckpointPosition},
};

/// A record that continues the chain. [`RecordOps`] reads its operations again on demand.
pub(crate) struct WalkedRecord {
    pub(crate) header: RecordHeader,
    /// Position of the page behind it, its pages, and its hash.
    pub(crate) end: u64,
    pub(crate) pages: u64,
    pub(crate) hash: u64,
}

impl WalkedRecord {
    /// Its pages on the device.
    pub(crate) fn run(&self, superblock: &Superblock) -> PageRun {
        let within = (self.end - self.pages) % superblock.journal_pages;
        PageRun::new(superblock.journal_at + within, self.pages as u32)
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
    pub(super) end_reason: Option<String>,
}

/// Walks the journal after a checkpoint.
pub(crate) fn walk_journal(
    source: &RecoverySource<'_>,
    superblock: &Superblock,
    position: &CheckpointPosition,
) -> Result<WalkedJournal, StoreOpenError> {
    JournalWalk::new(source, superblock, position).run()
}

struct JournalWalk<'a> {
    source: &'a RecoverySource<'a>,
    superblock: &'a Superblock,
    position: u64,
    seq: u64,
    previous: u64,
    /// Last commit so far.
    lsn: u64,
    mount: u64,
    flushed_epoch: u64,
    record_bytes_max: usize,
}

impl<'a> JournalWalk<'a> {
    fn new(
        source: &'a RecoverySource<'a>,
        superblock: &'a Superblock,
        position: &CheckpointPosition,
    ) -> JournalWalk<'a> {
        JournalWalk {
            source,
            superblock,
            position: position.journal_head,
            seq: position.next_seq,
            previous: superblock.chain_seed,
            lsn: position.lsn,
            mount: superblock.mount,
            flushed_epoch: position.epoch,
            record_bytes_max: record_bytes_max(superblock),
        }
    }

    fn run(mut self) -> Result<WalkedJournal, StoreOpenError> {
        let mut records: Vec<WalkedRecord> = Vec::new();
        let mut pages_used = 0;
        while let Some(record) = self.next()? {
            pages_used += record.end - self.position;
            if pages_used > self.superblock.journal_pages {
                break;
            }
            self.position = record.end;
            self.seq += 1;
            self.previous = record.hash;
            self.lsn = self.lsn.max(record.last_lsn());
            self.mount = record.header.mount;
            self.flushed_epoch = self.flushed_epoch.max(record.header.flushed_epoch);
            records.push(record);
        }
        let (lost_durable, torn) = self.find_later_records()?;
        let end_reason = (torn && lost_durable.is_none())
            .then(|| format!("record {} was not written completely", self.seq));
        Ok(WalkedJournal { records, flushed_epoch: self.flushed_epoch, lost_durable, end_reason })
    }

    /// The record that continues the chain: at the current position, or at the ring's start.
    fn next(&self) -> Result<Option<WalkedRecord>, StoreOpenError> {
        for start in self.starts() {
            if let Some((header, ops, bytes)) = self.record_at(start)?
                && self.continues(&header, &ops)
            {
                let pages = (bytes.len() / self.source.page_bytes) as u64;
                let hash = hash64(&bytes);
                return Ok(Some(WalkedRecord { header, end: start + pages, pages, hash }));
            }
        }
        Ok(None)
    }

    fn starts(&self) -> [u64; 2] {
        [self.position, self.position.next_multiple_of(self.superblock.journal_pages)]
    }

    fn continues(&self, header: &RecordHeader, ops: &[RecordOp]) -> bool {
        let chained = header.previous == self.previous || self.source.broken.by(StoreFlaw::SequenceOnly);
        let mounts =
            ops.iter().any(|op| matches!(op, RecordOp::Mount { mount, .. } if *mount == header.mount));
        header.store == self.superblock.uuid as u64
            && header.seq == self.seq
            && chained
            && !self.skips_commits(header)
            && (header.mount == self.mount || mounts || self.source.broken.by(StoreFlaw::SequenceOnly))
    }

    /// Whether commits are missing before a record: those that only a later checkpoint holds.
    fn skips_commits(&self, header: &RecordHeader) -> bool {
        header.first_lsn > self.lsn + 1 && !self.source.broken.by(StoreFlaw::SequenceOnly)
    }

    /// A record with a valid sum at a position of the ring, and its bytes.
    fn record_at(&self, position: u64) -> Result<Option<FoundRecord>, StoreOpenError> {
        let within = position % self.superblock.journal_pages;
        let first = self.source.read(PageRun::new(self.superblock.journal_at + within, 1))?;
        let Ok(len) = record::claimed_len(&first, self.record_bytes_max) else {
            return Ok(None);
        };
        let pages = len.div_ceil(self.source.page_bytes) as u64;
        if within + pages > self.superblock.journal_pages {
            return Ok(None);
        }
        let bytes = if pages == 1 {
            first
        } else {
            self.source.read(PageRun::new(self.superblock.journal_at + within, pages as u32))?
        };
        match record::decode(&bytes) {
            Ok((header, ops)) => Ok(Some((header, ops, bytes))),
            Err(_) => Ok(None),
        }
    }

    /// Searches for later records behind the end of the chain. Damage is shown by a record that calls the
    /// missing one durable, or by the next record if commits before it are missing. Any other later record
    /// shows a crash.
    fn find_later_records(&self) -> Result<(Option<u64>, bool), StoreOpenError> {
        let window = (self.record_bytes_max / self.source.page_bytes) as u64 + 1;
        let mut torn = false;
        for start in self.starts() {
            let end = (start + window)
                .min((start / self.superblock.journal_pages + 1) * self.superblock.journal_pages);
            let mut at = start;
            while at < end {
                let Some((header, _, bytes)) = self.record_at(at)? else {
                    at += 1;
                    continue;
                };
                let ours = header.store == self.superblock.uuid as u64;
                let later = ours && header.seq > self.seq;
                let next = ours && header.seq == self.seq && header.previous == self.previous;
                if later && header.flushed_seq > self.seq || next && self.skips_commits(&header) {
                    return Ok((Some(self.seq), true));
                }
                torn |= later && header.mount == self.mount;
                at += (bytes.len() / self.source.page_bytes) as u64;
            }
        }
        Ok((None, torn))
    }
}

/// Header, operations and bytes of a record with a valid sum.
type FoundRecord = (RecordHeader, Vec<RecordOp>, Vec<u8>);

/// Longest record of a store's journal, as `JournalRing::record_bytes_max`.
pub(crate) fn record_bytes_max(superblock: &Superblock) -> usize {
    let page = u64::from(superblock.page_bytes);
    (superblock.journal_pages / 8 * page).min(4 << 20).max(page) as usize
}

/// The operations of walked records, one record at a time: a journal may be many times larger than the memory
/// for an opening.
pub(crate) struct RecordOps<'a> {
    source: &'a RecoverySource<'a>,
    superblock: &'a Superblock,
    /// Pages of the journal, from this page of the device on.
    bytes: Vec<u8>,
    at: u64,
}

impl<'a> RecordOps<'a> {
    /// Pages read at once.
    const WINDOW_PAGES: u64 = 64;

    pub(crate) fn new(source: &'a RecoverySource<'a>, superblock: &'a Superblock) -> RecordOps<'a> {
        RecordOps { source, superblock, bytes: Vec::new(), at: 0 }
    }

    /// The operations of `record`. Cheap if records are requested in order. Blocks.
    /// # Errors
    /// `Damaged`: it reads differently than before. `Device`.
    pub(crate) fn of(&mut self, record: &WalkedRecord) -> Result<Vec<RecordOp>, StoreOpenError> {
        let run = record.run(self.superblock);
        let held = (self.bytes.len() / self.source.page_bytes) as u64;
        if run.at < self.at || run.end() > self.at + held {
            let left = self.superblock.journal_at + self.superblock.journal_pages - run.at;
            let window = left.min(RecordOps::WINDOW_PAGES.max(run.pages.into()));
            self.bytes = Vec::new();
            // Pages behind the record may be unreadable, which does not concern this record.
            let read = self.source.read(PageRun::new(run.at, window as u32));
            self.bytes = read.or_else(|_| self.source.read(run))?;
            self.at = run.at;
        }
        let from = (run.at - self.at) as usize * self.source.page_bytes;
        let bytes = &self.bytes[from..from + run.pages as usize * self.source.page_bytes];
        let decoded = record::decode(bytes).ok().filter(|_| hash64(bytes) == record.hash);
        decoded.map(|(_, ops)| ops).ok_or_else(|| StoreOpenError::Damaged {
            what: format!("journal record {} reads differently than before", record.header.seq),
        })
    }
}

/// Applies one record to the tables; adds to `freed` the pages it frees.
pub(crate) fn apply(
    tables: &mut Tables,
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
