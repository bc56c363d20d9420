//! Commit state: open and closed groups, the record chain, the epochs of flushes, and waiting commits.
//!
//! Design: docs/design/object.md#commit-on-one-flush
//! Invariants
//! - Groups, record chain and epochs change together, only here.
//! - Waiters are ordered by their positions.
//!
//! Not here: the steps (`engine`), and the device.

pub(crate) mod chain;
pub(crate) mod clean_mark;
pub(crate) mod epoch;
pub(crate) mod group;

use crate::{
    Lsn, StoreError,
    format::{ops::RecordOp, record, run::PageRun},
    space::journal_place::JournalPlace,
};
use chain::{NewRecord, RecordChain};
use clean_mark::CleanMark;
use copal_device::{AlignedBuf, Completer};
use epoch::{FlushEpochs, FlushStep};
use group::{ClosedGroup, CommitGroups, GroupAdmission, OpenGroup};
use std::collections::{BTreeMap, VecDeque};

/// Bytes in flight beyond which commits wait.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Bytes written since the last flush beyond which a flush is started, so that recovery has little to verify.
pub(crate) const UNFLUSHED_BYTES_MAX: u64 = 112 << 20;
/// Transactions beyond which a group counts as full.
const TRANSACTIONS_FULL: u16 = 4096;

pub(crate) type CommitCompleter = Completer<Result<Lsn, StoreError>>;

/// A commit that waits to be acknowledged.
struct CommitWaiter {
    lsn: u64,
    completer: CommitCompleter,
}

/// The record of a group that was just closed; it is written next.
pub(crate) struct ClosedRecord {
    pub(crate) group: u64,
    pub(crate) epoch: u64,
    pub(crate) run: PageRun,
    pub(crate) buf: AlignedBuf,
    /// Pages that its operations freed.
    pub(crate) freed: Vec<PageRun>,
}

/// Groups, record chain and epochs, and their writes in flight.
pub(crate) struct CommitState {
    epochs: FlushEpochs,
    groups: CommitGroups,
    chain: RecordChain,
    /// Pages of data writes in flight.
    in_flight: BTreeMap<u64, u32>,
    in_flight_bytes: u64,
    /// Limit from which commits wait; at most [`IN_FLIGHT_BYTES_MAX`].
    in_flight_limit: u64,
    unflushed_bytes: u64,
    written_waiters: VecDeque<CommitWaiter>,
    durable_waiters: VecDeque<CommitWaiter>,
    /// A caller waits until this commit is durable.
    wanted_lsn: u64,
    clean_mark: CleanMark,
}

impl CommitState {
    /// After recovery: all commits up to `last_lsn` and all epochs up to `epoch` are durable; there are no
    /// waiters.
    pub(crate) fn new(chain: RecordChain, epoch: u64, last_lsn: u64) -> CommitState {
        CommitState {
            epochs: FlushEpochs::new(epoch),
            groups: CommitGroups::new(last_lsn),
            chain,
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            in_flight_limit: IN_FLIGHT_BYTES_MAX,
            unflushed_bytes: 0,
            written_waiters: VecDeque::new(),
            durable_waiters: VecDeque::new(),
            wanted_lsn: 0,
            clean_mark: CleanMark::at_open(last_lsn),
        }
    }

    /// Last assigned position.
    pub(crate) fn last_lsn(&self) -> u64 {
        self.groups.last_lsn
    }

    /// All commits up to here have completed on the device.
    pub(crate) fn written_lsn(&self) -> u64 {
        self.groups.written_lsn
    }

    pub(crate) fn durable_lsn(&self) -> u64 {
        self.groups.durable_lsn
    }

    pub(crate) fn open_epoch(&self) -> u64 {
        self.epochs.open
    }

    /// All epochs up to this one are durable.
    pub(crate) fn flushed_epoch(&self) -> u64 {
        self.epochs.flushed
    }

