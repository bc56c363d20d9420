//! Strict reads: the answers of all replicas that are up, in one view.
//!
//! - An operation is complete when every replica that is up in a view has accepted it (VOL-12).
//! - A replica gets in sync only in a view that its donor is in, too.
//! - So when all replicas that are up in a view answer in it, no operation was completed in a later view before
//!   they were asked. The answer on which the replicas in sync agree includes every acknowledged operation
//!   (VOL-22).
//! - No lease and no master is needed. A replica that is down, but whose failure is not known yet, delays strict
//!   reads as it delays writes.
//!
//! Design: docs/design/cluster.md#rules VOL-22
//! Invariant: a file that a strict read has shown, or has shown to be deleted, stays so.
//! Not here: lists (`list`).

pub(crate) mod list;

use crate::{
    net::{connection::CallError, errors::volume_error, machine},
    operation::{file_survey::FileSurvey, run::OperationRunner, settle::is_deleted_anywhere},
    read::available::RoleReply,
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{
    Method, id, is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::{
    FileId, OpId, VolumeError, VolumeId,
    group::{BUCKET_MS, DiskId, MAX_OP_AGE_MS, MAX_OP_AHEAD_MS, View},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use prost::Message;
use std::{collections::BTreeSet, time::Instant};

/// Age at which no replica refuses a create any more: by every clock it has long been too old to arrive.
const DECIDED_MS: u64 = MAX_OP_AGE_MS + MAX_OP_AHEAD_MS + BUCKET_MS;

/// Answer of one replica.
enum ReplicaAnswer<R> {
    /// Of a replica in sync; `None`: there is no such file.
    InSync(Option<R>),
    /// Of a replica in the view that is not in sync. Its reply, if any, does not count by itself.
    NotInSync(Option<R>),
    /// The volume was removed.
    VolumeRemoved,
    /// The replica cannot read its data, or this client may not.
    Failed(VolumeError),
    /// No answer that counts.
    None,
}

/// Answers of all replicas that are up in one view.
enum ViewAnswers<R> {
    All {
        /// Of each replica in sync; `None`: there is no such file.
        in_sync: Vec<Option<R>>,
        /// Of each other replica; `None`: it knows nothing of the file.
        others: Vec<Option<R>>,
    },
    /// The volume was removed.
    VolumeRemoved,
    /// Not all have answered. The error of a failed replica, if none in sync answered.
    Incomplete(Option<VolumeError>),
}

/// Result of one round of a strict read.
enum StrictResult {
    /// All replicas are in sync and hold the file.
    Live(messages::FileHead),
    /// All replicas in sync hold the file; others are up and may lack it.
    LiveOnInSync(messages::FileHead),
    NotFound,
    /// Replicas in sync differ, or a replica that is not in sync holds a file that none of them holds. A create
    /// or a delete may be in progress.
    Differ(BTreeSet<FileId>),
    VolumeRemoved,
    /// Not all have answered in one view.
    Incomplete,
    /// This client may not read there.
    Denied(VolumeError),
}

/// The live file of a name, by the answers of all replicas that are up.
/// # Errors
/// `NotFound`, `VolumeGone`, `Denied`; `Deadline`: not all of them answered in one view until `end`.
pub(crate) async fn stat(
    operations: &OperationRunner,
    vid: VolumeId,
    name: &Bytes,
    end: Instant,
) -> Result<messages::FileHead, VolumeError> {
    let router = operations.router();
    loop {
        let view = router.view(vid, end).await?;
        match stat_in_view(router, &view, vid, name, end).await {
            StrictResult::Live(head) => return Ok(head),
            StrictResult::LiveOnInSync(head) => {
                if !may_be_refused(router, &view, vid, &head, end).await? {
                    return Ok(head);
                }
            }
            StrictResult::NotFound => return Err(VolumeError::NotFound),
            StrictResult::VolumeRemoved => return Err(VolumeError::VolumeGone),
            StrictResult::Differ(fids) => {
                // A delete that has begun is completed, since the next reader may get answers of other replicas.
                // A create that has begun was not acknowledged yet, and need not be shown.
                let mut is_absent = true;
                for fid in fids {
                    let (is_deleted, epoch) = is_deleted_anywhere(router, vid, fid, end).await?;
                    if is_deleted {
                        is_absent &= complete_delete(operations, vid, name, fid, end).await?;
                    } else if epoch != view.epoch {
                        // The replica with the delete may be down in this view. Then the file is live as before.
                        is_absent = false;
                    }
                }
                if is_absent {
                    return Err(VolumeError::NotFound);
                }
            }
            StrictResult::Incomplete => {}
            StrictResult::Denied(error) => return Err(error),
        }
        pause(end).await?;
    }
}

/// Completes a delete of another client. Returns `false` if this client may not delete: then it waits until the
/// other client or the replicas complete the delete.
async fn complete_delete(
    operations: &OperationRunner,
    vid: VolumeId,
    name: &Bytes,
    fid: FileId,
    end: Instant,
) -> Result<bool, VolumeError> {
    match operations.delete_or_retry(vid, name.clone(), fid, end).await {
        // `NotFound`: the file has another name, so it does not concern this read.
        Ok(()) | Err(VolumeError::NotFound) => Ok(true),
        Err(VolumeError::Denied { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a create that all replicas in sync hold may still be refused by another replica that is up. Then its
/// client takes it back. This is possible while that replica lacks the file and the create is not too old.
async fn may_be_refused(
    router: &CallRouter,
    view: &View,
    vid: VolumeId,
    head: &messages::FileHead,
    end: Instant,
) -> Result<bool, VolumeError> {
    if is_decided(head, router.map().now_ms()) {
        return Ok(false);
    }
    let survey = FileSurvey::take(router, view, vid, FileId(id(head.fid)), false, end).await;
    survey.check()?;
    Ok(!survey.is_on_all_up())
}

async fn pause(end: Instant) -> Result<(), VolumeError> {
    if machine::now() + RETRY_PAUSE >= end {
        return Err(VolumeError::Deadline {
            reason: "a strict read needs an answer of every replica that is up; try again, or use an available read"
                .to_owned(),
        });
    }
    tokio::time::sleep(RETRY_PAUSE).await;
    Ok(())
}

async fn stat_in_view(
    router: &CallRouter,
    view: &View,
    vid: VolumeId,
    name: &Bytes,
    end: Instant,
) -> StrictResult {
    let request = messages::Stat {
        group: view.group.0,
        epoch: view.epoch.0,
        volume: vid.0,
        name: name.clone(),
        if_file: None,
    };
    let (in_sync, others) = match call_all(router, view, Method::Stat, &request, end).await {
        ViewAnswers::All { in_sync, others } => (in_sync, others),
        ViewAnswers::VolumeRemoved => return StrictResult::VolumeRemoved,
        ViewAnswers::Incomplete(Some(error @ VolumeError::Denied { .. })) => {
            return StrictResult::Denied(error);
        }
        ViewAnswers::Incomplete(_) => return StrictResult::Incomplete,
    };
    let heads = |replies: Vec<Option<messages::StatReply>>| {
        let head = |reply: Option<messages::StatReply>| reply.and_then(|reply| reply.head);
        replies.into_iter().map(head).collect()
    };
    evaluate(heads(in_sync), heads(others))
}

/// Calls all replicas that are up.
async fn call_all<R: RoleReply>(
    router: &CallRouter,
    view: &View,
    method: Method,
    request: &impl Message,
    end: Instant,
) -> ViewAnswers<R> {
    // No operation completes in so small a view. So replicas that were down meanwhile are in sync without the
    // operations that only this view has seen.
    if view.up().count() < view.needed() {
        return ViewAnswers::Incomplete(None);
    }
    let calls = view.up().map(|disk| call_one(router, disk, method, request, end));
    let mut calls: FuturesUnordered<_> = calls.collect();
    let (mut in_sync, mut others, mut failure) = (Vec::new(), Vec::new(), None);
    while let Some(answer) = calls.next().await {
        match answer {
            ReplicaAnswer::InSync(reply) => in_sync.push(reply),
            ReplicaAnswer::NotInSync(reply) => others.push(reply),
            ReplicaAnswer::VolumeRemoved => return ViewAnswers::VolumeRemoved,
            ReplicaAnswer::Failed(error) => failure = Some(error),
            ReplicaAnswer::None => {}
        }
    }
    match in_sync.len() + others.len() < view.up().count() {
        // If another replica in sync can read the data, the damaged one soon leaves that state.
        true => ViewAnswers::Incomplete(failure.filter(|_| in_sync.is_empty())),
        false => ViewAnswers::All { in_sync, others },
    }
}

async fn call_one<R: RoleReply>(
    router: &CallRouter,
    disk: DiskId,
    method: Method,
    request: &impl Message,
    end: Instant,
) -> ReplicaAnswer<R> {
    match router.call::<R>(disk, method, request, end).await {
        Ok(reply) if is_in_sync(reply.role()) => ReplicaAnswer::InSync(Some(reply)),
        Ok(reply) => ReplicaAnswer::NotInSync(Some(reply)),
        Err(CallError::Failed(failure)) => {
            if let Some(newer) = &failure.view {
                router.map().learn(newer);
            }
            match Code::try_from(failure.code).unwrap_or(Code::Unspecified) {
                Code::NotFound => ReplicaAnswer::InSync(None),
                Code::NotAuthoritative => ReplicaAnswer::NotInSync(None),
                Code::VolumeGone => ReplicaAnswer::VolumeRemoved,
                Code::Corrupt | Code::Denied => {
                    ReplicaAnswer::Failed(volume_error(CallError::Failed(failure)))
                }
                _ => ReplicaAnswer::None,
            }
        }
        Err(_) => {
            router.suspect(disk);
            ReplicaAnswer::None
        }
    }
}

/// Whether a create is too old to be refused by any replica. `now_ms` is the cluster's time, from which the id
/// of the create was drawn, too.
fn is_decided(head: &messages::FileHead, now_ms: u64) -> bool {
    let age_ms = now_ms.saturating_sub(OpId(id(head.op)).ms());
    age_ms > DECIDED_MS
}

fn fid_of(head: &Option<messages::FileHead>) -> Option<FileId> {
    head.as_ref().map(|head| FileId(id(head.fid)))
}

/// Evaluates the heads of the replicas in sync, and those of other replicas that are up.
fn evaluate(
    in_sync: Vec<Option<messages::FileHead>>,
    others: Vec<Option<messages::FileHead>>,
) -> StrictResult {
    let fids = |heads: &[Option<messages::FileHead>]| -> BTreeSet<FileId> {
        heads.iter().filter_map(fid_of).collect()
    };
    let are_equal = in_sync.windows(2).all(|two| fid_of(&two[0]) == fid_of(&two[1]));
    let in_sync_fids = fids(&in_sync);
    match (in_sync.into_iter().next(), are_equal) {
        // Only a replica in sync could decide.
        (None, _) => StrictResult::Incomplete,
        (Some(Some(head)), true) if others.is_empty() => StrictResult::Live(head),
        (Some(Some(head)), true) => StrictResult::LiveOnInSync(head),
        (Some(None), true) if others.iter().all(Option::is_none) => StrictResult::NotFound,
        // The other replica may get in sync with its data from before the delete. Then the file is live again.
        (Some(None), true) => StrictResult::Differ(fids(&others)),
        (Some(_), false) => StrictResult::Differ(in_sync_fids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::map_cache::MapCache;
    use copal_proto::of_id;

    fn head(fid: u128) -> Option<messages::FileHead> {
        Some(messages::FileHead { fid: Some(of_id(fid)), ..messages::FileHead::default() })
    }

    /// Symptom: strict reads of a client whose own clock was ahead showed files that were refused later.
    /// Cause: the age of a create was judged by the client's wall clock, while its id has the cluster's time.
    /// Fix: ages are judged by the cluster's clock.
    #[test]
    fn the_age_of_a_create_is_judged_by_the_clock_that_drew_its_id() {
        let fresh = messages::FileHead {
            op: Some(of_id(FileId::new(1_000_000, 1, 1).0)),
            ..messages::FileHead::default()
        };
        // This machine's own clock is far later than the cluster's.
        let map = MapCache::default();
        map.apply(&messages::Map { now_ms: 1_000_000, ..messages::Map::default() });
        assert!(!is_decided(&fresh, map.now_ms()), "a create that has just begun may still be refused");
        map.apply(&messages::Map { now_ms: 1_000_000 + DECIDED_MS + 1, ..messages::Map::default() });
        assert!(is_decided(&fresh, map.now_ms()));
    }

    #[test]
    fn only_an_agreement_of_all_replicas_in_sync_counts() {
        let all = |in_sync| evaluate(in_sync, vec![]);
        assert!(matches!(all(vec![head(1), head(1)]), StrictResult::Live(_)));
        assert!(matches!(all(vec![None, None]), StrictResult::NotFound));
        assert!(matches!(all(vec![]), StrictResult::Incomplete), "no replica is in sync");
        for heads in [vec![head(1), None], vec![None, head(1)], vec![head(1), head(2)]] {
            assert!(matches!(all(heads), StrictResult::Differ(fids) if fids.contains(&FileId(1))));
        }
    }

    #[test]
    fn a_file_on_a_replica_that_is_not_in_sync_may_be_one_whose_delete_has_begun() {
        let with = |in_sync, other| evaluate(vec![in_sync], vec![other]);
        assert!(matches!(with(head(1), None), StrictResult::LiveOnInSync(_)));
        assert!(matches!(with(head(1), head(2)), StrictResult::LiveOnInSync(_)));
        assert!(matches!(with(None, None), StrictResult::NotFound));
        assert!(matches!(with(None, head(2)), StrictResult::Differ(fids) if fids.contains(&FileId(2))));
    }
}
