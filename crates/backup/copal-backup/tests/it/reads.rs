//! Reads of a store by restores, checks, prunes and exports: each hands over the ranges of a pack together.

use crate::mortal_store::{MortalStore, ReadCounts};
use crate::world::*;
use copal_backup::serve::{self, AlwaysOpen, Lender, ServeCache};
use copal_backup::*;
use copal_data::LocalStore;
use copal_volume::{ReadOptions, VolumeStore};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn opened(store: &MortalStore) -> Repository {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap()
}

/// Name and size of each pack of chunks.
fn packs_of_chunks(store: &LocalStore) -> Vec<(Vec<u8>, u64)> {
    let mut packs = Vec::new();
    for (volume, vid) in store.list_volumes("", None, 1000).unwrap() {
        if volume.starts_with("pds-") {
            let files = store.list(vid, b"", None, 1000, &ReadOptions::default()).unwrap();
            packs.extend(files.into_iter().map(|(name, info)| (name.to_vec(), info.size)));
        }
    }
    packs
}

/// Bytes of all packs, recipes included.
fn bytes_of_packs(store: &LocalStore) -> u64 {
    let is_pack = |name: &[u8]| name.len() == 16;
    files(store).into_iter().filter(|(_, name, _)| is_pack(name)).map(|(_, _, body)| body.len() as u64).sum()
}

/// Backups of a disk of random bytes that is changed in many small places, day by day: the chunks of the last
/// snapshot lie in small runs in all packs.
fn scattered(store: &LocalStore, mib: usize, days: u64) -> (Vec<SnapshotId>, Disk) {
    let repository = init(store);
    let mut disk = Disk::new(mib * MIB);
    Random::new(1).fill(&mut disk.bytes);
    let mut made = vec![back_up(&repository, "web", &disk, false).snapshot];
    for day in 0..days {
        let mut random = Random::new(100 + day);
        disk.changed.clear();
        for _ in 0..mib * 2 {
            let mut data = vec![0; 30_000];
            random.fill(&mut data);
            disk.write(random.index(disk.bytes.len() - data.len()), &data);
        }
        made.push(back_up(&repository, "web", &disk, true).snapshot);
    }
    (made, disk)
}

/// Symptom: the restore of a snapshot in 40 packs read one chunk after the other, 16,747 reads for 631 MB.
/// Cause: only chunks of one segment of 2 MiB that were neighbours in their pack were read together. Fix: the
/// chunks of a large part of the disk are located together, and each pack gets one call.
#[test]
fn a_restore_reads_each_pack_with_one_call() {
    let inner = embedded_store();
    let (made, disk) = scattered(&inner, 24, 4);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = opened(&store);
    let packs = packs_of_chunks(&inner).len() as u64;
    assert!(packs >= 5, "{packs}");
    store.take_counts();
    let target = MemoryTarget::default();
    let newest = made[made.len() - 1];
    let summary =
        repository.restore(&RestoreRequest::new(newest), &target, &Silent, &CancelFlag::new()).unwrap();
    assert!(target.bytes() == disk.bytes);
    let counts = store.take_counts();
    assert!(summary.chunks > 1000, "{summary:?}");
    // The disk is one part. Each backup has a pack of recipes, and the page is read before them.
    let recipes = made.len() as u64 + 1;
    assert!(counts.calls <= packs + recipes, "{counts:?}");
    // The end of each pack, manifest and root.
    assert!(counts.gets <= packs + recipes + 2, "{counts:?}");
    assert!(counts.range_bytes < summary.fetched_bytes + MIB as u64 / 2, "{counts:?}");
    // An ordered target has smaller parts.
    let request = RestoreRequest { memory_bytes: 12 << 20, ..RestoreRequest::new(newest) };
    let ordered = MemoryTarget::ordered();
    repository.restore(&request, &ordered, &Silent, &CancelFlag::new()).unwrap();
    assert!(ordered.bytes() == disk.bytes);
    let counts = store.take_counts();
    assert!(counts.calls > packs + recipes && counts.calls <= 4 * packs + recipes, "{counts:?}");
}