    /// The largest flushed epoch that a durable record or checkpoint carries (OBJ-3).
    pub(crate) fn durable_flushed(&self) -> u64 {
        self.epochs.durable_flushed
    }

    /// The last epoch that a record may call durable.
    pub(crate) fn trusted_epoch(&self) -> u64 {
        self.groups.trusted_epoch(self.epochs.flushed)
    }

    pub(crate) fn want_epoch(&mut self, epoch: u64) {
        self.epochs.want(epoch);
    }

    pub(crate) fn want_durable(&mut self, lsn: u64) {
        self.wanted_lsn = self.wanted_lsn.max(lsn);
    }

    /// Whether no flush is in progress and no commit waits for one.
    pub(crate) fn is_idle(&self) -> bool {
        self.epochs.flushing.is_none() && self.wanted_lsn <= self.groups.durable_lsn
    }

    /// Whether a record or a flush is in flight.
    pub(crate) fn is_moving(&self) -> bool {
        self.groups.records > 0 || self.epochs.flushing.is_some()
    }

    pub(crate) fn clean_mark(&self) -> CleanMark {
        self.clean_mark
    }

    pub(crate) fn set_clean_mark(&mut self, mark: CleanMark) {
        self.clean_mark = mark;
    }

    /// Lowers the limit of bytes in flight from which commits wait.
    pub(crate) fn limit_in_flight(&mut self, bytes: u64) {
        self.in_flight_limit = bytes.min(IN_FLIGHT_BYTES_MAX);
    }

    /// Whether the limit of bytes in flight is reached, so that commits wait.
    pub(crate) fn is_crowded(&self) -> bool {
        self.in_flight_bytes > self.in_flight_limit
    }

    pub(crate) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Whether a write to `run` is in flight.
    pub(crate) fn is_in_flight(&self, run: PageRun) -> bool {
        self.in_flight
            .range(..run.end())
            .next_back()
            .is_some_and(|(&at, &pages)| PageRun::new(at, pages).overlaps(run))
    }

    pub(crate) fn open_group(&self) -> u64 {
        self.groups.open.number
    }

    /// Requests the flush of a closed group.
    pub(crate) fn want_group(&mut self, group: u64) {
        if let Some(epoch) = self.groups.epoch_of(group) {
            self.epochs.want(epoch);
        }
    }

    /// Whether `group` is closed and durable.
    pub(crate) fn is_group_durable(&self, group: u64) -> bool {
        group < self.groups.open.number && self.groups.epoch_of(group).is_none()
    }

    pub(crate) fn is_open_empty(&self) -> bool {
        self.groups.is_open_empty()
    }

    /// Pages that the open group freed.
    pub(crate) fn open_freed(&self) -> &[PageRun] {
        &self.groups.open.freed
    }

    /// Takes the pages that the open group freed after the first `count` runs.
    pub(crate) fn take_open_freed(&mut self, count: usize) -> Vec<PageRun> {
        self.groups.open.freed.split_off(count)
    }

    /// Room for a transaction of at most `ops_bytes` bytes of operations in the open group; `None` if the
    /// group must be closed first.
    pub(crate) fn admit(&self, journal: &dyn JournalPlace, ops_bytes: usize) -> Option<GroupAdmission> {
        if !journal.admits(self.groups.open.ops.len() + ops_bytes) {
            return None;
        }
        self.groups.admit()
    }

    /// Whether the journal has room for the open group's record with `ops_bytes` more.
    pub(crate) fn fits_journal(&self, journal: &dyn JournalPlace, ops_bytes: usize, releasing: bool) -> bool {
        let group = &self.groups.open;
        journal.fits(group.ops.len() + ops_bytes, releasing || group.releasing)
    }

    /// Assigns the position of one more transaction in the open group; `releasing` ones may use the reserved
    /// part of the journal.
    pub(crate) fn take_lsn(&mut self, admitted: GroupAdmission, releasing: bool) -> u64 {
        let lsn = self.groups.take_lsn(admitted);
        self.groups.open.releasing |= releasing;
        lsn
    }

