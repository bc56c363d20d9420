//! Views that a server enters, and refusals before the first one.

use super::*;
use crate::data::member_scene::{EPOCH, GROUP, MemberScene};
use crate::net::status::Status;
use copal_proto::messages::failure::Code;
use copal_volume::group::{Epoch, Role};

const ROLES: (Role, Role) = (Role::Recovering, Role::Normal);

async fn scene() -> MemberScene {
    MemberScene::new(ROLES, |method, _| Err(Status::new(Code::Denied, format!("{method:?} is not expected"))))
        .await
}

/// Symptom: a restarted server could answer in the view of its earlier boot, and no test noticed: it could
/// accept a second file under a taken name. Fix: this test.
#[tokio::test]
async fn a_server_answers_nothing_before_it_has_entered_a_view() {
    let scene = scene().await;
    scene.host.entered_version.store(0, Ordering::Release);
    let refusal = scene.host.require_epoch(GROUP, EPOCH).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Busy);
    scene.host.entered_version.store(1, Ordering::Release);
    assert_eq!(scene.host.require_epoch(GROUP, EPOCH).await.unwrap().epoch, EPOCH);
}

/// Symptom: a master whose term had ended could still move a member into its view, and no test noticed. Fix:
/// this test.
#[tokio::test]
async fn views_of_a_master_whose_term_is_over_are_not_applied() {
    let scene = scene().await;
    let entered = || scene.host.store.membership(GROUP).unwrap().unwrap().epoch;
    let next = Epoch(EPOCH.0 + 2);
    assert!(scene.host.store.accept_term(Term(9)).unwrap());
    let old = scene.map(next, ROLES, Epoch(0));
    scene.host.enter_map(old.clone(), machine::now()).await.unwrap();
    assert_eq!((entered(), scene.host.entered_version.load(Ordering::Acquire)), (EPOCH, 1));
    let new = messages::Map { term: 9, ..old };
    scene.host.enter_map(new, machine::now()).await.unwrap();
    assert_eq!((entered(), scene.host.entered_version.load(Ordering::Acquire)), (next, next.0));
}
