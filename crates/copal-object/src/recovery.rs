//! Recovery: from whatever a crash left to one certain state.
//!
//! Flush; newest superblock; checkpoint; walk the journal; verify what was not flushed; find where streams end, and what
//! depends on what, to a fixed point; derive free space; mount.
//! Design: docs/design/object.md#recovery OBJ-1, OBJ-2, OBJ-4, OBJ-9, OBJ-10, OBJ-11, OBJ-13, OBJ-14
//! Invariants
//! - Running it again after a crash inside it gives the same state.
//! - It drops only what was never acknowledged as durable; when something acknowledged is damaged, it refuses.
//! - Of the journal, places and hashes of all records are in memory, and the operations of one.

use crate::{
    OpenError, RecoveryReport,
    broken::{Broken, Flaw},
    format::{
        hash64,
        ops::RecordOp,
        record::{self, RecordHeader},
        superblock::{COPIES, SUPERBLOCK_LEN, Superblock, SuperblockError},
    },
    run::Run,
    snapshot::Position,
    tables::{Effect, Tables},
    walk::End,
};
use copal_device::{AlignedBuf, Device, DeviceError};
use std::{collections::HashMap, ops::Range};

mod checkpoint;
mod free;
mod settle;
mod verify;

pub(crate) use checkpoint::{Copies, FoundCheckpoint, read_checkpoint};
pub(crate) use free::derive_space;
pub(crate) use verify::{chunks, damaged_units, unit_damage};

/// Reads of one device, in pages.
pub(crate) struct Source<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) page_bytes: usize,
    /// Frames that cannot be read end no stream.
    pub(crate) salvage: bool,
    pub(crate) broken: Broken,
}

impl Source<'_> {
    /// Pages of the device; one of which a part is missing does not count.
    pub(crate) fn whole_pages(&self) -> u64 {
        self.device.geometry().size / self.page_bytes as u64
    }

    pub(crate) fn read(&self, run: Run) -> Result<Vec<u8>, DeviceError> {
        let most = (self.device.geometry().max_io as usize / self.page_bytes).max(1) as u32;
        let mut out = Vec::with_capacity(run.pages as usize * self.page_bytes);
        for piece in crate::state::pieces(run, most) {
            let buf = AlignedBuf::zeroed(piece.pages as usize * self.page_bytes);
            let at = piece.at.saturating_mul(self.page_bytes as u64);
            out.extend_from_slice(&self.device.read_now(at, buf)?);
        }
        Ok(out)
    }
}

/// A record that continues the chain; its operations are read again when they are wanted ([`Ops`]).
pub(crate) struct WalkedRecord {
    pub(crate) header: RecordHeader,
    /// Position of the page behind it, its pages, and its hash.
    pub(crate) end: u64,
    pub(crate) pages: u64,
    pub(crate) hash: u64,
}

impl WalkedRecord {
    /// Where it lies.
    pub(crate) fn run(&self, superblock: &Superblock) -> Run {
        let within = (self.end - self.pages) % superblock.journal_pages;
        Run::new(superblock.journal_at + within, self.pages as u32)
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        (self.header.first_lsn + u64::from(self.header.transactions)).saturating_sub(1)
    }
}

/// What a crash left, read and understood; nothing is written yet.
pub(crate) struct Recovered {
    pub(crate) superblock: Superblock,
    /// Copies that have to be written again.
    pub(crate) stale_copies: Vec<usize>,
    pub(crate) checkpoint_runs: Vec<Run>,
    pub(crate) tables: Tables,
    /// Runs of written zones.
    pub(crate) zones: Vec<Run>,
    /// Pages that are hollow unless something owns them.
    pub(crate) hollow: Vec<Range<u64>>,
    pub(crate) ends: HashMap<u64, End>,
    pub(crate) last_lsn: u64,
    /// Number, position and chain of the next record.
    pub(crate) next_seq: u64,
    pub(crate) head: u64,
    pub(crate) tail: u64,
    pub(crate) previous: u64,
    /// Largest epoch seen anywhere.
    pub(crate) epoch: u64,
    /// Pages that are free now, but that this very recovery reads: not to be written before the mount is durable.
    pub(crate) needed: Vec<Run>,
    pub(crate) report: RecoveryReport,
}

