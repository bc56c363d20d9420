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
use crate::resync::group_resync::MAX_DISPUTED_NAMES;
use crate::resync::in_sync::{MatchedGroup, ResyncError, mark_in_sync, resynced_group};
use bytes::Bytes;
use copal_data::{DisputedName, GroupMembership, GroupOperation, OperationError};
use copal_proto::{
    messages::{self, failure::Code},
    role_of,
};
use copal_volume::group::{BUCKET_MS, Epoch, GroupId, Term};
use std::{sync::Arc, time::Duration};

/// Attempts to enter the view that the leader publishes after the order, and the pause between them.
const VIEW_CHECKS: u32 = 50;
const VIEW_CHECK_PAUSE: Duration = Duration::from_millis(100);

/// Carries out the order of a leader for this member, and then returns its state in the group.
///
/// With `dry_run` it changes nothing. Otherwise this member waits for the view of the order, deletes all
/// second files of names, and declares itself in sync. A member that is in sync already only returns its
/// state. A member that cannot become in sync in its present view deletes nothing: the operator may choose
/// another member, and that one would take over the deletes.
pub(crate) async fn accept(host: Arc<ReplicaHost>, request: messages::AcceptAll) -> Result<Bytes, Status> {
    let group = GroupId(request.group);
    let this = Arc::clone(&host);
    let checked = blocking(move || this.require_term(Term(request.term)));
    checked.await?;
    let mut membership = own_membership(&host, group).await?;
    let mut disputed = disputed_names(&host, group).await?;
    if !request.dry_run {
        membership = wait_for_view(&host, group, Epoch(request.epoch)).await?;
        if !membership.role.is_in_sync() {
            let own_data = own_data(&host, &membership);
            if resynced_group(&host, &own_data).map_err(status_of)?.is_none() {
                return Err(cannot_be_in_sync());
            }
            disputed = disputed_names(&host, group).await?;
            while !disputed.is_empty() {
                keep_first_claims(&host, &membership, &disputed).await?;
                disputed = disputed_names(&host, group).await?;
            }
            membership = declare_in_sync(&host, &own_data).await?;
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
    blocking(move || Ok(store.disputed_names(group, MAX_DISPUTED_NAMES)?)).await
}

/// Waits until this member has entered the view of the order, or a later one.
async fn wait_for_view(host: &ReplicaHost, group: GroupId, epoch: Epoch) -> Result<GroupMembership, Status> {
    for _ in 0..VIEW_CHECKS {
        let own = own_membership(host, group).await?;
        if own.epoch >= epoch {
            return Ok(own);
        }
        host.refresh_map().await;
        tokio::time::sleep(VIEW_CHECK_PAUSE).await;
    }
    let text = "this server has not entered the view that follows the order; repeat the order";
    Err(Status::new(Code::Unavailable, text))
}

/// Keeps the file to which a disputed name leads on this member, the first in the list of claims, and deletes
/// the others. It is unknown which of them was acknowledged. Reads of this member have returned the file that
/// stays. Nothing more is deleted once this member has entered another view.
async fn keep_first_claims(
    host: &ReplicaHost,
    own: &GroupMembership,
    disputed: &[DisputedName],
) -> Result<(), Status> {
    let group = own.group;
    for name in disputed {
        for loser in name.claims.iter().skip(1) {
            let op = host.ids.lock().draw_op_above(host.map.now_ms(), loser.op);
            let delete =
                GroupOperation::CopyDelete { vid: name.vid, name: name.name.clone(), fid: loser.fid, op };
            tracing::warn!(%group, loser = %loser.fid, "two files claimed one name: the loser is deleted by order");
            match host.apply(group, own.epoch, delete).await? {
                Ok(_) => {}
                Err(OperationError::Failed(error)) => return Err(error.into()),
                Err(_) => return Err(cannot_be_in_sync()),
            }
        }
    }
    Ok(())
}

/// This member's own data in place of a donor's snapshot.
fn own_data(host: &ReplicaHost, own: &GroupMembership) -> MatchedGroup {
    MatchedGroup {
        group: own.group,
        generation: host.damage.generation(own.group),
        asked_in: own.epoch,
        seal: own.seal,
    }
}

/// Marks this member as in sync in its present epoch, as if it had resynced from a snapshot of its own data.
async fn declare_in_sync(host: &ReplicaHost, own_data: &MatchedGroup) -> Result<GroupMembership, Status> {
    let marked = mark_in_sync(host, std::slice::from_ref(own_data)).await.map_err(status_of)?;
    match marked.is_empty() {
        false => own_membership(host, own_data.group).await,
        true => Err(cannot_be_in_sync()),
    }
}

fn cannot_be_in_sync() -> Status {
    let text = "the view has changed meanwhile, or the group is being repaired; repeat the order";
    Status::new(Code::Unavailable, text)
}

fn status_of(error: ResyncError) -> Status {
    match error {
        ResyncError::Local(refused) => refused,
        error => Status::new(Code::Unavailable, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::member_scene::{EPOCH, GROUP, MemberScene, NOW, reply};
    use copal_proto::Method;
    use copal_volume::group::Role;

    /// A member that is not in sync and has two files of one name, and a master that agrees.
    async fn scene() -> MemberScene {
        let script = |method, _| match method {
            Method::BecomeWhole => reply(&messages::BecameWhole::default()),
            _ => Err(Status::new(Code::Denied, format!("{method:?} is not expected"))),
        };
        let scene = MemberScene::new((Role::Recovering, Role::Failed), script).await;
        scene.put(1, "a", NOW);
        scene.put(2, "a", NOW);
        scene
    }

    fn order() -> messages::AcceptAll {
        messages::AcceptAll { group: GROUP.0, epoch: EPOCH.0, term: 1, dry_run: false }
    }

    async fn second_files(scene: &MemberScene) -> usize {
        disputed_names(&scene.host, GROUP).await.unwrap().len()
    }

    #[tokio::test]
    async fn the_chosen_member_keeps_one_file_of_each_name() {
        let scene = scene().await;
        accept(Arc::clone(&scene.host), order()).await.unwrap();
        assert_eq!(second_files(&scene).await, 0);
        assert_eq!(own_membership(&scene.host, GROUP).await.unwrap().role, Role::Normal);
    }

    /// Symptom: an order was refused because the member was repairing the group, and second files of names were
    /// deleted all the same. After an order for another member these deletes reached that one, where the files
    /// could be acknowledged ones.
    /// Cause: the member deleted them before it checked whether it can become in sync.
    /// Fix: it checks that first, and deletes in the view of that check only.
    #[tokio::test]
    async fn a_refused_order_deletes_nothing() {
        let scene = scene().await;
        scene.host.damage.begin_repair(GROUP);
        let refused = accept(Arc::clone(&scene.host), order()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable);
        assert_eq!(second_files(&scene).await, 1, "both files stay");
        assert!(!scene.was_asked(Method::BecomeWhole));
    }

    #[tokio::test]
    async fn second_files_are_deleted_in_the_view_of_the_order_only() {
        let scene = scene().await;
        let before = own_membership(&scene.host, GROUP).await.unwrap();
        let disputed = disputed_names(&scene.host, GROUP).await.unwrap();
        scene.host.store.enter_view(GROUP, Epoch(EPOCH.0 + 1), Role::Recovering).unwrap();
        assert!(keep_first_claims(&scene.host, &before, &disputed).await.is_err());
        assert_eq!(second_files(&scene).await, 1);
    }
}
