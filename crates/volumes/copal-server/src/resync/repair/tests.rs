//! Conditions of a repair, and the member's state afterwards.

use super::repair_group;
use crate::data::member_scene::{GROUP, MemberScene};
use crate::net::status::Status;
use copal_proto::messages::failure::Code;
use copal_volume::group::Role;

async fn scene(other: Role) -> MemberScene {
    MemberScene::new((Role::Normal, other), |method, _| {
        Err(Status::new(Code::Denied, format!("{method:?} is not expected")))
    })
    .await
}

/// Symptom: a member could drop files that no in-sync member has, and no test noticed. Fix: this test.
#[tokio::test]
async fn nothing_is_given_up_before_a_whole_member_is_there() {
    for other in [Role::Recovering, Role::Failed, Role::Joining] {
        let scene = scene(other).await;
        assert!(!repair_group(&scene.host, GROUP).await.unwrap(), "{other:?}");
        let own = scene.host.store.membership(GROUP).unwrap().unwrap();
        assert_eq!((own.role, own.is_covered), (Role::Normal, true));
        assert_eq!(scene.host.damage.generation(GROUP), 0);
    }
}

#[tokio::test]
async fn a_member_that_gives_something_up_is_not_whole() {
    let scene = scene(Role::Normal).await;
    assert!(repair_group(&scene.host, GROUP).await.unwrap());
    let own = scene.host.store.membership(GROUP).unwrap().unwrap();
    assert_eq!((own.role, own.is_covered), (Role::Recovering, false));
    assert_eq!(scene.host.damage.generation(GROUP), 1);
    assert!(!scene.host.damage.is_repairing(GROUP));
    let told = scene.host.unreported.lock().clone();
    assert!(told.iter().any(|told| told.role == Role::Recovering), "the master is told");
}
