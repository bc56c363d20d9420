//! Roll-forward: each member copies the operations that it lacks of buckets that all participating members
//! have sealed.
//!
//! A client that dies in the middle of a create leaves its file on some members. Each member that lacks the
//! create copies it, once all participating members have sealed its bucket. Deletes are copied before
//! creates.
//!
//! Two in-sync members may hold two files under one name. Then neither create was acknowledged, since the
//! member with the other file refused it. Both members delete the file with the higher id.
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
use crate::resync::fetch::{FetchError, FetchSource};
use bytes::Bytes;
use copal_client::name_of_server;
use copal_data::{GroupOperation, JournalEntry, OperationError};
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{
        Bucket, BucketSeal, DiskId, Epoch, GroupId, NameClaim, PeerStatus, Role, RollForward, View,
        roll_forward,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Time limit of one reply.
const ANSWER: Duration = Duration::from_secs(30);
/// Operations requested at a time.
const RECORDS: u32 = 500;

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
    let Some(closed) = seals.iter().map(|seal| seal.below).min() else {
        return Ok(());
    };
    for (&disk, theirs) in reports {
        if !theirs.is_covered {
            continue;
        }
        let from = own.stable_point.max(theirs.stable_point);
        let buckets: BTreeSet<Bucket> =
            theirs.digests.range(from..closed.max(from)).map(|(at, _)| *at).collect();
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
            limit: RECORDS,
        };
        let connection = &other.source.connection;
        let page: Result<messages::JournalRecords, _> =
            connection.call(Method::JournalOf, &request, ANSWER).await;
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
        return apply_operation(host, other, copied_delete(&entry, entry.fid, entry.op)).await;
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
        return apply_operation(host, other, record(&entry)).await;
    }
    match roll_forward(other.roles, &theirs, bound.as_ref(), other.seals) {
        RollForward::Wait => Ok(()),
        RollForward::Copy => roll_create(host, other, &entry).await,
        RollForward::Delete { loser } if loser == entry.fid => {
            delete_loser(host, other, &entry, loser, bound.as_ref()).await?;
            apply_operation(host, other, record(&entry)).await
        }
        // This member's own file has the higher id. It yields only to a file that still exists. The journal
        // of the other member lists a create, but that member may have deleted its file in a resync: then
        // this member's file was acknowledged, and must stay.
        RollForward::Delete { loser } => match fetch_created(host, other, &entry).await? {
            Some(operation) => {
                delete_loser(host, other, &entry, loser, bound.as_ref()).await?;
                apply_operation(host, other, operation).await
            }
            None => Ok(()),
        },
    }
}

/// Deletes `loser`, one of two files under one name, by an operation that is later than both creates.
async fn delete_loser(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    entry: &JournalEntry,
    loser: FileId,
    bound: Option<&NameClaim>,
) -> Result<(), Status> {
    let after = bound.map_or(entry.op, |own| own.op).max(entry.op);
    let op = host.ids.lock().draw_op_above(host.map.now_ms(), after);
    tracing::info!(group = %other.group, %loser, "two unacknowledged files claimed one name: the loser is deleted");
    apply_operation(host, other, copied_delete(entry, loser, op)).await
}

async fn roll_create(host: &ReplicaHost, other: &RollSource<'_>, entry: &JournalEntry) -> Result<(), Status> {
    match fetch_created(host, other, entry).await? {
        Some(operation) => apply_operation(host, other, operation).await,
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

async fn apply_operation(
    host: &ReplicaHost,
    other: &RollSource<'_>,
    operation: GroupOperation,
) -> Result<(), Status> {
    match host.apply(other.group, other.epoch, operation).await? {
        Ok(_) => Ok(()),
        Err(OperationError::Failed(error)) => Err(error.into()),
        // The view has changed, or the name was taken meanwhile: the next round decides again.
        Err(
            OperationError::Refused(_)
            | OperationError::OtherEpoch { .. }
            | OperationError::NotMember
            | OperationError::Cancelled
            | OperationError::Denied { .. },
        ) => Ok(()),
    }
}

/// The operations of another member that this member's journal lacks. If this member is covered, operations
/// below its stable point do not count: it has them.
pub(crate) async fn missing_operations(
    host: &ReplicaHost,
    group: GroupId,
    entries: Vec<JournalEntry>,
) -> Result<Vec<JournalEntry>, Status> {
    let store = host.store.clone();
    blocking(move || {
        let mut missing = Vec::new();
        for entry in entries {
            if store.lacks_operation(group, &entry)? {
                missing.push(entry);
            }
        }
        Ok(missing)
    })
    .await
}

/// Serves a page of the operations of one bucket from this member's journal. Another member asks for it to
/// roll the bucket forward.
pub(crate) async fn journal_page(
    host: Arc<ReplicaHost>,
    request: messages::JournalOf,
) -> Result<Bytes, Status> {
    let group = GroupId(request.group);
    host.require_epoch(group, Epoch(request.epoch)).await?;
    blocking(move || {
        let limit = request.limit.clamp(1, RECORDS) as usize;
        let after = Some(&*request.after).filter(|after| !after.is_empty());
        let entries = host.store.bucket_operations(group, Bucket(request.bucket), after, limit)?;
        Ok(encoded(&journal_message(entries, limit)))
    })
    .await
}

/// A delete of `fid`: copied from another member, or made by this one to settle a name with two files.
pub(crate) fn copied_delete(entry: &JournalEntry, fid: FileId, op: OpId) -> GroupOperation {
    GroupOperation::CopyDelete { vid: entry.vid, name: entry.name.clone(), fid, op }
}

/// A create whose file is deleted: it is journalled without the file, so that the journals of all members are
/// equal.
pub(crate) fn record(entry: &JournalEntry) -> GroupOperation {
    GroupOperation::RecordCreate { vid: entry.vid, name: entry.name.clone(), fid: entry.fid, op: entry.op }
}

pub(crate) fn journal_message(entries: Vec<JournalEntry>, limit: usize) -> messages::JournalRecords {
    let more = entries.len() == limit;
    let record = |entry: JournalEntry| messages::JournalRecord {
        key: entry.key,
        op: Some(of_id(entry.op.0)),
        create: entry.is_create,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
    };
    messages::JournalRecords { records: entries.into_iter().map(record).collect(), more }
}

pub(crate) fn entry_of(record: messages::JournalRecord) -> JournalEntry {
    JournalEntry {
        key: record.key,
        op: OpId(id(record.op)),
        is_create: record.create,
        vid: VolumeId(record.volume),
        name: record.name,
        fid: FileId(id(record.fid)),
    }
}

#[cfg(test)]
mod tests;