/// Symptom: `check --read-data` read 2.2 GiB of a repository of 620 MB. Fix: each pack is read once, whole.
#[test]
fn a_check_reads_each_pack_once() {
    let inner = embedded_store();
    scattered(&inner, 24, 2);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = opened(&store);
    repository.check(ReadData::No, &Silent, &CancelFlag::new()).unwrap();
    let other = store.take_counts();
    let report = check(&repository);
    assert!(report.is_clean(), "{report:?}");
    let counts = store.take_counts();
    let (packs, bytes) = (packs_of_chunks(&inner), bytes_of_packs(&inner));
    // Beyond that, the walk reads recipes.
    let read = counts.range_bytes - other.range_bytes;
    assert!(read <= bytes && read > bytes / 100 * 99, "{read} of {bytes}");
    let calls: u64 = packs.iter().map(|(_, size)| size.div_ceil(4 << 20)).sum();
    // Each snapshot has a pack of recipes.
    assert!(counts.calls - other.calls <= calls + 3, "{counts:?}, {other:?}");
}

/// A verification decodes each frame of a snapshot once.
#[test]
fn a_verification_reads_each_pack_with_one_call() {
    let inner = embedded_store();
    let (made, _) = scattered(&inner, 16, 3);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = opened(&store);
    store.take_counts();
    let report = repository.verify(made[3], &Silent, &CancelFlag::new()).unwrap();
    assert!(report.is_clean(), "{report:?}");
    let counts = store.take_counts();
    // Each backup has a pack of recipes.
    assert!(counts.calls <= (packs_of_chunks(&inner).len() + made.len()) as u64, "{counts:?}");
    assert_eq!(report.decoded_frames, report.references);
}

/// Symptom: a prune that rewrites packs took 29,071 reads. Cause: frames were read one after another. Fix: the
/// live frames of a pack are read ahead together.
#[test]
fn a_prune_reads_the_live_frames_of_a_pack_together() {
    let inner = embedded_store();
    let (made, disk) = scattered(&inner, 24, 3);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = opened(&store);
    repository.forget(&made[..3]).unwrap();
    let before = packs_of_chunks(&inner);
    store.take_counts();
    let pruned = prune(&repository);
    let counts = store.take_counts();
    assert!(pruned.rewritten_packs >= 4, "{pruned:?}");
    // At most 4 MiB of frames are held at once.
    let calls: u64 = before.iter().map(|(_, size)| size.div_ceil(3 << 20)).sum();
    assert!(counts.calls <= calls + 8, "{counts:?}, {calls}");
    assert!(counts.gets <= 30, "{counts:?}");
    assert!(restore(&repository, made[3]) == disk.bytes);
}

/// One range of many cannot be read: its neighbours are, and the damage is that of one frame.
#[test]
fn a_bad_byte_costs_one_frame() {
    let inner = embedded_store();
    let (made, _) = scattered(&inner, 8, 0);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = opened(&store);
    let (name, _) = packs_of_chunks(&inner).remove(0);
    store.break_byte(&name, 5_000_000);
    let report = repository.verify(made[0], &Silent, &CancelFlag::new()).unwrap();
    assert_eq!((report.damages.len(), report.more_damages), (1, 0), "{:?}", report.damages);
    let checked = check(&repository);
    let of_frames = checked.damages.iter().filter(|damage| damage.detail.contains("does not open")).count();
    // The block is lost as a whole: the frames in it are noted one by one.
    assert!(of_frames >= 1 && checked.damages.len() == of_frames + 1, "{:?}", checked.damages);
    let error = try_restore(&repository, made[0]).unwrap_err();
    assert_eq!(error.exit_code(), 20, "{error}");
    // A lost frame is stored anew by the next backup, and then served from there.
    let mut disk = Disk::new(8 * MIB);
    Random::new(1).fill(&mut disk.bytes);
    back_up(&repository, "web", &disk, false);
    assert!(restore(&repository, made[0]) == disk.bytes);
}

/// Copies the files of `from` to `to`, as changes of another host become visible.
fn follow(from: &LocalStore, to: &LocalStore) {
    let (theirs, ours) = (files(from), files(to));
    for (volume, name, body) in theirs.iter().filter(|file| !ours.contains(file)) {
        let vid = to.open_volume(volume).unwrap();
        to.put(vid, name, body.clone().into(), &Default::default()).unwrap();
    }
    for (volume, name, _) in ours.iter().filter(|file| !theirs.contains(file)) {
        let vid = to.open_volume(volume).unwrap();
        let info = to.stat(vid, name, &ReadOptions::default()).unwrap();
        to.delete(vid, name, info.fid).unwrap();
    }
}

