//! Pieces of uploads: their origins, protected files, and their expiry.

use super::super::tests::*;
use super::super::*;
use super::*;
use crate::keys;
use copal_kv::Durability;
use copal_volume::VolumeError;
use copal_volume::{
    Clock, ManualClock, OpId,
    group::{Epoch, MemberAnswer, Role},
};
use std::sync::Arc;

#[derive(Clone)]
struct SharedClock(Arc<ManualClock>);

impl SharedClock {
    fn new() -> SharedClock {
        SharedClock(Arc::new(ManualClock::new(NOW)))
    }
}

impl Clock for SharedClock {
    fn now_ms(&self) -> u64 {
        self.0.now_ms()
    }
}

fn origin(client: &'static str, incarnation: u64) -> UploadOrigin {
    UploadOrigin { client: Bytes::from_static(client.as_bytes()), incarnation }
}

fn piece(number: u64, index: u32, bytes: Bytes, origin: UploadOrigin) -> StagedPiece {
    StagedPiece { vid: vid(), fid: fid(number), index, bytes, origin, has_all_rights: false }
}

fn stage(store: &MemberStore, piece: StagedPiece) -> Result<(), OperationError> {
    store.stage_while(piece, || Ok(()))
}

fn staged(number: u64, name: &'static str, body: &Bytes, origin: UploadOrigin) -> GroupOperation {
    GroupOperation::Create {
        vid: vid(),
        name: Bytes::from_static(name.as_bytes()),
        head: head(number, body),
        body: BodySource::StagedBy(origin),
    }
}

fn apply(store: &MemberStore, operation: GroupOperation) -> OperationResult {
    store.apply(GROUP, Epoch(5), operation).unwrap()
}

const MIB: usize = 1 << 20;

/// A body of two pieces, and its pieces.
fn two_pieces() -> (Bytes, [Bytes; 2]) {
    let body: Bytes = (0..5 * MIB).map(|at| (at % 251) as u8).collect();
    let pieces = [body.slice(..4 * MIB), body.slice(4 * MIB..)];
    (body, pieces)
}

fn is_denied(answer: &Result<(), OperationError>) -> bool {
    matches!(answer, Err(OperationError::Denied { .. }))
}

/// Symptom: a client with the right to create changed the bytes of existing files: partial reads returned its
/// bytes without an error. Cause: pieces were written under the file's id without a check that the file
/// exists. Fix: the check runs under the lock of the group. Only an identical piece is accepted, and nothing
/// is written.
#[test]
fn no_piece_changes_an_existing_file() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let (large, pieces) = two_pieces();
    let own = origin("a.client.copal", 1);
    for (number, name, body) in
        [(1, "small", bytes(100)), (2, "alone", bytes(60_000)), (3, "one", bytes(300_000))]
    {
        apply(&store, create(number, name, body.clone())).unwrap();
        for len in [1, 100, body.len(), 4 * MIB] {
            let other = Bytes::from(vec![9; len]);
            let answer = stage(&store, piece(number, 0, other.clone(), own.clone()));
            assert!(is_denied(&answer), "{name}, {len} bytes: {answer:?}");
            let behind = stage(&store, piece(number, 1, other, own.clone()));
            assert!(is_denied(&behind), "{name}, {len} bytes: {behind:?}");
        }
        let (read, _) = store.get(vid(), name.as_bytes(), 0..u64::MAX, None).unwrap();
        assert_eq!(read, body);
    }
    for (index, bytes) in pieces.iter().enumerate() {
        stage(&store, piece(4, index as u32, bytes.clone(), own.clone())).unwrap();
    }
    apply(&store, staged(4, "large", &large, own.clone())).unwrap();
    // A late duplicate is the file's own piece; any other one is refused.
    assert_eq!(stage(&store, piece(4, 1, pieces[1].clone(), own.clone())), Ok(()));
    assert!(is_denied(&stage(&store, piece(4, 1, pieces[0].clone(), own.clone()))));
    assert!(is_denied(&stage(&store, piece(4, 2, bytes(5), own.clone()))));
    let (read, _) = store.get(vid(), b"large", 4 * MIB as u64 - 5..5 * MIB as u64, None).unwrap();
    assert_eq!(read, large.slice(4 * MIB - 5..));
    assert_eq!(store.upload_totals(), (0, 0));
    // The id of a deleted file is refused too.
    apply(&store, delete(4, "large")).unwrap();
    let deleted = stage(&store, piece(4, 0, pieces[0].clone(), own));
    assert_eq!(deleted, Err(OperationError::Refused(MemberAnswer::Deleted)));
}

