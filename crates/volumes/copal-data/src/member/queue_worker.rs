//! Worker of a group's queue: one thread at a time, one batch after the other.
//!
//! A caller that finds a queue without a worker gets a [`QueueWorker`] and runs it on a thread that may
//! block. Other callers leave their operations in the queue and get the results by callback. Operations that
//! arrive while a batch is on its way to the device form the next batch.
//!
//! Invariant: operations of a group are decided one after the other, and the view does not change during a
//! batch.

use super::{
    disk_state::MemberCore,
    group_batch::GroupBatch,
    group_queue::{GroupQueue, QueuedOperation},
    operation::{GroupOperation, OperationError, OperationResult},
};
use crate::format::MemberRow;
use copal_volume::{
    VolumeError,
    group::{EpochMatch, GroupId, match_epoch},
};
use std::sync::Arc;

/// The only worker of a group's queue.
#[must_use = "operations of the group wait until it is run"]
pub struct QueueWorker {
    pub(super) core: Arc<MemberCore>,
    pub(super) group: GroupId,
    pub(super) queue: Arc<GroupQueue>,
    pub(super) is_done: bool,
}

impl QueueWorker {
    /// Executes operations until the queue is empty. Blocks on the device.
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

    fn serve(&self, taken: Vec<QueuedOperation>) {
        let member = self.queue.member.lock();
        let Some(row) = *member else {
            for queued in taken {
                (queued.on_result)(Err(OperationError::NotMember));
            }
            return;
        };
        let mut batch = GroupBatch::new(&self.core, self.group, &row);
        let mut waiting = Vec::with_capacity(taken.len());
        let mut taken = taken.into_iter();
        for queued in taken.by_ref() {
            if match_epoch(row.epoch, queued.epoch) != EpochMatch::Run {
                (queued.on_result)(Err(OperationError::OtherEpoch { own: row.epoch }));
                continue;
            }
            if let Err(refused) = (queued.may_run)() {
                (queued.on_result)(Err(refused));
                continue;
            }
            match batch.add(&queued.operation) {
                Ok(()) => waiting.push((queued.operation, queued.on_result)),
                Err(refused) => (queued.on_result)(Err(refused)),
            }
            if batch.is_full() {
                break;
            }
        }
        self.queue.put_back(taken.collect());
        let replies: Vec<OperationResult> = match batch.commit() {
            // Some of several operations may fit, and a delete must not be refused because of its neighbours.
            Err(VolumeError::NoSpace) if waiting.len() > 1 => {
                let operations: Vec<&GroupOperation> =
                    waiting.iter().map(|(operation, _)| operation).collect();
                self.serve_separately(&row, &operations)
            }
            committed => {
                let reply = committed.map(|()| row.role).map_err(OperationError::Failed);
                vec![reply; waiting.len()]
            }
        };
        drop(member);
        for ((_, on_result), reply) in waiting.into_iter().zip(replies) {
            on_result(reply);
        }
    }

    /// Commits operations that did not fit together: first those without a file, then each of the others
    /// separately. Concurrent operations have no order.
    fn serve_separately(&self, row: &MemberRow, operations: &[&GroupOperation]) -> Vec<OperationResult> {
        let mut replies: Vec<Option<OperationResult>> = vec![None; operations.len()];
        let commit =
            |batch: GroupBatch<'_>| batch.commit().map(|()| row.role).map_err(OperationError::Failed);
        let begin = || GroupBatch::new(&self.core, self.group, row);
        let is_file = |operation: &GroupOperation| {
            matches!(operation, GroupOperation::Create { .. } | GroupOperation::CopyCreate { .. })
        };
        let (mut batch, mut added) = (begin(), Vec::new());
        for (at, operation) in operations.iter().enumerate() {
            if is_file(operation) {
                continue;
            }
            match batch.add(operation) {
                Ok(()) => added.push(at),
                Err(refused) => replies[at] = Some(Err(refused)),
            }
            if batch.is_full() {
                let reply = commit(std::mem::replace(&mut batch, begin()));
                added.drain(..).for_each(|at| replies[at] = Some(reply.clone()));
            }
        }
        let reply = commit(batch);
        added.into_iter().for_each(|at| replies[at] = Some(reply.clone()));
        let each = operations.iter().zip(replies).map(|(operation, reply)| {
            reply.unwrap_or_else(|| {
                let mut batch = begin();
                batch.add(operation).and_then(|()| commit(batch))
            })
        });
        each.collect()
    }
}

impl Drop for QueueWorker {
    /// A worker that a panic or the end of the process stopped: waiting callers get an error, and the next
    /// operation starts a new worker.
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        for queued in self.queue.abandon() {
            let reason = "the group's worker ended early; try again".to_owned();
            (queued.on_result)(Err(OperationError::Failed(VolumeError::Unavailable { reason })));
        }
    }
}