/// Superblock copies as found.
pub(crate) fn read_superblocks(device: &dyn Device) -> Vec<Option<Result<Superblock, SuperblockError>>> {
    let size = device.geometry().size;
    COPIES
        .iter()
        .enumerate()
        .map(|(copy, &at)| {
            if at + SUPERBLOCK_LEN as u64 > size {
                return None;
            }
            let bytes = device.read_now(at, AlignedBuf::zeroed(SUPERBLOCK_LEN)).ok()?;
            Some(Superblock::decode(&bytes, copy as u8))
        })
        .collect()
}

/// Every state that a superblock names, the newest first: what an older one names may be there still.
pub(crate) fn older_superblocks(device: &dyn Device) -> Vec<Superblock> {
    let mut found: Vec<Superblock> = read_superblocks(device)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .collect();
    found.sort_by_key(|superblock| std::cmp::Reverse(superblock.generation));
    found.dedup_by_key(|superblock| superblock.generation);
    found
}

/// The newest superblock, and the copies that are damaged or behind.
pub(crate) fn newest_superblock(device: &dyn Device) -> Result<(Superblock, Vec<usize>), OpenError> {
    let copies = read_superblocks(device);
    let newest = copies
        .iter()
        .flatten()
        .filter_map(|copy| copy.as_ref().ok())
        .max_by_key(|superblock| superblock.generation)
        .cloned();
    let Some(newest) = newest else {
        return Err(no_superblock(&copies));
    };
    let stale = copies
        .iter()
        .enumerate()
        .filter(|(index, copy)| match copy {
            Some(Ok(superblock)) => {
                let own = Superblock::places(newest.generation).contains(index);
                (own && superblock.generation != newest.generation) || superblock.uuid != newest.uuid
            }
            _ => true,
        })
        .map(|(index, _)| index)
        .collect();
    Ok((newest, stale))
}

fn no_superblock(copies: &[Option<Result<Superblock, SuperblockError>>]) -> OpenError {
    use copal_codec::EnvelopeError;
    let mut any = false;
    for error in copies.iter().flatten().filter_map(|copy| copy.as_ref().err()) {
        match error {
            SuperblockError::Envelope(
                error @ (EnvelopeError::Version { .. } | EnvelopeError::Flags { .. }),
            ) => {
                return OpenError::Version {
                    what: error.to_string(),
                };
            }
            SuperblockError::Envelope(EnvelopeError::Magic { .. }) => {}
            _ => any = true,
        }
    }
    if any {
        let what = "all four copies of its superblock are damaged; restore the file from another copy";
        OpenError::Damaged { what: what.into() }
    } else {
        OpenError::NotAStore
    }
}

