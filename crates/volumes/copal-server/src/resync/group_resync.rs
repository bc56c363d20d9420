//! Resync: this member copies the operations that it lacks from a donor, an in-sync member, group by group.
//!
//! First the member compares the digests of many groups in one call; groups with equal digests need no copy.
//! For each other group it opens a snapshot at a donor and copies the missing operations. Both end with
//! `mark_in_sync`.
//!
//! Paper:  beanfs §5.2 (volume synchronization)
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariants
//! - The member requests a snapshot only in an epoch in which it is up: while it is down, operations complete
//!   without it. The donor takes the snapshot in that epoch or a later one.
//! - The snapshot counts only if no operation can have completed without the member in that epoch or a later
//!   one. Epochs that the member missed earlier do not matter: the snapshot contains their operations.
//! - The member also applies operations of clients during the copy. Their order relative to the copied
//!   operations does not matter (VOL-10).

use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::replica::peer_status::sealed_by_all;
use crate::resync::fetch;
use crate::resync::fetch::{FetchSource, REPLY_TIMEOUT};
use crate::resync::in_sync::{MatchedGroup, ResyncError, mark_in_sync, own_epoch};
use crate::resync::journal_copy::{
    copied_delete, create_without_file, entry_of, missing_files, missing_operations,
};
use bytes::Bytes;
use copal_client::{CallError, Connection, name_of_server};
use copal_data::{
    GroupMembership, GroupOperation, JournalEntry, OperationError, SnapshotEntry, VolumeNotice,
};
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, VolumeId,
    group::{Bucket, BucketSeal, DiskId, Epoch, GroupId, Role, View, settle_name},
};
use futures_util::{StreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Groups copied at a time.
const MAX_GROUP_COPIES: usize = 4;
/// Operations or files of one group copied at a time.
const MAX_FILE_COPIES: usize = 8;
/// Groups compared in one call.
const MAX_COMPARED_GROUPS: usize = 1000;
/// Names with two files settled in one pass.
pub(crate) const MAX_DISPUTED_NAMES: usize = 1000;
/// Attempts to find the delete of a file that the donor has deleted, and the pause between them.
const DELETE_CHECKS: u32 = 20;
const DELETE_PAUSE: Duration = Duration::from_millis(100);
/// Entries in one page of a snapshot.
const MAX_PAGE_ENTRIES: u32 = 500;
/// Longest time between two scans for groups that are not in sync.
const SCAN_INTERVAL: Duration = Duration::from_secs(1);

/// Whether a disk takes part in a view: it is up there, and operations complete only with its
/// acknowledgement.
fn takes_part(view: &View, disk: DiskId) -> bool {
    view.role(disk).is_some_and(Role::takes_writes)
}

/// A donor with an open snapshot.
struct SnapshotDonor {
    group: GroupId,
    source: FetchSource,
    seal: BucketSeal,
    /// Epoch of this member in which it asked the donor.
    asked_in: Epoch,
    /// Seals of all participating members, as reported in that epoch before the snapshot was opened.
    sealed_before: Vec<BucketSeal>,
}

/// Resyncs groups that are not in sync, until the task is dropped.
pub(crate) async fn run(host: Arc<ReplicaHost>) {
    loop {
        let _ = tokio::time::timeout(SCAN_INTERVAL, host.resync_due.notified()).await;
        let Ok(all) = host.store.memberships() else {
            continue;
        };
        let unsynced = all
            .into_iter()
            .filter(|membership| !membership.role.is_in_sync())
            .filter(|membership| !host.damage.is_repairing(membership.group));
        let unequal = resync_equal_groups(&host, unsynced.collect()).await;
        let mut resyncs = stream::iter(unequal)
            .map(|membership| resync_group(Arc::clone(&host), membership))
            .buffer_unordered(MAX_GROUP_COPIES);
        while resyncs.next().await.is_some() {}
    }
}

async fn resync_group(host: Arc<ReplicaHost>, membership: GroupMembership) {
    let group = membership.group;
    match resync_from_donor(&host, membership).await {
        Ok(copied) => tracing::info!(%group, copied, "group in sync"),
        Err(error) => tracing::debug!(%group, %error, "group not in sync yet"),
    }
}

/// Compares groups with in-sync members by digest, many groups in one call. Equal groups become in sync.
/// Returns the groups that are still to be copied.
///
/// A digest covers only operations from the stable point on. So only groups in which this member is covered
/// are compared.
async fn resync_equal_groups(host: &ReplicaHost, unsynced: Vec<GroupMembership>) -> Vec<GroupMembership> {
    let me = host.disk();
    let mut by_donor: BTreeMap<DiskId, Vec<GroupMembership>> = BTreeMap::new();
    for membership in unsynced.iter().filter(|membership| membership.is_covered) {
        let view = host
            .map
            .view(membership.group)
            .filter(|view| view.epoch == membership.epoch && takes_part(view, me));
        if let Some(donor) = view.and_then(|view| view.in_sync().find(|disk| *disk != me)) {
            by_donor.entry(donor).or_default().push(*membership);
        }
    }
    let mut done = BTreeSet::new();
    for (donor, memberships) in by_donor {
        for part in memberships.chunks(MAX_COMPARED_GROUPS) {
            match compare_with_donor(host, donor, part).await {
                Ok(groups) => done.extend(groups),
                Err(error) => tracing::debug!(%donor, %error, "group comparison failed"),
            }
        }
    }
    let mut rest = unsynced;
    rest.retain(|membership| !done.contains(&membership.group));
    rest
}

/// Compares groups with a donor's, and marks the equal ones as in sync. Returns those that are in sync now.
async fn compare_with_donor(
    host: &ReplicaHost,
    donor: DiskId,
    memberships: &[GroupMembership],
) -> Result<Vec<GroupId>, ResyncError> {
    let connection = recovery_connection(host, donor).await.ok_or(ResyncError::NoDonor)?;
    let (store, seed) = (host.store.clone(), host.digest_seed());
    let asked = memberships.to_vec();
    let generations = memberships.iter().map(|membership| host.damage.generation(membership.group));
    let generations: Vec<u64> = generations.collect();
    let groups = blocking(move || {
        let mut groups = Vec::new();
        for membership in asked {
            // If a repair has begun since the list was made, this member is no longer covered. Then equal
            // digests do not show that it has the files from below the stable point.
            let now = store.membership(membership.group)?;
            if now.is_none_or(|now| !now.is_covered) {
                continue;
            }
            let digest = store.digest_from(membership.group, membership.stable_point, seed)?;
            groups.push(messages::ComparedGroup {
                group: membership.group.0,
                epoch: membership.epoch.0,
                horizon: membership.stable_point.0,
                count: digest.count,
                sum: Some(of_id(digest.sum)),
            });
        }
        Ok(groups)
    });
    let compare = messages::Compare { disk: host.disk().0, groups: groups.await? };
    let reply: messages::CompareReply = connection.call(Method::Compare, &compare, REPLY_TIMEOUT).await?;
    let mut matched = Vec::new();
    for equal in reply.equal {
        let group = GroupId(equal.group);
        let mut known = memberships.iter().zip(&generations);
        let Some((membership, generation)) = known.find(|(membership, _)| membership.group == group) else {
            continue;
        };
        let seal = BucketSeal { below: Bucket(equal.closed_below) };
        if host.store.is_seal_in_future(seal) {
            continue;
        }
        matched.push(MatchedGroup { group, generation: *generation, asked_in: membership.epoch, seal });
    }
    mark_in_sync(host, &matched).await
}

/// A connection for copies to another member; `None`: it cannot be reached.
pub(crate) async fn recovery_connection(host: &ReplicaHost, disk: DiskId) -> Option<Connection> {
    let place = host.map.place(disk)?;
    let name = name_of_server(&place.server_uuid);
    host.connections.connect(&place.address, name, CallClass::Recovery).await.ok()
}

/// Copies the operations that a donor has and this member lacks. Returns their number.
async fn resync_from_donor(host: &ReplicaHost, membership: GroupMembership) -> Result<u64, ResyncError> {
    let group = membership.group;
    let generation = host.damage.generation(group);
    if host.damage.is_repairing(group) {
        return Err(ResyncError::Repairing);
    }
    let cached = host.map.cached(group).ok_or(ResyncError::NoDonor)?;
    if cached.view.epoch != membership.epoch {
        host.refresh_map().await;
        return Err(ResyncError::ViewChanged);
    }
    let me = host.disk();
    if !takes_part(&cached.view, me) {
        return Err(ResyncError::Down);
    }
    let reports = host.peer_status.in_epoch(group, membership.epoch);
    let sealed_before = sealed_by_all(&cached.view, (me, membership.seal), &reports);
    let mut donors: Vec<(DiskId, Role)> = cached.view.members.clone();
    donors.retain(|(disk, role)| *disk != me && role.is_up());
    // Three classes of donors, in this order: the donor that the leader chose for this member, then members
    // in role N in the view, then all others that are up. The row of a donor may be ahead of the view, so
    // each donor checks its own role.
    let source = cached.source_of(me);
    donors.sort_by_key(|(disk, role)| (Some(*disk) != source, !role.is_in_sync()));
    for (donor, _) in donors {
        let Some(connection) = recovery_connection(host, donor).await else {
            continue;
        };
        let open = messages::SyncOpen { group: group.0, epoch: membership.epoch.0, disk: me.0 };
        let opened: Result<messages::SyncOpened, _> =
            connection.call(Method::SyncOpen, &open, REPLY_TIMEOUT).await;
        let opened = match opened {
            Ok(opened) => opened,
            Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Stale) => {
                host.refresh_map().await;
                return Err(ResyncError::ViewChanged);
            }
            Err(_) => continue,
        };
        let removed = opened.gone_volumes.iter().map(|vid| VolumeId(*vid));
        learn_removed_volumes(host, group, removed.collect()).await?;
        let seal = BucketSeal { below: Bucket(opened.closed_below) };
        if host.store.is_seal_in_future(seal) {
            // This member would take over the seal. It would then refuse operations of clients up to the time
            // of the seal, even after the donor's clock is right again.
            tracing::warn!(%group, %donor, "donor skipped: it has sealed buckets in the future");
            close_snapshot(&connection, opened.sync).await;
            continue;
        }
        let donor = SnapshotDonor {
            group,
            source: FetchSource { connection, snapshot: opened.sync },
            seal,
            asked_in: membership.epoch,
            sealed_before,
        };
        let copied = copy_snapshot(host, &donor, Bucket(opened.horizon)).await;
        close_snapshot(&donor.source.connection, opened.sync).await;
        let copied = copied?;
        let matched = MatchedGroup { group, generation, asked_in: membership.epoch, seal: donor.seal };
        return match mark_in_sync(host, &[matched]).await?.is_empty() {
            false => Ok(copied),
            true => Err(ResyncError::NotMarked),
        };
    }
    Err(ResyncError::NoDonor)
}

