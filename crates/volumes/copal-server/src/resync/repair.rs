//! Repair of damage on this member's disk: it drops damaged rows of a group, and then the group resyncs.
//!
//! Reads, scrubs and anti-entropy find damage. After a report of anti-entropy there may be no unreadable row.
//! Then the repair only makes the resync compare all files. A scrub reads the whole disk in the background at
//! a limited rate, so that damage is found while other members still have the data.
//!
//! Invariants
//! - Rows are dropped only if another member has replied that it is in sync. A member that is about to repair a
//!   group replies that it is not. So of several members with damage, one at least stays in sync.
//! - This member leaves role N before it drops the first row.
//! - A comparison or a copy that began before the repair does not make this member in sync.
//!
//! Design: docs/design/cluster.md#rules VOL-28
//! Not here: which rows are dropped (`copal-data`), the resync (`group_resync`).

use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::resync::fetch::REPLY_TIMEOUT;
use crate::resync::group_resync::{close_snapshot, recovery_connection};
use copal_client::{CallError, machine};
use copal_proto::{Method, messages};
use copal_volume::group::{DiskId, GroupId};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Interval of scans for damage found by scrubs, and for failed repairs.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Pause between two scrubs.
const SCRUB_PAUSE: Duration = Duration::from_secs(24 * 3600);
/// Intended duration of a scrub, and its lowest rate: a disk with little data is read in less time.
const SCRUB_SECONDS: u64 = 10 * 24 * 3600;
const SCRUB_BYTES_PER_S: u64 = 4 << 20;

/// Repairs damaged groups, and scrubs the disk, until the task is dropped.
pub(crate) async fn run(host: Arc<ReplicaHost>) {
    let mut scrub = None;
    let mut scrubbed: Option<Instant> = None;
    loop {
        let _ = tokio::time::timeout(SCAN_INTERVAL, host.damage.wait()).await;
        if scrub.as_ref().is_some_and(copal_data::DiskScrub::is_finished) {
            (scrub, scrubbed) = (None, Some(machine::now()));
        }
        if scrub.is_none() && scrubbed.is_none_or(|ended| machine::since(ended) > SCRUB_PAUSE) {
            let (used_bytes, _) = host.space.bytes();
            let rate = SCRUB_BYTES_PER_S.max(used_bytes / SCRUB_SECONDS);
            scrub = host.store.scrub(rate);
        }
        let mut damaged = host.damage.take();
        damaged.extend(host.store.damaged_groups().unwrap_or_default());
        for group in damaged {
            match repair_group(&host, group).await {
                Ok(true) => host.resync_due.notify_one(),
                // No donor: the next round tries again.
                Ok(false) => host.damage.retry_later(group),
                Err(refused) => {
                    tracing::error!(%group, text = refused.text(), "damaged rows could not be dropped");
                    host.damage.retry_later(group);
                }
            }
        }
    }
}

/// Drops the damaged rows of a group. Returns false, with nothing changed, if no other member is in sync.
async fn repair_group(host: &ReplicaHost, group: GroupId) -> Result<bool, Status> {
    // From here on this member is no donor: of two members with damage that ask each other, at most one leaves
    // role N.
    host.damage.announce_repair(group);
    match find_donor(host, group).await {
        Ok(true) => {}
        outcome => {
            host.damage.end_repair(group);
            return outcome;
        }
    }
    let view_guard = host.view_lock.lock().await;
    host.damage.begin_repair(group);
    let store = host.store.clone();
    let noted = blocking(move || {
        store.note_damage(group)?;
        Ok((store.membership(group)?, store))
    });
    let noted = noted.await;
    drop(view_guard);
    let dropped = match noted {
        Ok((membership, store)) => {
            // The leader learns that this member is in role R. The member is still up, so operations still
            // need its acknowledgement. They also need that of a member in role N, and this one is in role R
            // now (VOL-12).
            host.report_memberships(membership.into_iter().collect());
            blocking(move || Ok(store.drop_damaged(group)?)).await
        }
        Err(refused) => Err(refused),
    };
    host.damage.end_repair(group);
    let dropped = dropped?;
    tracing::warn!(
        %group,
        files = dropped.files,
        ranges = dropped.ranges,
        "damaged rows were dropped; they are copied from another member"
    );
    Ok(true)
}

/// Whether another member replies that it is in sync. The view alone does not tell: it has one role for all groups
/// of a server, and does not change when the server finds damage in one of them.
async fn find_donor(host: &ReplicaHost, group: GroupId) -> Result<bool, Status> {
    let me = host.disk();
    let view = host.map.view(group);
    let others: Vec<DiskId> =
        view.iter().flat_map(|view| view.in_sync()).filter(|disk| *disk != me).collect();
    let Some(own) = host.store.membership(group)? else {
        return Ok(false);
    };
    for disk in others {
        let Some(connection) = recovery_connection(host, disk).await else {
            continue;
        };
        let open = messages::SyncOpen { group: group.0, epoch: own.epoch.0, disk: me.0 };
        let opened: Result<messages::SyncOpened, CallError> =
            connection.call(Method::SyncOpen, &open, REPLY_TIMEOUT).await;
        if let Ok(opened) = opened {
            close_snapshot(&connection, opened.sync).await;
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
