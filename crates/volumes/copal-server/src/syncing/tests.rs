//! Reasons for which a member does not become whole: damage met meanwhile, a view in which it missed
//! something, a donor that is wrong.

use super::*;
use crate::member_scene::{EPOCH, GROUP, MemberScene, NOW, OTHER, head, record, told, vid};
use copal_data::Body;
use copal_volume::group::BUCKET_MS;
use prost::Message;

const ROLES: (Role, Role) = (Role::Recovering, Role::Normal);
/// The first bucket that is not due to be sealed.
const SEALED: u64 = (NOW - 60_000) / BUCKET_MS;
/// An hour ahead of the cluster's clock.
const FUTURE: u64 = (NOW + 3_600_000) / BUCKET_MS;
/// A time that is sealed.
const OLD: u64 = NOW - 200_000;

/// A donor that has sealed up to a bucket and has these operations, and none of their files; a master that
/// agrees.
fn donor(
    closed_below: u64,
    records: Vec<messages::JournalRecord>,
) -> impl Fn(Method, Bytes) -> Result<Bytes, Status> + Send + Sync {
    move |method, message| match method {
        Method::SyncOpen => {
            told(&messages::SyncOpened { sync: 1, closed_below, ..messages::SyncOpened::default() })
        }
        Method::SyncJournal => {
            let asked = messages::SyncJournal::decode(message).unwrap();
            let records = if asked.after.is_empty() { records.clone() } else { Vec::new() };
            told(&messages::JournalRecords { records, more: false })
        }
        Method::SyncNext => told(&messages::SyncEntries::default()),
        Method::SyncFetch => Err(Status::new(Code::NotFound, "it was deleted")),
        Method::SyncClose => told(&messages::Done {}),
        Method::Compare => told(&messages::CompareReply {
            equal: vec![messages::EqualGroup { group: GROUP.0, closed_below }],
        }),
        Method::BecomeWhole => told(&messages::BecameWhole::default()),
        _ => Err(Status::new(Code::Denied, format!("{method:?} is not expected"))),
    }
}

async fn scene() -> MemberScene {
    MemberScene::new(ROLES, donor(SEALED, Vec::new())).await
}

fn ready(scene: &MemberScene, asked_in: Epoch) -> Ready {
    Ready {
        group: GROUP,
        generation: scene.data.repairs.generation(GROUP),
        asked_in,
        closing: Closing::default(),
    }
}

fn own(scene: &MemberScene) -> Membership {
    scene.data.store.membership(GROUP).unwrap().unwrap()
}

/// Symptom: a member could become whole by a comparison from before something of it was given up, and no test
/// noticed: it would lack those files for good. Fix: this.
#[tokio::test]
async fn a_repair_that_began_during_a_resync_spoils_it() {
    let scene = scene().await;
    let before = ready(&scene, EPOCH);
    scene.data.repairs.begin(GROUP);
    let during = ready(&scene, EPOCH);
    assert!(scene.data.be_whole(&[during]).await.unwrap().is_empty(), "it goes on");
    scene.data.repairs.end(GROUP);
    assert!(scene.data.be_whole(&[before]).await.unwrap().is_empty());
    assert_eq!(own(&scene).role, Role::Recovering);
    assert!(!scene.was_asked(Method::BecomeWhole));
    let behind = ready(&scene, EPOCH);
    assert_eq!(scene.data.be_whole(&[behind]).await.unwrap(), [GROUP]);
    assert_eq!(own(&scene).role, Role::Normal);
}

/// Operations that held without the member after it asked are in no snapshot that it copied (VOL-16).
#[tokio::test]
async fn a_member_that_missed_something_since_it_asked_is_not_whole() {
    let scene = scene().await;
    let next = Epoch(EPOCH.0 + 1);
    scene.learn(next, ROLES, EPOCH);
    scene.data.store.enter_view(GROUP, next, Role::Recovering).unwrap();
    let asked_before = ready(&scene, EPOCH);
    assert!(scene.data.be_whole(&[asked_before]).await.unwrap().is_empty());
    assert_eq!(own(&scene).role, Role::Recovering);
    let asked_since = ready(&scene, next);
    assert_eq!(scene.data.be_whole(&[asked_since]).await.unwrap(), [GROUP]);
}

#[tokio::test]
async fn a_member_that_is_away_in_its_view_asks_no_donor() {
    let scene = MemberScene::new((Role::Failed, Role::Normal), donor(SEALED, Vec::new())).await;
    let refused = scene.data.take_over(own(&scene)).await;
    assert!(matches!(refused, Err(NotYet::Away)), "{refused:?}");
    assert!(!scene.was_asked(Method::SyncOpen));
}

/// Symptom: a member could lack a file that others keep: its donor had it no more, and the delete had not
/// come. No test noticed.
#[tokio::test(start_paused = true)]
async fn a_file_that_the_donor_has_no_more_is_left_out_only_once_it_is_deleted_here() {
    let scene = scene().await;
    let (name, fid) = (Bytes::from_static(b"a"), FileId::new(OLD, 0, 1));
    let wait = || scene.data.wait_for_burial(vid(), name.clone(), fid);
    let waited = wait().await;
    assert!(matches!(waited, Err(NotYet::Changed)), "{waited:?}");
    let delete =
        Operation::TakeOverDelete { vid: vid(), name: name.clone(), fid, op: OpId(FileId::new(OLD, 2, 1).0) };
    scene.data.store.apply(GROUP, EPOCH, delete).unwrap().unwrap();
    assert!(wait().await.is_ok());
}

