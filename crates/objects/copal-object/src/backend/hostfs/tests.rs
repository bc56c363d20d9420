//! A store of files on a full file system, or beside foreign files.

use super::{
    FileSpace, HostFiles,
    sim_directory::{IgnoredSync, SimContents, SimDirectory},
};
use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, ReadCheck, Store, StoreError,
    StoreOpenError, Txn,
    format::superblock::BACKEND_HOSTFS,
    open::{self, OpenOverrides, StoreBackend},
    state::entropy::EntropySource,
};
use bytes::Bytes;
use copal_device::{Device, IoClass};
use std::{path::Path, sync::Arc};

fn files(sim: &SimDirectory) -> Arc<HostFiles> {
    HostFiles::on(Box::new(sim.clone()), false)
}

fn open(sim: &SimDirectory) -> Store {
    let (inner, _) =
        open::open(StoreBackend::Files(files(sim)), &OpenOptions::default(), OpenOverrides::default())
            .unwrap();
    Store { inner }
}

fn made() -> SimDirectory {
    let sim = SimDirectory::new(SimContents::default(), IgnoredSync::No);
    let options = MkfsOptions { journal_bytes: Some(256 * 4096), ..MkfsOptions::default() };
    let device: Arc<dyn Device> = files(&sim);
    open::mkfs::mkfs(
        &device,
        &options,
        &mut EntropySource::Seed(copal_testkit::Random::new(1)),
        BACKEND_HOSTFS,
    )
    .unwrap();
    sim
}

fn commit(store: &Store, ops: Vec<Op>) -> Result<(), StoreError> {
    let after = Vec::new();
    store.commit(Txn::new().ops(ops).after_all(after), Ack::Durable).wait().map(drop)
}

fn create(store: &Store, id: u64, bytes: usize) -> Result<(), StoreError> {
    let id = ObjectId(id);
    let opts = CreateOptions { kind: ObjectKind::Plain, check: ReadCheck::Pages, ..CreateOptions::default() };
    let data = Bytes::from(vec![id.0 as u8; bytes]);
    commit(store, vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }])
}

fn delete(store: &Store, id: u64) -> Result<(), StoreError> {
    commit(store, vec![Op::Delete { id: ObjectId(id) }])
}

/// Symptom: on a file system with no byte left the first checkpoint failed, and with it every later delete.
/// Nothing could be forgotten or pruned, although the manual promises it.
/// Cause: the space that a store keeps for deletes was counted but not allocated; another program took it.
/// Fix: a file `reserve` holds the space and releases it to writes that find no blocks.
#[test]
fn a_store_deletes_checkpoints_and_opens_where_not_one_byte_is_left() {
    let sim = made();
    let store = open(&sim);
    for id in 1..=400 {
        create(&store, id, 8192).unwrap();
    }
    sim.leave_free(0);
    for id in 1..=200 {
        if id % 20 == 1 {
            // Other programs take the freed space.
            sim.leave_free(0);
            store.checkpoint().unwrap();
        }
        delete(&store, id).unwrap();
    }
    sim.leave_free(0);
    store.close().unwrap();
    let store = open(&sim);
    sim.leave_free(0);
    let full = create(&store, 1000, 64 << 20);
    assert!(matches!(full, Err(StoreError::NoSpace { .. })), "{full:?}");
    (201..=399).for_each(|id| delete(&store, id).unwrap());
    store.close().unwrap();
    sim.leave_free(1 << 30);
    let store = open(&sim);
    create(&store, 1000, 8 << 20).unwrap();
    let last = store.read(ObjectId(400), 0..8192, IoClass::Foreground).wait().unwrap();
    assert!(last.iter().all(|&byte| byte == 400u16 as u8));
}

/// Symptom: an ordinary commit failed in the middle on a file system that other programs had filled
/// meanwhile, and the store took no more writes until it was reopened.
/// Cause: the host's free space was queried when the store was opened, and again only when that amount was
/// used up.
/// Fix: it is queried again every 4 MiB; earlier admitted writes find their blocks in the reserve.
#[test]
fn commits_end_cleanly_when_others_fill_the_file_system() {
    let sim = made();
    let store = open(&sim);
    create(&store, 1, 8192).unwrap();
    sim.leave_free(0);
    let full = (2..100).find_map(|id| create(&store, id, 1 << 20).err());
    assert!(matches!(full, Some(StoreError::NoSpace { .. })), "{full:?}");
    delete(&store, 1).unwrap();
    sim.leave_free(1 << 30);
    create(&store, 200, 8 << 20).unwrap();
    store.close().unwrap();
}

