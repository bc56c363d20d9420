//! Progress reports: stages, and the amount of work.

use crate::world::*;
use copal_backup::*;
use copal_disk::source::{Extent, Source, SourceError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The announced and the finished work for disks.
#[derive(Default)]
struct Work {
    announced: AtomicU64,
    done: AtomicU64,
    /// 1 while the only disk is planned, 2 while it is read.
    step: Arc<AtomicU32>,
}

impl Progress for Work {
    fn stage(&self, stage: Stage, what: &str, total: u64) {
        if (stage, what) == (Stage::Plan, "sda") || stage == Stage::Read {
            self.step.fetch_add(1, Ordering::Relaxed);
        }
        if stage == Stage::Read {
            self.announced.fetch_add(total, Ordering::Relaxed);
        }
    }
    fn advance(&self, delta: u64) {
        self.done.fetch_add(delta, Ordering::Relaxed);
    }
}

/// Symptom: the remaining time of a backup of a sparse image was shown many times too long. Cause: holes were
/// announced as work, and then done at once. Fix: the announced bytes are those of the changed extents, or
/// else those that the source's map calls data.
#[test]
fn holes_do_not_count_as_work() {
    let repository = init(&embedded_store());
    let work = |disk: &Disk, changed: bool| {
        let work = Work::default();
        let summary = repository
            .backup(request_since(&repository, "web", disk, changed), &work, &CancelFlag::new())
            .unwrap();
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
        let (announced, done) = (work.announced.into_inner(), work.done.into_inner());
        assert_eq!(announced, done);
        (announced, summary.counts)
    };
    let mut dice = Random::new(31);
    // Not a whole number of blocks, with data at the end.
    let mut disk = Disk::new((24 << 20) + 1000);
    let mut data = vec![0; 300_000];
    for at in [5000, (2 << 20) - 9000, 11 << 20, (24 << 20) - 299_000] {
        dice.fill(&mut data);
        disk.write(at, &data);
    }
    for _ in 0..2 {
        let (announced, counts) = work(&disk, false);
        assert_eq!(announced, counts.read_bytes);
        assert!(announced < 1_300_000, "{announced}");
        disk.changed.clear();
    }
    dice.fill(&mut data);
    disk.write((11 << 20) + 3, &data);
    disk.discard(0, 1 << 20);
    assert_eq!(work(&disk, true).0, data.len() as u64);
    disk.reports_holes = false;
    assert_eq!(work(&disk, false).0, disk.bytes.len() as u64);
}

/// A source whose map causes trouble while progress is planned.
struct Trouble {
    below: Box<MemorySource>,
    step: Arc<AtomicU32>,
    /// Reaction of the map to the second query.
    does: fn() -> std::result::Result<(), SourceError>,
    asked: AtomicU32,
}

impl Source for Trouble {
    fn size_bytes(&self) -> Option<u64> {
        self.below.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        assert_ne!(self.step.load(Ordering::Relaxed), 0, "no stage was reported");
        if self.asked.fetch_add(1, Ordering::Relaxed) == 1 {
            assert_eq!(self.step.load(Ordering::Relaxed), 1, "the map was not looked at before");
            (self.does)()?;
        }
        self.below.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        self.below.read_at(offset, buf)
    }
}

/// Symptom: a backup failed because its source's map failed once, before a byte was read. Another one, whose
/// map takes minutes, showed no progress. Cause: the estimate walks the whole map, and its errors counted as
/// errors of reading. Fix: planning is reported as a stage. If the map fails, or takes over two seconds, no
/// total is announced.
#[test]
fn a_failed_estimate_fails_no_backup() {
    let repository = init(&embedded_store());
    let mut disk = Disk::new(9 << 20);
    for at in [0, 3 << 20, 6 << 20] {
        disk.write(at, &[7; 300_000]);
    }
    let fails = || Err(SourceError::Unusable { reason: "the map is being written".into() });
    let is_slow = || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2100) {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        Ok(())
    };
    for (does, announces) in [((|| Ok(())) as fn() -> _, true), (fails, false), (is_slow, false)] {
        let work = Work::default();
        let source =
            Trouble { below: disk.source(), step: work.step.clone(), does, asked: AtomicU32::new(0) };
        let mut request = request("web", &disk, false);
        request.disks[0].source = Box::new(source);
        let summary = repository.backup(request, &work, &CancelFlag::new()).unwrap();
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
        let read = summary.counts.read_bytes;
        assert_eq!(work.announced.into_inner(), if announces { read } else { 0 });
        assert_eq!(work.done.into_inner(), read);
    }
}

/// Packs whose footers are read, as announced and as done; may cancel after some.
#[derive(Default)]
struct Footers {
    announced: AtomicU64,
    done: AtomicU64,
    reads: AtomicBool,
    cancel_after: Option<u64>,
    cancel: CancelFlag,
}

impl Progress for Footers {
    fn stage(&self, stage: Stage, _: &str, total: u64) {
        let reads = stage == Stage::Index;
        self.reads.store(reads, Ordering::Relaxed);
        if reads {
            self.announced.fetch_add(total, Ordering::Relaxed);
        }
    }
    fn advance(&self, delta: u64) {
        if self.reads.load(Ordering::Relaxed) {
            let done = self.done.fetch_add(delta, Ordering::Relaxed) + delta;
            if self.cancel_after == Some(done) {
                self.cancel.cancel();
            }
        }
    }
}

/// Symptom: the first backup of a host into an old repository showed `plan` for minutes, and Ctrl-C did not end it before
/// all footers were read. Cause: the index of the VM was brought up to date without the caller's progress and cancellation.
/// Fix: it is a stage, whose total is the number of unknown packs; a cancelled one ends the session.
#[test]
fn a_host_without_an_index_shows_how_many_packs_it_reads() {
    let store = embedded_store();
    let mut disk = Disk::new(4 << 20);
    let repository = init_as(&store, FLEET);
    for seed in 0..6 {
        Random::new(seed).fill(&mut disk.bytes);
        back_up(&repository, "web", &disk, false);
    }
    let packs = repository.stats().unwrap().packs;
    assert!(packs >= 6, "{packs}");
    let stopped = Footers { cancel_after: Some(3), ..Footers::default() };
    let outcome = open(&store).backup(request("web", &disk, false), &stopped, &stopped.cancel);
    assert!(matches!(outcome, Err(Error::Cancelled { .. })), "{outcome:?}");
    assert_eq!((stopped.announced.into_inner(), stopped.done.into_inner()), (packs, 3));
    // The session of the cancelled backup has ended, so the other host needs no wait.
    let host = open(&store);
    let footers = Footers::default();
    host.backup(request("web", &disk, false), &footers, &CancelFlag::new()).unwrap();
    assert_eq!((footers.announced.into_inner(), footers.done.into_inner()), (packs, packs));
    // A host that knows all packs announces none.
    let footers = Footers::default();
    host.backup(request("web", &disk, false), &footers, &CancelFlag::new()).unwrap();
    assert_eq!((footers.announced.into_inner(), footers.done.into_inner()), (0, 0));
}
