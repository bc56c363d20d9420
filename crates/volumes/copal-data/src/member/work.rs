//! Serving the queue of a group: one thread at a time, a batch after the other.
//!
//! Whoever finds a group's queue unserved gets the [`Work`] of serving it and runs it on a thread that may
//! block; others leave their operation there and are told. What gathers while a batch is on its way to the
//! device is the next batch.
//! Invariant: operations of a group are decided one after the other, and no view changes in the middle of a
//! batch.

use super::{
    apply::Batching,
    line::{GroupQueue, Queued},
    operation::{NotHeld, Operation, Reply},
    rows::MemberCore,
};
use crate::format::MemberRow;
use copal_volume::{
    VolumeError,
    group::{GroupId, Matching, match_epoch},
};
use std::sync::Arc;

/// The duty to serve the queue of a group.
#[must_use = "operations of the group wait until it is run"]
pub struct Work {
    pub(super) core: Arc<MemberCore>,
    pub(super) group: GroupId,
    pub(super) queue: Arc<GroupQueue>,
    pub(super) is_done: bool,
}

impl Work {
    /// Serves the queue until it is empty. Blocks on the device.
    pub fn run(mut self) {
        loop {
            let taken = self.queue.take();
            if taken.is_empty() {
                self.is_done = true;
                return;
            }
            self.serve(taken);
        }
    }

    fn serve(&self, taken: Vec<Queued>) {
        let member = self.queue.member.lock();
        let Some(row) = *member else {
            for queued in taken {
                (queued.tell)(Err(NotHeld::NoMember));
            }
            return;
        };
        let mut batching = Batching::new(&self.core, self.group, &row);
        let mut waiting = Vec::with_capacity(taken.len());
        let mut taken = taken.into_iter();
        for queued in taken.by_ref() {
            if match_epoch(row.epoch, queued.epoch) != Matching::Run {
                (queued.tell)(Err(NotHeld::OtherEpoch { own: row.epoch }));
                continue;
            }
            if let Err(refused) = (queued.may_run)() {
                (queued.tell)(Err(refused));
                continue;
            }
            match batching.add(&queued.operation) {
                Ok(()) => waiting.push((queued.operation, queued.tell)),
                Err(refused) => (queued.tell)(Err(refused)),
            }
            if batching.is_full() {
                break;
            }
        }
        self.queue.put_back(taken.collect());
        let replies: Vec<Reply> = match batching.commit() {
            // Of several operations some may have room, and what makes room is not refused because of its
            // neighbours.
            Err(VolumeError::NoSpace) if waiting.len() > 1 => {
                let operations: Vec<&Operation> = waiting.iter().map(|(operation, _)| operation).collect();
                self.serve_apart(&row, &operations)
            }
            committed => {
                let reply = committed.map(|()| row.role).map_err(NotHeld::Failed);
                vec![reply; waiting.len()]
            }
        };
        drop(member);
        for ((_, tell), reply) in waiting.into_iter().zip(replies) {
            tell(reply);
        }
    }

    /// Operations for which there was no room together: first those that add no file, then each of the others
    /// alone. Between operations that wait at the same time there is no order.
    fn serve_apart(&self, row: &MemberRow, operations: &[&Operation]) -> Vec<Reply> {
        let mut replies: Vec<Option<Reply>> = vec![None; operations.len()];
        let commit = |batching: Batching<'_>| batching.commit().map(|()| row.role).map_err(NotHeld::Failed);
        let begin = || Batching::new(&self.core, self.group, row);
        let is_file = |operation: &Operation| {
            matches!(operation, Operation::Create { .. } | Operation::TakeOver { .. })
        };
        let (mut batching, mut added) = (begin(), Vec::new());
        for (at, operation) in operations.iter().enumerate() {
            if is_file(operation) {
                continue;
            }
            match batching.add(operation) {
                Ok(()) => added.push(at),
                Err(refused) => replies[at] = Some(Err(refused)),
            }
            if batching.is_full() {
                let reply = commit(std::mem::replace(&mut batching, begin()));
                added.drain(..).for_each(|at| replies[at] = Some(reply.clone()));
            }
        }
        let reply = commit(batching);
        added.into_iter().for_each(|at| replies[at] = Some(reply.clone()));
        let each = operations.iter().zip(replies).map(|(operation, reply)| {
            reply.unwrap_or_else(|| {
                let mut batching = begin();
                batching.add(operation).and_then(|()| commit(batching))
            })
        });
        each.collect()
    }
}

impl Drop for Work {
    /// Not run to its end, by a panic or a process that stops: who waits is told, and the next operation
    /// finds a queue that nobody serves.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        for queued in self.queue.abandon() {
            let reason = "nobody served the group to the end; try again".to_owned();
            (queued.tell)(Err(NotHeld::Failed(VolumeError::Unavailable { reason })));
        }
    }
}
