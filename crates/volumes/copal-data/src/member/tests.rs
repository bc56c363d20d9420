use super::*;
use bytes::Bytes;
use copal_device::{AlignedBuf, Device, Io, IoClass, IoKind, MemoryDevice};
use copal_kv::Store;
use copal_volume::{
    Clock, FileId, ManualClock, OpId, VolumeId,
    group::{BucketSeal, MemberAnswer, Role},
};
use copal_volume::{
    VolumeError,
    group::{Epoch, GroupId},
};
use std::{ops::Bound, sync::Arc};

pub(super) const GROUP: GroupId = GroupId(3);
pub(super) const NOW: u64 = 1_000_000;

fn member(role: Role) -> MemberStore {
    member_with(role, ManualClock::new(NOW))
}

pub(super) fn member_with(role: Role, clock: impl Clock + 'static) -> MemberStore {
    let device: Arc<dyn Device> = MemoryDevice::new(128 << 20);
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default()).unwrap();
    let store = member_on(device, clock);
    store.enter_view(GROUP, Epoch(5), role).unwrap();
    store
}

/// The member whose store lies on a device.
fn member_on(device: Arc<dyn Device>, clock: impl Clock + 'static) -> MemberStore {
    let (objects, _) = copal_object::Store::open(device, &copal_object::OpenOptions::default()).unwrap();
    let options = copal_kv::Options { memory_bytes: 16 << 20, ..copal_kv::Options::default() };
    MemberStore::open(Store::open(objects, options).unwrap(), Arc::new(clock)).unwrap()
}

pub(super) fn vid() -> VolumeId {
    VolumeId::in_group(GROUP, 1)
}

pub(super) fn fid(number: u64) -> FileId {
    FileId::new(NOW, 0, number)
}

pub(super) fn head(number: u64, body: &Bytes) -> NewHead {
    NewHead {
        fid: fid(number),
        op: OpId(FileId::new(NOW, 1, number).0),
        size: body.len() as u64,
        crc32c: copal_codec::crc32c(0, body),
        metadata: Bytes::new(),
    }
}

pub(super) fn create(number: u64, name: &'static str, body: Bytes) -> GroupOperation {
    GroupOperation::Create {
        vid: vid(),
        name: Bytes::from_static(name.as_bytes()),
        head: head(number, &body),
        body: BodySource::Attached(body),
    }
}

pub(super) fn delete(number: u64, name: &'static str) -> GroupOperation {
    GroupOperation::Delete {
        vid: vid(),
        name: Bytes::from_static(name.as_bytes()),
        fid: fid(number),
        op: OpId(FileId::new(NOW, 2, number).0),
    }
}

pub(super) fn bytes(len: usize) -> Bytes {
    Bytes::from(vec![7; len])
}

#[test]
fn a_file_exists_with_its_journal_entry_and_not_with_its_tombstone() {
    let store = member(Role::Normal);
    for (number, len) in [(1, 100), (2, 5000), (3, 300_000)] {
        let body = bytes(len);
        let held = store.apply(GROUP, Epoch(5), create(number, "a", body.clone())).unwrap();
        assert_eq!(held, Ok(Role::Normal));
        let (read, info) = store.get(vid(), b"a", 0..u64::MAX, None).unwrap();
        assert_eq!((read, info.fid), (body, fid(number)));
        assert_eq!(store.apply(GROUP, Epoch(5), delete(number, "a")).unwrap(), Ok(Role::Normal));
        assert_eq!(store.stat(vid(), b"a", None), Err(VolumeError::NotFound));
        assert_eq!(store.find(vid(), fid(number)), Ok(FileState::Deleted));
    }
    let journal = store.snapshot(GROUP).unwrap().journal(None, 100).unwrap();
    let creates = journal.iter().filter(|entry| entry.is_create).count();
    assert_eq!((journal.len(), creates), (6, 3));
    let rest = store.snapshot(GROUP).unwrap().journal(Some(&journal[3].key), 100).unwrap();
    assert_eq!(rest, journal[4..]);
}

