//! Plausibility check before the first read: sources that are not the complete disk, and the treatment of
//! doubtful snapshots by retention.

use crate::world::*;
use copal_backup::retention::{Candidate, Policy, judge_by_clock};
use copal_backup::*;
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::ContentEvidence;
use copal_disk::source::{BitmapState, ChangedExtents, Source, stream::StreamSource};
use copal_volume::{Clock, ManualClock};
use std::{io::Cursor, sync::Arc, time::Duration};

fn text_disk(seed: u64, size: usize) -> Disk {
    let mut disk = Disk::new(size);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

fn try_run(
    repository: &Repository,
    disk: &Disk,
    is_stream: bool,
    with: impl FnOnce(&mut BackupRequest),
) -> Result<BackupSummary> {
    let source: Box<dyn Source> = match is_stream {
        true => Box::new(StreamSource::new("a pipe", Box::new(Cursor::new(disk.bytes.clone())))),
        false => disk.source(),
    };
    let mut request = BackupRequest::new("web", vec![DiskSource::new("sda", source)]);
    with(&mut request);
    repository.backup(request, &Silent, &CancelFlag::new())
}

fn run(repository: &Repository, disk: &Disk, with: impl FnOnce(&mut BackupRequest)) -> BackupSummary {
    try_run(repository, disk, false, with).unwrap()
}

fn refused(outcome: Result<BackupSummary>, words: &str) {
    let error = outcome.unwrap_err();
    assert_eq!((error.exit_code(), error.code()), (3, "source"), "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

fn kinds(doubts: &[DiskDoubt]) -> Vec<DoubtKind> {
    doubts.iter().map(|doubt| doubt.kind).collect()
}

fn newest_of(repository: &Repository) -> Snapshot {
    repository.snapshots(None).unwrap().pop().unwrap()
}

/// The error for a disk without bytes.
fn empty(is_stream: bool) -> &'static str {
    match is_stream {
        true => "is empty",
        false => "0 bytes",
    }
}

/// Symptom: a disk that was suddenly empty or much shorter was backed up with exit code 0 and without a
/// warning. After one `prune --keep-last 1` the good snapshots were gone. Cause: a disk was not compared with
/// its earlier size, and any snapshot counted as the newest good one. Fix: one check for all sources refuses
/// it; a snapshot that an operator permits is doubtful until it is accepted.
#[test]
fn a_disk_that_is_empty_or_smaller_is_refused_or_doubtful() {
    for layout in LAYOUTS {
        let repository = init_as(&embedded_store(), layout);
        let disk = text_disk(1, 3 << 20);
        let short = text_disk(1, 1 << 20);
        for is_stream in [false, true] {
            refused(try_run(&repository, &Disk::new(0), is_stream, |_| ()), empty(is_stream));
        }
        let whole = run(&repository, &disk, |_| ());
        assert!(whole.doubts.is_empty() && whole.warnings.is_empty());
        for is_stream in [false, true] {
            refused(try_run(&repository, &short, is_stream, |_| ()), "--allow-smaller");
            refused(
                try_run(&repository, &Disk::new(0), is_stream, |request| request.allow_smaller = true),
                empty(is_stream),
            );
        }
        assert_eq!(repository.snapshots(None).unwrap().len(), 1);
        let smaller = run(&repository, &short, |request| request.allow_smaller = true);
        assert_eq!(kinds(&smaller.doubts), [DoubtKind::Smaller]);
        assert!(smaller.warnings[0].starts_with("disk sda: has 1048576 bytes"), "{:?}", smaller.warnings);
        assert!(newest_of(&repository).is_doubtful());
        // As large as the newest, and still smaller than the newest good one.
        let again = run(&repository, &short, |_| ());
        assert_eq!(kinds(&again.doubts), [DoubtKind::Smaller]);
        let larger = run(&repository, &text_disk(1, 2 << 20), |_| ());
        assert_eq!(kinds(&larger.doubts), [DoubtKind::Smaller]);
        assert_eq!(restore(&repository, smaller.snapshot), short.bytes);
        // Once accepted, later ones are compared with it.
        repository.accept(&[larger.snapshot]).unwrap();
        let newest = newest_of(&repository);
        assert!(newest.is_accepted && !newest.is_doubtful() && newest.doubts == larger.doubts);
        assert!(run(&repository, &text_disk(1, 2 << 20), |_| ()).doubts.is_empty());
        let grown = run(&repository, &disk, |_| ());
        assert!(grown.doubts.is_empty(), "{:?}", grown.doubts);
        assert!(check(&repository).is_clean());
    }
}

/// Symptom: a disk that was left out of one backup was then taken at any size, or empty of data, without a
/// warning. Cause: it was compared only with the newest snapshot. Fix: it is compared with the last one that
/// has the disk.
#[test]
fn a_disk_that_was_left_out_once_is_compared_with_the_last_snapshot_that_has_it() {
    let repository = init(&embedded_store());
    let (disk, short) = (text_disk(1, 3 << 20), text_disk(1, 1 << 20));
    let also = |disk: &Disk| {
        let source = DiskSource::new("sdb", disk.source());
        |request: &mut BackupRequest| request.disks.push(source)
    };
    let both = run(&repository, &disk, also(&disk));
    run(&repository, &disk, |_| ());
    run(&repository, &disk, |_| ());
    let with = format!("the newest snapshot with it, {}", both.snapshot.short());
    refused(try_run(&repository, &disk, false, also(&short)), &with);
    let blank = run(&repository, &disk, also(&Disk::new(3 << 20)));
    assert_eq!(kinds(&blank.doubts), [DoubtKind::Blank]);
    run(&repository, &disk, |_| ());
    let allowed = run(&repository, &disk, |request| {
        also(&short)(request);
        request.allow_smaller = true;
    });
    assert_eq!(kinds(&allowed.doubts), [DoubtKind::Smaller]);
    assert!(run(&repository, &disk, also(&disk)).doubts.is_empty(), "it has grown");
}

/// Symptom: a vmdk, vhd or compressed file was backed up as the bytes of a disk. Cause: only qcow2 was
/// recognised. Fix: formats with known first or last bytes are refused by name, for every kind of source. If
/// an operator says that the file is raw, the snapshot is doubtful once.
#[test]
fn another_format_is_refused_by_name_unless_it_is_declared_raw() {
    let repository = init(&embedded_store());
    let mut vmdk = text_disk(2, 1 << 20);
    vmdk.write(0, b"KDMV");
    let mut vhd = text_disk(3, (1 << 20) + 512);
    vhd.write(1 << 20, b"conectix");
    for (disk, name) in [(&vmdk, "a vmdk image"), (&vhd, "a vhd image")] {
        for is_stream in [false, true] {
            refused(try_run(&repository, disk, is_stream, |_| ()), name);
        }
    }
    assert!(repository.snapshots(None).unwrap().is_empty());
    let stated = |request: &mut BackupRequest| request.disks[0].content = ContentEvidence::Stated;
    let first = run(&repository, &vmdk, stated);
    assert_eq!(kinds(&first.doubts), [DoubtKind::Format]);
    assert_eq!(kinds(&run(&repository, &vmdk, stated).doubts), [DoubtKind::Format]);
    repository.accept(&[newest_of(&repository).id]).unwrap();
    assert!(run(&repository, &vmdk, stated).doubts.is_empty());
    // Only that format was accepted.
    assert_eq!(kinds(&run(&repository, &vhd, stated).doubts), [DoubtKind::Format]);
    // A format that a guest wrote into its own disk is not refused.
    let decoded = |request: &mut BackupRequest| request.disks[0].content = ContentEvidence::Decoded;
    assert!(run(&repository, &vhd, decoded).doubts.is_empty());
}

/// As the first test: the last good snapshot is gone, and the later ones are not accepted.
#[test]
fn a_warning_stays_when_the_good_snapshots_are_gone() {
    let repository = init(&embedded_store());
    let good = run(&repository, &text_disk(1, 3 << 20), |_| ());
    let short = text_disk(1, 1 << 20);
    run(&repository, &short, |request| request.allow_smaller = true);
    repository.forget(&[good.snapshot]).unwrap();
    let again = run(&repository, &short, |_| ());
    assert_eq!(kinds(&again.doubts), [DoubtKind::Smaller]);
}

/// As the first test: a disk of the right size that is suddenly all zeros.
#[test]
fn a_disk_that_is_suddenly_blank_is_doubtful() {
    let repository = init(&embedded_store());
    run(&repository, &text_disk(4, 1 << 20), |_| ());
    let blank = run(&repository, &Disk::new(1 << 20), |_| ());
    assert_eq!(kinds(&blank.doubts), [DoubtKind::Blank]);
    assert_eq!(kinds(&run(&repository, &Disk::new(1 << 20), |_| ()).doubts), [DoubtKind::Blank]);
    repository.accept(&[newest_of(&repository).id]).unwrap();
    assert!(run(&repository, &Disk::new(1 << 20), |_| ()).doubts.is_empty());
}

/// See the first test.
#[test]
fn doubtful_snapshots_replace_no_good_one() {
    let candidate = |created_ms: u64, is_doubtful: bool| Candidate {
        created_ms,
        tags: Vec::new(),
        is_verified: false,
        is_doubtful,
        held_until_ms: 0,
    };
    const DAY: u64 = 86_400_000;
    let now = 1_800_000_000_000;
    // Five good days, then five doubtful ones.
    let days: Vec<Candidate> = (0..10).map(|day| candidate(now - (10 - day) * DAY, day >= 5)).collect();
    let clock = retention::ClockRange::new(days.iter().map(|one| one.created_ms).collect(), now);
    let within = Some(retention::parse_within("1d").unwrap());
    for policy in [
        Policy { last: 2, ..Policy::default() },
        Policy { daily: 2, ..Policy::default() },
        Policy { within, ..Policy::default() },
    ] {
        let verdicts = judge_by_clock(&policy, &days, &clock, &jiff::tz::TimeZone::UTC);
        let kept: Vec<bool> = verdicts.iter().map(retention::Verdict::is_keep).collect();
        let n = false;
        assert_eq!(kept, [n, n, n, true, true, n, n, n, true, true], "{policy:?}");
    }
}

/// Symptom: a bitmap of another disk of the same size was used. Cause: nothing distinguished the disks. Fix:
/// manifests record the location of the bitmap's disk, and when it was last read whole.
#[test]
fn a_bitmap_on_another_disk_or_an_old_full_read_causes_a_full_read() {
    let repository = init(&embedded_store());
    let disk = text_disk(5, 1 << 20);
    let bitmap = Some(BitmapState { name: "b".into(), dirty_bytes: 0 });
    let by = |identity: &str, full_every: Option<Duration>| {
        let told = run(&repository, &disk, |request| {
            let source = &mut request.disks[0];
            source.changed = Some(ChangedExtents { bitmap: bitmap.clone(), ..disk.changes() });
            source.starts.clone_from(&bitmap);
            source.identity = identity.into();
            request.full_every = full_every;
        });
        let disk = told.disks.into_iter().next().unwrap();
        (disk.mode, disk.reason)
    };
    let day = Some(Duration::from_secs(86_400));
    assert_eq!(by("file 1", day).0, DiskMode::Full);
    assert_eq!(by("file 1", day).0, DiskMode::Incremental);
    let (mode, reason) = by("file 2", day);
    assert!(mode == DiskMode::Rescan && reason.contains("on file 2, and lay on file 1"), "{reason}");
    assert_eq!(by("file 2", None).0, DiskMode::Incremental);
    // If the location is unknown the bitmap is used; spot checks cover that case.
    assert_eq!(by("", None).0, DiskMode::Incremental);
    assert_eq!(by("file 3", None).0, DiskMode::Incremental);
    let (mode, reason) = by("file 3", Some(Duration::ZERO));
    assert!(mode == DiskMode::Rescan && reason.contains("--full-every"), "{reason}");
}

/// A backup of changed blocks does not count as a read of the whole disk, however often it runs.
#[test]
fn incremental_backups_do_not_postpone_a_full_read() {
    let clock = Arc::new(ManualClock::new(1_800_000_000_000));
    let store = embedded_store_at(clock.clone());
    let repository = init(&store);
    let disk = text_disk(6, 1 << 20);
    let mode = || {
        let told = run(&repository, &disk, |request| {
            let bitmap = Some(BitmapState { name: "b".into(), dirty_bytes: 0 });
            let source = &mut request.disks[0];
            source.changed = Some(ChangedExtents { bitmap: bitmap.clone(), ..disk.changes() });
            source.starts = bitmap;
            request.full_every = Some(Duration::from_secs(30 * 3600));
        });
        told.disks[0].mode
    };
    assert_eq!(mode(), DiskMode::Full);
    for wanted in [DiskMode::Incremental, DiskMode::Rescan, DiskMode::Incremental] {
        clock.set(clock.now_ms() + 20 * 3_600_000);
        assert_eq!(mode(), wanted);
    }
}
