//! Random histories of backups, forgets, prunes, reopenings and crashes: every published snapshot can be
//! restored, and after a prune the repository holds exactly the chunks that snapshots need.
//!
//! The chunking profile cuts at fixed places, so that an oracle without keys can count the chunks.

use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::*;
use copal_chunk::{Chunker, SEGMENT_BYTES, chunks_of, split};
use copal_data::LocalStore;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

const DISK_BYTES: usize = 5 * SEGMENT_BYTES / 2;

struct Model {
    layout: Layout,
    store: LocalStore,
    repository: Repository,
    disks: Vec<Disk>,
    /// The VM of each published snapshot, and its bytes.
    snapshots: BTreeMap<SnapshotId, (usize, Vec<u8>)>,
    dice: Random,
}

impl Model {
    fn new(seed: u64, layout: Layout) -> Model {
        let store = embedded_store();
        let options = InitOptions { layout, profile: ChunkProfile::Fixed16K, ..insecure() };
        let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
        let disks = vec![Disk::new(DISK_BYTES); 3];
        Model { layout, store, repository, disks, snapshots: BTreeMap::new(), dice: Random::new(seed) }
    }

    /// Writes runs of blocks of a small alphabet, so that disks share much.
    fn mutate(&mut self, vm: usize) {
        for _ in 0..self.dice.below(6) + 1 {
            let at = self.dice.below(DISK_BYTES as u64 / 4096) as usize * BLOCK;
            let length = (self.dice.below(40) as usize + 1) * BLOCK;
            if self.dice.below(4) == 0 {
                self.disks[vm].discard(at, length);
            } else {
                let mut data = vec![0; length];
                Random::new(self.dice.below(12)).fill(&mut data);
                self.disks[vm].write(at, &data);
            }
        }
    }

    fn name(vm: usize) -> String {
        format!("vm{vm}")
    }

    fn back_up(&mut self, vm: usize) {
        let changed = self.dice.below(2) == 0;
        let mut request = request(&Model::name(vm), &self.disks[vm], changed);
        request.full = self.dice.below(8) == 0;
        let summary = self.repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
        self.disks[vm].changed.clear();
        self.snapshots.insert(summary.snapshot, (vm, self.disks[vm].bytes.clone()));
    }

    fn forget_some(&mut self) {
        let doomed: Vec<_> = self.snapshots.keys().copied().filter(|_| self.dice.below(3) == 0).collect();
        let summary = self.repository.forget(&doomed).unwrap();
        assert_eq!(summary.forgotten.len(), doomed.len());
        doomed.iter().for_each(|id| drop(self.snapshots.remove(id)));
    }

