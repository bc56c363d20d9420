//! The donor's side of a resync: an in-sync member answers the member that resyncs, the asking member.
//!
//! The asking member opens a snapshot of a group, and then reads its journal, its names and its list of
//! files. The bytes of files come from the live store, not from the snapshot.
//!
//! Design: docs/design/cluster.md#rules VOL-16
//! Not here: the asking side (`group_resync`), the open snapshots by number (`replica::snapshots`).

use crate::net::messages::{blocking, encoded};
use crate::net::status::Status;
use crate::replica::file_head::PIECE_BYTES;
use crate::replica::host::{ReadBegin, ReplicaHost};
use crate::resync::journal_copy::journal_message;
use bytes::Bytes;
use copal_data::{GroupSnapshot, SnapshotEntry};
use copal_proto::{
    id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, VolumeId,
    group::{Bucket, Epoch, GroupId},
};
use std::sync::Arc;

/// Entries, or compared groups, in one message.
const MAX_ENTRIES: u32 = 1000;

/// Takes a snapshot of a group for the asking member, and returns its number, the seal and the stable point.
pub(crate) async fn open_snapshot(
    host: Arc<ReplicaHost>,
    request: messages::SyncOpen,
) -> Result<Bytes, Status> {
    let group = GroupId(request.group);
    // The request names the epoch E of the asking member. This member must have entered E or a later epoch
    // before it takes the snapshot. Then the snapshot contains every operation that completed before E.
    // Operations of E and later need the acknowledgement of the asking member (VOL-16).
    let begin = host.begin_read(group, Epoch(request.epoch)).await?;
    if !begin.membership.role.is_in_sync() {
        return Err(not_in_sync());
    }
    let this = Arc::clone(&host);
    blocking(move || take_snapshot(&this, &begin)).await
}

fn not_in_sync() -> Status {
    Status::new(Code::NotAuthoritative, "this member is not in sync itself")
}

/// Takes the snapshot, and checks that no repair dropped rows before it, or is about to. `repair` of another
/// member asks by this same call: if both members replied that they are in sync, both would leave role N (VOL-28).
///
/// A repair that begins later makes no row of the snapshot absent:
/// - A page of a damaged range fails. `copal-kv` keeps such a range in quarantine while a snapshot from before
///   the repair is open.
/// - A file that the repair dropped is still listed, but `read_file` no longer finds it. Then the resync of
///   the asking member fails, unless that member has a delete of the file.
fn take_snapshot(host: &ReplicaHost, begin: &ReadBegin) -> Result<Bytes, Status> {
    let membership = begin.membership;
    let group = membership.group;
    // The stable point was read before the snapshot. If it rises in between, the snapshot may lack journal
    // rows from above the returned value. Each covered member has these operations. A member that is not
    // covered gets their files by the list of files.
    let snapshot = host.store.snapshot(group)?;
    let now = host.store.membership(group)?.unwrap_or(membership);
    let removed = host.store.removed_volumes(group)?;
    if !host.role_of_read(begin)?.is_in_sync() || host.damage.is_repairing(group) {
        return Err(not_in_sync());
    }
    Ok(encoded(&messages::SyncOpened {
        sync: host.snapshots.add(snapshot)?,
        closed_below: now.seal.below.0,
        horizon: membership.stable_point.0,
        gone_volumes: removed.into_iter().map(|vid| vid.0).collect(),
    }))
}

/// Returns the groups in which the asking member has everything that this member has. In these groups the two
/// stable points are equal, and so are the digests of the journals from there on. The asking member sends only
/// groups in which it is covered, so it also has everything below.
pub(crate) async fn compare_groups(
    host: Arc<ReplicaHost>,
    request: messages::Compare,
) -> Result<Bytes, Status> {
    if request.groups.len() > MAX_ENTRIES as usize {
        return Err(Status::new(Code::TooLarge, "1,000 groups are compared at a time"));
    }
    let mut equal = Vec::new();
    for compared in request.groups {
        let group = GroupId(compared.group);
        // As in `open_snapshot`: this member compares in the epoch of the asking member or a later one.
        let Ok(begin) = host.begin_read(group, Epoch(compared.epoch)).await else {
            continue;
        };
        let membership = begin.membership;
        if !membership.role.is_in_sync() || membership.stable_point != Bucket(compared.horizon) {
            continue;
        }
        let (store, seed) = (host.store.clone(), host.digest_seed());
        let digest = blocking(move || Ok(store.digest_from(group, membership.stable_point, seed)?));
        let digest = digest.await?;
        let is_equal = digest.count == compared.count && digest.sum == id(compared.sum);
        if is_equal && host.role_of_read(&begin)?.is_in_sync() {
            equal.push(messages::EqualGroup { group: group.0, closed_below: membership.seal.below.0 });
        }
    }
    Ok(encoded(&messages::CompareReply { equal }))
}

/// The next page of a snapshot's journal.
pub(crate) async fn journal_page(
    host: Arc<ReplicaHost>,
    request: messages::SyncJournal,
) -> Result<Bytes, Status> {
    let snapshot = host.snapshots.get(request.sync)?;
    blocking(move || {
        let limit = request.limit.clamp(1, MAX_ENTRIES) as usize;
        let after = Some(&*request.after).filter(|after| !after.is_empty());
        let entries = snapshot.journal(after, limit)?;
        Ok(encoded(&journal_message(entries, limit)))
    })
    .await
}

