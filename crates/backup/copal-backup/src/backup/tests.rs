//! A backup with any number of threads: equal results, and an end after any failure.

use crate::index::reindex::{PackScope, for_each_pack};
use crate::packs::pack::PackNumber;
use crate::request::*;
use crate::snapshot::recipe::segment_length;
use crate::snapshot::tree::TreeReader;
use crate::world::*;
use crate::{CancelFlag, Error, Progress, Repository, Result};
use copal_chunk::SEGMENT_BYTES;
use copal_disk::source::{Extent, Source, SourceError};
use copal_volume::MemoryStore;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const THREADS: [usize; 4] = [1, 2, 3, 16];

/// Segments of which some return later, when the pack of the first ones is in the index.
fn disk() -> Disk {
    let mut disk = Disk::new(14 * SEGMENT_BYTES + 12_345);
    for (number, segment) in disk.bytes.chunks_mut(SEGMENT_BYTES).enumerate() {
        let mut random = Random::new(number as u64 % 9);
        match number % 7 {
            3 => random.text(segment),
            5 => {}
            _ => random.fill(segment),
        }
        if number % 4 == 1 {
            // Chunks of the segment before, at another place.
            segment[..100_000].fill(number as u8);
        }
    }
    disk
}

/// Repositories with the same keys: other keys cut other chunks.
struct Family(MemoryStore);

impl Family {
    fn new(layout: Layout) -> Family {
        let store = MemoryStore::new();
        drop(init_as(&store, layout));
        Family(store)
    }

    fn repository(&self, threads: usize) -> Repository {
        let store = MemoryStore::new();
        copy_into(&self.0, &store, |_, _, _| true);
        open(&store).with_workers(threads)
    }
}

fn ample(vm: &str, disk: &Disk, changed: bool) -> BackupRequest {
    let mut request = request(vm, disk, changed);
    request.memory_bytes = 256 << 20;
    request
}

/// Delays each thread that reports progress, for another time in each run.
struct Delays(Mutex<Random>);

impl Delays {
    fn new(seed: u64) -> Delays {
        Delays(Mutex::new(Random::new(seed)))
    }

    fn delay(&self) {
        let micros = self.0.lock().below(1500);
        std::thread::park_timeout(Duration::from_micros(micros));
    }
}

impl Progress for Delays {
    fn advance(&self, _: u64) {
        self.delay();
    }
    fn stored(&self, _: u64) {
        self.delay();
    }
}

/// One chunk of a recipe: its length, id, and place with the number of its pack in the order of first use.
type PlainEntry = (u32, Option<([u8; 32], usize, u32)>);

/// The recipes of all disks of a snapshot.
fn recipes(repository: &Repository, summary: &BackupSummary) -> Vec<Vec<PlainEntry>> {
    let parts = repository.parts();
    let state = parts.vm_state(summary.vm.uuid).unwrap();
    let published = state.published.iter().find(|one| one.snapshot == summary.snapshot).unwrap();
    let manifest = parts.manifest(summary.vm.uuid, published).unwrap();
    let mut tree = TreeReader::new(parts.pack_store(), manifest.vm).unwrap();
    let mut packs: HashMap<PackNumber, usize> = HashMap::new();
    let mut recipes = Vec::new();
    for disk in &manifest.disks {
        let root = tree.root(&disk.root, disk.size_bytes).unwrap();
        for (index, page) in root.pages.iter().enumerate() {
            let page = tree.page(page.as_ref(), disk.size_bytes, index as u64).unwrap();
            for (number, segment) in page.segments.iter().enumerate() {
                let Some(segment) = segment else {
                    recipes.push(vec![(segment_length(disk.size_bytes, number as u64) as u32, None)]);
                    continue;
                };
                let recipe = tree.segment(segment, disk.size_bytes, number as u64).unwrap();
                let entries = recipe.entries.iter().map(|entry| {
                    let chunk = entry.chunk.map(|chunk| {
                        let next = packs.len();
                        let pack = *packs.entry(chunk.location.pack).or_insert(next);
                        (chunk.id.0, pack, chunk.location.slot)
                    });
                    (entry.length, chunk)
                });
                recipes.push(entries.collect());
            }
        }
    }
    recipes
}