/// Closes a snapshot of a donor.
pub(crate) async fn close_snapshot(connection: &Connection, sync: u64) {
    let close = messages::SyncClose { sync };
    let closed: Result<messages::Done, _> = connection.call(Method::SyncClose, &close, REPLY_TIMEOUT).await;
    // If this call fails, the snapshot expires at the donor.
    let _ = closed;
}

/// Takes over the donor's list of removed volumes. The leader sends a removal only until all members at that
/// time know it. A member that joins later hears of it from its donor alone.
async fn learn_removed_volumes(
    host: &ReplicaHost,
    group: GroupId,
    removed: Vec<VolumeId>,
) -> Result<(), ResyncError> {
    let store = host.store.clone();
    let learned = blocking(move || {
        for vid in removed.into_iter().filter(|vid| vid.birth_group() == group) {
            store.note_volume(vid, VolumeNotice::Removed)?;
        }
        Ok(())
    });
    Ok(learned.await?)
}

/// Copies the operations and files of a donor's snapshot that this member lacks, and settles disputed names.
/// `stable_point`: that of the donor. Returns the number of copied operations and files.
async fn copy_snapshot(
    host: &ReplicaHost,
    donor: &SnapshotDonor,
    stable_point: Bucket,
) -> Result<u64, ResyncError> {
    let (store, group, seal) = (host.store.clone(), donor.group, donor.seal);
    let is_covered = blocking(move || {
        // Changes nothing on a covered member.
        store.begin_resync(group, stable_point, seal)?;
        Ok(store.membership(group)?.is_some_and(|own| own.is_covered))
    });
    let is_covered = is_covered.await?;
    // Deletes first, so that deleted files are not copied.
    let mut copied = 0;
    for creates in [false, true] {
        copied += copy_journal(host, donor, creates).await?;
    }
    if !is_covered {
        copied += copy_files(host, donor).await?;
    }
    settle_names(host, donor).await?;
    Ok(copied)
}

