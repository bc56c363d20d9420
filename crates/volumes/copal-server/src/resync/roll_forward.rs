//! Roll-forward: each member copies the operations that it lacks of buckets that all participating members
//! have sealed.
//!
//! A client that dies in the middle of a create leaves its file on some members. Each member that lacks the
//! create copies it, once all participating members have sealed its bucket. Deletes are copied before
//! creates.
//!
//! Two in-sync members may hold two files under one name. Then neither create was acknowledged: the member
//! with the other file refused it while in sync. Both members delete the file with the higher id.
//!
//! Design: docs/design/cluster.md#rules VOL-20
//! Invariants
//! - Only operations that every participating member has sealed are copied.
//! - A member deletes its own file in favour of another one only after it has fetched that one.

use crate::net::messages::{blocking, encoded};
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::replica::peer_status::sealed_by_all;
use crate::resync::fetch;
use crate::resync::fetch::{FetchError, FetchSource, REPLY_TIMEOUT};
use crate::resync::journal_copy::{
    copied_delete, create_without_file, entry_of, journal_message, missing_operations,
};
use bytes::Bytes;
use copal_client::name_of_server;
use copal_data::{GroupOperation, JournalEntry, OperationError};
use copal_proto::{
    CallClass, Method,
    messages::{self, failure::Code},
};
use copal_volume::{
    FileId,
    group::{
        Bucket, BucketSeal, DiskId, Epoch, GroupId, NameClaim, PeerStatus, Role, RollForward, View,
        roll_forward,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Operations in one page of a bucket, requested and served.
const MAX_PAGE_RECORDS: u32 = 500;

/// The other member that this one copies operations of a group from.
struct RollSource<'a> {
    group: GroupId,
    epoch: Epoch,
    /// Roles of this member and of the other one.
    roles: (Role, Role),
    /// Seals of all participating members.
    seals: &'a [BucketSeal],
    source: FetchSource,
}

/// Copies the operations that this member lacks and all participating members have sealed, from every covered
/// member.
pub(crate) async fn roll_forward_group(
    host: &ReplicaHost,
    group: GroupId,
    view: &View,
    own: &PeerStatus,
    reports: &BTreeMap<DiskId, PeerStatus>,
) -> Result<(), Status> {
    let seals = sealed_by_all(view, (host.disk(), own.seal), reports);
    let Some(sealed_below) = seals.iter().map(|seal| seal.below).min() else {
        return Ok(());
    };
    for (&disk, theirs) in reports {
        if !theirs.is_covered {
            continue;
        }
        let from = own.stable_point.max(theirs.stable_point);
        let buckets: BTreeSet<Bucket> =
            theirs.digests.range(from..sealed_below.max(from)).map(|(at, _)| *at).collect();
        let unequal = |bucket: &Bucket| theirs.digests.get(bucket) != own.digests.get(bucket);
        let unequal: Vec<Bucket> = buckets.into_iter().filter(unequal).collect();
        let Some(place) = host.map.place(disk).filter(|_| !unequal.is_empty()) else {
            continue;
        };
        let name = name_of_server(&place.server_uuid);
        let Ok(connection) = host.connections.connect(&place.address, name, CallClass::Recovery).await else {
            continue;
        };
        let other = RollSource {
            group,
            epoch: own.epoch,
            roles: (own.role, theirs.role),
            seals: &seals,
            source: FetchSource { connection, snapshot: 0 },
        };
        // Deletes of all buckets first, so that deleted files are not copied.
        for creates in [false, true] {
            for &bucket in &unequal {
                roll_bucket(host, &other, bucket, creates).await?;
            }
        }
    }
    Ok(())
}

/// Copies the deletes or the creates of one bucket that this member's journal lacks.
async fn roll_bucket(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    bucket: Bucket,
    creates: bool,
) -> Result<(), Status> {
    let mut after = Bytes::new();
    loop {
        let request = messages::JournalOf {
            group: other.group.0,
            epoch: other.epoch.0,
            bucket: bucket.0,
            after: after.clone(),
            limit: MAX_PAGE_RECORDS,
        };
        let connection = &other.source.connection;
        let page: Result<messages::JournalRecords, _> =
            connection.call(Method::JournalOf, &request, REPLY_TIMEOUT).await;
        let page = page.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
        let Some(last) = page.records.last() else {
            return Ok(());
        };
        after = last.key.clone();
        let entries = page.records.into_iter().map(entry_of);
        let entries = entries.filter(|entry| entry.is_create == creates && Bucket::of(entry.op) == bucket);
        for entry in missing_operations(host, other.group, entries.collect()).await? {
            roll_operation(host, other, entry).await?;
        }
        if !page.more {
            return Ok(());
        }
    }
}

/// Copies one operation, or settles the name of a create that has another file here.
async fn roll_operation(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    entry: JournalEntry,
) -> Result<(), Status> {
    if entry.vid.birth_group() != other.group {
        return Err(Status::new(Code::Invalid, "a member sent an operation of another group"));
    }
    if !entry.is_create {
        return try_apply(host, other, copied_delete(&entry, entry.fid, entry.op)).await;
    }
    let theirs = NameClaim { fid: entry.fid, op: entry.op };
    let store = host.store.clone();
    let (vid, name, fid) = (entry.vid, entry.name.clone(), entry.fid);
    let known = blocking(move || {
        let is_over = store.is_deleted_or_removed_by_name(vid, &name, fid)?;
        Ok((is_over, store.claim(vid, &name)?))
    });
    let (is_over, bound) = known.await?;
    if is_over {
        return try_apply(host, other, create_without_file(&entry)).await;
    }
    match roll_forward(other.roles, &theirs, bound.as_ref(), other.seals) {
        RollForward::Wait => Ok(()),
        RollForward::Copy => roll_create(host, other, &entry).await,
        RollForward::Delete { loser } if loser == entry.fid => {
            try_delete_loser(host, other, &entry, loser, bound.as_ref()).await?;
            try_apply(host, other, create_without_file(&entry)).await
        }
        // This member's own file has the higher id. It yields only to a file that still exists. The journal
        // of the other member lists a create, but that member may have deleted its file in a resync. Then
        // this member's file was possibly acknowledged, and must stay.
        RollForward::Delete { loser } => match fetch_created(host, other, &entry).await? {
            Some(operation) => {
                try_delete_loser(host, other, &entry, loser, bound.as_ref()).await?;
                try_apply(host, other, operation).await
            }
            None => Ok(()),
        },
    }
}

/// Deletes `loser`, one of two files under one name, by an operation that is later than both creates. As
/// [`try_apply`].
async fn try_delete_loser(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    entry: &JournalEntry,
    loser: FileId,
    bound: Option<&NameClaim>,
) -> Result<(), Status> {
    let after = bound.map_or(entry.op, |own| own.op).max(entry.op);
    let op = host.ids.lock().draw_op_above(host.map.now_ms(), after);
    tracing::info!(group = %other.group, %loser, "two unacknowledged files claimed one name: the loser is deleted");
    try_apply(host, other, copied_delete(entry, loser, op)).await
}

async fn roll_create(host: &ReplicaHost, other: &RollSource<'_>, entry: &JournalEntry) -> Result<(), Status> {
    match fetch_created(host, other, entry).await? {
        Some(operation) => try_apply(host, other, operation).await,
        None => Ok(()),
    }
}

/// Fetches the file of a create. `None`: the other member does not have the file any more. This member gets
/// the delete later, when all participating members have sealed its bucket.
async fn fetch_created(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    entry: &JournalEntry,
) -> Result<Option<GroupOperation>, Status> {
    let fetched = fetch::fetch_file(host, &other.source, entry.vid, &entry.name, entry.fid, true);
    fetched.await.map_err(|error| match error {
        FetchError::Local(error) => error,
        FetchError::Call(error) => Status::new(Code::Unavailable, error.to_string()),
    })
}

/// Applies an operation in the epoch of the roll-forward. A refusal and a change of the view are no errors:
/// the next round of gossip decides again.
async fn try_apply(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    operation: GroupOperation,
) -> Result<(), Status> {
    match host.apply(other.group, other.epoch, operation).await? {
        Ok(_) => Ok(()),
        Err(OperationError::Failed(error)) => Err(error.into()),
        Err(
            OperationError::Refused(_)
            | OperationError::OtherEpoch { .. }
            | OperationError::NotMember
            | OperationError::Cancelled
            | OperationError::Denied { .. },
        ) => Ok(()),
    }
}

/// Serves a page of the operations of one bucket from this member's journal. Another member asks for it to
/// roll the bucket forward.
pub(crate) async fn bucket_page(
    host: Arc<ReplicaHost>,
    request: messages::JournalOf,
) -> Result<Bytes, Status> {
    let group = GroupId(request.group);
    host.require_epoch(group, Epoch(request.epoch)).await?;
    blocking(move || {
        let limit = request.limit.clamp(1, MAX_PAGE_RECORDS) as usize;
        let after = Some(&*request.after).filter(|after| !after.is_empty());
        let entries = host.store.bucket_operations(group, Bucket(request.bucket), after, limit)?;
        Ok(encoded(&journal_message(entries, limit)))
    })
    .await
}

#[cfg(test)]
mod tests;