/// Symptom: a client wrote into the upload of another one, and made a file of it under a name of its own.
/// Cause: an upload was found by its file's id alone. Fix: an upload has an origin; only that client adds to
/// it and commits it.
#[test]
fn an_upload_belongs_to_the_client_that_began_it() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let (body, pieces) = two_pieces();
    let own = origin("a.client.copal", 1);
    stage(&store, piece(1, 0, pieces[0].clone(), own.clone())).unwrap();
    for other in [origin("b.client.copal", 1), origin("a.client.copal", 2), origin("client.copal", 1)] {
        let answer = stage(&store, piece(1, 0, bytes(4 * MIB), other.clone()));
        // A later process of the same client may restart it.
        let is_busy = answer == Err(OperationError::Refused(MemberAnswer::Busy));
        assert!(is_denied(&answer) || (is_busy && other.client == own.client), "{other:?}: {answer:?}");
        let stolen = apply(&store, staged(1, "mine", &body, other.clone()));
        assert_eq!(stolen, Err(OperationError::Refused(MemberAnswer::Missing)), "{other:?}");
    }
    // The same client over another connection, or through another member.
    stage(&store, piece(1, 1, pieces[1].clone(), own.clone())).unwrap();
    let by_server = apply(
        &store,
        GroupOperation::Create {
            vid: vid(),
            name: Bytes::from_static(b"mine"),
            head: head(1, &body),
            body: BodySource::Staged,
        },
    );
    assert_eq!(by_server, Err(OperationError::Refused(MemberAnswer::Missing)));
    apply(&store, staged(1, "a", &body, own)).unwrap();
    assert_eq!(store.get(vid(), b"a", 0..u64::MAX, None).unwrap().0, body);
}

/// Symptom: a member stored a file whose bytes did not match its head. Cause: each piece was checked at its
/// arrival, and never the whole body. Fix: the joined checksums of the pieces are compared with the head's.
#[test]
fn pieces_that_are_not_the_body_become_no_file() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let (body, pieces) = two_pieces();
    let own = origin("a.client.copal", 1);
    let stage = |index, bytes: &Bytes| stage(&store, piece(1, index, bytes.clone(), own.clone())).unwrap();
    let missing = Err(OperationError::Refused(MemberAnswer::Missing));
    stage(0, &bytes(4 * MIB));
    stage(1, &pieces[1]);
    assert_eq!(apply(&store, staged(1, "a", &body, own.clone())), missing, "another first piece");
    stage(0, &pieces[0].slice(..100));
    assert_eq!(apply(&store, staged(1, "a", &body, own.clone())), missing, "too short");
    // The same bytes, divided at another place: a read would look for them elsewhere.
    stage(0, &body.slice(..MIB));
    stage(1, &body.slice(MIB..));
    assert_eq!(apply(&store, staged(1, "a", &body, own.clone())), missing, "cut elsewhere");
    stage(1, &pieces[1]);
    stage(0, &pieces[0]);
    let small = GroupOperation::Create {
        vid: vid(),
        name: Bytes::from_static(b"a"),
        head: head(1, &bytes(10)),
        body: BodySource::StagedBy(own.clone()),
    };
    assert_eq!(apply(&store, small), missing, "a body that lies in its head");
    // Pieces beyond the size are deleted.
    stage(2, &bytes(7));
    stage(16_383, &bytes(7));
    apply(&store, staged(1, "a", &body, own.clone())).unwrap();
    assert_eq!(store.get(vid(), b"a", 0..u64::MAX, None).unwrap().0, body);
    for index in [2, 16_383] {
        assert_eq!(store.staged_piece(vid(), fid(1), index), Err(VolumeError::NotFound));
    }
    let beyond = super::tests::stage(&store, piece(2, 16_384, bytes(7), own));
    assert!(is_denied(&beyond), "{beyond:?}");
    assert_eq!(store.upload_totals(), (0, 0));
}