    /// Enters an operation, and the pages that it freed, into the open group.
    pub(crate) fn enter(&mut self, op: &RecordOp, freed: &mut Vec<PageRun>) {
        op.encode(&mut self.groups.open.ops);
        self.groups.open.freed.append(freed);
    }

    /// Bytes of the operations in the open group.
    pub(crate) fn open_ops_bytes(&self) -> usize {
        self.groups.open.ops.len()
    }

    /// The open group waits for `writes` more writes.
    pub(crate) fn await_writes(&mut self, writes: u32) {
        self.groups.open.outstanding += writes;
    }

    /// A write is about to be submitted; returns the epoch it carries.
    pub(crate) fn begin_write(&mut self, runs: &[PageRun], bytes: u64) -> u64 {
        self.in_flight.extend(runs.iter().map(|run| (run.at, run.pages)));
        self.in_flight_bytes += bytes;
        self.unflushed_bytes += bytes;
        self.epochs.begin_write()
    }

    /// A write of [`CommitState::begin_write`] has completed.
    pub(crate) fn end_write(&mut self, epoch: u64, runs: &[PageRun], bytes: u64) {
        for run in runs {
            self.in_flight.remove(&run.at);
        }
        self.in_flight_bytes -= bytes;
        self.epochs.end_write(epoch);
    }

    /// The write of the record at page `at` has completed.
    pub(crate) fn end_record(&mut self, epoch: u64, at: u64) {
        self.in_flight.remove(&at);
        self.groups.records -= 1;
        self.epochs.end_write(epoch);
    }

    /// A write that `group` waits for has completed.
    pub(crate) fn end_group_write(&mut self, group: u64) {
        self.groups.end_write(group);
    }

    /// Staged data of `bytes` bytes has completed in the open epoch. `true`: much was written since the last
    /// flush, so one is due.
    pub(crate) fn count_staged(&mut self, bytes: u64) -> bool {
        self.unflushed_bytes += bytes;
        self.unflushed_bytes > UNFLUSHED_BYTES_MAX
    }

    /// Requests a flush if much was written since the last one.
    pub(crate) fn limit_unflushed(&mut self) {
        if self.unflushed_bytes > UNFLUSHED_BYTES_MAX {
            self.epochs.want(self.epochs.open);
            self.unflushed_bytes = 0;
        }
    }

    /// Takes the next step towards a durable record that calls `epoch` flushed (OBJ-3). A record may call
    /// epochs up to `trusted` durable. `true`: the open group must be closed for it.
    pub(crate) fn want_drain(&mut self, epoch: u64, trusted: u64) -> bool {
        if epoch <= self.epochs.durable_flushed {
            return false;
        }
        // First the freeing epoch must be flushed, then a record must say so.
        if self.epochs.flushed < epoch {
            self.epochs.want(epoch);
            return false;
        }
        // A group may still wait for a frame; after that a record can say so.
        if trusted < epoch {
            return false;
        }
        if let Some(carried) = self.groups.closed.iter().find(|group| group.carries >= epoch) {
            self.epochs.want(carried.epoch);
            return false;
        }
        if self.groups.open.forced {
            return false;
        }
        self.force_record();
        true
    }

    /// The open group gets a record, with or without operations, and may use the reserved part of the
    /// journal.
    pub(crate) fn force_record(&mut self) {
        self.groups.open.forced = true;
        self.groups.open.releasing = true;
    }

    /// Whether the open group should be closed; `eager`: also while a flush is in progress.
    pub(crate) fn may_close_group(&self, journal: &dyn JournalPlace, eager: bool) -> bool {
        if self.groups.is_open_empty() {
            return false;
        }
        let full = self.groups.open.ops.len() > journal.record_bytes_max() / 2
            || self.groups.open.transactions > TRANSACTIONS_FULL;
        let idle = self.groups.records == 0 && (self.epochs.flushing.is_none() || eager);
        full || idle || self.flush_is_due()
    }

