//! Groups: transactions that share one record.
//!
//! The open group takes transactions; closing it writes its record. A closed group is kept until it is
//! durable.
//! Design: docs/design/object.md#commit-on-one-flush OBJ-16
//! Invariants
//! - Groups become durable in order; positions (LSN) ascend through them.
//! - Every entry into the open group needs a [`GroupAdmission`], also for the store's own operations. So no
//!   record is longer than recovery reads, or has more transactions than its counter can hold.

use crate::format::run::PageRun;
use std::collections::VecDeque;

/// Most transactions of one group: the record counts them with 16 bits.
const TRANSACTIONS_MAX: u16 = u16::MAX;

/// Answer to a request for room in the open group.
pub(crate) enum GroupRoom {
    Admitted(GroupAdmission),
    /// The group must be closed first.
    GroupFull,
    /// Neither the journal nor a checkpoint has room.
    JournalFull,
}

/// Measured room in the open group for one transaction. Valid for one entry, and only until the mutex is
/// released.
#[must_use]
#[derive(Debug)]
pub(crate) struct GroupAdmission {
    group: u64,
}

/// The group that still takes transactions.
#[derive(Debug, Default)]
pub(crate) struct OpenGroup {
    pub(crate) number: u64,
    /// Encoded operations.
    pub(crate) ops: Vec<u8>,
    pub(crate) transactions: u16,
    pub(crate) first_lsn: u64,
    pub(crate) freed: Vec<PageRun>,
    /// Data writes in flight.
    pub(crate) outstanding: u32,
    /// Frees space: may use the reserved part of the journal.
    pub(crate) releasing: bool,
    /// Gets a record even without operations.
    pub(crate) forced: bool,
}

/// A group whose record was submitted.
#[derive(Debug)]
pub(crate) struct ClosedGroup {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) last_lsn: u64,
    /// Number of the record behind its own.
    pub(crate) next_seq: u64,
    /// `flushed_epoch` in its record.
    pub(crate) carries: u64,
    /// Data writes, record, and frames it comes after that are in flight. For a group whose record a
    /// checkpoint replaces, the checkpoint counts instead of the record.
    pub(crate) outstanding: u32,
}

/// Open and closed groups, and their progress.
#[derive(Debug)]
pub(crate) struct CommitGroups {
    pub(crate) open: OpenGroup,
    pub(crate) closed: VecDeque<ClosedGroup>,
    /// Last assigned position.
    pub(crate) last_lsn: u64,
    /// All commits up to here have completed on the device.
    pub(crate) written_lsn: u64,
    pub(crate) durable_lsn: u64,
    /// Records in flight.
    pub(crate) records: u32,
    /// Closed groups at the front whose writes have all completed.
    complete: usize,
}

impl CommitGroups {
    pub(crate) fn new(last_lsn: u64) -> CommitGroups {
        CommitGroups {
            open: OpenGroup { number: 1, ..OpenGroup::default() },
            closed: VecDeque::new(),
            last_lsn,
            written_lsn: last_lsn,
            durable_lsn: last_lsn,
            records: 0,
            complete: 0,
        }
    }

    /// Room in the open group for one more transaction. `None` if the group must be closed first. The caller has
    /// measured the operations.
    pub(crate) fn admit(&self) -> Option<GroupAdmission> {
        (self.open.transactions < TRANSACTIONS_MAX).then_some(GroupAdmission { group: self.open.number })
    }

    /// Assigns the position of one more transaction in the open group.
    pub(crate) fn take_lsn(&mut self, admitted: GroupAdmission) -> u64 {
        assert_eq!(admitted.group, self.open.number, "a transaction enters the group it was admitted to");
        self.last_lsn += 1;
        if self.open.transactions == 0 {
            self.open.first_lsn = self.last_lsn;
        }
        self.open.transactions += 1;
        self.last_lsn
    }

    pub(crate) fn is_open_empty(&self) -> bool {
        self.open.transactions == 0 && self.open.ops.is_empty() && !self.open.forced
    }

    /// One write of `group` has completed.
    pub(crate) fn end_write(&mut self, group: u64) {
        if self.open.number == group {
            self.open.outstanding -= 1;
        } else if let Some(closed) = self.closed_group(group) {
            closed.outstanding -= 1;
        }
        while let Some(closed) = self.closed.get(self.complete).filter(|closed| closed.outstanding == 0) {
            self.written_lsn = self.written_lsn.max(closed.last_lsn);
            self.complete += 1;
        }
    }

    /// Groups are numbered consecutively, so the index is computed.
    fn closed_group(&mut self, number: u64) -> Option<&mut ClosedGroup> {
        let first = self.closed.front()?.number;
        self.closed.get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// Epoch of a closed group that is not durable yet.
    pub(crate) fn epoch_of(&self, number: u64) -> Option<u64> {
        self.closed.iter().find(|closed| closed.number == number).map(|closed| closed.epoch)
    }

    /// All epochs up to `flushed` are durable. Returns the largest `flushed_epoch` that became durable with
    /// them, and the number of the record after the last durable one.
    pub(crate) fn flushed(&mut self, flushed: u64) -> Option<(u64, u64)> {
        let mut news = None;
        while self.closed.front().is_some_and(|closed| closed.epoch <= flushed && closed.outstanding == 0) {
            let Some(closed) = self.closed.pop_front() else {
                break;
            };
            self.complete = self.complete.saturating_sub(1);
            self.durable_lsn = self.durable_lsn.max(closed.last_lsn);
            news = Some((closed.carries, closed.next_seq));
        }
        news
    }

    /// Closes the open group without a record: a checkpoint that is about to be written replaces the record
    /// and counts as the group's last write. Returns the group's number and its freed pages.
    pub(crate) fn absorb_open(&mut self, epoch: u64, next_seq: u64, flushed: u64) -> (u64, Vec<PageRun>) {
        let number = self.open.number;
        let open =
            std::mem::replace(&mut self.open, OpenGroup { number: number + 1, ..OpenGroup::default() });
        self.closed.push_back(ClosedGroup {
            number,
            epoch,
            last_lsn: self.last_lsn,
            next_seq,
            carries: flushed,
            outstanding: open.outstanding + 1,
        });
        (number, open.freed)
    }

    /// The last epoch that recovery may take as durable after a flush of those up to `flushed`. A frame that
    /// is written through belongs to no epoch, so the flush of a group's epoch does not cover the frames that
    /// the group comes after (OBJ-15).
    pub(crate) fn trusted_epoch(&self, flushed: u64) -> u64 {
        let incomplete = self.closed.get(self.complete);
        incomplete.map_or(flushed, |group| flushed.min(group.epoch.saturating_sub(1)))
    }

    /// Whether every write of the groups up to `last` and of those in epochs up to `epoch` has completed,
    /// including the frames they come after; of `absorbed`, every write except the checkpoint's own.
    pub(crate) fn is_complete(&self, last: u64, epoch: u64, absorbed: Option<u64>) -> bool {
        let is_named = |group: &&ClosedGroup| group.number <= last || group.epoch <= epoch;
        let mut closed = self.closed.iter().take_while(is_named);
        closed.all(|group| group.outstanding == u32::from(absorbed == Some(group.number)))
    }
}
