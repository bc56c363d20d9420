//! Forced accept: by an operator's command, a group without in-sync members continues from the data of one
//! member.
//!
//! The leader publishes a view in which that member has missed nothing. The member becomes in sync with the
//! operations that it has. Acknowledged operations that it lacks may be lost. The comments call the command
//! an *order*.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Not here: the rights for the order, and the master's record of it (`administration::force_accept`).

use crate::net::messages::{blocking, encoded};
use crate::net::status::Status;
use crate::replica::host::ReplicaHost;
use crate::resync::group_resync;
use crate::resync::in_sync::{ResyncError, VerifiedGroup, mark_in_sync};
use bytes::Bytes;
use copal_data::{DisputedName, GroupMembership, GroupOperation};
use copal_proto::{
    messages::{self, failure::Code},
    role_of,
};
use copal_volume::group::{BUCKET_MS, Epoch, GroupId, Term};
use std::{sync::Arc, time::Duration};

/// Names with two files settled in one pass.
const DISPUTED: usize = 1000;
/// Attempts to enter the view that the leader publishes after the order, and the pause between them.
const VIEW_CHECKS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Carries out the order of a leader for this member, and then returns its state in the group.
///
/// With `dry_run` it changes nothing. Otherwise this member waits for the view of the order, deletes all
/// second files of names, and declares itself in sync. A member that is in sync already only returns its
/// state.
pub(crate) async fn accept(host: Arc<ReplicaHost>, request: messages::AcceptAll) -> Result<Bytes, Status> {
    let group = GroupId(request.group);
    let this = Arc::clone(&host);
    let obeys = blocking(move || this.require_term(Term(request.term)));
    obeys.await?;
    let mut membership = own_membership(&host, group).await?;
    let mut disputed = disputed_names(&host, group).await?;
    if !request.dry_run {
        membership = wait_for_view(&host, group, Epoch(request.epoch)).await?;
        if !membership.role.is_in_sync() {
            while !disputed.is_empty() {
                keep_first_claims(&host, group, &disputed).await?;
                disputed = disputed_names(&host, group).await?;
            }
            membership = declare_in_sync(&host, membership).await?;
        }
    }
    Ok(encoded(&messages::AcceptAllReply {
        epoch: membership.epoch.0,
        role: role_of(membership.role).into(),
        covered: membership.is_covered,
        horizon_ms: membership.stable_point.0.saturating_mul(BUCKET_MS),
        second_files: disputed.iter().map(|name| name.claims.len() as u32 - 1).sum(),
    }))
}

async fn own_membership(host: &ReplicaHost, group: GroupId) -> Result<GroupMembership, Status> {
    let store = host.store.clone();
    blocking(move || {
        let own = store.membership(group)?;
        own.ok_or_else(|| Status::new(Code::NotFound, "this server is not a member of the group yet"))
    })
    .await
}

async fn disputed_names(host: &ReplicaHost, group: GroupId) -> Result<Vec<DisputedName>, Status> {
    let store = host.store.clone();
    blocking(move || Ok(store.disputed_names(group, DISPUTED)?)).await
}

/// Waits until this member has entered the view of the order, or a later one.
async fn wait_for_view(host: &ReplicaHost, group: GroupId, epoch: Epoch) -> Result<GroupMembership, Status> {
    for _ in 0..VIEW_CHECKS {
        let own = own_membership(host, group).await?;
        if own.epoch >= epoch {
            return Ok(own);
        }
        host.refresh_map().await;
        tokio::time::sleep(PAUSE).await;
    }
    let text = "this server has not entered the view that follows the order; repeat the order";
    Err(Status::new(Code::Unavailable, text))
}

/// Keeps the file to which a disputed name leads on this member, the first in the list of claims, and deletes
/// the others. Nobody knows which of them was acknowledged. Reads of this member have returned the file that
/// stays.
async fn keep_first_claims(
    host: &ReplicaHost,
    group: GroupId,
    disputed: &[DisputedName],
) -> Result<(), Status> {
    for name in disputed {
        for loser in name.claims.iter().skip(1) {
            let op = host.ids.lock().draw_op_above(host.map.now_ms(), loser.op);
            let delete =
                GroupOperation::CopyDelete { vid: name.vid, name: name.name.clone(), fid: loser.fid, op };
            tracing::warn!(%group, loser = %loser.fid, "two files claimed one name: the loser is deleted by order");
            group_resync::apply_operation(host, group, name.vid, delete).await.map_err(status_of)?;
        }
    }
    Ok(())
}

/// Marks this member as in sync in its present epoch, as if it had resynced from a snapshot of its own data.
async fn declare_in_sync(host: &ReplicaHost, own: GroupMembership) -> Result<GroupMembership, Status> {
    let verified = VerifiedGroup {
        group: own.group,
        generation: host.damage.generation(own.group),
        asked_in: own.epoch,
        seal: own.seal,
    };
    let became = mark_in_sync(host, &[verified]).await.map_err(status_of)?;
    match became.is_empty() {
        false => own_membership(host, own.group).await,
        true => {
            let text = "the view has changed meanwhile, or the group is being repaired; repeat the order";
            Err(Status::new(Code::Unavailable, text))
        }
    }
}

fn status_of(error: ResyncError) -> Status {
    match error {
        ResyncError::Local(refused) => refused,
        error => Status::new(Code::Unavailable, error.to_string()),
    }
}