/// Copies the deletes or the creates that the donor's journal has and this member's journal lacks. Returns
/// their number.
async fn copy_journal(host: &ReplicaHost, donor: &SnapshotDonor, creates: bool) -> Result<u64, ResyncError> {
    let (mut copied, mut after) = (0, Bytes::new());
    loop {
        let next = messages::SyncJournal {
            sync: donor.source.snapshot,
            after: after.clone(),
            limit: MAX_PAGE_ENTRIES,
        };
        let connection = &donor.source.connection;
        let page: messages::JournalRecords =
            connection.call(Method::SyncJournal, &next, REPLY_TIMEOUT).await?;
        let Some(last) = page.records.last() else { break };
        after = last.key.clone();
        let entries = page.records.into_iter().map(entry_of).filter(|entry| entry.is_create == creates);
        let missing = missing_operations(host, donor.group, entries.collect()).await?;
        copied += missing.len() as u64;
        let copies = missing.into_iter().map(|entry| copy_operation(host, donor, entry));
        let mut copies = stream::iter(copies).buffer_unordered(MAX_FILE_COPIES);
        while let Some(outcome) = copies.next().await {
            outcome?;
        }
        if !page.more {
            break;
        }
    }
    Ok(copied)
}

async fn copy_operation(
    host: &ReplicaHost,
    donor: &SnapshotDonor,
    entry: JournalEntry,
) -> Result<(), ResyncError> {
    let is_create = entry.is_create;
    let operation = match is_create {
        false => copied_delete(&entry, entry.fid, entry.op),
        true => {
            let fetched = fetch::fetch_file(host, &donor.source, entry.vid, &entry.name, entry.fid, true);
            match fetched.await? {
                Some(operation) => operation,
                None => {
                    wait_for_delete(host, entry.vid, entry.name.clone(), entry.fid).await?;
                    create_without_file(&entry)
                }
            }
        }
    };
    apply_operation(host, donor.group, entry.vid, operation).await
}