/// Symptom: members that accepted two deletes of one file in different orders had different operations, and
/// never equal digests. Cause: the later delete was acknowledged, but not journalled. Fix: it is journalled
/// like any operation (VOL-13) unless its bucket is sealed; then it is only acknowledged.
#[test]
fn a_second_delete_of_a_file_is_journalled_too() {
    let store = member(Role::Normal);
    let deleted_by =
        |op: OpId| GroupOperation::Delete { vid: vid(), name: Bytes::from_static(b"a"), fid: fid(1), op };
    let (one, other) = (OpId(FileId::new(NOW, 2, 8).0), OpId(FileId::new(NOW, 2, 9).0));
    let too_old = OpId(FileId::new(NOW - 61_000, 2, 9).0);
    for op in [one, other, too_old, one] {
        store.apply(GROUP, Epoch(5), deleted_by(op)).unwrap().unwrap();
    }
    let journal = store.snapshot(GROUP).unwrap().journal(None, 100).unwrap();
    let ops: Vec<OpId> = journal.iter().map(|entry| entry.op).collect();
    assert_eq!(ops, [one, other]);
}

/// Symptom: a create with an unknown outcome was settled as aborted, and its file reappeared for good some
/// minutes later (`copal-sim cluster --seeds 1 --seed 1`). Cause: the members that answered did not have the
/// file, so its name was unknown, and the delete had the name "?". The member that was down and had the file
/// wrote a tombstone for that name. The file stayed in its place until the tombstone was cut. Fix: without a
/// name the member looks for the file by its id.
#[test]
fn a_delete_that_knows_no_name_finds_the_file_by_its_id() {
    let by_id = |number| {
        let GroupOperation::Delete { vid, fid, op, .. } = delete(number, "?") else { unreachable!() };
        let name = Bytes::from_static(copal_volume::UNKNOWN_FILE_NAME);
        GroupOperation::CopyDelete { vid, name, fid, op }
    };
    for (role, hidden) in [(Role::Normal, false), (Role::Recovering, false), (Role::Recovering, true)] {
        let store = member(role);
        let apply = |operation| store.apply(GROUP, Epoch(5), operation).unwrap().unwrap();
        if hidden {
            apply(create(1, "a", bytes(10)));
        }
        apply(create(2, "a", bytes(5000)));
        apply(create(3, "?", bytes(10)));
        apply(by_id(2));
        let left = hidden.then(|| fid(1)).ok_or(VolumeError::NotFound);
        assert_eq!(store.stat(vid(), b"a", None).map(|info| info.fid), left);
        assert_eq!(store.find(vid(), fid(2)), Ok(FileState::Deleted));
        assert!(heads::find_by_id(&store.core, vid(), fid(2)).unwrap().is_none(), "it hides nowhere");
        assert_eq!(store.stat(vid(), b"?", None).map(|info| info.fid), Ok(fid(3)));
        apply(by_id(3));
        assert_eq!(store.stat(vid(), b"?", None), Err(VolumeError::NotFound));
    }
}

#[test]
fn of_two_creators_of_a_name_one_is_refused_with_the_winner() {
    let store = member(Role::Normal);
    store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap().unwrap();
    let second = store.apply(GROUP, Epoch(5), create(2, "a", bytes(10))).unwrap();
    assert_eq!(second, Err(OperationError::Refused(MemberAnswer::Exists { fid: fid(1) })));
    let again = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(again, Ok(Role::Normal), "a duplicate");
}

#[test]
fn a_member_that_may_lack_a_delete_keeps_both_files_until_one_is_deleted() {
    let store = member(Role::Recovering);
    store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap().unwrap();
    store.apply(GROUP, Epoch(5), create(2, "a", bytes(20_000))).unwrap().unwrap();
    assert_eq!(store.stat(vid(), b"a", None).unwrap().fid, fid(1));
    assert!(matches!(store.find(vid(), fid(2)), Ok(FileState::Live { name, .. }) if &name[..] == b"a"));
    store.apply(GROUP, Epoch(5), delete(1, "a")).unwrap().unwrap();
    let (read, info) = store.get(vid(), b"a", 0..u64::MAX, None).unwrap();
    assert_eq!((info.fid, read.len()), (fid(2), 20_000), "the name belongs to the other now");
}