/// Sizes of all packs of chunks. Those of recipes hold random numbers of packs, which compress by chance.
fn pack_sizes(repository: &Repository) -> Vec<u64> {
    let mut sizes = Vec::new();
    for_each_pack(repository.parts().pack_store(), PackScope::All, |pack| {
        if pack.home.has_chunks() {
            sizes.push(pack.info.size);
        }
        Ok(())
    })
    .unwrap();
    sizes.sort_unstable();
    sizes
}

#[test]
fn any_number_of_threads_makes_the_same_recipes_and_packs() {
    for layout in LAYOUTS {
        let mut disk = disk();
        let family = Family::new(layout);
        let mut first_results = None;
        for (seed, threads) in THREADS.into_iter().enumerate() {
            disk.changed.clear();
            let mut changed = disk.clone();
            let repository = family.repository(threads);
            let run = |request: BackupRequest| {
                let summary = repository.backup(request, &Delays::new(seed as u64), &CancelFlag::new());
                let summary = summary.unwrap();
                // The stored bytes are those of recipes, too; a spot check reads other places each time.
                let counts = BackupCounts { stored_bytes: 0, spot_check_bytes: 0, ..summary.counts };
                (recipes(&repository, &summary), counts, summary)
            };
            let full = run(ample("web", &disk, false));
            for at in (0..changed.bytes.len()).step_by(3 << 20) {
                changed.write(at, &[at as u8; 70_000]);
            }
            let mut request = ample("web", &changed, true);
            request.disks[0].changed.as_mut().unwrap().base = newest(&repository, "web");
            let incremental = run(request);
            let rescan = run(ample("web", &disk, false));
            let mut request = ample("web", &changed, false);
            request.full = true;
            let verified = run(request);
            assert_eq!(restore(&repository, incremental.2.snapshot), changed.bytes);
            assert_eq!(restore(&repository, rescan.2.snapshot), disk.bytes);
            assert_eq!(incremental.0, verified.0.clone(), "recipes do not depend on the way of reading");
            let runs = [full, incremental, rescan, verified];
            let counts = runs.each_ref().map(|run| run.1);
            let results = (runs.map(|run| run.0), counts, pack_sizes(&repository));
            let expected = first_results.get_or_insert_with(|| results.clone());
            assert_eq!(expected.1, results.1, "{layout:?}: {threads} threads make other counts");
            assert_eq!(expected.2, results.2, "{layout:?}: {threads} threads make other packs");
            assert!(expected.0 == results.0, "{layout:?}: {threads} threads make other recipes");
        }
    }
}

/// A disk with some segments in its middle that cannot be read.
struct BadSource {
    good: Box<MemorySource>,
    bad_from: u64,
    panics: bool,
}

impl Source for BadSource {
    fn size_bytes(&self) -> Option<u64> {
        self.good.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        self.good.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        if (self.bad_from..self.bad_from + 2 * SEGMENT_BYTES as u64).contains(&offset) {
            assert!(!self.panics, "the source ends the thread");
            return Err(SourceError::Unusable { reason: format!("no bytes at {offset}") });
        }
        self.good.read_at(offset, buf)
    }
}

fn try_bad(repository: &Repository, disk: &Disk, bad_from: u64, panics: bool) -> Result<BackupSummary> {
    let mut request = ample("web", disk, false);
    request.disks =
        vec![DiskSource::new("sda", Box::new(BadSource { good: disk.source(), bad_from, panics }))];
    repository.backup(request, &Delays::new(bad_from), &CancelFlag::new())
}

#[test]
fn the_first_unreadable_segment_ends_a_backup_and_those_before_it_are_kept() {
    let disk = disk();
    let bad_from = 11 * SEGMENT_BYTES as u64;
    let family = Family::new(Layout::Solo);
    let mut kept = None;
    for threads in THREADS {
        let repository = family.repository(threads);
        let error = try_bad(&repository, &disk, bad_from, false).unwrap_err();
        let Error::Source { error: SourceError::Unusable { reason }, .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*reason, format!("no bytes at {bad_from}"), "later segments fail, too");
        assert!(repository.snapshots(None).unwrap().is_empty());
        let again = back_up(&repository, "web", &disk, false);
        assert!(again.counts.cross_dup_bytes >= 6 * SEGMENT_BYTES as u64, "{:?}", again.counts);
        let same = (BackupCounts { stored_bytes: 0, ..again.counts }, recipes(&repository, &again));
        assert!(*kept.get_or_insert_with(|| same.clone()) == same, "{threads} threads keep other chunks");
        assert!(check(&repository).is_clean());
    }
}

