//! Anti-entropy: an in-sync member compares the files of each group with another one's once an hour.
//!
//! The comparison needs no sign of damage. Gossip compares journals only from the stable point on, since they
//! are cut below it. So gossip does not notice that a disk has lost an older row without an error. Without
//! this comparison, the loss would go unnoticed until the last copy is lost.
//!
//! - A member compares counts and digests of all files of a group with those of another in-sync member. It
//!   chooses a different member each time.
//! - If counts or digests differ, the member looks for files of the other member that it lacks.
//! - A file from below the stable point should be on all members. If this member lacks such a file, and the
//!   other member still has it after that was found, this member reports damage, and `repair` begins.
//! - The member ignores files that only it has. The other member finds them by its own comparison.
//!
//! Design: docs/design/cluster.md#rules VOL-34
//! Not here: the repair of missing files (`repair`, `group_resync`).

use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::resync::fetch::REPLY_TIMEOUT;
use crate::resync::in_sync::ResyncError;
use crate::resync::journal_copy::missing_files;
use bytes::Bytes;
use copal_client::{CallError, Connection, machine, name_of_server};
use copal_data::{GroupMembership, SnapshotEntry, VerifiedSpan, VerifySpan};
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::group::{Bucket, DiskId, GroupId};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Interval of the comparisons of a group by one member.
const COMPARE_INTERVAL: Duration = Duration::from_secs(3600);
/// Interval of scans for due groups.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Files compared at a time, and the pause after them, in which the disk is left to clients.
const MAX_COMPARED_FILES: usize = 1000;
const COMPARE_PAUSE: Duration = Duration::from_millis(20);
/// Attempts before a range counts as different: clients create and delete files during a comparison.
const MAX_TRIES: usize = 5;
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Files in one page of the other member's list.
const MAX_PAGE_FILES: u32 = 500;

/// Another in-sync member of a group.
struct OtherReplica {
    server: String,
    connection: Connection,
}

/// Compares all groups with other members, until the task is dropped.
pub(crate) async fn run(host: Arc<ReplicaHost>) {
    let mut due: BTreeMap<GroupId, Instant> = BTreeMap::new();
    let mut turn = 0;
    loop {
        tokio::time::sleep(SCAN_INTERVAL).await;
        let Ok(memberships) = host.store.memberships() else {
            continue;
        };
        due.retain(|group, _| memberships.iter().any(|own| own.group == *group));
        for own in memberships {
            let at = *due.entry(own.group).or_insert_with(|| machine::now() + random_delay());
            if machine::now() < at {
                continue;
            }
            due.insert(own.group, machine::now() + COMPARE_INTERVAL);
            turn += 1;
            match compare_group(&host, own, turn).await {
                Ok(()) => {}
                Err(error) => tracing::debug!(group = %own.group, %error, "group comparison failed"),
            }
        }
    }
}

async fn compare_group(host: &ReplicaHost, own: GroupMembership, turn: usize) -> Result<(), ResyncError> {
    if !own.role.is_in_sync() {
        return Ok(());
    }
    let Some(other) = other_in_sync(host, own, turn).await? else {
        return Ok(());
    };
    let is_equal = has_equal_files(host, own, &other).await?;
    host.damage.compared.fetch_add(1, Ordering::Relaxed);
    if is_equal {
        return Ok(());
    }
    let missing = count_missing_files(host, own, &other).await?;
    let now = host.store.membership(own.group).ok().flatten();
    if !now.is_some_and(|now| now.epoch == own.epoch && now.role.is_in_sync()) {
        return Ok(());
    }
    if missing == 0 {
        // Either clients change files all the time, or the other member lacks some files. Its own comparison
        // finds those.
        tracing::debug!(group = %own.group, from = other.server, "files differ, but no stable file is missing here");
        return Ok(());
    }
    host.damage.differing.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(
        group = %own.group,
        from = other.server,
        files = missing,
        "files are missing without a read error; they are copied from another member"
    );
    host.damage.report(own.group);
    Ok(())
}