#[test]
fn a_name_with_two_files_keeps_its_member_from_being_in_sync() {
    let store = member(Role::Recovering);
    for number in [1, 2] {
        let made = store.apply(GROUP, Epoch(5), create(number, "a", bytes(10)));
        made.unwrap().unwrap();
    }
    let stays = store.enter_view(GROUP, Epoch(6), Role::Normal).unwrap();
    assert_eq!(stays.role, Role::Recovering);
    store.apply(GROUP, Epoch(6), delete(2, "a")).unwrap().unwrap();
    let whole = store.enter_view(GROUP, Epoch(6), Role::Normal).unwrap();
    assert_eq!((whole.role, whole.last_in_sync), (Role::Normal, Epoch(6)));
}

/// Symptom: all members of a group were up, and none ever became in sync. Cause: one had reported to the
/// leader that it has everything. Before the reply a second file of a name arrived and kept it out of sync,
/// while the leader counted on it. Fix: after it has persisted that it has everything, it refuses the same
/// creates as an in-sync member.
#[test]
fn a_member_about_to_be_in_sync_accepts_no_second_file_of_a_name() {
    let store = member(Role::Recovering);
    let made = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(made, Ok(Role::Recovering));
    let taken = ResyncedGroup { group: GROUP, epoch: Epoch(5), seal: BucketSeal::default() };
    assert_eq!(store.persist_has_everything(&[taken]).unwrap(), [GROUP]);
    let second = store.apply(GROUP, Epoch(5), create(2, "a", bytes(10))).unwrap();
    assert_eq!(second, Err(OperationError::Refused(MemberAnswer::Exists { fid: fid(1) })));
    let other = store.apply(GROUP, Epoch(5), create(3, "b", bytes(10))).unwrap();
    assert_eq!(other, Ok(Role::Recovering), "it is not whole before the master knows");
    let ended = store.confirm_in_sync(&[(GROUP, Epoch(5))]).unwrap();
    assert_eq!(ended[0].role, Role::Normal);
}

/// Symptom: a group did not answer any more. Cause: the worker of its queue ended early, and no other one
/// could start. Fix: a dropped worker reports an error to the waiting callers, and the next operation starts
/// another.
#[test]
fn a_dropped_worker_leaves_the_queue_to_the_next() {
    let store = member(Role::Normal);
    let (tell, told) = std::sync::mpsc::channel();
    let dropped = store.submit(GROUP, Epoch(5), create(1, "a", bytes(10)), move |reply| {
        tell.send(reply).unwrap();
    });
    drop(dropped.unwrap().expect("no other thread serves the group"));
    assert!(matches!(told.recv().unwrap(), Err(OperationError::Failed(_))));
    let next = store.apply(GROUP, Epoch(5), create(2, "b", bytes(10))).unwrap();
    assert_eq!(next, Ok(Role::Normal));
}

#[test]
fn a_cancelled_operation_is_not_started() {
    let store = member(Role::Normal);
    let (tell, told) = std::sync::mpsc::channel();
    let unwanted = store.submit_while(
        GROUP,
        Epoch(5),
        create(1, "a", bytes(10)),
        || false,
        move |reply| tell.send(reply).unwrap(),
    );
    unwanted.unwrap().expect("no other thread serves the group").run();
    assert_eq!(told.recv().unwrap(), Err(OperationError::Cancelled));
    assert!(matches!(store.stat(vid(), b"a", None), Err(VolumeError::NotFound)));
    let wanted = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(wanted, Ok(Role::Normal));
}