/// Reads everything behind `superblock`, the newest, and decides what counts.
pub(crate) fn recover(
    source: &Source<'_>,
    superblock: Superblock,
    stale_copies: Vec<usize>,
    accept_tail_loss: bool,
) -> Result<Recovered, OpenError> {
    let FoundCheckpoint {
        tables: checkpoint,
        position,
        zones,
        hollow,
        runs: checkpoint_runs,
        damaged: damaged_checkpoint,
    } = read_checkpoint(source, &superblock, Copies::AsNeeded)?;
    let walked = walk_journal(source, &superblock, &position)?;
    if let Some(seq) = walked.lost_durable
        && !accept_tail_loss
    {
        return Err(OpenError::TailLoss {
            what: format!("journal record {seq}"),
        });
    }
    let lost_durable = walked
        .lost_durable
        .map(|seq| format!("journal record {seq} is gone, and later ones say it was durable"));
    let settled = settle::settle(
        source,
        &superblock,
        &walked,
        checkpoint,
        &position,
        accept_tail_loss,
    )?;
    let kept = settled.kept;
    let kept_records = &walked.records[..kept];
    let last = kept_records.last();
    let mut report = RecoveryReport {
        records_replayed: kept as u64,
        tail_dropped: settled.dropped.or(walked.end_reason),
        tail_lost: settled.lost.or(lost_durable),
        superblock_copies_repaired: stale_copies.len() as u32,
        checkpoint_pages_repaired: damaged_checkpoint.len() as u32,
        ..RecoveryReport::default()
    };
    report.damaged_streams = settled
        .ends
        .iter()
        .filter(|(_, end)| end.damaged)
        .map(|(&id, _)| crate::ObjectId(id))
        .collect();
    report.damaged_streams.sort_unstable();
    let seen = if source.broken.by(Flaw::KeptRecordsOnly) {
        kept_records
    } else {
        &walked.records[..]
    };
    let epoch = seen
        .iter()
        .map(|record| record.header.epoch.max(record.header.flushed_epoch))
        .max()
        .unwrap_or(0)
        .max(position.epoch);
    Ok(Recovered {
        last_lsn: last.map_or(position.lsn, |record| record.last_lsn().max(position.lsn)),
        next_seq: last.map_or(position.next_seq, |record| record.header.seq + 1),
        head: last.map_or(position.journal_head, |record| record.end),
        tail: position.journal_head,
        previous: last.map_or(superblock.chain_seed, |record| record.hash),
        superblock,
        stale_copies,
        checkpoint_runs,
        tables: settled.tables,
        needed: settled.needed,
        zones,
        hollow,
        ends: settled.ends,
        epoch,
        report,
    })
}

/// The chain of records behind a checkpoint.
pub(crate) struct Walked {
    pub(crate) records: Vec<WalkedRecord>,
    /// Everything of epochs up to this is durable.
    pub(crate) flushed_epoch: u64,
    /// A record that is gone although a later one says it was durable.
    pub(crate) lost_durable: Option<u64>,
    end_reason: Option<String>,
}

/// Walks the journal behind a checkpoint.
pub(crate) fn walk_journal(
    source: &Source<'_>,
    superblock: &Superblock,
    position: &Position,
) -> Result<Walked, OpenError> {
    Walk::new(source, superblock, position).run()
}

struct Walk<'a> {
    source: &'a Source<'a>,
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