/// Copies all live files of the snapshot that this member lacks, and returns their number. Only a member that
/// is not covered needs this. It may lack files from below the stable point, and the journals there are cut.
async fn copy_files(host: &ReplicaHost, donor: &SnapshotDonor) -> Result<u64, ResyncError> {
    let (mut copied, mut after) = (0, Bytes::new());
    loop {
        let next =
            messages::SyncNext { sync: donor.source.snapshot, after: after.clone(), limit: MAX_PAGE_ENTRIES };
        let connection = &donor.source.connection;
        let page: messages::SyncEntries = connection.call(Method::SyncNext, &next, REPLY_TIMEOUT).await?;
        let Some(last) = page.entries.last() else { break };
        after = last.key.clone();
        let missing = missing_files(host, page.entries).await?;
        copied += missing.len() as u64;
        let copies = missing.into_iter().map(|entry| copy_file(host, donor, entry));
        let mut copies = stream::iter(copies).buffer_unordered(MAX_FILE_COPIES);
        while let Some(outcome) = copies.next().await {
            outcome?;
        }
        if !page.more {
            break;
        }
    }
    Ok(copied)
}

async fn copy_file(
    host: &ReplicaHost,
    donor: &SnapshotDonor,
    entry: SnapshotEntry,
) -> Result<(), ResyncError> {
    let fetched = fetch::fetch_file(host, &donor.source, entry.vid, &entry.name, entry.fid, false);
    match fetched.await? {
        Some(operation) => apply_operation(host, donor.group, entry.vid, operation).await,
        None => wait_for_delete(host, entry.vid, entry.name, entry.fid).await,
    }
}