/// Symptom: on a file system with less than 32 MiB free at the opening, other programs filled it and a commit
/// failed in the middle. The store took no more writes until it was reopened.
/// Cause: the host was queried every 4 MiB, more than the reserve of such a store.
/// Fix: at most half of the reserve is admitted between two queries; without a reserve each operation
/// queries.
#[test]
fn a_small_file_system_that_others_fill_ends_commits_cleanly_as_well() {
    for free_mib in [2, 8, 24] {
        let sim = made();
        sim.leave_free(free_mib << 20);
        let store = open(&sim);
        create(&store, 1, 8192).unwrap();
        for bytes in [8192, 60 << 10] {
            sim.leave_free(0);
            let full = (2..1000).find_map(|id| create(&store, id * 100_000 + bytes as u64, bytes).err());
            assert!(matches!(full, Some(StoreError::NoSpace { .. })), "{free_mib} MiB: {full:?}");
        }
        sim.leave_free(1 << 30);
        create(&store, 2, 8 << 20).unwrap();
        delete(&store, 1).unwrap();
        store.close().unwrap();
    }
}

/// Symptom: a store under a quota used up its reserve and then failed in the middle of a commit.
/// Cause: the free space that the file system reports does not include the quota.
/// Fix: a host that had no space once counts as full until the reserve can be refilled.
#[test]
fn a_host_that_says_more_than_it_gives_is_believed_once() {
    let sim = made();
    let store = open(&sim);
    create(&store, 1, 8192).unwrap();
    sim.leave_free(0);
    sim.set_quota();
    let mut ids = 2..1000;
    for _ in 0..3 {
        let full = ids.find_map(|id| create(&store, id, 1 << 20).err());
        assert!(matches!(full, Some(StoreError::NoSpace { .. })), "{full:?}");
    }
    delete(&store, 1).unwrap();
    sim.leave_free(1 << 30);
    create(&store, 3000, 8 << 20).unwrap();
    store.close().unwrap();
}

/// Symptom: in a directory whose host was nearly full, a commit queried the host without end, and no other
/// thread made progress.
/// Cause: the pages for the operation were available and those for a longer checkpoint were not, and the
/// answer for both together was that there are enough.
/// Fix: a query counts as progress only if the host has more than before.
#[test]
fn a_commit_that_lacks_room_for_a_longer_checkpoint_is_refused_at_once() {
    for before in 0..48 {
        let sim = made();
        sim.leave_free(2 << 20);
        let store = open(&sim);
        (0..before).for_each(|id| create(&store, 10_000 + id, 100).unwrap());
        sim.leave_free(100 * 4096);
        let full = (1..300).find_map(|id| create(&store, id, 100).err());
        assert!(matches!(full, Some(StoreError::NoSpace { .. })), "{full:?}");
        delete(&store, 1).unwrap();
    }
}

/// Between the admission of a write and the write itself the file system still reports its space as free.
#[test]
fn admitted_unwritten_bytes_are_not_free() {
    let sim = made();
    sim.leave_free(4 << 20);
    let mut space = FileSpace::on(files(&sim), &[], 4096, u64::MAX);
    space.query_host(0);
    assert_eq!(space.free_pages(), 1024);
    space.query_host(4096 * 1000);
    assert_eq!(space.free_pages(), 24);
}

/// Symptom: no test would have noticed a store that stays full after other programs freed a little space.
/// Its reserve may be larger than such a small amount of free space allows, and would never grow.
#[test]
fn a_host_that_was_full_is_believed_again_when_the_reserve_can_grow() {
    let sim = made();
    sim.leave_free(64 << 20);
    let store = open(&sim);
    create(&store, 1, 8192).unwrap();
    sim.leave_free(0);
    let full = (2..1000).find_map(|id| create(&store, id, 100 << 10).err());
    assert!(matches!(full, Some(StoreError::NoSpace { .. })), "{full:?}");
    for mib in 1..16 {
        sim.leave_free((2 << 20) + (mib << 20));
        create(&store, 1000 + mib, 1 << 20).unwrap();
    }
}