/// The create of a file that is deleted is recorded once the delete is here: deletes come first.
#[tokio::test]
async fn deletes_are_taken_over_before_creates() {
    let records = vec![
        record(1, "a", OLD, true),
        messages::JournalRecord {
            op: Some(of_id(FileId::new(OLD, 2, 1).0)),
            key: Bytes::from_static(b"delete"),
            create: false,
            ..record(1, "a", OLD, true)
        },
    ];
    let scene = MemberScene::new(ROLES, donor(SEALED, records)).await;
    assert_eq!(scene.data.take_over(own(&scene)).await.unwrap(), 2);
    assert_eq!(own(&scene).role, Role::Normal);
    let journal = scene.data.store.snapshot(GROUP).unwrap().journal(None, 10).unwrap();
    assert_eq!(journal.len(), 2);
}

#[tokio::test]
async fn a_donor_that_shows_another_groups_volume_is_not_copied_from() {
    let other = VolumeId::in_group(GroupId(GROUP.0 + 1), 1);
    let records = vec![messages::JournalRecord { volume: other.0, ..record(1, "a", OLD, false) }];
    let scene = MemberScene::new(ROLES, donor(SEALED, records)).await;
    let refused = scene.data.take_over(own(&scene)).await;
    assert!(matches!(&refused, Err(NotYet::Here(refused)) if refused.code() == Code::Invalid));
    assert!(!scene.data.store.is_over(other, FileId::new(OLD, 0, 1)).unwrap());
}

/// Symptom: a seal from the future outlived the clock that had made it: members that became whole took it
/// over. Fix: such a donor is not copied from, nor is a comparison with it believed.
#[tokio::test]
async fn a_donor_that_has_sealed_the_future_is_not_believed() {
    let scene = MemberScene::new(ROLES, donor(FUTURE, Vec::new())).await;
    let refused = scene.data.take_over(own(&scene)).await;
    assert!(matches!(refused, Err(NotYet::NoDonor)), "{refused:?}");
    assert!(scene.was_asked(Method::SyncClose) && !scene.was_asked(Method::SyncJournal));
    assert!(scene.data.compared(OTHER, &[own(&scene)]).await.unwrap().is_empty());
    assert_eq!(own(&scene).closing, Closing::default());
    assert!(!scene.was_asked(Method::BecomeWhole));
}

#[tokio::test]
async fn a_donor_whose_seals_are_of_now_is_believed() {
    let scene = scene().await;
    assert_eq!(scene.data.compared(OTHER, &[own(&scene)]).await.unwrap(), [GROUP]);
    assert_eq!(own(&scene).closing.below, Bucket(SEALED));
    let scene = self::scene().await;
    assert_eq!(scene.data.take_over(own(&scene)).await.unwrap(), 0);
    assert_eq!(own(&scene).closing.below, Bucket(SEALED));
}

/// Seals of the view of the question mean nothing in a later one (VOL-43): the file that loses its name
/// stays.
#[tokio::test]
async fn a_name_is_settled_in_the_view_of_the_question_only() {
    let scene = scene().await;
    scene.put(1, "a", OLD);
    let donor = Donor {
        group: GROUP,
        source: scene.source().await,
        closing: Closing::default(),
        asked_in: EPOCH,
        closed_before: Vec::new(),
    };
    let next = Epoch(EPOCH.0 + 1);
    scene.data.store.enter_view(GROUP, next, Role::Recovering).unwrap();
    let bury = Operation::TakeOverDelete {
        vid: vid(),
        name: Bytes::from_static(b"a"),
        fid: FileId(id(head(1, b"", OLD).fid)),
        op: OpId(FileId::new(OLD, 2, 1).0),
    };
    let settled = scene.data.settle_one(&donor, bury.clone()).await;
    assert!(matches!(settled, Err(NotYet::Changed)), "{settled:?}");
    assert!(scene.has("a"));
    let donor = Donor { asked_in: next, ..donor };
    scene.data.settle_one(&donor, bury).await.unwrap();
    assert!(!scene.has("a"));
}

#[tokio::test]
async fn an_operation_of_another_group_is_not_taken() {
    let scene = scene().await;
    let other = VolumeId::in_group(GroupId(GROUP.0 + 1), 1);
    let create = Operation::TakeOver {
        vid: other,
        name: Bytes::from_static(b"a"),
        head: crate::data_server::new_head(Some(head(1, b"body", OLD))).unwrap(),
        body: Body::Here(Bytes::from_static(b"body")),
        is_journalled: true,
    };
    let refused = scene.data.take(GROUP, other, create).await;
    assert!(matches!(&refused, Err(NotYet::Here(refused)) if refused.code() == Code::Invalid));
    assert!(scene.data.store.stat(other, b"a", None).is_err());
}