    /// Runs an operation on a store that dies in the middle, then continues with the remaining state.
    fn die(&mut self) {
        let vm = self.dice.below(3) as usize;
        let what = self.dice.below(3);
        if what == 0 {
            self.mutate(vm);
        }
        let steps = self.dice.below(if what == 2 { 4 } else { 14 }) as i64;
        let mortal = MortalStore::new(self.store.clone(), steps);
        let doomed: Vec<_> = self.snapshots.keys().copied().take(1).collect();
        if let Ok(repository) =
            Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure)
        {
            // Whether it died or finished, only the log tells the outcome.
            let _ = match what {
                0 => try_back_up(&repository, &Model::name(vm), &self.disks[vm], false).map(drop),
                1 => repository.prune(&thorough(), &Silent, &CancelFlag::new()).map(drop),
                _ => repository.forget(&doomed).map(drop),
            };
        }
        self.repository = open(&self.store);
        let published: HashSet<_> =
            self.repository.snapshots(None).unwrap().iter().map(|one| one.id).collect();
        for id in &published {
            // A backup may have been published just before the crash was noticed.
            self.snapshots.entry(*id).or_insert_with(|| (vm, self.disks[vm].bytes.clone()));
        }
        for id in doomed {
            if what == 2 && !published.contains(&id) {
                self.snapshots.remove(&id);
            }
        }
        // Changes since the newest snapshot are lost: the next backup reads everything.
        for disk in &mut self.disks {
            let all = disk.bytes.clone();
            disk.changed.clear();
            disk.write(0, &all);
        }
    }

    fn check_all(&self) {
        let listed: Vec<_> = self.repository.snapshots(None).unwrap().iter().map(|one| one.id).collect();
        let expected: HashSet<_> = self.snapshots.keys().copied().collect();
        assert_eq!(listed.iter().copied().collect::<HashSet<_>>(), expected);
        for (id, (_, bytes)) in &self.snapshots {
            assert!(restore(&self.repository, *id) == *bytes, "snapshot {id} restores to other bytes");
        }
        let report = check(&self.repository);
        assert!(report.is_clean(), "{:?}", report.damages);
    }

    fn prune_and_count(&mut self) {
        prune(&self.repository);
        let again = PruneOptions { dry_run: true, ..thorough() };
        let left = self.repository.prune(&again, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!((left.dead_frames, left.removed_packs, left.rewritten_packs), (0, 0, 0), "{left:?}");
        let chunker = Chunker::new(ChunkProfile::Fixed16K, &[0; 32]);
        let mut chunks = HashSet::new();
        for (vm, bytes) in self.snapshots.values() {
            // In a fleet each VM has its own chunks.
            let whose = self.layout.is_fleet().then_some(*vm);
            for segment in bytes.chunks(SEGMENT_BYTES) {
                let pieces = split(&chunker, segment);
                chunks.extend(chunks_of(&pieces).map(|piece| (whose, segment[piece.range()].to_vec())));
            }
        }
        let stats = self.repository.stats().unwrap();
        assert_eq!(stats.chunks, chunks.len() as u64, "stored is what is referenced");
        assert_eq!(stats.unfinished_sessions, 0);
        assert_eq!(left.before_bytes, stats.chunk_pack_bytes + stats.recipe_pack_bytes);
        if self.snapshots.is_empty() {
            assert_eq!(stats.packs, 0);
            let names: Vec<_> = files(&self.store).into_iter().map(|(volume, ..)| volume).collect();
            assert!(names.iter().all(|name| name.starts_with("cat-")), "{names:?}");
        }
    }
}

fn run(seed: u64, steps: u64, deaths: bool, layout: Layout) {
    let mut model = Model::new(seed, layout);
    for _ in 0..steps {
        let vm = model.dice.below(3) as usize;
        match model.dice.below(if deaths { 14 } else { 10 }) {
            0..=4 => {
                model.mutate(vm);
                model.back_up(vm);
            }
            5 | 6 => model.forget_some(),
            7 => model.prune_and_count(),
            8 => {
                model.repository.delete(&Silent, &CancelFlag::new()).unwrap();
            }
            9 => model.repository = open(&model.store),
            _ => model.die(),
        }
        model.check_all();
    }
    model.prune_and_count();
    model.check_all();
    let all: Vec<_> = model.snapshots.keys().copied().collect();
    model.repository.forget(&all).unwrap();
    model.snapshots.clear();
    model.prune_and_count();
}

#[test]
fn the_stored_chunks_are_those_of_published_snapshots_after_any_history() {
    for seed in 1..=6 {
        run(seed, 22, false, LAYOUTS[(seed % 2) as usize]);
    }
}

#[test]
fn nothing_is_lost_when_the_process_is_killed_at_any_step() {
    for seed in 101..=112 {
        run(seed, 22, true, LAYOUTS[(seed % 2) as usize]);
    }
}

#[test]
fn a_backup_killed_at_each_of_its_steps_leaves_the_base_and_no_leak() {
    LAYOUTS.into_iter().for_each(kill_a_backup_at_each_step);
}