/// Waits until this member has a delete of a file that the donor has deleted since the snapshot.
/// - The client sends the delete to this member, too.
/// - If the client died before that, this member gets the delete from the journal of the next snapshot.
///
/// Without this wait the member could be in sync with neither the file nor its delete.
async fn wait_for_delete(
    host: &ReplicaHost,
    vid: VolumeId,
    name: Bytes,
    fid: FileId,
) -> Result<(), ResyncError> {
    for _ in 0..DELETE_CHECKS {
        let (store, name) = (host.store.clone(), name.clone());
        let is_over = blocking(move || Ok(store.is_deleted_or_removed_by_name(vid, &name, fid)?));
        if is_over.await? {
            return Ok(());
        }
        tokio::time::sleep(DELETE_PAUSE).await;
    }
    Err(ResyncError::DeleteMissing)
}

/// Settles disputed names (VOL-19). A name is settled only if all participating members had sealed the
/// creates of all its files before the snapshot was opened. Then the file that the snapshot has under the
/// name stays, or else the one with the lowest id.
///
/// A name stays disputed if one of its creates is not sealed, or if 1,000 other disputed names come before
/// it. Then `mark_in_sync` leaves the group out, and the resync is repeated with a new snapshot.
async fn settle_names(host: &ReplicaHost, donor: &SnapshotDonor) -> Result<(), ResyncError> {
    let (store, group) = (host.store.clone(), donor.group);
    let disputed = blocking(move || Ok(store.disputed_names(group, MAX_DISPUTED_NAMES)?));
    for disputed in disputed.await? {
        let ask = messages::SyncName {
            sync: donor.source.snapshot,
            volume: disputed.vid.0,
            name: disputed.name.clone(),
        };
        let connection = &donor.source.connection;
        let named: messages::SyncNamed = connection.call(Method::SyncName, &ask, REPLY_TIMEOUT).await?;
        let donor_file = named.fid.map(|fid| FileId(id(Some(fid))));
        let Some(stays) = settle_name(&disputed.claims, &donor.sealed_before, donor_file) else {
            continue;
        };
        for loser in disputed.claims.iter().filter(|claim| claim.fid != stays) {
            let op = host.ids.lock().draw_op_above(host.map.now_ms(), loser.op);
            let delete = GroupOperation::CopyDelete {
                vid: disputed.vid,
                name: disputed.name.clone(),
                fid: loser.fid,
                op,
            };
            tracing::info!(%group, loser = %loser.fid, "two files claimed one name: the loser is deleted");
            delete_loser(host, donor, delete).await?;
        }
    }
    Ok(())
}

/// Deletes a file that loses its name, only while this member is in the epoch in which it asked the donor.
/// The members reported their seals in that epoch. When a member enters a later one, it may withdraw a seal
/// from the future (VOL-43), and then the loser's create may still complete.
async fn delete_loser(
    host: &ReplicaHost,
    donor: &SnapshotDonor,
    delete: GroupOperation,
) -> Result<(), ResyncError> {
    match host.apply(donor.group, donor.asked_in, delete).await? {
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Applies an operation in this member's present epoch, and retries it if the epoch changed before it was
/// applied.
async fn apply_operation(
    host: &ReplicaHost,
    group: GroupId,
    vid: VolumeId,
    operation: GroupOperation,
) -> Result<(), ResyncError> {
    if vid.birth_group() != group {
        return Err(ResyncError::Local(Status::new(
            Code::Invalid,
            "a donor sent an operation of another group",
        )));
    }
    loop {
        let epoch = own_epoch(host, group)?;
        match host.apply(group, epoch, operation.clone()).await? {
            Ok(_) => return Ok(()),
            Err(OperationError::OtherEpoch { .. } | OperationError::Cancelled) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
