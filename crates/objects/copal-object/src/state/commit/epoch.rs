//! Epochs: the intervals between flushes, and the writes that each flush waits for.
//!
//! Design: docs/design/object.md#commit-on-one-flush OBJ-3, OBJ-6, OBJ-10
//! Invariants
//! - A write carries the epoch that is open when it is submitted; the flush of that epoch waits for it.
//! - One flush at a time. While it waits or runs, the next epoch is open.
//! - Epochs only grow, also across mounts.

use std::collections::BTreeMap;

/// State of the flush in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushStep {
    /// Waits for the writes of its epoch.
    Closing(u64),
    /// Is on the device.
    Submitted(u64),
}

/// The open epoch, and the flushed ones.
#[derive(Debug)]
pub(crate) struct FlushEpochs {
    pub(crate) open: u64,
    /// All epochs up to this one are durable.
    pub(crate) flushed: u64,
    /// Largest `flushed` in a durable record or checkpoint: the value that recovery will trust (OBJ-3).
    pub(crate) durable_flushed: u64,
    /// Epoch whose flush a caller waits for.
    pub(crate) wanted: u64,
    pub(crate) flushing: Option<FlushStep>,
    outstanding: BTreeMap<u64, u32>,
}

impl FlushEpochs {
    /// After a mount: all epochs up to `flushed` are durable.
    pub(crate) fn new(flushed: u64) -> FlushEpochs {
        FlushEpochs {
            open: flushed + 1,
            flushed,
            durable_flushed: flushed,
            wanted: 0,
            flushing: None,
            outstanding: BTreeMap::new(),
        }
    }

    /// A write is about to be submitted; returns the epoch it carries.
    pub(crate) fn begin_write(&mut self) -> u64 {
        *self.outstanding.entry(self.open).or_insert(0) += 1;
        self.open
    }

    /// A write of `epoch` has completed.
    pub(crate) fn end_write(&mut self, epoch: u64) {
        if let Some(count) = self.outstanding.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.outstanding.remove(&epoch);
            }
        }
    }

    /// Requests a flush of `epoch`.
    pub(crate) fn want(&mut self, epoch: u64) {
        self.wanted = self.wanted.max(epoch);
    }

    /// Closes the open epoch: its flush is next.
    pub(crate) fn close(&mut self) {
        debug_assert!(self.flushing.is_none());
        self.flushing = Some(FlushStep::Closing(self.open));
        self.open += 1;
    }

    /// The epoch whose flush can be submitted now: all its writes have completed.
    pub(crate) fn take_ready(&mut self) -> Option<u64> {
        let Some(FlushStep::Closing(epoch)) = self.flushing else {
            return None;
        };
        if self.outstanding.range(..=epoch).next().is_some() {
            return None;
        }
        self.flushing = Some(FlushStep::Submitted(epoch));
        Some(epoch)
    }

    /// The flush of `epoch` has completed.
    pub(crate) fn end_flush(&mut self, epoch: u64) {
        self.flushing = None;
        self.flushed = self.flushed.max(epoch);
    }
}
