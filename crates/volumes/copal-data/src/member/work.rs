//! Serving the queue of a group: one thread at a time, a batch after the other.
//!
//! Whoever finds a group's queue unserved gets the [`Work`] of serving it and runs it on a thread that may block; others leave
//! their operation there and are told. What gathers while a batch is on its way to the device is the next batch.
//! Invariant: operations of a group are decided one after the other, and no view changes in the middle of a batch.

use super::{
    apply::Batching,
    line::{GroupQueue, Queued},
    operation::NotHeld,
    rows::MemberCore,
};
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
                Ok(()) => waiting.push(queued.tell),
                Err(refused) => (queued.tell)(Err(refused)),
            }
            if batching.is_full() {
                break;
            }
        }
        self.queue.put_back(taken.collect());
        let reply = batching.commit().map(|()| row.role).map_err(NotHeld::Failed);
        drop(member);
        for tell in waiting {
            tell(reply.clone());
        }
    }
}

impl Drop for Work {
    /// Not run to its end, by a panic or a process that stops: who waits is told, and the next operation finds a queue that
    /// nobody serves.
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