/// Backs up a disk twice, with 40 changes between, and forgets the first snapshot: a prune then has packs to rewrite.
/// Returns the disk and its second snapshot.
fn forgotten_first(repository: &Repository, seed: u64) -> (Disk, SnapshotId) {
    let mut disk = Disk::new(24 * MIB);
    Random::new(seed).fill(&mut disk.bytes);
    let first = back_up(repository, "web", &disk, false).snapshot;
    let mut random = Random::new(seed + 1);
    disk.changed.clear();
    for _ in 0..40 {
        let mut data = vec![0; 40_000];
        random.fill(&mut data);
        disk.write(random.index(disk.bytes.len() - data.len()), &data);
    }
    let second = back_up(repository, "web", &disk, true).snapshot;
    repository.forget(&[first]).unwrap();
    (disk, second)
}

/// Another host prunes while a restore reads: packs vanish, and their chunks are found where they are now.
#[test]
fn a_prune_beside_a_restore_moves_chunks_and_loses_none() {
    let inner = embedded_store();
    let repository = init_as(&MortalStore::replicated(inner.clone()), FLEET);
    let (disk, second) = forgotten_first(&repository, 3);
    let other_host = copy(&inner);
    let store = MortalStore::replicated(inner.clone());
    let reader = opened(&store);
    let pruned = prune(&opened(&MortalStore::replicated(other_host.clone())));
    assert!(pruned.rewritten_packs > 1, "{pruned:?}");
    // Behind the recipes and some chunks of the first pack.
    store.after_answers(12, move || follow(&other_host, &inner));
    assert!(restore(&reader, second) == disk.bytes);
    // They are located again together: the chunks of three packs are not fetched one by one.
    let counts = store.take_counts();
    assert!(counts.gets < 40 && counts.calls >= 5, "{counts:?}");
}

/// Ctrl-C ends a restore at the next answer of the store.
#[test]
fn a_cancelled_restore_takes_no_further_answer() {
    for is_ordered in [false, true] {
        let inner = embedded_store();
        let (made, _) = scattered(&inner, 24, 3);
        let store = MortalStore::new(inner, i64::MAX);
        let repository = opened(&store);
        store.take_counts();
        let cancel = CancelFlag::new();
        let set = cancel.clone();
        store.after_answers(20, move || set.cancel());
        let target = if is_ordered { MemoryTarget::ordered() } else { MemoryTarget::default() };
        let outcome = repository.restore(&RestoreRequest::new(made[3]), &target, &Silent, &cancel);
        assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
        let ReadCounts { ranges, .. } = store.take_counts();
        assert!((20..=21).contains(&ranges), "{ranges}");
    }
}

/// A sequential reader of an export gets more of the disk with each call; random reads fetch their own bytes only.
#[test]
fn a_sequential_reader_is_ahead_and_a_random_one_is_not() {
    let inner = embedded_store();
    let (made, disk) = scattered(&inner, 24, 3);
    let store = MortalStore::new(inner.clone(), i64::MAX);
    let repository = Arc::new(opened(&store));
    let lender: Arc<dyn Lender> = Arc::new(AlwaysOpen(repository));
    let packs = packs_of_chunks(&inner).len() as u64;
    let served = |cache| serve::serve(&lender, &Arc::new(ServeCache::new(cache)), made[3]).unwrap().remove(0);
    let one = served(64 << 20);
    store.take_counts();
    let mut buf = vec![0; 256 << 10];
    for at in (0..disk.bytes.len()).step_by(buf.len()) {
        one.read_at(at as u64, &mut buf).unwrap();
        assert!(buf == disk.bytes[at..at + buf.len()]);
    }
    let counts = store.take_counts();
    // Parts of .25, 2, 2, 4, 8 and 16 MiB.
    assert!(counts.calls <= 6 * packs + 8, "{counts:?}");
    assert!(counts.bytes() < 27 * MIB as u64, "{counts:?}");
    let random_disk = served(64 << 20);
    let mut random = Random::new(9);
    let mut page = [0; 4096];
    random_disk.read_at(0, &mut page).unwrap();
    store.take_counts();
    for _ in 0..20 {
        // Far from each other.
        let at = random.index(disk.bytes.len() / 4096) * 4096;
        random_disk.read_at(at as u64, &mut page).unwrap();
        assert!(page == disk.bytes[at..at + 4096]);
    }
    let counts = store.take_counts();
    assert!(counts.bytes() < 20 * 16 * MIB as u64 / 4, "{counts:?}");
}