/// The live file of a name in a snapshot.
pub(crate) async fn live_name(host: Arc<ReplicaHost>, request: messages::SyncName) -> Result<Bytes, Status> {
    let snapshot = host.snapshots.get(request.sync)?;
    blocking(move || {
        let fid = snapshot.named(VolumeId(request.volume), &request.name)?;
        Ok(encoded(&messages::SyncNamed { fid: fid.map(|fid| of_id(fid.0)) }))
    })
    .await
}

/// The next page of a snapshot's files.
pub(crate) async fn entry_page(host: Arc<ReplicaHost>, request: messages::SyncNext) -> Result<Bytes, Status> {
    let snapshot = host.snapshots.get(request.sync)?;
    blocking(move || next_entries(&snapshot, &request)).await
}

/// A part of a file, up to `PIECE_BYTES`, for a resync or a roll-forward.
///
/// The bytes come from the live store: a file never changes, but it may have been deleted since the snapshot.
/// The snapshot is only checked to be open. A roll-forward has none, and sends 0.
pub(crate) async fn read_file(host: Arc<ReplicaHost>, request: messages::SyncFetch) -> Result<Bytes, Status> {
    if request.sync != 0 {
        host.snapshots.get(request.sync)?;
    }
    let this = Arc::clone(&host);
    let (fetched, bytes) = blocking(move || file_part(&this, request)).await?;
    host.throttle.sending(bytes).await;
    Ok(fetched)
}

/// The encoded reply, and the number of file bytes in it.
fn file_part(host: &ReplicaHost, request: messages::SyncFetch) -> Result<(Bytes, u64), Status> {
    let file = (VolumeId(request.volume), &*request.name, FileId(id(request.fid)));
    let end = request.start.saturating_add(PIECE_BYTES as u64);
    let found = host.store.fetch(file, request.start..end);
    let found = found.inspect_err(|error| host.report_damage(file.0.birth_group(), error))?;
    let deleted = || Status::new(Code::NotFound, "the file was deleted meanwhile");
    let (info, op, bytes) = found.ok_or_else(deleted)?;
    let length = bytes.len() as u64;
    let fetched = encoded(&messages::SyncFetched {
        head: Some(messages::FileHead {
            fid: Some(of_id(info.fid.0)),
            op: Some(of_id(op.0)),
            size: info.size,
            crc32c: info.crc32c,
            metadata: info.metadata,
        }),
        bytes,
    });
    Ok((fetched, length))
}

fn next_entries(snapshot: &GroupSnapshot, request: &messages::SyncNext) -> Result<Bytes, Status> {
    let limit = request.limit.clamp(1, MAX_ENTRIES) as usize;
    let after = Some(&*request.after).filter(|after| !after.is_empty());
    let entries = snapshot.live(after, limit)?;
    let more = entries.len() == limit;
    let entry = |entry: SnapshotEntry| messages::SyncEntry {
        key: entry.key,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
        op: Some(of_id(entry.op.0)),
    };
    Ok(encoded(&messages::SyncEntries { entries: entries.into_iter().map(entry).collect(), more }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::member_scene::{EPOCH, GROUP, MemberScene, NOW};
    use copal_volume::group::Role;

    /// Symptom: a member got in sync without an acknowledged file: its donor's repair dropped the damaged file
    /// between the check of the donor's role and the snapshot. Cause: the role was checked before only. Fix: the
    /// donor checks after the snapshot that no repair began meanwhile.
    #[tokio::test]
    async fn a_snapshot_taken_after_a_repair_began_is_refused() {
        let script = |_, _| Err(Status::new(Code::Denied, "nothing is asked"));
        let scene = MemberScene::new((Role::Normal, Role::Normal), script).await;
        scene.put(1, "a", NOW);
        let begin = scene.host.begin_read(GROUP, EPOCH).await.unwrap();
        take_snapshot(&scene.host, &begin).unwrap();
        scene.host.damage.begin_repair(GROUP);
        scene.host.store.note_damage(GROUP).unwrap();
        scene.host.damage.end_repair(GROUP);
        let refused = take_snapshot(&scene.host, &begin).unwrap_err();
        assert_eq!(refused.code(), Code::NotAuthoritative);
    }

    /// The asking member may have damage too: it would leave role N because this one is in sync.
    #[tokio::test]
    async fn a_member_that_is_about_to_repair_is_no_donor() {
        let script = |_, _| Err(Status::new(Code::Denied, "nothing is asked"));
        let scene = MemberScene::new((Role::Normal, Role::Normal), script).await;
        let begin = scene.host.begin_read(GROUP, EPOCH).await.unwrap();
        scene.host.damage.announce_repair(GROUP);
        let refused = take_snapshot(&scene.host, &begin).unwrap_err();
        assert_eq!(refused.code(), Code::NotAuthoritative);
        scene.host.damage.end_repair(GROUP);
        take_snapshot(&scene.host, &begin).unwrap();
    }
}