/// Symptom: a directory whose host had no block for an admitted write counted as a failed disk.
/// Cause: it recorded that a write had failed, but not the reason.
/// Fix: every later write names the full host, and an opening recovers.
#[test]
fn a_directory_whose_host_ran_full_in_a_write_says_so_until_it_is_reopened() {
    let sim = made();
    sim.leave_free(4 << 20);
    sim.set_quota();
    let store = open(&sim);
    create(&store, 1, 8192).unwrap();
    sim.leave_free(0);
    for id in 2..5 {
        let refused = create(&store, id, 60 << 10).unwrap_err();
        assert!(refused.is_host_full(), "{refused}");
    }
    assert!(store.close().unwrap_err().is_host_full());
    drop(store);
    sim.leave_free(1 << 30);
    let store = open(&sim);
    create(&store, 2, 60 << 10).unwrap();
    let first = store.read(ObjectId(1), 0..8192, IoClass::Foreground).wait().unwrap();
    assert!(first.iter().all(|&byte| byte == 1));
}

#[test]
fn files_are_made_again_under_numbers_of_removed_ones() {
    let sim = made();
    let store = open(&sim);
    for id in 1..=300 {
        create(&store, id, 8192).unwrap();
        if id > 2 {
            delete(&store, id - 2).unwrap();
        }
    }
    let largest = numbers_of(&sim).last().copied();
    assert!(largest < Some(40), "{largest:?}");
    store.close().unwrap();
    drop(store);
    let store = open(&sim);
    create(&store, 301, 8192).unwrap();
    assert!(numbers_of(&sim).last() < Some(&40));
}

fn numbers_of(sim: &SimDirectory) -> Vec<u32> {
    files(sim).numbers().unwrap()
}

fn real(dir: &Path) -> Result<Store, StoreOpenError> {
    Store::open_dir(dir, &OpenOptions::default()).map(|(store, _)| store)
}

/// Symptom: a store with a file `objects/ffffff` panicked in its next commit, so did one with
/// `objects/FFFFFF`; one with a directory `objects/000003` did not open.
/// Cause: every name that reads as a number counted as a file of the store, and the largest as the last one
/// given.
/// Fix: a name counts if the store would have written it this way and it is a file; others are left alone.
#[test]
fn names_that_are_not_the_stores_are_left_alone() {
    let home = tempfile::tempdir().unwrap();
    Store::mkfs_dir(home.path(), &MkfsOptions::default()).unwrap();
    let objects = home.path().join("objects");
    let foreign = ["+00007", "00000A", "a", "0000009", "readme", "000000", "FFFFFE"];
    for name in foreign {
        std::fs::write(objects.join(name), "not ours").unwrap();
    }
    std::fs::write(objects.join("ffffff"), "left by a crash").unwrap();
    std::fs::create_dir(objects.join("000003")).unwrap();
    std::os::unix::fs::symlink(home.path().join("elsewhere"), objects.join("000004")).unwrap();
    std::fs::write(home.path().join("elsewhere"), "not ours").unwrap();
    for round in 0..3 {
        let store = real(home.path()).unwrap();
        for id in 1..=8 {
            create(&store, round * 8 + id, 8192).unwrap();
        }
        store.close().unwrap();
    }
    for name in foreign {
        let content = std::fs::read_to_string(objects.join(name)).unwrap();
        assert_eq!(content, "not ours", "{name}");
    }
    assert!(objects.join("000003").is_dir());
    assert_eq!(std::fs::read_to_string(home.path().join("elsewhere")).unwrap(), "not ours");
    assert!(!objects.join("ffffff").exists());
}

/// Symptom: any local user could take the lock of a store of files, and the owner could not open it.
/// Cause: the file `lock` was readable for all, and a user able to open a file may lock it.
/// Fix: the file is accessible to its owner only; that of an older store is changed when it is opened.
#[test]
fn the_lock_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let home = tempfile::tempdir().unwrap();
    Store::mkfs_dir(home.path(), &MkfsOptions::default()).unwrap();
    let lock = home.path().join("lock");
    let mode = || std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    std::fs::set_permissions(&lock, std::fs::Permissions::from_mode(0o644)).unwrap();
    real(home.path()).unwrap();
    assert_eq!(mode(), 0o600);

    std::fs::rename(&lock, home.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(home.path().join("moved"), &lock).unwrap();
    assert!(real(home.path()).is_err(), "a link may point to a file that another user has locked");
}

#[test]
fn a_lock_of_another_user_is_refused() {
    let home = tempfile::tempdir().unwrap();
    Store::mkfs_dir(home.path(), &MkfsOptions::default()).unwrap();
    let lock = home.path().join("lock");
    if std::os::unix::fs::chown(&lock, Some(12_345), None).is_err() {
        // Only root may change the owner of a file.
        return;
    }
    let error = real(home.path()).unwrap_err();
    assert!(error.to_string().contains("another user"), "{error}");
}
