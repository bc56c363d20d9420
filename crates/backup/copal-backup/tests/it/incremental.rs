//! Proof of changed extents, and the fallback without a proof.

use crate::world::*;
use copal_backup::*;
use copal_disk::source::{BitmapState, ChangedExtents, Extent, Source, SourceError};
use std::sync::{Arc, Mutex};

fn text_disk(seed: u64, size: usize) -> Disk {
    let mut disk = Disk::new(size);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

fn bitmap(name: &str, dirty_bytes: u64) -> Option<BitmapState> {
    let name = name.to_owned();
    Some(BitmapState { name, dirty_bytes })
}

fn run(repository: &Repository, request: BackupRequest) -> Result<BackupSummary> {
    repository.backup(request, &Silent, &CancelFlag::new())
}

/// Symptom: a bitmap that was created after the last snapshot was used, and writes in between were missing
/// from the next one (`bitmap.sh` of the review). A bitmap of another disk, or a cleared one, was used too.
/// Cause: no record named the bitmap that began with a snapshot. Fix: the manifest names it, with the serial
/// and the size of the disk; with any other bitmap the whole disk is read.
#[test]
fn a_bitmap_is_used_only_if_the_newest_snapshot_names_it() {
    let repository = init(&embedded_store());
    let mut disk = text_disk(1, 3 << 20);
    let backup = |disk: &Disk, with: &dyn Fn(&mut DiskSource), strict: bool| {
        let mut request = request("web", disk, false);
        with(&mut request.disks[0]);
        request.strict_incremental = strict;
        run(&repository, request)
    };
    let by = |disk: &Disk, name: &str, dirty_bytes: u64| {
        let bitmap = bitmap(name, dirty_bytes);
        Some(ChangedExtents { bitmap, ..disk.changes() })
    };
    let starts = |source: &mut DiskSource| {
        source.starts = bitmap("b-1", 4096);
        source.serial = "WD-7".into();
    };
    backup(&disk, &starts, false).unwrap();
    disk.write(1 << 20, &[1; 5000]);
    type Change<'a> = &'a dyn Fn(&mut DiskSource);
    let bad: [(Change<'_>, &str); 5] = [
        (&|source| source.changed = by(&disk, "b-2", 8192), "is b-1, not b-2"),
        (&|source| source.changed = by(&disk, "b-1", 4095), "it was cleared"),
        (&|source| source.serial = "WD-8".into(), "the serial \"WD-7\""),
        (&|source| source.changed.as_mut().unwrap().size_bytes = 5, "a disk of 5 bytes"),
        (
            &|source| {
                source.changed = None;
                source.no_changes = Some("the bitmap is inconsistent".into());
            },
            "the bitmap is inconsistent",
        ),
    ];
    for (change, words) in bad {
        let with = |source: &mut DiskSource| {
            starts(source);
            source.changed = by(&disk, "b-1", 8192);
            change(source);
        };
        let refused = backup(&disk, &with, true).unwrap_err();
        assert_eq!((refused.exit_code(), refused.code()), (22, "fell_back"), "{words}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    // The bitmap that began there, and its successor.
    let next = |source: &mut DiskSource| {
        starts(source);
        source.changed = by(&disk, "b-1", 8192);
        source.starts = bitmap("b-2", 0);
    };
    let summary = backup(&disk, &next, true).unwrap();
    assert_eq!(summary.disks[0].mode, DiskMode::Incremental);
    assert_eq!(summary.disks[0].bitmap.as_deref(), Some("b-2"));
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
    let listed = repository.ls(summary.snapshot).unwrap().remove(0).disk;
    assert_eq!((listed.serial.as_str(), listed.bitmap.as_deref()), ("WD-7", Some("b-2")));
    // A snapshot with which no bitmap began: the whole disk is read, and the reason is recorded.
    let none = |source: &mut DiskSource| {
        starts(source);
        source.starts = None;
        source.changed = by(&disk, "b-2", 8192);
    };
    backup(&disk, &none, true).unwrap();
    let after = backup(&disk, &none, false).unwrap();
    assert_eq!(after.disks[0].mode, DiskMode::Rescan);
    assert!(after.disks[0].reason.contains("names no dirty bitmap"), "{}", after.disks[0].reason);
    let full = backup(&disk, &|_| (), false).unwrap();
    assert_eq!(restore(&repository, full.snapshot), disk.bytes);
}

/// As above: only the disk without its bitmap is read whole.
#[test]
fn a_missing_bitmap_causes_a_full_read_of_its_disk_only() {
    let repository = init(&embedded_store());
    let disks = [text_disk(2, 2 << 20), text_disk(3, 2 << 20)];
    let request = |changed: bool| {
        let source = |at: usize, name: &str| DiskSource {
            changed: (changed && at == 0)
                .then(|| ChangedExtents { bitmap: bitmap("b", 0), ..disks[at].changes() }),
            no_changes: (changed && at == 1).then(|| "the image has no dirty bitmap".to_owned()),
            starts: bitmap("b", 0),
            ..DiskSource::new(name, disks[at].source())
        };
        BackupRequest::new("web", vec![source(0, "sda"), source(1, "sdb")])
    };
    run(&repository, request(false)).unwrap();
    let summary = run(&repository, request(true)).unwrap();
    let modes: Vec<_> = summary.disks.iter().map(|disk| disk.mode).collect();
    assert_eq!(modes, [DiskMode::Incremental, DiskMode::Rescan]);
    assert_eq!(summary.disks[1].reason, "the image has no dirty bitmap");
}

/// Symptom: a list of changes without a base was applied to the newest snapshot. After a failed backup that
/// snapshot is older than the beginning of the list. Cause: the list was assumed to begin at the last backup.
/// Fix: it must name its base.
#[test]
fn a_list_that_names_no_base_is_not_used() {
    let repository = init(&embedded_store());
    let disk = text_disk(4, 2 << 20);
    let first = run(&repository, request("web", &disk, false)).unwrap();
    let silent = run(&repository, request("web", &disk, true)).unwrap();
    assert_eq!(silent.disks[0].mode, DiskMode::Rescan);
    assert!(silent.disks[0].reason.contains("--base"), "{}", silent.disks[0].reason);
    let mut named = request("web", &disk, true);
    named.disks[0].changed.as_mut().unwrap().base = Some(first.snapshot.to_string());
    let named = run(&repository, named).unwrap();
    assert!(named.disks[0].reason.contains("the newest snapshot is"), "{}", named.disks[0].reason);
}

/// Reads a disk and records the places.
struct Noted {
    inner: Box<MemorySource>,
    reads: Arc<Mutex<Vec<(u64, u64)>>>,
}

impl Source for Noted {
    fn size_bytes(&self) -> Option<u64> {
        self.inner.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        self.inner.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        self.reads.lock().unwrap().push((offset, buf.len() as u64));
        self.inner.read_at(offset, buf)
    }
}

type Reads = Vec<(u64, u64)>;

/// A backup with an empty list of changes, and the places that were read.
fn unchanged(
    repository: &Repository,
    disk: &Disk,
    millionths: u32,
    strict: bool,
) -> (Result<BackupSummary>, Reads) {
    let reads = Arc::new(Mutex::new(Vec::new()));
    let source = Noted { inner: disk.source(), reads: reads.clone() };
    let mut source = DiskSource::new("sda", Box::new(source));
    source.changed = Some(ChangedExtents {
        size_bytes: disk.bytes.len() as u64,
        base: newest(repository, "web"),
        ..ChangedExtents::default()
    });
    let mut request = BackupRequest::new("web", vec![source]);
    request.spot_check_millionths = Some(millionths);
    request.strict_incremental = strict;
    let outcome = run(repository, request);
    let mut reads = reads.lock().unwrap().clone();
    // Both ends, which are read to see that it is a disk.
    assert!(reads.drain(..2).all(|(_, length)| length == 512));
    (outcome, reads)
}

/// Symptom: a list that leaves out a change made a wrong snapshot, and nothing would ever have noticed.
/// Cause: blocks that the list leaves out were taken from the base unread. Fix: a sample of them is read, at
/// other places each time; after a difference the whole disk is read.
///
/// Symptom: with a share of 100 %, one time in 129 a change in a former hole was missed. Cause: the number of
/// pieces was that of the base's data, and this was one more. Fix: 100 % means all pieces.
#[test]
fn a_change_that_a_list_leaves_out_is_found_by_a_spot_check() {
    const ALL: u32 = 1_000_000;
    let old = {
        let mut disk = text_disk(5, 24 << 20);
        disk.bytes[8 << 20..16 << 20].fill(0);
        disk
    };
    let changed = |at: usize, byte: u8, length: usize| {
        let mut disk = old.clone();
        disk.bytes[at..at + length].fill(byte);
        disk
    };
    for disk in [
        changed(3 << 20, b'#', 1),
        // A former hole has data, and the other way round.
        changed(9 << 20, b'#', 4096),
        changed(20 << 20, 0, 2 << 20),
        // The last byte.
        changed((24 << 20) - 1, b'#', 1),
    ] {
        let repository = init(&embedded_store());
        back_up(&repository, "web", &old, false);
        let (refused, _) = unchanged(&repository, &disk, ALL, true);
        assert_eq!(refused.unwrap_err().exit_code(), 22);
        let (summary, _) = unchanged(&repository, &disk, ALL, false);
        let summary = summary.unwrap();
        assert_eq!(summary.disks[0].mode, DiskMode::Rescan);
        assert!(summary.disks[0].reason.contains("spot check"), "{}", summary.disks[0].reason);
        assert_eq!(summary.warnings.len(), 1, "{:?}", summary.warnings);
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
    }
}

/// As above, the cost: at least 16 MiB, counted, at other places each time; none if it is disabled.
#[test]
fn a_spot_check_reads_its_share_elsewhere_each_time() {
    let repository = init(&embedded_store());
    let disk = text_disk(6, 80 << 20);
    back_up(&repository, "web", &disk, false);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let (summary, reads) =
            unchanged(&repository, &disk, BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS, true);
        let counts = summary.unwrap().counts;
        let read: u64 = reads.iter().map(|(_, length)| length).sum();
        assert_eq!((counts.read_bytes, counts.spot_check_bytes), (0, read));
        assert!(((16 << 20)..(40 << 20)).contains(&read), "{read}");
        assert!(!seen.contains(&reads));
        seen.push(reads);
    }
    let (summary, reads) = unchanged(&repository, &disk, 500_000, true);
    assert!(summary.unwrap().counts.spot_check_bytes >= 40 << 20);
    assert!(!reads.is_empty());
    let (summary, reads) = unchanged(&repository, &disk, 0, true);
    assert_eq!((summary.unwrap().counts.spot_check_bytes, reads), (0, Vec::new()));
    // Listed changes are not compared.
    let mut disk = disk;
    disk.changed.clear();
    for at in (0..80 << 20).step_by(5 << 20) {
        disk.write(at, &[1; 70_000]);
    }
    let mut wanted = request("web", &disk, true);
    wanted.disks[0].changed.as_mut().unwrap().base = newest(&repository, "web");
    wanted.spot_check_millionths = Some(1_000_000);
    let summary = run(&repository, wanted).unwrap();
    assert_eq!(summary.disks[0].mode, DiskMode::Incremental, "{}", summary.disks[0].reason);
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}
