//! Conditions of a repair, and the member's state afterwards.

use super::repair_group;
use crate::data::member_scene::{GROUP, MemberScene, reply};
use crate::net::status::Status;
use copal_proto::{
    Method,
    messages::{self, failure::Code},
};
use copal_volume::group::Role;

/// A member in role N, beside one that is `other` in the view. `is_donor`: the other one replies that it is in sync.
async fn scene(other: Role, is_donor: bool) -> MemberScene {
    MemberScene::new((Role::Normal, other), move |method, _| match method {
        Method::SyncOpen if is_donor => reply(&messages::SyncOpened::default()),
        Method::SyncOpen => Err(Status::new(Code::NotAuthoritative, "this member is not in sync itself")),
        Method::SyncClose => reply(&messages::Done {}),
        _ => Err(Status::new(Code::Denied, format!("{method:?} is not expected"))),
    })
    .await
}

async fn drops_nothing(scene: &MemberScene) {
    assert!(!repair_group(&scene.host, GROUP).await.unwrap());
    let own = scene.host.store.membership(GROUP).unwrap().unwrap();
    assert_eq!((own.role, own.is_covered), (Role::Normal, true));
    assert_eq!(scene.host.damage.generation(GROUP), 0);
    assert!(!scene.host.damage.is_repairing(GROUP));
}

/// Symptom: a member could drop files that no in-sync member has, and no test noticed. Fix: this test.
#[tokio::test]
async fn nothing_is_dropped_before_a_donor_is_found() {
    for other in [Role::Recovering, Role::Failed, Role::Joining] {
        let scene = scene(other, true).await;
        drops_nothing(&scene).await;
    }
}

/// Symptom: two members found damage in one group, the second while the first still resynced. Both left role N,
/// and the group had no donor until an operator's order.
/// Cause: the second one took the first for in sync, because the view shows a server as in sync in all groups or
/// in none, and does not change when it finds damage.
/// Fix: a member with damage asks the other one, which replies from its own row.
#[tokio::test]
async fn a_member_does_not_rely_on_one_that_is_in_sync_only_in_the_view() {
    let scene = scene(Role::Normal, false).await;
    drops_nothing(&scene).await;
    assert!(scene.was_asked(Method::SyncOpen));
}

#[tokio::test]
async fn a_member_that_drops_rows_is_not_in_sync() {
    let scene = scene(Role::Normal, true).await;
    assert!(repair_group(&scene.host, GROUP).await.unwrap());
    let own = scene.host.store.membership(GROUP).unwrap().unwrap();
    assert_eq!((own.role, own.is_covered), (Role::Recovering, false));
    assert_eq!(scene.host.damage.generation(GROUP), 1);
    assert!(!scene.host.damage.is_repairing(GROUP));
    let told = scene.host.unreported.lock().clone();
    assert!(told.iter().any(|told| told.role == Role::Recovering), "the master is told");
}