/// Symptom: the disk of a data server filled with pieces of unfinished uploads. Cause: they never expired.
/// Fix: an upload expires a day after its last piece, also over restarts; others stay.
#[test]
fn abandoned_uploads_expire() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    let own = origin("a.client.copal", 1);
    for number in [1, 2] {
        stage(&store, piece(number, 0, bytes(4 * MIB), own.clone())).unwrap();
    }
    store.stage(vid(), fid(3), 0, bytes(4 * MIB)).unwrap();
    assert_eq!(store.upload_totals(), (3, 12 * MIB as u64));
    let store = MemberStore::open(store.kv().clone(), Arc::new(clock.clone())).unwrap();
    assert_eq!(store.upload_totals(), (3, 12 * MIB as u64), "read again from their rows");
    clock.0.set(NOW + EXPIRY_MS - 1);
    stage(&store, piece(2, 1, bytes(5), own)).unwrap();
    store.seal_due(&Default::default()).unwrap();
    assert_eq!(store.upload_totals().0, 3);
    clock.0.set(NOW + EXPIRY_MS);
    store.seal_due(&Default::default()).unwrap();
    assert_eq!(store.upload_totals(), (1, 4 * MIB as u64 + 5));
    for number in [1, 3] {
        assert_eq!(store.staged_piece(vid(), fid(number), 0), Err(VolumeError::NotFound));
    }
    assert!(store.staged_piece(vid(), fid(2), 0).is_ok());
    clock.0.set(NOW + 2 * EXPIRY_MS);
    store.seal_due(&Default::default()).unwrap();
    let left = [&store.core.spaces.uploads, &store.core.spaces.extents, &store.core.spaces.sums];
    for space in left {
        assert_eq!(space.prefix(&[]).count(), 0, "{}", space.name());
    }
}

/// Symptom: a create next to an upload of its own id left the upload, whose expiry would have deleted the
/// file's bytes. Fix: a complete file replaces the staged pieces of its id, and so does a copied file.
#[test]
fn no_upload_stays_under_the_id_of_a_file() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    let own = origin("a.client.copal", 1);
    let body = bytes(300_000);
    let copied = |number, name: &'static str| GroupOperation::CopyCreate {
        vid: vid(),
        name: Bytes::from_static(name.as_bytes()),
        head: head(number, &body),
        body: BodySource::Attached(body.clone()),
        is_journalled: true,
    };
    for (number, operation) in [(1, create(1, "a", body.clone())), (2, copied(2, "b"))] {
        stage(&store, piece(number, 0, bytes(4 * MIB), own.clone())).unwrap();
        stage(&store, piece(number, 1, bytes(5), own.clone())).unwrap();
        apply(&store, operation).unwrap();
        assert_eq!(store.staged_piece(vid(), fid(number), 1), Err(VolumeError::NotFound));
    }
    assert_eq!(store.upload_totals(), (0, 0));
    clock.0.set(NOW + 2 * EXPIRY_MS);
    store.expire_uploads().unwrap();
    for name in ["a", "b"] {
        assert_eq!(store.get(vid(), name.as_bytes(), 0..u64::MAX, None).unwrap().0, body);
    }
}