#[test]
fn a_file_deleted_before_its_create_is_never_accepted() {
    let store = member(Role::Normal);
    store.apply(GROUP, Epoch(5), delete(1, "a")).unwrap().unwrap();
    let late = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(late, Err(OperationError::Refused(MemberAnswer::Deleted)));
}

#[test]
fn another_epoch_is_refused_and_an_epoch_never_falls() {
    let store = member(Role::Normal);
    let own = Epoch(5);
    for other in [Epoch(4), Epoch(6)] {
        let reply = store.apply(GROUP, other, create(1, "a", bytes(1))).unwrap();
        assert_eq!(reply, Err(OperationError::OtherEpoch { own }));
    }
    store.enter_view(GROUP, Epoch(4), Role::Recovering).unwrap();
    let membership = store.membership(GROUP).unwrap().unwrap();
    assert_eq!((membership.epoch, membership.role), (own, Role::Normal));
    let refused = store.apply(GroupId(9), own, create(1, "a", bytes(1))).unwrap();
    assert_eq!(refused, Err(OperationError::NotMember));
}

#[test]
fn a_member_copies_missing_files_but_none_that_it_deleted() {
    let (donor, member) = (member(Role::Normal), member(Role::Recovering));
    for (number, name) in [(1, "a"), (2, "b"), (3, "c")] {
        donor.apply(GROUP, Epoch(5), create(number, name, bytes(9000))).unwrap().unwrap();
    }
    donor.apply(GROUP, Epoch(5), delete(3, "c")).unwrap().unwrap();
    member.apply(GROUP, Epoch(5), create(1, "a", bytes(9000))).unwrap().unwrap();
    member.apply(GROUP, Epoch(5), delete(2, "b")).unwrap().unwrap();
    let snapshot = donor.snapshot(GROUP).unwrap();
    let live = snapshot.live(None, 10).unwrap();
    let lacking: Vec<bool> = live.iter().map(|entry| member.lacks_file(entry).unwrap()).collect();
    assert_eq!((live.len(), lacking), (2, vec![false, false]));
    let journal = snapshot.journal(None, 10).unwrap();
    let lacking = |entry: &&JournalEntry| member.lacks_operation(GROUP, entry).unwrap();
    let lacking: Vec<&JournalEntry> = journal.iter().filter(lacking).collect();
    let (creates, deletes): (Vec<&JournalEntry>, Vec<&JournalEntry>) =
        lacking.into_iter().partition(|entry| entry.is_create);
    assert_eq!((creates.len(), deletes.len()), (2, 1));
    let (vid, op) = (deletes[0].vid, deletes[0].op);
    let taken = GroupOperation::CopyDelete { vid, name: deletes[0].name.clone(), fid: deletes[0].fid, op };
    member.apply(GROUP, Epoch(5), taken).unwrap().unwrap();
    assert!(!member.lacks_operation(GROUP, deletes[0]).unwrap());
    let (info, op, body) = donor.fetch((vid, &live[0].name, live[0].fid), 0..u64::MAX).unwrap().unwrap();
    let head = NewHead { fid: info.fid, op, size: info.size, crc32c: info.crc32c, metadata: info.metadata };
    let take = |name: Bytes| GroupOperation::CopyCreate {
        vid,
        name,
        head: head.clone(),
        body: BodySource::Attached(body.clone()),
        is_journalled: true,
    };
    assert_eq!(member.apply(GROUP, Epoch(5), take(live[0].name.clone())).unwrap(), Ok(Role::Recovering));
}

