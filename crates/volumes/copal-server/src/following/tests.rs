//! Views that a server enters, and its answers before the first.

use super::*;
use crate::{
    member_scene::{EPOCH, GROUP, MemberScene},
    status::Status,
};
use copal_proto::messages::failure::Code;
use copal_volume::group::{Epoch, Role};

const ROLES: (Role, Role) = (Role::Recovering, Role::Normal);

async fn scene() -> MemberScene {
    MemberScene::new(ROLES, |method, _| Err(Status::new(Code::Denied, format!("{method:?} is not expected"))))
        .await
}

/// Symptom: a server that was started anew could answer in the view of the boot before, and no test noticed:
/// it would take a second file of a name that it had known is taken. Fix: this.
#[tokio::test]
async fn a_server_answers_nothing_before_it_has_entered_a_view() {
    let scene = scene().await;
    scene.data.entered.store(0, Ordering::Release);
    let refusal = scene.data.matched(GROUP, EPOCH).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Busy);
    scene.data.entered.store(1, Ordering::Release);
    assert_eq!(scene.data.matched(GROUP, EPOCH).await.unwrap().epoch, EPOCH);
}

/// Symptom: a master whose reign was over could still move a member into a view of its own, and no test
/// noticed. Fix: this.
#[tokio::test]
async fn the_views_of_a_master_whose_reign_is_over_are_not_entered() {
    let scene = scene().await;
    let entered = || scene.data.store.membership(GROUP).unwrap().unwrap().epoch;
    let next = Epoch(EPOCH.0 + 2);
    assert!(scene.data.store.hear(Term(9)).unwrap());
    let old = scene.map(next, ROLES, Epoch(0));
    scene.data.enter(old.clone(), machine::now()).await.unwrap();
    assert_eq!((entered(), scene.data.entered.load(Ordering::Acquire)), (EPOCH, 1));
    let new = messages::Map { term: 9, ..old };
    scene.data.enter(new, machine::now()).await.unwrap();
    assert_eq!((entered(), scene.data.entered.load(Ordering::Acquire)), (next, next.0));
}