/// A member that copies a file from another one does not wait for a client's upload of it, and no client adds
/// to the member's own upload. A client that returns under the same name restarts an idle upload.
#[test]
fn an_upload_yields_to_its_server_and_later_to_its_client_name() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    let own = origin("a.client.copal", 1);
    stage(&store, piece(1, 0, bytes(4 * MIB), own.clone())).unwrap();
    store.stage(vid(), fid(1), 0, bytes(4 * MIB)).unwrap();
    let busy = stage(&store, piece(1, 1, bytes(5), own.clone()));
    assert_eq!(busy, Err(OperationError::Refused(MemberAnswer::Busy)));
    stage(&store, piece(2, 0, bytes(4 * MIB), own.clone())).unwrap();
    clock.0.set(NOW + IDLE_MS);
    let has_all_rights = StagedPiece { has_all_rights: true, ..piece(1, 1, bytes(5), own) };
    assert_eq!(
        stage(&store, has_all_rights),
        Err(OperationError::Refused(MemberAnswer::Busy)),
        "the server's own upload yields to no other"
    );
    assert!(is_denied(&stage(&store, piece(2, 0, bytes(4 * MIB), origin("b.client.copal", 1)))));
    let again = origin("a.client.copal", 2);
    stage(&store, piece(2, 1, bytes(5), again)).unwrap();
    assert_eq!(store.staged_piece(vid(), fid(2), 0), Err(VolumeError::NotFound), "begun anew");
}

/// Symptom: an upload filled a volume beyond its quota, and a volume under removal. Fix: pieces are refused
/// like creates, and all uploads of the volume count.
#[test]
fn pieces_keep_to_quota_and_removal() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let own = origin("a.client.copal", 1);
    let quota_bytes = Some(6 * MIB as u64);
    store.note_volume(vid(), VolumeNotice::Live { quota_bytes }).unwrap();
    apply(&store, create(9, "a", bytes(MIB))).unwrap();
    stage(&store, piece(1, 0, bytes(4 * MIB), own.clone())).unwrap();
    stage(&store, piece(1, 0, bytes(4 * MIB), own.clone())).unwrap();
    let beyond = stage(&store, piece(2, 0, bytes(2 * MIB), own.clone()));
    assert!(matches!(beyond, Err(OperationError::Refused(MemberAnswer::QuotaExceeded { .. }))), "{beyond:?}");
    stage(&store, piece(1, 1, bytes(MIB), own.clone())).unwrap();
    store.watch_room(|| (96, 100));
    let full = stage(&store, piece(1, 1, bytes(1), own.clone()));
    assert_eq!(full, Err(OperationError::Refused(MemberAnswer::NoSpace)));
    store.watch_room(|| (0, 1 << 40));
    store.note_volume(vid(), VolumeNotice::Removing).unwrap();
    let removing = stage(&store, piece(1, 1, bytes(1), own.clone()));
    assert_eq!(removing, Err(OperationError::Refused(MemberAnswer::Busy)));
    store.note_volume(vid(), VolumeNotice::Removed).unwrap();
    assert_eq!(store.upload_totals(), (0, 0), "they go with their volume");
    let gone = stage(&store, piece(1, 1, bytes(1), own));
    assert_eq!(gone, Err(OperationError::Refused(MemberAnswer::VolumeGone)));
}

/// Symptom: a piece could be stored for a caller whose permit ended while it waited, and no test noticed.
/// Cause: only operations had such a test. Fix: this test; the caller is checked under the lock of the group,
/// before anything is written.
#[test]
fn a_caller_that_may_not_any_more_keeps_no_piece() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let own = origin("a.client.copal", 1);
    let ended = || Err(OperationError::Denied { reason: "the permit has ended".to_owned() });
    let refused = store.stage_while(piece(1, 0, bytes(10), own.clone()), ended);
    assert!(is_denied(&refused), "{refused:?}");
    assert_eq!(store.upload_totals(), (0, 0));
    assert_eq!(store.staged_piece(vid(), fid(1), 0), Err(VolumeError::NotFound));
    // A piece of an upload under way is refused as well, and the previous one stays.
    stage(&store, piece(1, 0, bytes(10), own.clone())).unwrap();
    let refused = store.stage_while(piece(1, 0, bytes(9), own), ended);
    assert!(is_denied(&refused), "{refused:?}");
    assert_eq!(store.staged_piece(vid(), fid(1), 0), Ok(bytes(10)));
}