/// Symptom: the test failed now and then. Cause: it asked the engine whether it is full, which ends as soon
/// as the engine's worker finds space. Fix: the test counts how often the engine had no space.
#[test]
fn a_full_disk_accepts_deletes_known_files_and_copies() {
    let store = member(Role::Normal);
    let shortages = || store.kv().stats().space_shortages;
    let held = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(held, Ok(Role::Normal));
    store.watch_room(|| (95, 100));
    assert_eq!(
        store.apply(GROUP, Epoch(5), create(2, "b", bytes(10))).unwrap(),
        Err(OperationError::Refused(MemberAnswer::NoSpace))
    );
    assert_eq!(shortages(), 1, "dead values are freed at once");
    // A retry: its creator would take a refusal for the final one, and the file would stay here.
    let again = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(again, Ok(Role::Normal));
    let copied = GroupOperation::CopyCreate {
        vid: vid(),
        name: Bytes::from_static(b"c"),
        head: head(3, &bytes(10)),
        body: BodySource::Attached(bytes(10)),
        is_journalled: true,
    };
    assert_eq!(store.apply(GROUP, Epoch(5), copied).unwrap(), Ok(Role::Normal));
    assert_eq!(store.apply(GROUP, Epoch(5), delete(1, "a")).unwrap(), Ok(Role::Normal));
    store.watch_room(|| (50, 100));
    assert_eq!(store.apply(GROUP, Epoch(5), create(2, "b", bytes(10))).unwrap(), Ok(Role::Normal));
    assert_eq!(shortages(), 1);
}

/// A file whose bytes do not match its head is dropped with its head, so that it is missing; the others stay.
#[test]
fn unreadable_rows_are_dropped_and_copied_like_missing_ones() {
    let store = member(Role::Normal);
    for (number, name, len) in [(1, "a", 100), (2, "b", 30_000), (3, "c", 9_000_000), (4, "d", 30_000)] {
        let created = create(number, name, bytes(len));
        let created = match (created, len > 4 << 20) {
            (created, false) => created,
            (GroupOperation::Create { vid, name, head, .. }, true) => {
                for (index, piece) in bytes(len).chunks(4 << 20).enumerate() {
                    let piece = Bytes::copy_from_slice(piece);
                    store.stage(vid, head.fid, index as u32, piece).unwrap();
                }
                let body = BodySource::Staged;
                GroupOperation::Create { vid, name, head, body }
            }
            (other, _) => other,
        };
        assert_eq!(store.apply(GROUP, Epoch(5), created).unwrap(), Ok(Role::Normal));
    }
    assert_eq!(store.drop_damaged(GROUP).unwrap(), DroppedRows::default());
    let extents = store.kv().open_keyspace("extents").unwrap().unwrap();
    for (number, index) in [(2, 0), (3, 1)] {
        let key = crate::keys::piece(vid(), fid(number), index);
        let mut piece = extents.get(&key).unwrap().unwrap().to_vec();
        piece[5000] ^= 1;
        extents.put(&key, &piece, copal_kv::Durability::Device).unwrap();
    }
    assert!(store.get(vid(), b"b", 0..u64::MAX, None).unwrap_err().is_corruption());
    store.note_damage(GROUP).unwrap();
    let dropped = store.drop_damaged(GROUP).unwrap();
    assert_eq!((dropped.files, dropped.ranges), (2, 0));
    let membership = store.membership(GROUP).unwrap().unwrap();
    assert_eq!((membership.role, membership.is_covered), (Role::Recovering, false));
    for (name, is_there) in [("a", true), ("b", false), ("c", false), ("d", true)] {
        let found = store.stat(vid(), name.as_bytes(), None);
        assert_eq!(found.is_ok(), is_there, "{name}");
    }
    let left = extents.prefix(b"").count();
    assert_eq!(left, 1, "pieces of what was given up are gone");
    let again = GroupOperation::CopyCreate {
        vid: vid(),
        name: Bytes::from_static(b"b"),
        head: head(2, &bytes(30_000)),
        body: BodySource::Attached(bytes(30_000)),
        is_journalled: false,
    };
    assert_eq!(store.apply(GROUP, Epoch(5), again).unwrap(), Ok(Role::Recovering));
    assert_eq!(store.get(vid(), b"b", 0..u64::MAX, None).unwrap().0, bytes(30_000));
    assert_eq!(store.drop_damaged(GROUP).unwrap(), DroppedRows::default());
}