    /// Creates the record of the open group; `None` if the journal has no room for it. The record calls
    /// `carries` flushed. `stale` is a flaw: the record carries the epoch that is being flushed.
    pub(crate) fn close_group(
        &mut self,
        journal: &mut dyn JournalPlace,
        page_bytes: usize,
        carries: u64,
        stale: bool,
    ) -> Option<ClosedRecord> {
        let group = &self.groups.open;
        let run = journal.take(group.ops.len(), group.releasing)?;
        assert!(
            record::HEADER_LEN + group.ops.len() <= journal.record_bytes_max(),
            "a record is no longer than recovery reads"
        );
        let group = std::mem::take(&mut self.groups.open);
        self.groups.open = OpenGroup { number: group.number + 1, ..OpenGroup::default() };
        let epoch = match self.epochs.flushing {
            Some(FlushStep::Closing(epoch) | FlushStep::Submitted(epoch)) if stale => epoch,
            _ => self.epochs.begin_write(),
        };
        let mut buf = AlignedBuf::zeroed(run.pages as usize * page_bytes);
        let first_lsn = if group.transactions == 0 { self.groups.last_lsn + 1 } else { group.first_lsn };
        let record = NewRecord {
            ops: &group.ops,
            transactions: group.transactions,
            first_lsn,
            epoch,
            flushed_epoch: carries,
        };
        self.chain.write(journal, &record, &mut buf);
        self.groups.records += 1;
        self.groups.closed.push_back(ClosedGroup {
            number: group.number,
            epoch,
            last_lsn: first_lsn + u64::from(group.transactions) - 1,
            next_seq: self.chain.seq,
            carries,
            outstanding: group.outstanding + 1,
        });
        self.unflushed_bytes += buf.len() as u64;
        if journal.has_data() {
            self.in_flight.insert(run.at, run.pages);
        }
        Some(ClosedRecord { group: group.number, epoch, run, buf, freed: group.freed })
    }

    /// Whether a flush should start once none is in progress.
    fn flush_is_due(&self) -> bool {
        let is_wanted = self.wanted_lsn > self.groups.durable_lsn || self.epochs.wanted > self.epochs.flushed;
        self.epochs.flushing.is_none() && is_wanted
    }

    /// Closes the open epoch if a caller waits for it.
    pub(crate) fn start_flush(&mut self) -> bool {
        if self.epochs.flushing.is_some() {
            return false;
        }
        // A group whose epoch is flushed may still wait for a frame; another flush would not help it.
        let flushed = self.epochs.flushed;
        let commits = self.wanted_lsn > self.groups.durable_lsn
            && self.groups.closed.back().is_some_and(|group| group.epoch > flushed);
        if !commits && self.epochs.wanted <= self.epochs.flushed {
            return false;
        }
        self.epochs.close();
        self.unflushed_bytes = 0;
        true
    }

    /// The epoch whose flush can be submitted now.
    pub(crate) fn take_flush(&mut self) -> Option<u64> {
        self.epochs.take_ready()
    }

    /// The flush of `epoch` has completed; returns the last flushed epoch.
    pub(crate) fn end_flush(&mut self, epoch: u64) -> u64 {
        self.epochs.end_flush(epoch);
        self.epochs.flushed
    }

    /// A flaw (OBJ-12): the open epoch counts as flushed at once; returns it.
    pub(crate) fn pretend_flush(&mut self) -> u64 {
        let open = self.epochs.open;
        self.epochs.close();
        self.epochs.end_flush(open);
        if let Some((carried, seq)) = self.groups.flushed(open) {
            self.epochs.durable_flushed = self.epochs.durable_flushed.max(carried);
            self.chain.flushed_seq = seq;
        }
        open
    }