impl<'a> Walk<'a> {
    fn new(source: &'a Source<'a>, superblock: &'a Superblock, position: &Position) -> Walk<'a> {
        Walk {
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

    fn run(mut self) -> Result<Walked, OpenError> {
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
        let (lost_durable, torn) = self.look_behind()?;
        let end_reason =
            (torn && lost_durable.is_none()).then(|| format!("record {} was not written whole", self.seq));
        Ok(Walked {
            records,
            flushed_epoch: self.flushed_epoch,
            lost_durable,
            end_reason,
        })
    }

    /// The record that continues the chain: at the present position, or at the ring's start.
    fn next(&self) -> Result<Option<WalkedRecord>, OpenError> {
        for start in self.starts() {
            if let Some((header, ops, bytes)) = self.record_at(start)?
                && self.continues(&header, &ops)
            {
                let pages = (bytes.len() / self.source.page_bytes) as u64;
                let hash = hash64(&bytes);
                return Ok(Some(WalkedRecord {
                    header,
                    end: start + pages,
                    pages,
                    hash,
                }));
            }
        }
        Ok(None)
    }

    fn starts(&self) -> [u64; 2] {
        [
            self.position,
            self.position.next_multiple_of(self.superblock.journal_pages),
        ]
    }

    fn continues(&self, header: &RecordHeader, ops: &[RecordOp]) -> bool {
        let chained = header.previous == self.previous || self.source.broken.by(Flaw::SequenceOnly);
        let mounts = ops
            .iter()
            .any(|op| matches!(op, RecordOp::Mount { mount, .. } if *mount == header.mount));
        header.store == self.superblock.uuid as u64
            && header.seq == self.seq
            && chained
            && !self.skips_commits(header)
            && (header.mount == self.mount || mounts || self.source.broken.by(Flaw::SequenceOnly))
    }

    /// Whether commits are missing before a record: those that only a later checkpoint holds.
    fn skips_commits(&self, header: &RecordHeader) -> bool {
        header.first_lsn > self.lsn + 1 && !self.source.broken.by(Flaw::SequenceOnly)
    }

    /// A record with a right sum at a position of the ring, and its bytes.
    fn record_at(&self, position: u64) -> Result<Option<FoundRecord>, OpenError> {
        let within = position % self.superblock.journal_pages;
        let first = self
            .source
            .read(Run::new(self.superblock.journal_at + within, 1))?;
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
            self.source
                .read(Run::new(self.superblock.journal_at + within, pages as u32))?
        };
        match record::decode(&bytes) {
            Ok((header, ops)) => Ok(Some((header, ops, bytes))),
            Err(_) => Ok(None),
        }
    }

    /// Looks for later records behind the end of the chain: one that says the missing record was durable shows damage, and
    /// so does the next one when commits before it are missing; any other a crash.
    fn look_behind(&self) -> Result<(Option<u64>, bool), OpenError> {
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

/// Header, operations and bytes of a record whose sum is right.
type FoundRecord = (RecordHeader, Vec<RecordOp>, Vec<u8>);

/// Longest record of a store's journal, as `Journal::record_bytes_max`.
pub(crate) fn record_bytes_max(superblock: &Superblock) -> usize {
    let page = u64::from(superblock.page_bytes);
    (superblock.journal_pages / 8 * page).min(4 << 20).max(page) as usize
}

/// The operations of walked records, one record at a time: a journal may hold many times what an opening should.
pub(crate) struct Ops<'a> {
    source: &'a Source<'a>,
    superblock: &'a Superblock,
    /// Pages of the journal read at once, from this page of the device on.
    bytes: Vec<u8>,
    at: u64,
}

impl<'a> Ops<'a> {
    /// Pages read at once.
    const WINDOW_PAGES: u64 = 64;

    pub(crate) fn new(source: &'a Source<'a>, superblock: &'a Superblock) -> Ops<'a> {
        Ops {
            source,
            superblock,
            bytes: Vec::new(),
            at: 0,
        }
    }

    /// The operations of `record`. Cheap when records are taken in order. Blocks.
    /// # Errors
    /// `Damaged`: it does not read as it did. `Device`.
    pub(crate) fn of(&mut self, record: &WalkedRecord) -> Result<Vec<RecordOp>, OpenError> {
        let run = record.run(self.superblock);
        let held = (self.bytes.len() / self.source.page_bytes) as u64;
        if run.at < self.at || run.end() > self.at + held {
            let left = self.superblock.journal_at + self.superblock.journal_pages - run.at;
            let window = left.min(Ops::WINDOW_PAGES.max(run.pages.into()));
            self.bytes = Vec::new();
            // What lies behind the record may be unreadable, and is no concern of this one.
            let read = self.source.read(Run::new(run.at, window as u32));
            self.bytes = read.or_else(|_| self.source.read(run))?;
            self.at = run.at;
        }
        let from = (run.at - self.at) as usize * self.source.page_bytes;
        let bytes = &self.bytes[from..from + run.pages as usize * self.source.page_bytes];
        let decoded = record::decode(bytes)
            .ok()
            .filter(|_| hash64(bytes) == record.hash);
        decoded.map(|(_, ops)| ops).ok_or_else(|| OpenError::Damaged {
            what: format!("journal record {} does not read as it did", record.header.seq),
        })
    }
}

/// Applies one record to the tables; adds to `freed` the pages it frees.
pub(crate) fn apply(
    tables: &mut Tables,
    record: &WalkedRecord,
    ops: &[RecordOp],
    freed: &mut Vec<Run>,
) -> Result<(), OpenError> {
    let mut effect = Effect::default();
    for op in ops {
        tables
            .apply(op, record.last_lsn(), &mut effect)
            .map_err(|misfit| OpenError::Damaged {
                what: format!("journal record {}: {misfit}", record.header.seq),
            })?;
    }
    freed.append(&mut effect.freed);
    Ok(())
}