/// Symptom to rule out: the scrub of the object store finds a damaged byte, and no group is repaired. The byte belongs to
/// an object, the object to keys, the keys to a group.
#[test]
fn a_scrub_of_the_disk_names_the_group_of_a_damaged_byte() {
    let device: Arc<dyn Device> = MemoryDevice::new(128 << 20);
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default()).unwrap();
    let open = || member_on(Arc::clone(&device), ManualClock::new(NOW));
    let close = |store: MemberStore| {
        store.kv().close().unwrap();
        store.kv().objects().close().unwrap();
    };
    let damaged = |store: &MemberStore| {
        let scrub = store.scrub(u64::MAX).unwrap();
        while !scrub.is_finished() {
            std::thread::yield_now();
        }
        store.damaged_groups().unwrap()
    };
    let store = open();
    store.enter_view(GROUP, Epoch(5), Role::Normal).unwrap();
    let body = Bytes::from(copal_testkit::Random::new(1).bytes(300_000));
    for (number, name, body) in [(1, "a", body.clone()), (2, "b", bytes(40_000))] {
        let created = store.apply(GROUP, Epoch(5), create(number, name, body)).unwrap();
        assert_eq!(created, Ok(Role::Normal));
    }
    // Into tables and value objects: damage in a log keeps the store from opening.
    let extents = store.kv().open_keyspace("extents").unwrap().unwrap();
    extents.compact_range((Bound::Unbounded, Bound::Unbounded)).unwrap();
    drop(extents);
    assert_eq!(damaged(&store), []);
    close(store);
    let page = |at| device.read_now(at, AlignedBuf::zeroed(4096)).unwrap();
    let is_there = |at: &u64| page(*at).windows(64).any(|bytes| bytes == &body[150_000..150_064]);
    let places: Vec<u64> = (0..128 << 20).step_by(4096).filter(is_there).collect();
    assert!(!places.is_empty());
    for at in places {
        let mut buf = page(at);
        let within = buf.windows(64).position(|bytes| bytes == &body[150_000..150_064]).unwrap();
        buf[within] ^= 1;
        let io = Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Commit };
        assert!(device.submit(vec![io]).wait()[0].result.is_ok());
    }
    let store = open();
    assert_eq!(damaged(&store), [GROUP]);
    store.note_damage(GROUP).unwrap();
    assert_eq!(store.drop_damaged(GROUP).unwrap().files, 1);
    assert_eq!(damaged(&store), []);
    close(store);
}

#[test]
fn a_member_lists_the_removed_volumes_of_a_group() {
    let store = member_with(Role::Normal, Arc::new(ManualClock::new(NOW)));
    let others = [VolumeId::in_group(GROUP, 77), VolumeId::in_group(GroupId(GROUP.0 + 1), 5)];
    assert_eq!(store.removed_volumes(GROUP).unwrap(), []);
    let quota_bytes = Some(100);
    store.note_volume(vid(), VolumeNotice::Live { quota_bytes }).unwrap();
    assert_eq!(store.removed_volumes(GROUP).unwrap(), []);
    for gone in [vid(), others[0], others[1]] {
        store.note_volume(gone, VolumeNotice::Removed).unwrap();
    }
    let mut gone = store.removed_volumes(GROUP).unwrap();
    gone.sort_unstable();
    let mut expected = vec![vid(), others[0]];
    expected.sort_unstable();
    assert_eq!(gone, expected);
    let late = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(late, Err(OperationError::Refused(MemberAnswer::VolumeGone)));
}

