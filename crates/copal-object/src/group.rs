//! Groups: transactions that share one record.
//!
//! The open group collects; closing it writes its record. A closed group is kept until it is durable.
//! Invariants
//! - Groups become durable in order; positions (LSN) ascend through them.

use crate::run::Run;
use std::collections::VecDeque;

/// The group that still takes transactions.
#[derive(Debug, Default)]
pub(crate) struct OpenGroup {
    pub(crate) number: u64,
    /// Encoded operations.
    pub(crate) ops: Vec<u8>,
    pub(crate) transactions: u16,
    pub(crate) first_lsn: u64,
    pub(crate) freed: Vec<Run>,
    /// Data writes on their way.
    pub(crate) outstanding: u32,
    /// Frees space: may use the kept part of the journal.
    pub(crate) releasing: bool,
    /// Gets a record even if it has no operation.
    pub(crate) forced: bool,
}

/// A group whose record was submitted.
#[derive(Debug)]
pub(crate) struct ClosedGroup {
    pub(crate) number: u64,
    pub(crate) epoch: u64,
    pub(crate) last_lsn: u64,
    pub(crate) seq: u64,
    /// `flushed_epoch` in its record.
    pub(crate) carries: u64,
    /// Data writes and record on their way.
    pub(crate) outstanding: u32,
}

/// Open and closed groups, and how far they got.
#[derive(Debug)]
pub(crate) struct Groups {
    pub(crate) open: OpenGroup,
    pub(crate) closed: VecDeque<ClosedGroup>,
    /// Last position given out.
    pub(crate) last_lsn: u64,
    /// Everything up to here has completed on the device.
    pub(crate) written_lsn: u64,
    pub(crate) durable_lsn: u64,
    /// Records on their way.
    pub(crate) records: u32,
    /// Closed groups at the front whose writes have all completed.
    complete: usize,
}

impl Groups {
    pub(crate) fn new(last_lsn: u64) -> Groups {
        Groups {
            open: OpenGroup {
                number: 1,
                ..OpenGroup::default()
            },
            closed: VecDeque::new(),
            last_lsn,
            written_lsn: last_lsn,
            durable_lsn: last_lsn,
            records: 0,
            complete: 0,
        }
    }

    /// The position of one more transaction in the open group.
    pub(crate) fn take_lsn(&mut self) -> u64 {
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
        while let Some(closed) = self
            .closed
            .get(self.complete)
            .filter(|closed| closed.outstanding == 0)
        {
            self.written_lsn = self.written_lsn.max(closed.last_lsn);
            self.complete += 1;
        }
    }

    /// Groups are numbered one after the other, so there is nothing to search.
    fn closed_group(&mut self, number: u64) -> Option<&mut ClosedGroup> {
        let first = self.closed.front()?.number;
        self.closed
            .get_mut(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// Everything of epochs up to `flushed` is durable; returns the largest `flushed_epoch` that became durable with it
    /// and the number of the record after the last durable one.
    pub(crate) fn flushed(&mut self, flushed: u64) -> Option<(u64, u64)> {
        let mut news = None;
        while self
            .closed
            .front()
            .is_some_and(|closed| closed.epoch <= flushed && closed.outstanding == 0)
        {
            let Some(closed) = self.closed.pop_front() else {
                break;
            };
            self.complete = self.complete.saturating_sub(1);
            self.durable_lsn = self.durable_lsn.max(closed.last_lsn);
            news = Some((closed.carries, closed.seq + 1));
        }
        news
    }
}
