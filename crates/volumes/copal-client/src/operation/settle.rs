//! Settling: decides a create whose outcome is unknown.
//!
//! A create that was never acknowledged is either completed on all replicas or taken back by a delete. A file
//! that all replicas in sync hold may have been acknowledged, and is never deleted here. The states of a create
//! and their reasons are those of [`file_survey`](crate::operation::file_survey).
//!
//! Rule: VOL-61, docs/design/cluster.md

use crate::{
    net::machine,
    operation::{
        delivery::DeliveryRecord,
        file_survey::{CreateState, FileSurvey},
        run::{FileBody, FileOperation, OperationKind, OperationRunner},
        upload::{PIECE_BYTES, StagedUpload},
    },
    read::file_read::file_info,
    routing::router::{CallRouter, RETRY_PAUSE},
};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{id, messages};
use copal_volume::{
    FileId, OpId, SettleChoice, SettleOutcome, UNKNOWN_FILE_NAME, VolumeError, VolumeId, check_file_name,
    group::{Epoch, MAX_OP_AHEAD_MS},
};
use std::{sync::Arc, time::Instant};

/// Decides a create. The decision is final when this returns.
/// # Errors
/// As [`Cluster::settle`](crate::Cluster::settle).
pub(crate) async fn settle(
    operations: &OperationRunner,
    vid: VolumeId,
    fid: FileId,
    want: SettleChoice,
    end: Instant,
) -> Result<SettleOutcome, VolumeError> {
    let router = operations.router();
    loop {
        let view = router.view(vid, end).await?;
        let survey = FileSurvey::take(router, &view, vid, fid, false, end).await;
        survey.check()?;
        let latest_ms = router.map().now_ms().saturating_add(MAX_OP_AHEAD_MS);
        if survey.is_unknown() && (fid == FileId(0) || fid.ms() > latest_ms) {
            // Replicas refuse to delete such an id, so the create could never be decided.
            return Err(VolumeError::NotFound);
        }
        match survey.create_state() {
            CreateState::Permanent => return Ok(SettleOutcome::Committed),
            CreateState::NotAcknowledged if want == SettleChoice::Commit && survey.live.is_some() => {
                complete(operations, vid, &survey, end).await?;
            }
            CreateState::Deleted | CreateState::NotAcknowledged => {
                delete_surveyed(operations, vid, fid, &survey, end).await?;
                return Ok(SettleOutcome::Aborted);
            }
            CreateState::Open => complete(operations, vid, &survey, end).await?,
            CreateState::Undecided => {}
        }
        if machine::now() + RETRY_PAUSE >= end {
            return Err(VolumeError::Deadline {
                reason: format!(
                    "not every replica of the group reported its state of file {fid}; start the servers that are down, and settle it again"
                ),
            });
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Whether a replica that is up has a tombstone of a file. Repeats until all replicas that are up answer in one
/// view, and returns the epoch of that view.
/// # Errors
/// As [`FileSurvey::check`]; `Deadline`: not all answered in one view until `end`.
pub(crate) async fn is_deleted_anywhere(
    router: &CallRouter,
    vid: VolumeId,
    fid: FileId,
    end: Instant,
) -> Result<(bool, Epoch), VolumeError> {
    loop {
        let view = router.view(vid, end).await?;
        let survey = FileSurvey::take(router, &view, vid, fid, true, end).await;
        survey.check()?;
        if survey.is_deleted || survey.is_complete() {
            return Ok((survey.is_deleted, view.epoch));
        }
        if machine::now() + RETRY_PAUSE >= end {
            return Err(VolumeError::Deadline {
                reason: "not every replica that is up reported whether the file is deleted; delete it again"
                    .to_owned(),
            });
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

async fn delete_surveyed(
    operations: &OperationRunner,
    vid: VolumeId,
    fid: FileId,
    survey: &FileSurvey,
    end: Instant,
) -> Result<(), VolumeError> {
    let name = survey.live.as_ref().map(|(name, _)| name.clone());
    // A replica that holds the file may be down now. It finds the file by its id when it receives the delete.
    let name = name.unwrap_or_else(|| Bytes::from_static(UNKNOWN_FILE_NAME));
    operations.delete_or_retry(vid, name, fid, end).await
}

/// Copies a file that some replicas hold to all others that are up.
async fn complete(
    operations: &OperationRunner,
    vid: VolumeId,
    survey: &FileSurvey,
    end: Instant,
) -> Result<(), VolumeError> {
    let Some((name, head)) = survey.live.clone() else {
        return Ok(());
    };
    let fid = FileId(id(head.fid));
    let op = OpId(id(head.op));
    let body = fetch_body(operations, vid, &name, &head, end).await?;
    let complete = FileOperation {
        vid,
        name,
        head,
        fid,
        op,
        kind: OperationKind::Complete(body),
        undo_op: operations.draw_op_above(op),
        delivery: DeliveryRecord::default(),
    };
    match operations.run(complete, end).await {
        // The caller surveys all replicas again, with those that have come up since.
        Ok(()) | Err(VolumeError::Unavailable { .. } | VolumeError::Unknown { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The body of a file for the replicas that lack it: in memory up to one piece, otherwise staged on them.
/// # Errors
/// `InvalidName`: the replica that holds the file returned a name that no file may have. `Corrupt`: the bytes do not
/// match the checksum of the file. Otherwise as the replicas refuse.
async fn fetch_body(
    operations: &OperationRunner,
    vid: VolumeId,
    name: &[u8],
    head: &messages::FileHead,
    end: Instant,
) -> Result<FileBody, VolumeError> {
    let if_file = Some(FileId(id(head.fid)));
    let info = file_info(Some(head.clone()))?;
    // A replica returned the name.
    check_file_name(name)?;
    let reader = operations.reader();
    if info.size <= PIECE_BYTES as u64 {
        let (bytes, _) = reader.get(vid, name, 0..info.size, if_file, end).await?;
        if crc32c(0, &bytes) != info.crc32c {
            let what = format!("the body of file {}", info.fid);
            return Err(VolumeError::Corrupt { what });
        }
        return Ok(FileBody::Inline(bytes));
    }
    let upload = Arc::new(StagedUpload::new(vid, info.fid));
    let mut at = 0;
    while at < info.size {
        let until = info.size.min(at + PIECE_BYTES as u64);
        let (bytes, _) = reader.get(vid, name, at..until, if_file, end).await?;
        at = until;
        upload.stage(operations.chains(), bytes, end).await?;
    }
    Ok(FileBody::Staged(upload))
}
