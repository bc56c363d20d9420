//! Survey of one file: its state on each replica of its group, and the state of its create that follows.
//!
//! An operation is complete only when every replica that is up has accepted it, and a replica in sync holds
//! every completed operation. So:
//! - A file that a replica in sync lacks was never acknowledged.
//! - A file that all replicas in sync hold may have been acknowledged.
//! - A replica that is down may hold a tombstone that no other replica knows, and brings it when it returns.
//!   Therefore a file is permanent only once all replicas of the group report that they hold it.

use crate::{net::connection::CallError, routing::router::CallRouter};
use bytes::Bytes;
use copal_proto::{
    Method, is_in_sync,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, VolumeError, VolumeId,
    group::{DiskId, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::time::Instant;

/// Answers of the replicas of a group about one file.
#[derive(Default)]
pub(crate) struct FileSurvey {
    up: usize,
    members: usize,
    needed: usize,
    /// Replicas that answered.
    answered: usize,
    /// Replicas that hold the file.
    live_count: usize,
    /// Replicas that answered and are in sync.
    in_sync: usize,
    /// Those of them that hold the file.
    in_sync_live: usize,
    pub(crate) is_deleted: bool,
    is_volume_removed: bool,
    /// Name and head of the file, from one replica that holds it.
    pub(crate) live: Option<(Bytes, messages::FileHead)>,
    /// Why a replica denies this client the read.
    denial: Option<String>,
}

/// State of a create whose outcome is unknown.
pub(crate) enum CreateState {
    /// Every replica of the group holds the file, and none has a tombstone.
    Permanent,
    /// A replica has a tombstone of the file.
    Deleted,
    /// A replica in sync lacks the file: the create was never acknowledged.
    NotAcknowledged,
    /// All replicas in sync hold the file, and some other replica lacks it.
    Open,
    /// Too few replicas answered to decide, or a replica is down.
    Undecided,
}

impl FileSurvey {
    /// Asks all replicas that are up in `view`. With `deleted_only` they look for tombstones only, which is
    /// cheaper.
    pub(crate) async fn take(
        router: &CallRouter,
        view: &View,
        vid: VolumeId,
        fid: FileId,
        deleted_only: bool,
        end: Instant,
    ) -> FileSurvey {
        let request = messages::Find {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            fid: Some(of_id(fid.0)),
            buried_only: deleted_only,
        };
        let calls = view.up().map(|disk| {
            let call = router.call::<messages::FindReply>(disk, Method::Find, &request, end);
            async move { (disk, call.await) }
        });
        let mut calls: FuturesUnordered<_> = calls.collect();
        let mut survey = FileSurvey {
            up: view.up().count(),
            members: view.members.len(),
            needed: view.needed(),
            ..FileSurvey::default()
        };
        while let Some((disk, answer)) = calls.next().await {
            survey.add(router, disk, answer);
        }
        survey
    }

    fn add(&mut self, router: &CallRouter, disk: DiskId, answer: Result<messages::FindReply, CallError>) {
        match answer {
            Ok(reply) => self.add_reply(reply),
            Err(CallError::Failed(failure)) => {
                self.is_volume_removed |= failure.code == i32::from(Code::VolumeGone);
                if let Some(newer) = &failure.view {
                    router.map().learn(newer);
                }
                if failure.code == i32::from(Code::Denied) {
                    self.denial = Some(failure.text);
                }
            }
            Err(_) => router.suspect(disk),
        }
    }

    fn add_reply(&mut self, reply: messages::FindReply) {
        self.answered += 1;
        let is_in_sync = is_in_sync(reply.role);
        self.in_sync += usize::from(is_in_sync);
        self.is_deleted |= reply.buried;
        if reply.live {
            self.live_count += 1;
            self.in_sync_live += usize::from(is_in_sync);
            if let Some(head) = reply.head {
                self.live = Some((reply.name, head));
            }
        }
    }

    /// Fails where a repetition would not help.
    /// # Errors
    /// `VolumeGone`. `Denied`: no replica answered, and one denies this client the read.
    pub(crate) fn check(&self) -> Result<(), VolumeError> {
        match &self.denial {
            _ if self.is_volume_removed => Err(VolumeError::VolumeGone),
            Some(reason) if self.answered == 0 => Err(VolumeError::Denied { reason: reason.clone() }),
            _ => Ok(()),
        }
    }

    /// Whether all replicas that are up answered.
    pub(crate) fn is_complete(&self) -> bool {
        self.answered == self.up
    }

    /// Whether all replicas that are up hold the file, in sync or not.
    pub(crate) fn is_on_all_up(&self) -> bool {
        !self.is_deleted && self.is_complete() && self.live_count == self.up
    }

    /// Whether replicas answered, and none of them knows the file.
    pub(crate) fn is_unknown(&self) -> bool {
        self.answered > 0 && self.live_count == 0 && !self.is_deleted
    }

    pub(crate) fn create_state(&self) -> CreateState {
        if self.is_deleted {
            return CreateState::Deleted;
        }
        if self.in_sync > self.in_sync_live {
            return CreateState::NotAcknowledged;
        }
        if self.answered < self.up || self.in_sync == 0 {
            return CreateState::Undecided;
        }
        match (self.live_count == self.up, self.up == self.members) {
            (true, true) => CreateState::Permanent,
            (true, false) if self.up >= self.needed => CreateState::Undecided,
            _ => CreateState::Open,
        }
    }
}