#[test]
fn a_piece_under_an_id_that_no_client_draws_is_refused() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let refusals =
        [(FileId(0), MemberAnswer::OtherFile), (FileId::new(NOW + 10_001, 0, 1), MemberAnswer::ClockSkew)];
    for (fid, answer) in refusals {
        let piece = StagedPiece { fid, ..piece(1, 0, bytes(10), origin("a.client.copal", 1)) };
        assert_eq!(stage(&store, piece), Err(OperationError::Refused(answer)));
    }
    assert_eq!(store.upload_totals(), (0, 0));
}

/// Clients begin no more uploads than a disk can track. Uploads under way continue, and so does a server that
/// copies a file.
#[test]
fn the_number_of_uploads_is_limited() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let own = origin("a.client.copal", 1);
    stage(&store, piece(1, 0, bytes(10), own.clone())).unwrap();
    let known = store.core.uploads.lock().get(vid(), fid(1)).cloned().unwrap();
    for number in 2..=MOST_UPLOADS as u64 {
        store.core.uploads.lock().insert(vid(), fid(number), known.clone());
    }
    let new = MOST_UPLOADS as u64 + 1;
    let refused = stage(&store, piece(new, 0, bytes(10), own.clone()));
    assert_eq!(refused, Err(OperationError::Refused(MemberAnswer::Busy)));
    stage(&store, piece(1, 1, bytes(10), own)).unwrap();
    store.stage(vid(), fid(new), 0, bytes(10)).unwrap();
}

/// Symptom: the pieces of an upload that its client abandoned could stay until they expired, and no test
/// noticed. Fix: a delete before the create frees them.
#[test]
fn a_delete_frees_the_upload_of_its_file() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let own = origin("a.client.copal", 1);
    let (body, pieces) = two_pieces();
    for number in [1, 2] {
        for (index, bytes) in (0..).zip(&pieces) {
            stage(&store, piece(number, index, bytes.clone(), own.clone())).unwrap();
        }
    }
    apply(&store, delete(1, "a")).unwrap();
    assert_eq!(store.upload_totals(), (1, 5 * MIB as u64));
    assert_eq!(store.staged_piece(vid(), fid(1), 1), Err(VolumeError::NotFound));
    // No other file is affected.
    apply(&store, staged(2, "a", &body, own)).unwrap();
    assert_eq!(store.get(vid(), b"a", 0..u64::MAX, None).unwrap().0, body);
}

/// Symptom: on a full disk the pieces of uploads that were refused, or whose clients had died, took a third
/// of its space for a day. Fix: there they expire ten minutes after the last piece.
#[test]
fn abandoned_uploads_expire_soon_on_a_full_disk() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    stage(&store, piece(1, 0, bytes(10), origin("a.client.copal", 1))).unwrap();
    clock.0.set(NOW + EXPIRY_WHEN_FULL_MS);
    assert_eq!(store.expire_uploads(), Ok(0));
    store.watch_room(|| (100, 100));
    assert!(store.is_full());
    clock.0.set(NOW + EXPIRY_WHEN_FULL_MS - 1);
    assert_eq!(store.expire_uploads(), Ok(0));
    clock.0.set(NOW + EXPIRY_WHEN_FULL_MS);
    assert_eq!(store.expire_uploads(), Ok(1));
    assert_eq!(store.upload_totals(), (0, 0));
}