    /// Marks groups as durable whose epoch is flushed and whose writes, including the frames they depend on,
    /// have completed.
    pub(crate) fn note_durable_groups(&mut self) {
        if let Some((carried, seq)) = self.groups.flushed(self.epochs.flushed) {
            self.epochs.durable_flushed = self.epochs.durable_flushed.max(carried);
            self.chain.flushed_seq = self.chain.flushed_seq.max(seq);
        }
    }

    /// Answers `completer` once all commits up to `lsn`, the last position, have completed.
    pub(crate) fn wait_written(&mut self, lsn: u64, completer: CommitCompleter) {
        self.written_waiters.push_back(CommitWaiter { lsn, completer });
    }

    /// Answers `completer` once all commits up to `lsn` are durable.
    pub(crate) fn wait_durable(&mut self, lsn: u64, completer: CommitCompleter) {
        self.want_durable(lsn);
        // A sync may ask for an earlier position than the last.
        let place = self.durable_waiters.partition_point(|other| other.lsn <= lsn);
        self.durable_waiters.insert(place, CommitWaiter { lsn, completer });
    }

    /// The next waiter that can be answered, with its position; those for writes first.
    pub(crate) fn take_answer(&mut self) -> Option<(CommitCompleter, Lsn)> {
        let (written, durable) = (self.groups.written_lsn, self.groups.durable_lsn);
        let waiter = self
            .written_waiters
            .pop_front_if(|waiter| waiter.lsn <= written)
            .or_else(|| self.durable_waiters.pop_front_if(|waiter| waiter.lsn <= durable))?;
        Some((waiter.completer, Lsn(waiter.lsn)))
    }

    /// Takes all waiters.
    pub(crate) fn take_waiters(&mut self) -> Vec<CommitCompleter> {
        let all = self.written_waiters.drain(..).chain(self.durable_waiters.drain(..));
        all.map(|waiter| waiter.completer).collect()
    }

    /// Records below this are durable.
    pub(crate) fn flushed_seq(&self) -> u64 {
        self.chain.flushed_seq
    }

    /// Header fields of the next record.
    pub(crate) fn chain(&self) -> &RecordChain {
        &self.chain
    }

    /// Closes the open group without a record: a checkpoint that is about to be written replaces the record
    /// and takes its number. Returns the group's number and its freed pages.
    pub(crate) fn absorb_open_group(&mut self) -> (u64, Vec<PageRun>) {
        self.chain.seq += 1;
        self.groups.absorb_open(self.epochs.open, self.chain.seq, self.epochs.flushed)
    }

    /// Whether every write has completed of groups up to `last`, of epochs up to `epoch`, and of `absorbed`
    /// except the checkpoint's own.
    pub(crate) fn is_complete(&self, last: u64, epoch: u64, absorbed: Option<u64>) -> bool {
        self.groups.is_complete(last, epoch, absorbed)
    }

    /// A checkpoint is durable: the journal starts with record `next_seq`, and all epochs up to `epoch` are
    /// durable.
    pub(crate) fn pass_checkpoint(&mut self, next_seq: u64, epoch: u64) {
        self.chain.flushed_seq = self.chain.flushed_seq.max(next_seq);
        self.epochs.durable_flushed = self.epochs.durable_flushed.max(epoch);
    }

    /// Sets the mount that records carry from now on; returns the previous one.
    pub(crate) fn set_mount(&mut self, mount: u64) -> u64 {
        std::mem::replace(&mut self.chain.mount, mount)
    }

    /// Takes the operations out of the open group; returns the pages that they freed.
    pub(crate) fn drop_open_ops(&mut self) -> Vec<PageRun> {
        self.groups.open.ops.clear();
        std::mem::take(&mut self.groups.open.freed)
    }

    /// Starts a new hash chain from `seed`. One record number is skipped: from an older superblock on, a
    /// record is missing.
    pub(crate) fn begin_chain(&mut self, seed: u64) {
        self.chain.previous = seed;
        self.chain.seq += 1;
    }
}