/// Symptom: of 28,429 reads of a prune, 12,444 were blocks of the index. Cause: each frame that was copied was looked
/// up, in case that another frame of its id is known; so was each frame of a removed pack. Fix: the walk counts
/// packs whose frames are the only ones of their ids, and those need no look-up.
#[test]
fn a_prune_looks_up_no_frame_that_is_the_only_one_of_its_id() {
    let store = embedded_store();
    let index = engine_in_memory();
    let home = || IndexHome::Kv(index.clone());
    let repository = Repository::init(Arc::new(store.clone()), home(), &insecure()).unwrap();
    let mut disk = Disk::new(40 * MIB);
    Random::new(5).fill(&mut disk.bytes);
    let first = back_up(&repository, "web", &disk, false).snapshot;
    // Two packs have no live frame then, and one has some.
    Random::new(6).fill(&mut disk.bytes[..36 * MIB]);
    let second = back_up(&repository, "web", &disk, false).snapshot;
    repository.forget(&[first]).unwrap();
    let before = index.stats().gets;
    let pruned = prune(&repository);
    assert!(pruned.removed_packs >= 2 && pruned.rewritten_packs >= 1, "{pruned:?}");
    assert!(pruned.live_frames > 2000, "{pruned:?}");
    let gets = index.stats().gets - before;
    // Of the rewritten packs, each frame: rows of live ones lead to the new pack by then.
    let rewritten = 1000 * pruned.rewritten_packs;
    assert!(gets < rewritten, "{gets}");
    assert!(restore(&repository, second) == disk.bytes);
    // The index has no row of a removed frame: the next backup stores the bytes anew.
    let mut again = Disk::new(40 * MIB);
    Random::new(5).fill(&mut again.bytes);
    let counts = back_up(&repository, "db", &again, false).counts;
    assert!(counts.new_bytes > 30 * MIB as u64, "{counts:?}");
    assert!(check(&repository).is_clean());
}

/// Symptom: the restore of a snapshot whose packs a prune had rewritten took 9,422 reads for 512 MiB, 7,582 of them of
/// one block of the index. Cause: the row of each chunk that is no longer at its place was looked up by itself. Fix:
/// the rows of all such chunks of a part of the disk are looked up in one call, by key.
#[test]
fn moved_chunks_are_looked_up_together() {
    let store = embedded_store();
    let index = engine_in_memory();
    let home = || IndexHome::Kv(index.clone());
    let repository = Repository::init(Arc::new(store.clone()), home(), &insecure()).unwrap();
    let (disk, second) = forgotten_first(&repository, 7);
    let pruned = prune(&repository);
    assert!(pruned.rewritten_packs >= 1, "{pruned:?}");
    index.flush().unwrap();
    let before = index.stats();
    assert!(restore(&repository, second) == disk.bytes);
    let after = index.stats();
    let gets = after.gets - before.gets;
    assert!(gets > 500, "{gets} chunks have moved");
    let pages = |stats: &copal_kv::Stats| stats.data_block_reads + stats.index_page_reads;
    let read = pages(&after) - pages(&before);
    let together = after.batched_reads - before.batched_reads;
    // Single look-ups of packs and names read the others.
    assert!(together * 4 >= read * 3 && read > 0, "{together} of {read} pages in calls with others");
    let calls = after.read_batches - before.read_batches;
    assert!(calls <= gets / 32, "{calls} calls for {gets} look-ups");
}

/// Symptom: each window of a restore began with two reads for each of its packs, one after another, all over the disk.
/// Cause: the head and the footer of each pack were read by themselves. Fix: those of all packs of a window are handed
/// over together, so that the disk reads them in its order.
#[test]
fn footers_of_the_packs_of_a_window_are_read_together() {
    let store = embedded_store();
    let index = engine_in_memory();
    let home = || IndexHome::Kv(index.clone());
    let repository = Repository::init(Arc::new(store.clone()), home(), &insecure()).unwrap();
    let mut disk = Disk::new(3 * MIB);
    let mut last = None;
    for day in 0..30 {
        Random::new(day).fill(&mut disk.bytes[day as usize * 100_000..]);
        last = Some(back_up(&repository, "web", &disk, false).snapshot);
    }
    drop(repository);
    store.kv().flush().unwrap();
    let repository = Repository::open(Arc::new(store.clone()), home(), &Unlock::Insecure).unwrap();
    let before = store.kv().stats();
    assert!(restore(&repository, last.unwrap()) == disk.bytes);
    let after = store.kv().stats();
    let reads = after.device_reads - before.device_reads;
    let together = after.batched_reads - before.batched_reads;
    let packs = packs_of_chunks(&store).len() as u64;
    assert!(packs >= 30, "{packs} packs");
    assert!(together >= 2 * packs, "{together} of {reads} reads in calls with others, {packs} packs");
}