/// Another in-sync member, a different one for each `turn`.
async fn other_in_sync(
    host: &ReplicaHost,
    own: GroupMembership,
    turn: usize,
) -> Result<Option<OtherReplica>, ResyncError> {
    let me = host.disk();
    let view = host.map.view(own.group).filter(|view| view.epoch == own.epoch);
    let others = view.map(|view| view.in_sync().filter(|disk| *disk != me).collect());
    let others: Vec<DiskId> = others.unwrap_or_default();
    let Some(&disk) = others.get(turn % others.len().max(1)) else {
        return Ok(None);
    };
    let Some(place) = host.map.place(disk) else {
        return Ok(None);
    };
    let name = name_of_server(&place.server_uuid);
    let connection = host.connections.connect(&place.address, name, CallClass::Recovery).await?;
    Ok(Some(OtherReplica { server: place.server, connection }))
}

/// Whether both members have the same files, apart from operations in progress.
async fn has_equal_files(
    host: &ReplicaHost,
    own: GroupMembership,
    other: &OtherReplica,
) -> Result<bool, ResyncError> {
    let mut after = Bytes::new();
    loop {
        let mut tries = 0;
        let last = loop {
            let here = files_here(host, own.group, after.clone()).await?;
            let there = files_there(own, other, &after, &here).await?;
            if (here.files, here.digest) == (there.files, id(there.digest)) {
                break here.more.then_some(here.last);
            }
            tries += 1;
            if tries == MAX_TRIES {
                return Ok(false);
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        };
        match last {
            None => return Ok(true),
            Some(last) => after = last,
        }
        tokio::time::sleep(COMPARE_PAUSE).await;
    }
}

async fn files_here(host: &ReplicaHost, group: GroupId, after: Bytes) -> Result<VerifiedSpan, Status> {
    let store = host.store.clone();
    blocking(move || {
        let span = VerifySpan {
            after: Some(&*after).filter(|after| !after.is_empty()),
            until: None,
            limit: MAX_COMPARED_FILES,
        };
        Ok(store.verify(group, span, false)?)
    })
    .await
}

/// Counts the files that only the other member has and whose creates lie below both stable points. Files that
/// were deleted since the snapshot may be among them, but not all of them are.
async fn count_missing_files(
    host: &ReplicaHost,
    own: GroupMembership,
    other: &OtherReplica,
) -> Result<usize, ResyncError> {
    let open = messages::SyncOpen { group: own.group.0, epoch: own.epoch.0, disk: host.disk().0 };
    let opened: messages::SyncOpened = other.connection.call(Method::SyncOpen, &open, REPLY_TIMEOUT).await?;
    let counted =
        count_missing_entries(host, opened.sync, own.stable_point.min(Bucket(opened.horizon)), other).await;
    let close = messages::SyncClose { sync: opened.sync };
    // If this call fails, the snapshot expires at the other member.
    let _: Result<messages::Done, CallError> =
        other.connection.call(Method::SyncClose, &close, REPLY_TIMEOUT).await;
    counted
}

async fn count_missing_entries(
    host: &ReplicaHost,
    sync: u64,
    stable_point: Bucket,
    other: &OtherReplica,
) -> Result<usize, ResyncError> {
    let (mut missing, mut after) = (0, Bytes::new());
    loop {
        let next = messages::SyncNext { sync, after: after.clone(), limit: MAX_PAGE_FILES };
        let page: messages::SyncEntries =
            other.connection.call(Method::SyncNext, &next, REPLY_TIMEOUT).await?;
        let Some(last) = page.entries.last() else {
            return Ok(missing);
        };
        after = last.key.clone();
        let here = missing_files(host, page.entries).await?;
        for entry in here.iter().filter(|entry| Bucket::of(entry.op) < stable_point) {
            // One file that is certainly missing makes the resync compare all files.
            if missing > 0 || still_has(other, entry).await? {
                missing += 1;
            }
        }
        if !page.more {
            return Ok(missing);
        }
        tokio::time::sleep(COMPARE_PAUSE).await;
    }
}

/// Whether the other member has a file now, after this one was found to have neither the file nor its tombstone.
/// A tombstone is cut only when all members have its delete. So if the other member still has the file, it was
/// not deleted. Its snapshot does not tell: the file may have been deleted, and the tombstone cut, since then.
async fn still_has(other: &OtherReplica, entry: &SnapshotEntry) -> Result<bool, CallError> {
    let fetch = messages::SyncFetch {
        sync: 0,
        volume: entry.vid.0,
        name: entry.name.clone(),
        fid: Some(of_id(entry.fid.0)),
        start: 0,
    };
    match other.connection.call::<messages::SyncFetched>(Method::SyncFetch, &fetch, REPLY_TIMEOUT).await {
        Ok(_) => Ok(true),
        Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

async fn files_there(
    own: GroupMembership,
    other: &OtherReplica,
    after: &Bytes,
    here: &VerifiedSpan,
) -> Result<messages::Verified, CallError> {
    let verify = messages::Verify {
        group: own.group.0,
        epoch: own.epoch.0,
        after: after.clone(),
        until: if here.more { here.last.clone() } else { Bytes::new() },
        // More than this member's limit: the other member may have more files in the same span, and these
        // must count. Any larger number would do; a server counts at most 10,000.
        limit: 10 * MAX_COMPARED_FILES as u32,
        deep: false,
    };
    other.connection.call(Method::Verify, &verify, REPLY_TIMEOUT).await
}

/// A random delay, which spreads the first comparisons after a start.
fn random_delay() -> Duration {
    let drawn = machine::draw().unwrap_or(0) as u32;
    COMPARE_INTERVAL.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::member_scene::{GROUP, MemberScene, NOW, fid, head, op, reply, vid};
    use copal_volume::group::{BUCKET_MS, Role};

    /// A time well below the stable point.
    const OLD: u64 = NOW - 200_000;

    /// Files that a member misses beside another member, whose snapshot has one that this one lacks. `has_file`:
    /// the other member still has that file.
    async fn missing(has_file: bool) -> usize {
        let stable_point = Bucket((NOW - 100_000) / BUCKET_MS);
        let script = move |method, _| match method {
            Method::SyncOpen => reply(&messages::SyncOpened {
                sync: 1,
                horizon: stable_point.0,
                ..messages::SyncOpened::default()
            }),
            Method::SyncNext => {
                let entry = messages::SyncEntry {
                    key: Bytes::from_static(b"key"),
                    volume: vid().0,
                    name: Bytes::from_static(b"a"),
                    fid: Some(of_id(fid(1, OLD).0)),
                    op: Some(of_id(op(1, OLD).0)),
                };
                reply(&messages::SyncEntries { entries: vec![entry], more: false })
            }
            Method::SyncFetch if has_file => reply(&messages::SyncFetched {
                head: Some(head(1, b"body", OLD)),
                bytes: Bytes::from_static(b"body"),
            }),
            Method::SyncFetch => Err(Status::new(Code::NotFound, "the file was deleted meanwhile")),
            Method::SyncClose => reply(&messages::Done {}),
            _ => Err(Status::new(Code::Denied, format!("{method:?} is not expected"))),
        };
        let scene = MemberScene::new((Role::Normal, Role::Normal), script).await;
        let own = scene.host.store.membership(GROUP).unwrap().unwrap();
        let own = GroupMembership { stable_point, ..own };
        let other = OtherReplica { server: "data2".to_owned(), connection: scene.source().await.connection };
        count_missing_files(&scene.host, own, &other).await.unwrap()
    }

    /// Symptom: an in-sync member left role N and compared all files of a group, although no file was missing.
    /// Cause: it walked the other member's snapshot for minutes. A file that was deleted meanwhile was in the
    /// snapshot, and its tombstone was cut before the walk came to it.
    /// Fix: a file counts as missing only if the other member still has it.
    #[tokio::test]
    async fn a_file_that_was_deleted_during_the_walk_is_not_missing() {
        assert_eq!(missing(false).await, 0);
        assert_eq!(missing(true).await, 1);
    }
}