/// Symptom: creates in a volume ran into their deadlines for ever. Cause: the master had died during the
/// volume's removal, and the members obeyed the mark that it had left. Fix: a mark expires after a minute.
#[test]
fn an_undecided_removal_expires() {
    let clock = Arc::new(ManualClock::new(NOW));
    let store = member_with(Role::Normal, Arc::clone(&clock));
    let quota_bytes = Some(100);
    store.note_volume(vid(), VolumeNotice::Live { quota_bytes }).unwrap();
    store.note_volume(vid(), VolumeNotice::Removing).unwrap();
    let busy = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(busy, Err(OperationError::Refused(MemberAnswer::Busy)));
    clock.set(NOW + 60_000);
    let taken = store.apply(GROUP, Epoch(5), create(1, "a", bytes(10))).unwrap();
    assert_eq!(taken, Ok(Role::Normal));
    let beyond = store.apply(GROUP, Epoch(5), create(2, "b", bytes(95))).unwrap();
    assert!(matches!(beyond, Err(OperationError::Refused(MemberAnswer::QuotaExceeded { .. }))), "{beyond:?}");
}

/// Symptom: a restarted member could count as in sync although it may lack operations, and no test noticed.
/// Cause: the boot was tested for the rows that it writes, and not for its change of roles. Fix: this test,
/// which also reads the disk.
#[test]
fn after_a_boot_no_group_is_in_sync() {
    let store = member(Role::Normal);
    let other = GroupId(4);
    store.enter_view(other, Epoch(5), Role::Recovering).unwrap();
    let identity = crate::format::MemberIdentity {
        cluster: [1; 16],
        server: [2; 16],
        disk: [3; 16],
        incarnation: copal_volume::group::Incarnation(0),
        term: copal_volume::group::Term(0),
    };
    store.assign(&identity).unwrap();
    assert_eq!(store.membership(GROUP).unwrap().unwrap().role, Role::Normal);
    store.boot(7).unwrap();
    let roles = |store: &MemberStore| -> Vec<Role> {
        let all = store.memberships().unwrap();
        let shown = all.iter().map(|row| store.membership(row.group).unwrap().unwrap().role);
        assert_eq!(shown.collect::<Vec<_>>(), all.iter().map(|row| row.role).collect::<Vec<_>>());
        all.iter().map(|row| row.role).collect()
    };
    assert_eq!(roles(&store), [Role::Recovering, Role::Recovering]);
    // It was in sync in the previous epoch: only VOL-15 can set it in sync again.
    let before = store.membership(GROUP).unwrap().unwrap();
    assert_eq!((before.last_in_sync, before.epoch), (Epoch(5), Epoch(5)));
}

/// Symptom: a create could be accepted with a piece missing, cut or foreign, and no test noticed. Cause: all
/// tests staged all pieces. Fix: this test.
#[test]
fn a_create_lacks_no_piece() {
    let store = member(Role::Normal);
    let body = bytes(9 << 20);
    let pieces: Vec<Bytes> = (0..3)
        .map(|index| body.slice(index * (4 << 20)..((index + 1) * (4 << 20)).min(body.len())))
        .collect();
    let staged = |number| GroupOperation::Create {
        vid: vid(),
        name: Bytes::from_static(b"large"),
        head: head(number, &body),
        body: BodySource::Staged,
    };
    let missing = Err(OperationError::Refused(MemberAnswer::Missing));
    let apply = |number| store.apply(GROUP, Epoch(5), staged(number)).unwrap();
    assert_eq!(apply(1), missing, "nothing was staged");
    for lacking in 0..3_u32 {
        let number = 10 + u64::from(lacking);
        for (index, piece) in (0..).zip(&pieces).filter(|(index, _)| *index != lacking) {
            store.stage(vid(), fid(number), index, piece.clone()).unwrap();
        }
        assert_eq!(apply(number), missing, "piece {lacking} is missing");
        // Its length is not that of its place.
        store.stage(vid(), fid(number), lacking, bytes(5000)).unwrap();
        assert_eq!(apply(number), missing, "piece {lacking} is short");
        assert_eq!(store.stat(vid(), b"large", None), Err(VolumeError::NotFound));
    }
    store.stage(vid(), fid(10), 0, pieces[0].clone()).unwrap();
    assert_eq!(apply(10), Ok(Role::Normal));
    assert!(store.get(vid(), b"large", 0..u64::MAX, None).unwrap().0 == body);
}