fn kill_a_backup_at_each_step(layout: Layout) {
    let store = embedded_store();
    let repository = init_as(&store, layout);
    let mut disk = Disk::new(3 << 20);
    Random::new(5).text(&mut disk.bytes);
    let base = back_up(&repository, "web", &disk, false);
    let before = disk.bytes.clone();
    drop(repository);
    let mut data = vec![0; 700_000];
    Random::new(6).fill(&mut data);
    disk.write(1 << 20, &data);
    let mut published = 0;
    for steps in 0.. {
        let mortal = MortalStore::new(store.clone(), steps);
        let killed =
            Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
        let outcome = try_back_up(&killed, "web", &disk, true);
        drop(killed);
        let repository = open(&store);
        assert!(check(&repository).is_clean());
        assert_eq!(restore(&repository, base.snapshot), before);
        let snapshots = repository.snapshots(None).unwrap();
        if let Ok(summary) = outcome {
            assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
            assert!(steps > 6, "a backup takes more steps than that");
            published = snapshots.len();
            break;
        }
        assert_eq!(snapshots.len(), 1, "killed at step {steps}");
        prune(&repository);
        let stats = repository.stats().unwrap();
        assert_eq!((stats.snapshots, stats.unfinished_sessions), (1, 0));
        let report = repository.check(ReadData::No, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!(report.unfinished_packs, 0, "killed at step {steps}");
    }
    assert_eq!(published, 2);
}

#[test]
fn a_prune_killed_at_each_of_its_steps_removes_no_needed_chunk() {
    LAYOUTS.into_iter().for_each(kill_a_prune_at_each_step);
}

fn kill_a_prune_at_each_step(layout: Layout) {
    let store = embedded_store();
    let repository = init_as(&store, layout);
    let mut disk = Disk::new(3 << 20);
    Random::new(5).text(&mut disk.bytes);
    let doomed = back_up(&repository, "web", &disk, false);
    let mut data = vec![0; 900_000];
    Random::new(6).fill(&mut data);
    disk.write(1 << 20, &data);
    let kept = back_up(&repository, "web", &disk, true);
    repository.forget(&[doomed.snapshot]).unwrap();
    drop(repository);
    for steps in 0.. {
        let store = copy(&store);
        let mortal = MortalStore::new(store.clone(), steps);
        let killed =
            Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
        let outcome = killed.prune(&thorough(), &Silent, &CancelFlag::new());
        drop(killed);
        let repository = open(&store);
        let report = check(&repository);
        assert!(report.is_clean(), "killed at step {steps}: {:?}", report.damages);
        assert_eq!(restore(&repository, kept.snapshot), disk.bytes, "killed at step {steps}");
        prune(&repository);
        assert_eq!(restore(&repository, kept.snapshot), disk.bytes, "after step {steps} and another prune");
        let again = PruneOptions { dry_run: true, ..thorough() };
        assert_eq!(repository.prune(&again, &Silent, &CancelFlag::new()).unwrap().dead_frames, 0);
        if let Ok(summary) = outcome {
            assert!(summary.rewritten_packs >= 2 && steps > 8, "{summary:?} after {steps} steps");
            break;
        }
    }
}

/// Symptom: after a prune, chunks were stored twice, and some of them became dead only for the next prune.
/// Cause: a killed prune had copied them. Older snapshots referred to the first copies, a newer one to the
/// second, so both were live, and both were moved. Fix: a frame is not moved if another live frame of its id
/// has the same bytes.
#[test]
fn copies_left_by_a_killed_prune_are_merged_by_the_next() {
    LAYOUTS.into_iter().for_each(prune_behind_a_killed_one);
}

fn prune_behind_a_killed_one(layout: Layout) {
    let store = embedded_store();
    let repository = init_as(&store, layout);
    let mut disk = Disk::new(3 << 20);
    Random::new(5).text(&mut disk.bytes);
    let first = disk.clone();
    let doomed = back_up(&repository, "web", &first, false);
    let mut data = vec![0; 900_000];
    Random::new(6).fill(&mut data);
    disk.write(1 << 20, &data);
    let kept = back_up(&repository, "web", &disk, true);
    repository.forget(&[doomed.snapshot]).unwrap();
    drop(repository);
    // Another VM with most of the chunks: it refers to the copies that are found first.
    let mut newer = disk.clone();
    for at in (0..newer.bytes.len()).step_by(1 << 20) {
        newer.write(at, &[9; 4096]);
    }
    let chunks_after = |steps: Option<i64>| {
        let store = copy(&store);
        let mut is_over = true;
        if let Some(steps) = steps {
            let mortal = MortalStore::new(store.clone(), steps);
            let killed = Repository::open(Arc::new(mortal), IndexHome::Memory, &Unlock::Insecure).unwrap();
            is_over = killed.prune(&thorough(), &Silent, &CancelFlag::new()).is_ok();
        }
        let repository = open(&store);
        let second = back_up(&repository, "db", &newer, false);
        prune(&repository);
        for (snapshot, disk) in [(kept.snapshot, &disk), (second.snapshot, &newer)] {
            assert!(restore(&repository, snapshot) == disk.bytes, "killed at step {steps:?}");
        }
        (repository.stats().unwrap().chunks, is_over)
    };
    let (wanted, _) = chunks_after(None);
    for steps in 0.. {
        let (chunks, is_over) = chunks_after(Some(steps));
        assert_eq!(chunks, wanted, "{layout:?}: killed at step {steps}");
        if is_over {
            break;
        }
    }
}

#[test]
fn the_mark_is_the_same_in_many_passes() {
    let store = embedded_store();
    let repository = init(&store);
    let mut dice = Random::new(77);
    let mut disk = Disk::new(6 << 20);
    let mut ids = Vec::new();
    for _ in 0..8 {
        let mut data = vec![0; 1 << 20];
        dice.fill(&mut data);
        disk.write(dice.below(5 << 20) as usize, &data);
        ids.push((back_up(&repository, "web", &disk, true).snapshot, disk.bytes.clone()));
    }
    repository.forget(&[ids[0].0, ids[2].0, ids[3].0]).unwrap();
    let plan = |memory_bytes| {
        let options = PruneOptions { memory_bytes, dry_run: true, ..thorough() };
        repository.prune(&options, &Silent, &CancelFlag::new()).unwrap()
    };
    let (one, many) = (plan(24 << 20), plan(4000));
    assert_eq!(one.mark_passes, 1);
    assert!(many.mark_passes > 3, "{}", many.mark_passes);
    assert_eq!(PruneSummary { mark_passes: 1, ..many }, one);
    let options = PruneOptions { memory_bytes: 4000, ..thorough() };
    let done = repository.prune(&options, &Silent, &CancelFlag::new()).unwrap();
    assert!(done.after_bytes < done.before_bytes);
    assert_eq!(plan(4000).dead_frames, 0);
    for (id, bytes) in &ids {
        if ![ids[0].0, ids[2].0, ids[3].0].contains(id) {
            assert_eq!(restore(&repository, *id), *bytes);
        }
    }
}

#[test]
fn half_empty_packs_are_kept_within_the_allowed_unused_share() {
    let repository = init(&embedded_store());
    let mut disk = Disk::new(2 << 20);
    Random::new(1).fill(&mut disk.bytes);
    let first = back_up(&repository, "web", &disk, false);
    let mut data = vec![0; 1 << 20];
    Random::new(2).fill(&mut data);
    disk.write(0, &data);
    let second = back_up(&repository, "web", &disk, true);
    repository.forget(&[first.snapshot]).unwrap();
    let kept = repository.delete(&Silent, &CancelFlag::new()).unwrap();
    assert_eq!(kept.rewritten_packs, 0);
    assert!(kept.dead_frames > 10);
    // The dead frames still exist, and a backup that needs them uses them again.
    let mut old = disk.clone();
    Random::new(1).fill(&mut old.bytes);
    let again = back_up(&repository, "web", &old, false);
    assert_eq!(again.counts.new_bytes, 0);
    repository.forget(&[again.snapshot]).unwrap();
    let pruned = prune(&repository);
    assert!(pruned.rewritten_packs >= 1);
    assert_eq!(pruned.after_bytes, {
        let stats = repository.stats().unwrap();
        stats.chunk_pack_bytes + stats.recipe_pack_bytes
    });
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
    assert!(check(&repository).is_clean());
}

/// Symptom: the first prune after a killed backup reported its packs as freed, and the store was as full as
/// before; the second freed them. Cause: the empty volume was removed, which frees space in the background,
/// and the store was closed before that ended. Fix: the space is freed first, and waited for.
#[test]
fn a_prune_frees_the_space_of_a_volume_before_it_removes_it() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(4 << 20);
    let mut data = vec![0; 2 << 20];
    Random::new(150).fill(&mut data);
    disk.write(0, &data);
    let only = back_up(&repository, "web", &disk, false);
    repository.forget(&[only.snapshot]).unwrap();
    drop(repository);
    let watched = MortalStore::new(store.clone(), i64::MAX);
    let repository =
        Repository::open(Arc::new(watched.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
    prune(&repository);
    let removed = watched.removed();
    assert!(!removed.is_empty());
    assert!(removed.iter().all(|(_, freed)| *freed), "{removed:?}");
}
