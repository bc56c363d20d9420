//! Concurrent creates of one name: exactly one of them wins.
//!
//! There is no primary replica. Two concurrent creates may each reach another replica first and refuse each
//! other: then at most one is acknowledged, and possibly none. A refused creator therefore looks whether the
//! name has an owner on all replicas that are in sync. If it has none, all creators have lost, and the create is
//! retried at one replica first. That replica decides which creator is first.

use crate::{
    net::{connection::CallError, machine},
    operation::run::{FileOperation, OperationRunner},
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_proto::{
    Method, id, is_in_sync,
    messages::{self, failure::Code},
};
use copal_volume::{FileId, VolumeError, VolumeId, group::CallKind};
use futures_util::future::join_all;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Creates at one replica before the others.
/// # Errors
/// `Exists`: another create reached that replica first; nothing was sent to the other replicas.
pub(crate) async fn create_first(
    operations: &OperationRunner,
    create: &FileOperation,
    end: Instant,
) -> Result<(), VolumeError> {
    let view = operations.router().view(create.vid, end).await?;
    let Some(disk) = view.in_sync().next() else {
        return Ok(());
    };
    match operations.call_replica(create, disk, view.epoch, CallKind::Create, end).await {
        Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Exists) => {
            Err(VolumeError::Exists { fid: FileId(id(failure.fid)) })
        }
        // The operation that follows handles every other result.
        _ => Ok(()),
    }
}

/// The file that has a name on all replicas that are in sync; `None`: the name is free on all of them. Returns
/// `seen`, the file that refused the create, if the replicas do not agree before `end` or deny the read.
pub(crate) async fn owner(
    router: &CallRouter,
    vid: VolumeId,
    name: &Bytes,
    seen: FileId,
    end: Instant,
) -> Result<Option<FileId>, VolumeError> {
    let mut pause = Duration::from_millis(5);
    loop {
        let view = router.view(vid, end).await?;
        let request = messages::Stat {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            if_file: None,
        };
        let calls =
            view.up().map(|disk| router.call::<messages::StatReply>(disk, Method::Stat, &request, end));
        let (mut owners, mut may_read) = (BTreeSet::new(), true);
        for answer in join_all(calls).await {
            match answer {
                Ok(reply) if is_in_sync(reply.role) => {
                    owners.insert(reply.head.map(|head| FileId(id(head.fid))));
                }
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => {
                    owners.insert(None);
                }
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::VolumeGone) => {
                    return Err(VolumeError::VolumeGone);
                }
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Denied) => {
                    may_read = false
                }
                _ => {}
            }
        }
        if owners.is_empty() && !may_read {
            // A repetition would be denied again.
            return Ok(Some(seen));
        }
        if owners.len() == 1 {
            return Ok(owners.into_iter().next().flatten());
        }
        // Creates are in progress: some replicas have accepted one, others have already taken it back.
        if machine::now() + pause >= end {
            return Ok(Some(seen));
        }
        tokio::time::sleep(pause + machine::jitter(pause)).await;
        pause = (pause * 2).min(RETRY_PAUSE);
    }
}
