//! Roll-forward with another member: only sealed buckets, and no file is deleted for one that cannot be
//! fetched.

use super::*;
use crate::data::member_scene::{
    EPOCH, GROUP, MemberScene, NOW, OTHER, OWN, fid, head, op, record, reply, vid,
};
use copal_proto::{id, of_id};
use copal_volume::{
    OpId, VolumeId,
    group::{OperationDigest, OperationRecord},
};

const ROLES: (Role, Role) = (Role::Normal, Role::Normal);
/// A time that is sealed.
const OLD: u64 = NOW - 200_000;

/// A member with these operations and these of their files.
fn other(
    records: Vec<messages::JournalRecord>,
    files: Vec<u64>,
) -> impl Fn(Method, Bytes) -> Result<Bytes, Status> + Send + Sync {
    move |method, message| match method {
        Method::JournalOf => reply(&messages::JournalRecords { records: records.clone(), more: false }),
        Method::SyncFetch => {
            let asked = <messages::SyncFetch as prost::Message>::decode(message).unwrap();
            let number = files
                .iter()
                .find(|number| fid(**number, OLD).0 == id(asked.fid))
                .ok_or_else(|| Status::new(Code::NotFound, "it was deleted"))?;
            reply(&messages::SyncFetched {
                head: Some(head(*number, b"theirs", OLD)),
                bytes: Bytes::from_static(b"theirs"),
            })
        }
        _ => Err(Status::new(Code::Denied, format!("{method:?} is not expected"))),
    }
}

/// Gossip of a member that has sealed everything up to now, with or without a digest of the bucket of old
/// operations.
fn gossip_of(has_records: bool) -> PeerStatus {
    let mut digest = OperationDigest::default();
    digest.add(1, &OperationRecord { is_create: true, op: op(1, OLD), vid: vid(), fid: fid(1, OLD) });
    let digests = [(Bucket::of(op(1, OLD)), digest)];
    PeerStatus {
        epoch: EPOCH,
        role: Role::Normal,
        seal: BucketSeal { below: Bucket::first_open(NOW) },
        stable_point: Bucket(0),
        is_covered: true,
        digests: digests.into_iter().filter(|_| has_records).collect(),
    }
}

/// Rolls forward from the other member, in a view of these members, all up.
async fn roll(scene: &MemberScene, members: &[DiskId]) -> Result<(), Status> {
    let view = View {
        group: GROUP,
        epoch: EPOCH,
        members: members.iter().map(|disk| (*disk, Role::Normal)).collect(),
        replicas: 3,
        min_ack: 2,
    };
    let reports = BTreeMap::from([(OTHER, gossip_of(true))]);
    roll_forward_group(&scene.host, GROUP, &view, &gossip_of(false), &reports).await
}

/// Symptom: a member could roll forward by its own seal alone, and no test noticed. At a member that has not
/// sealed the bucket, a client may still complete such an operation or take it back. Fix: this test.
#[tokio::test]
async fn nothing_is_rolled_forward_before_all_members_have_sealed_it() {
    let scene = MemberScene::new(ROLES, other(vec![record(1, "a", OLD, false)], Vec::new())).await;
    roll(&scene, &[OWN, OTHER, DiskId(3)]).await.unwrap();
    assert!(!scene.was_asked(Method::JournalOf), "the third sent no gossip");
    assert!(!scene.host.store.is_deleted_or_removed(vid(), fid(1, OLD)).unwrap());
    roll(&scene, &[OWN, OTHER]).await.unwrap();
    assert!(scene.host.store.is_deleted_or_removed(vid(), fid(1, OLD)).unwrap());
}

/// Symptom: an acknowledged file was deleted in favour of another of its name that no longer existed
/// (VOL-20).
/// Fix: the other file is fetched before the own one is deleted.
#[tokio::test]
async fn a_file_yields_only_to_an_existing_one() {
    for (files, stays) in [(Vec::new(), 9), (vec![1], 1)] {
        let scene = MemberScene::new(ROLES, other(vec![record(1, "a", OLD, true)], files)).await;
        scene.put(9, "a", OLD);
        roll(&scene, &[OWN, OTHER]).await.unwrap();
        let live = scene.host.store.stat(vid(), b"a", None).unwrap();
        assert_eq!(live.fid, fid(stays, OLD));
    }
}

/// The create of a deleted file is recorded only after its delete, so deletes come first.
#[tokio::test]
async fn deletes_are_rolled_forward_before_creates() {
    let delete =
        messages::JournalRecord { op: Some(of_id(FileId::new(OLD, 2, 1).0)), ..record(1, "a", OLD, false) };
    let records = vec![record(1, "a", OLD, true), delete];
    let scene = MemberScene::new(ROLES, other(records, Vec::new())).await;
    roll(&scene, &[OWN, OTHER]).await.unwrap();
    let journal = scene.host.store.snapshot(GROUP).unwrap().journal(None, 10).unwrap();
    assert_eq!(journal.len(), 2, "{journal:?}");
}

/// A delete under another name does not affect a file (VOL-72), so the file is copied.
#[tokio::test]
async fn a_file_whose_id_was_deleted_under_another_name_is_rolled_forward() {
    let scene = MemberScene::new(ROLES, other(vec![record(1, "a", OLD, true)], vec![1])).await;
    let delete = GroupOperation::CopyDelete {
        vid: vid(),
        name: Bytes::from_static(b"x"),
        fid: fid(1, OLD),
        op: OpId(FileId::new(OLD, 2, 1).0),
    };
    scene.host.store.apply(GROUP, EPOCH, delete).unwrap().unwrap();
    roll(&scene, &[OWN, OTHER]).await.unwrap();
    assert!(scene.has("a"));
}

#[tokio::test]
async fn a_member_that_sends_another_groups_records_is_refused() {
    let volume = VolumeId::in_group(GroupId(GROUP.0 + 1), 1);
    let foreign = messages::JournalRecord { volume: volume.0, ..record(1, "a", OLD, false) };
    let scene = MemberScene::new(ROLES, other(vec![foreign], Vec::new())).await;
    let refusal = roll(&scene, &[OWN, OTHER]).await.unwrap_err();
    assert_eq!(refusal.code(), Code::Invalid);
    assert!(!scene.host.store.is_deleted_or_removed(volume, fid(1, OLD)).unwrap());
}
