//! Queue of a group: operations that wait for their batch, and the member's state in the group.

use super::operation::{GroupOperation, OperationError, OperationResult};
use crate::format::MemberRow;
use copal_volume::group::{Epoch, GroupId};
use parking_lot::Mutex;
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Maximum number of operations in one batch.
const MOST_OPERATIONS: usize = 256;

pub(super) struct QueuedOperation {
    pub(super) epoch: Epoch,
    pub(super) operation: GroupOperation,
    /// Checked when its turn comes: whether it may still run.
    pub(super) may_run: Box<dyn Fn() -> Result<(), OperationError> + Send>,
    pub(super) on_result: Box<dyn FnOnce(OperationResult) + Send>,
}

#[derive(Default)]
struct OperationQueue {
    operations: VecDeque<QueuedOperation>,
    is_served: bool,
}

#[derive(Default)]
pub(super) struct GroupQueue {
    queue: Mutex<OperationQueue>,
    /// State of the member; locked during a batch.
    pub(super) member: Mutex<Option<MemberRow>>,
    /// Copy of it for readers that must not wait for a batch.
    published: Mutex<Option<MemberRow>>,
}

impl GroupQueue {
    pub(super) fn of(member: Option<MemberRow>) -> GroupQueue {
        GroupQueue { queue: Mutex::default(), member: Mutex::new(member), published: Mutex::new(member) }
    }

    /// The last published state of the member.
    pub(super) fn published(&self) -> Option<MemberRow> {
        *self.published.lock()
    }

    /// Changes the state of the member; the caller holds its lock.
    pub(super) fn set(&self, member: &mut Option<MemberRow>, row: Option<MemberRow>) {
        *member = row;
        *self.published.lock() = row;
    }

    /// Adds an operation. `true`: the caller must start a worker.
    pub(super) fn push(&self, queued: QueuedOperation) -> bool {
        let mut queue = self.queue.lock();
        queue.operations.push_back(queued);
        !std::mem::replace(&mut queue.is_served, true)
    }

    pub(super) fn take(&self) -> Vec<QueuedOperation> {
        let mut queue = self.queue.lock();
        let count = queue.operations.len().min(MOST_OPERATIONS);
        if count == 0 {
            queue.is_served = false;
        }
        queue.operations.drain(..count).collect()
    }

    /// Ends a worker early and returns all waiting operations.
    pub(super) fn abandon(&self) -> VecDeque<QueuedOperation> {
        let mut queue = self.queue.lock();
        queue.is_served = false;
        std::mem::take(&mut queue.operations)
    }

    /// Returns operations that did not fit into a batch to the front.
    pub(super) fn put_back(&self, rest: Vec<QueuedOperation>) {
        let mut queue = self.queue.lock();
        for queued in rest.into_iter().rev() {
            queue.operations.push_front(queued);
        }
    }
}

/// Queues of a disk's groups; each is created at its first use.
#[derive(Default)]
pub(super) struct GroupQueues {
    by_group: Mutex<HashMap<GroupId, Arc<GroupQueue>>>,
}

impl GroupQueues {
    pub(super) fn get(&self, group: GroupId) -> Option<Arc<GroupQueue>> {
        self.by_group.lock().get(&group).cloned()
    }

    /// The queue of a group; a new one starts with the stored row of the group.
    pub(super) fn get_or_insert(&self, group: GroupId, row: Option<MemberRow>) -> Arc<GroupQueue> {
        let mut queues = self.by_group.lock();
        Arc::clone(queues.entry(group).or_insert_with(|| Arc::new(GroupQueue::of(row))))
    }
}
