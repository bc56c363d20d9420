//! The operations of a group that wait for their batch, and what the member knows about itself there.

use super::operation::{NotHeld, Operation, Reply};
use crate::format::MemberRow;
use copal_volume::group::Epoch;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Operations in one batch.
const MOST_OPERATIONS: usize = 256;

pub(super) struct Queued {
    pub(super) epoch: Epoch,
    pub(super) operation: Operation,
    /// Whether it may be done still; asked when its turn has come.
    pub(super) may_run: Box<dyn Fn() -> Result<(), NotHeld> + Send>,
    pub(super) tell: Box<dyn FnOnce(Reply) + Send>,
}

#[derive(Default)]
struct Line {
    operations: VecDeque<Queued>,
    is_served: bool,
}

#[derive(Default)]
pub(super) struct GroupQueue {
    line: Mutex<Line>,
    /// What the member knows about itself; held for the length of a batch.
    pub(super) member: Mutex<Option<MemberRow>>,
    /// The same for who only asks, and is not to wait for a batch.
    shown: Mutex<Option<MemberRow>>,
}

impl GroupQueue {
    pub(super) fn of(member: Option<MemberRow>) -> GroupQueue {
        GroupQueue { line: Mutex::default(), member: Mutex::new(member), shown: Mutex::new(member) }
    }

    /// What the member knew about itself last.
    pub(super) fn shown(&self) -> Option<MemberRow> {
        *self.shown.lock()
    }

    /// Changes what the member knows about itself, whose lock the caller has.
    pub(super) fn set(&self, member: &mut Option<MemberRow>, row: Option<MemberRow>) {
        *member = row;
        *self.shown.lock() = row;
    }

    /// Adds an operation; whether its queue is to be served now.
    pub(super) fn push(&self, queued: Queued) -> bool {
        let mut line = self.line.lock();
        line.operations.push_back(queued);
        !std::mem::replace(&mut line.is_served, true)
    }

    pub(super) fn take(&self) -> Vec<Queued> {
        let mut line = self.line.lock();
        let count = line.operations.len().min(MOST_OPERATIONS);
        if count == 0 {
            line.is_served = false;
        }
        line.operations.drain(..count).collect()
    }

    /// Nobody serves the queue any more: all that waits in it.
    pub(super) fn abandon(&self) -> VecDeque<Queued> {
        let mut line = self.line.lock();
        line.is_served = false;
        std::mem::take(&mut line.operations)
    }

    /// Puts back what a batch had no room for.
    pub(super) fn put_back(&self, rest: Vec<Queued>) {
        let mut line = self.line.lock();
        for queued in rest.into_iter().rev() {
            line.operations.push_front(queued);
        }
    }
}