#[test]
fn a_thread_that_panics_ends_the_backup() {
    let disk = disk();
    for threads in THREADS {
        let repository = init(&MemoryStore::new()).with_workers(threads);
        let run = || try_bad(&repository, &disk, 9 * SEGMENT_BYTES as u64, true);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    }
}

/// A stream takes its jobs while it is read, and other disks when a thread begins a segment. With two jobs, a job given
/// to a later segment first would leave none for the segment that the others wait for.
#[test]
fn streams_beside_other_disks_end_with_the_fewest_jobs() {
    let disk = disk();
    for (threads, memory_bytes) in [(1, 0), (2, 0), (16, 24 << 20), (16, 256 << 20)] {
        let repository = init(&MemoryStore::new()).with_workers(threads);
        let stream = || Box::new(MemorySource { stream: true, ..*disk.source() });
        let disks = [disk.source(), stream(), disk.source(), stream()].into_iter().zip(["a", "b", "c", "d"]);
        let disks = disks.map(|(source, name)| DiskSource::new(name, source)).collect();
        let mut request = BackupRequest::new("web", disks);
        request.memory_bytes = memory_bytes;
        let summary = repository.backup(request, &Delays::new(threads as u64), &CancelFlag::new()).unwrap();
        assert_eq!(summary.counts.logical_bytes, 4 * disk.bytes.len() as u64);
        let recipes = recipes(&repository, &summary);
        let lengths = |part: &[Vec<PlainEntry>]| part.iter().flatten().map(|(length, _)| *length).collect();
        let parts: Vec<Vec<u32>> = recipes.chunks(recipes.len() / 4).map(lengths).collect();
        assert!(parts.len() == 4 && parts.iter().all(|part| *part == parts[0]), "all disks are equal");
        assert!(check(&repository).is_clean());
    }
}

/// Cancels at one of its reports.
struct CancelsAt {
    left: AtomicU64,
    cancel: CancelFlag,
}

impl Progress for CancelsAt {
    fn advance(&self, _: u64) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.cancel.cancel();
        }
    }
}

#[test]
fn a_cancelled_backup_ends_and_keeps_what_it_stored() {
    // More segments than jobs, so that the reader meets the flag; most are equal, and cost little.
    let mut disk = Disk::new(60 * SEGMENT_BYTES);
    for segment in disk.bytes.chunks_mut(SEGMENT_BYTES) {
        Random::new(7).fill(segment);
    }
    for threads in THREADS {
        for at in [0, 5] {
            let repository = init(&MemoryStore::new()).with_workers(threads);
            let cancel = CancelFlag::new();
            let progress = CancelsAt { left: AtomicU64::new(at), cancel: cancel.clone() };
            let error = repository.backup(ample("web", &disk, false), &progress, &cancel).unwrap_err();
            assert!(matches!(error, Error::Cancelled { kept_bytes: Some(1..) }), "{error:?}");
            assert!(repository.snapshots(None).unwrap().is_empty());
            let again = back_up(&repository, "web", &disk, false);
            assert!(again.counts.cross_dup_bytes > 0, "{:?}", again.counts);
            assert_eq!(restore(&repository, again.snapshot), disk.bytes);
        }
    }
}

/// Collects notices.
#[derive(Default)]
struct Notices(Mutex<Vec<String>>);

impl Progress for Notices {
    fn notice(&self, message: &str) {
        self.0.lock().push(message.to_owned());
    }
}

#[test]
fn threads_beyond_the_memory_are_cut_and_reported() {
    let mut disk = Disk::new(SEGMENT_BYTES);
    Random::new(3).fill(&mut disk.bytes);
    for (threads, is_cut) in [(1, false), (2, false), (1000, true)] {
        let repository = init(&MemoryStore::new()).with_workers(threads);
        let notices = Notices::default();
        repository.backup(request("web", &disk, false), &notices, &CancelFlag::new()).unwrap();
        let notices = notices.0.into_inner();
        assert_eq!(notices.len(), usize::from(is_cut), "{notices:?}");
        assert!(notices.iter().all(|notice| notice.contains(&format!("and {threads} were asked for"))));
    }
}