/// Symptom: an upload with damaged rows could keep all groups from sealing, and no test noticed. Fix: its
/// deletion is tried again later.
#[test]
fn an_upload_that_cannot_be_freed_keeps_no_bucket_open() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    stage(&store, piece(1, 0, bytes(10), origin("a.client.copal", 1))).unwrap();
    apply(&store, create(2, "a", bytes(10))).unwrap();
    let key = keys::piece(vid(), fid(1), 0);
    let uploads = &store.core.spaces.uploads;
    uploads.put(&key, b"damaged", Durability::Device).unwrap();
    clock.0.set(NOW + EXPIRY_MS);
    assert!(store.expire_uploads().is_err());
    store.seal_due(&Default::default()).unwrap();
    let sealed = store.membership(GROUP).unwrap().unwrap().seal.below;
    assert!(sealed.0 > NOW / 10_000, "{sealed:?}");
}

/// An upload of an earlier release has no origin: the sender of its next piece restarts it. It may have the
/// id of an existing file, which then keeps its pieces.
#[test]
fn uploads_of_an_earlier_release_are_restarted_and_delete_no_file() {
    let clock = SharedClock::new();
    let store = member_with(Role::Normal, clock.clone());
    let body = bytes(300_000);
    apply(&store, create(1, "a", body.clone())).unwrap();
    let core = &store.core;
    let mut batch = core.kv.batch();
    for number in [1, 2] {
        let key = keys::upload(vid(), fid(number));
        batch.put(&core.spaces.uploads, &key, crate::format::upload_row(&key, NOW));
    }
    crate::local::add_piece(&core.spaces, &mut batch, vid(), fid(2), 0, bytes(4 * MIB), false);
    batch.commit(Durability::Device).unwrap();
    let store = MemberStore::open(store.kv().clone(), Arc::new(clock.clone())).unwrap();
    assert_eq!(store.upload_totals().0, 2);
    stage(&store, piece(2, 1, bytes(5), origin("a.client.copal", 1))).unwrap();
    assert_eq!(store.staged_piece(vid(), fid(2), 0), Err(VolumeError::NotFound));
    clock.0.set(NOW + 2 * EXPIRY_MS);
    store.expire_uploads().unwrap();
    assert_eq!(store.upload_totals(), (0, 0));
    assert_eq!(store.get(vid(), b"a", 0..u64::MAX, None).unwrap().0, body);
}

/// Symptom: a volume with a quota refused files although it had space, after its group was moved away and
/// back. Cause: the rows of the group were deleted, the byte counts of its volumes stayed, and the resync
/// added to them. Fix: leaving a group drops the counts.
#[test]
fn the_bytes_of_a_volume_are_counted_again_when_its_group_returns() {
    let store = member_with(Role::Normal, ManualClock::new(NOW));
    let quota_bytes = Some(1_000_000);
    store.note_volume(vid(), VolumeNotice::Live { quota_bytes }).unwrap();
    apply(&store, create(1, "a", bytes(600_000))).unwrap();
    stage(&store, piece(7, 0, bytes(1000), origin("a.client.copal", 1))).unwrap();
    store.leave(GROUP).unwrap();
    assert_eq!(store.upload_totals(), (0, 0));
    store.enter_view(GROUP, Epoch(9), Role::Joining).unwrap();
    let body = bytes(600_000);
    let back = GroupOperation::CopyCreate {
        vid: vid(),
        name: Bytes::from_static(b"a"),
        head: head(1, &body),
        body: BodySource::Attached(body),
        is_journalled: true,
    };
    store.apply(GROUP, Epoch(9), back).unwrap().unwrap();
    store.enter_view(GROUP, Epoch(10), Role::Normal).unwrap();
    let body = bytes(100_000);
    let small = GroupOperation::Create {
        vid: vid(),
        name: Bytes::from_static(b"b"),
        head: NewHead { op: OpId(FileId::new(NOW, 7, 2).0), ..head(2, &body) },
        body: BodySource::Attached(body),
    };
    assert_eq!(store.apply(GROUP, Epoch(10), small).unwrap(), Ok(Role::Normal));
}
