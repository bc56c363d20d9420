//! Backups of several VMs that ask each other for popular chunks: two passes, popular packs, and late or
//! wrong answers.

use crate::fleet_store::*;
use crate::world::*;
use copal_backup::peers::{Answer, Ids, Peers, ShortId, Turn};
use copal_backup::*;
use copal_disk::source;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Answers by the agents' rules, in memory: the second VM that asks for a chunk stores it as a popular one.
pub(crate) struct Detector<'a> {
    repository: &'a Repository,
    state: Mutex<State>,
    news: Condvar,
    /// Number of VMs whose first questions are compared together.
    together: usize,
    /// Turns true answers into wrong ones.
    pub(crate) lie: fn(Answer) -> Answer,
    /// Popular packs count only once another host has checked them.
    pub(crate) is_checking: bool,
}

#[derive(Default)]
struct State {
    askers: HashMap<ShortId, BTreeSet<Uuid>>,
    granted: HashMap<ShortId, Uuid>,
    sent: Vec<(Uuid, Vec<ShortId>)>,
    again_since: Option<Instant>,
    turn: Option<Uuid>,
}

impl<'a> Detector<'a> {
    pub(crate) fn new(repository: &'a Repository, together: usize) -> Detector<'a> {
        Detector {
            repository,
            state: Mutex::default(),
            news: Condvar::new(),
            together,
            lie: |answer| answer,
            is_checking: true,
        }
    }

    fn popular(&self) -> HashMap<ShortId, u32> {
        let mut found = HashMap::new();
        let visit = &mut |frames: popular::PopularFrames| {
            if frames.is_checked {
                found.extend(frames.ids.into_iter().zip(frames.first_ordinal..));
            }
            Ok(())
        };
        self.repository.for_each_popular_since(0, visit).unwrap();
        found
    }

    fn answer(&self, state: &mut State, vm: Uuid, ids: &[ShortId]) -> Vec<Answer> {
        let popular = self.popular();
        let answer = |id: &ShortId| match (popular.get(id), state.granted.get(id)) {
            (Some(&ordinal), _) => Answer::hit(ordinal).unwrap(),
            (None, Some(&holder)) if holder == vm => Answer::STORE_POPULAR,
            (None, Some(_)) => Answer::CARRY,
            (None, None) if state.askers[id].len() > 1 => {
                state.granted.insert(*id, vm);
                Answer::STORE_POPULAR
            }
            (None, None) => Answer::NEW,
        };
        ids.iter().map(answer).map(self.lie).collect()
    }
}

impl Peers for Detector<'_> {
    fn begin(&self, vm: Uuid, _: Turn) -> std::result::Result<(), String> {
        let mut state = self.state.lock().unwrap();
        while state.turn.is_some() {
            state = self.news.wait(state).unwrap();
        }
        state.turn = Some(vm);
        Ok(())
    }

    fn end(&self, vm: Uuid, _: Turn) {
        let mut state = self.state.lock().unwrap();
        assert_eq!(state.turn.take(), Some(vm), "a turn ends only after it began");
        self.news.notify_all();
    }

    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        let ids = ids.collect::<io::Result<Vec<_>>>()?;
        let mut state = self.state.lock().unwrap();
        for id in &ids {
            state.askers.entry(*id).or_default().insert(vm);
        }
        state.sent.push((vm, ids));
        self.news.notify_all();
        Ok(state.sent.len() as u64 - 1)
    }

    fn receive(&self, sent: u64) -> Vec<Answer> {
        let mut state = self.state.lock().unwrap();
        while state.sent.len() < self.together {
            state = self.news.wait(state).unwrap();
        }
        let (vm, ids) = state.sent[sent as usize].clone();
        self.answer(&mut state, vm, &ids)
    }

    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        let ids = ids.collect::<io::Result<Vec<_>>>()?;
        std::thread::park_timeout(Duration::from_millis(5));
        let mut state = self.state.lock().unwrap();
        let since = *state.again_since.get_or_insert_with(Instant::now);
        // A chunk that another VM stores comes within seconds; a chunk that no VM stores never comes.
        let patience = if self.is_checking { 60_000 } else { 50 };
        if since.elapsed() > Duration::from_millis(patience) {
            return Ok(None);
        }
        Ok(Some(self.answer(&mut state, vm, &ids)))
    }

    fn stored(&self) {
        if self.is_checking {
            for pack in self.repository.unchecked_popular().unwrap() {
                assert!(self.repository.check_popular(pack.pack, &CancelFlag::new()).unwrap());
            }
        }
    }
}

pub(crate) fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    Random::new(seed).fill(&mut noise);
    noise
}

/// A disk of which most is the same on all VMs.
pub(crate) fn clone_of_template(vm: u64) -> Disk {
    let mut disk = Disk::new(8 << 20);
    disk.write(1 << 20, &noise(1, 4 << 20));
    disk.write(6 << 20, &noise(100 + vm, 1 << 20));
    disk.changed.clear();
    disk
}

pub(crate) fn back_up_with(
    repository: &Repository,
    peers: &dyn Peers,
    vm: &str,
    disk: &Disk,
    changed: bool,
) -> Result<BackupSummary> {
    let spool = tempfile::tempdir().unwrap();
    let others = Collaboration {
        peers,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let request = request_since(repository, vm, disk, changed);
    repository.backup_with(&request, Some(&others), &Silent, &CancelFlag::new())
}

fn all_at_once(repository: &Repository, detector: &Detector<'_>, disks: &[Disk]) -> Vec<BackupSummary> {
    std::thread::scope(|scope| {
        let running: Vec<_> = disks
            .iter()
            .enumerate()
            .map(|(number, disk)| {
                scope.spawn(move || {
                    back_up_with(repository, detector, &format!("vm{number}"), disk, false).unwrap()
                })
            })
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

/// All VMs of a job: their common chunks are stored once, and each can be restored alone.
#[test]
fn vms_of_one_job_store_shared_chunks_once() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let detector = Detector::new(&repository, 4);
    let disks: Vec<Disk> = (0..4).map(clone_of_template).collect();
    let made = all_at_once(&repository, &detector, &disks);
    let sum = |count: fn(&BackupCounts) -> u64| made.iter().map(|one| count(&one.counts)).sum::<u64>();
    let template = 4 << 20;
    assert_eq!(sum(|counts| counts.unresolved_chunks), 0);
    // Chunks across the borders of shared and own bytes belong to one VM.
    let popular = sum(|counts| counts.popular_bytes);
    assert!((template - 200_000..=template).contains(&popular), "{popular}");
    let new = sum(|counts| counts.new_bytes);
    assert!((4 << 20..(4 << 20) + 1_000_000).contains(&new), "{new}");
    assert!(sum(|counts| counts.read_again_bytes) < new + popular + 500_000);
    let status = repository.popular_status().unwrap();
    assert_eq!((status.unchecked_packs, status.frames > 0), (0, true));
    for (one, disk) in made.iter().zip(&disks) {
        assert_eq!(restore(&repository, one.snapshot), disk.bytes);
    }
    // Removing one VM's snapshots touches no other VM and no popular chunk.
    let (gone, kept) = made.split_first().unwrap();
    repository.forget(&[gone.snapshot]).unwrap();
    prune(&repository);
    let repository = open(&store);
    assert!(check(&repository).is_clean());
    for (one, disk) in kept.iter().zip(&disks[1..]) {
        assert_eq!(restore(&repository, one.snapshot), disk.bytes);
    }
}

/// One VM after the other: the second stores the first one's chunks as popular ones, the third stores none of
/// them.
#[test]
fn vms_one_after_another_have_two_copies_before_a_popular_one() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut detector = Detector::new(&repository, 1);
    let mut made = Vec::new();
    for number in 0..3 {
        let disk = clone_of_template(number);
        detector.together = 0;
        made.push((
            back_up_with(&repository, &detector, &format!("vm{number}"), &disk, false).unwrap(),
            disk,
        ));
    }
    let [first, second, third] = [0, 1, 2].map(|vm: usize| made[vm].0.counts);
    assert_eq!((first.popular_bytes, first.popular_dup_bytes), (0, 0));
    assert!(second.popular_bytes > 3 << 20, "{second:?}");
    assert_eq!(third.popular_bytes, 0);
    assert!(third.popular_dup_bytes > 3 << 20, "{third:?}");
    assert!(third.new_bytes < 1_400_000, "{third:?}");

    // An incremental backup asks about changed chunks only, and finds its earlier ones in the VM, shared
    // chunks too.
    let (_, mut disk) = made.pop().unwrap();
    disk.changed.clear();
    disk.write(2 << 20, &noise(7, 100_000));
    let next = back_up_with(&repository, &detector, "vm2", &disk, true).unwrap();
    // Chunk boundaries follow the key of the repository. A segment has at least 32 chunks, the disk 160.
    assert!(next.counts.asked_chunks < 32, "{:?}", next.counts);
    assert_eq!(next.disks[0].mode, DiskMode::Incremental);
    assert_eq!(restore(&repository, next.snapshot), disk.bytes);
    assert!(check(&repository).is_clean());
}

/// A pack that no other host has checked is used by its writer only: the others store their own chunks, and
/// count them.
#[test]
fn unchecked_packs_are_not_referred_to() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut detector = Detector::new(&repository, 3);
    detector.is_checking = false;
    let disks: Vec<Disk> = (0..3).map(clone_of_template).collect();
    let made = all_at_once(&repository, &detector, &disks);
    let unresolved: Vec<u64> = made.iter().map(|one| one.counts.unresolved_chunks).collect();
    assert!(unresolved.iter().any(|count| *count > 100), "{unresolved:?}");
    assert!(repository.popular_status().unwrap().unchecked_packs > 0);
    for (one, disk) in made.iter().zip(&disks) {
        assert_eq!(restore(&repository, one.snapshot), disk.bytes);
    }
}

/// A peer that answers with wrong frames, or not at all, costs space and no data.
#[test]
fn answers_are_verified() {
    let lies: [fn(Answer) -> Answer; 4] = [
        |answer| answer.ordinal().and_then(|at| Answer::hit(at ^ 1)).unwrap_or(answer),
        |_| Answer::hit(0).unwrap(),
        |_| Answer::hit(4_000_000).unwrap(),
        |_| Answer::UNANSWERED,
    ];
    for lie in lies {
        let store = fleet_store();
        let repository = init_as(&store, FLEET);
        let mut detector = Detector::new(&repository, 0);
        for number in 0..2 {
            let disk = clone_of_template(number);
            back_up_with(&repository, &detector, &format!("vm{number}"), &disk, false).unwrap();
        }
        detector.lie = lie;
        let disk = clone_of_template(2);
        let lied = back_up_with(&repository, &detector, "vm2", &disk, false).unwrap();
        assert!(lied.counts.unresolved_chunks > 100, "{:?}", lied.counts);
        assert_eq!(restore(&repository, lied.snapshot), disk.bytes);
        assert!(check(&repository).is_clean());
    }
}

/// Returns other bytes at the second read.
struct Changing(MemorySource, Mutex<u64>);

impl source::Source for Changing {
    fn size_bytes(&self) -> Option<u64> {
        self.0.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<source::Extent, source::SourceError> {
        self.0.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, source::SourceError> {
        let read = self.0.read_at(offset, buf)?;
        let mut reads = self.1.lock().unwrap();
        let end = offset + read as u64;
        let changed = (3 << 20) + 5;
        if (offset..end).contains(&changed) {
            *reads += 1;
            if *reads > 1 {
                buf[(changed - offset) as usize] ^= 0xff;
            }
        }
        Ok(read)
    }
}

/// Symptom: none, by design. If a disk is written between the passes, the bytes of the second one are stored,
/// under their own name.
#[test]
fn bytes_that_changed_between_the_passes_are_stored_under_their_own_name() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let detector = Detector::new(&repository, 0);
    let mut disk = clone_of_template(0);
    let source = Changing(*disk.source(), Mutex::new(0));
    let spool = tempfile::tempdir().unwrap();
    let others = Collaboration {
        peers: &detector,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let request = BackupRequest::new("web", vec![DiskSource::new("sda", Box::new(source))]);
    let made = repository.backup_with(&request, Some(&others), &Silent, &CancelFlag::new()).unwrap();
    disk.bytes[(3 << 20) + 5] ^= 0xff;
    assert_eq!(restore(&repository, made.snapshot), disk.bytes);
    assert!(check(&repository).is_clean());
    assert_eq!(std::fs::read_dir(spool.path()).unwrap().count(), 0, "nothing stays");
}

/// A disk of several GiB with little data.
#[derive(Clone)]
struct Sparse {
    size: u64,
    data: Vec<(u64, Vec<u8>)>,
}

impl Sparse {
    fn bytes_at(&self, offset: u64) -> Option<&(u64, Vec<u8>)> {
        let holds = |(at, data): &&(u64, Vec<u8>)| (*at..at + data.len() as u64).contains(&offset);
        self.data.iter().find(holds)
    }
}

impl source::Source for Sparse {
    fn size_bytes(&self) -> Option<u64> {
        Some(self.size)
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<source::Extent, source::SourceError> {
        let (kind, end) = match self.bytes_at(offset) {
            Some((at, data)) => (source::ExtentKind::Data, at + data.len() as u64),
            None => {
                let next = self.data.iter().map(|(at, _)| *at).find(|at| *at > offset);
                (source::ExtentKind::Zero, next.unwrap_or(self.size))
            }
        };
        Ok(source::Extent { offset, length: end - offset, kind })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, source::SourceError> {
        let length = buf.len().min((self.size - offset) as usize);
        for (byte, at) in buf[..length].iter_mut().zip(offset..) {
            *byte = self.bytes_at(at).map_or(0, |(start, data)| data[(at - start) as usize]);
        }
        Ok(length)
    }
}

/// A disk is divided at page borders of 1 GiB into parts, and becomes one tree.
#[test]
fn a_large_disk_is_backed_up_in_parts() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let detector = Detector::new(&repository, 0);
    let at = [0, 1 << 30, (2 << 30) + (1 << 20)];
    let mut disk = Sparse {
        size: (2 << 30) + (5 << 20),
        data: at.into_iter().map(|at| (at, noise(at, 294_912))).collect(),
    };
    let spool = tempfile::tempdir().unwrap();
    let others = Collaboration {
        peers: &detector,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: 1,
    };
    let mut asked = Vec::new();
    for changed in [false, true] {
        let mut source = DiskSource::new("sda", Box::new(disk.clone()));
        source.changed = changed.then(|| source::ChangedExtents {
            size_bytes: disk.size,
            extents: vec![source::ChangedExtent {
                offset: 1 << 30,
                length: 65_536,
                kind: source::ChangeKind::Dirty,
            }],
            base: newest(&repository, "web"),
            ..source::ChangedExtents::default()
        });
        let request = BackupRequest::new("web", vec![source]);
        let made = repository.backup_with(&request, Some(&others), &Silent, &CancelFlag::new()).unwrap();
        asked.push(detector.state.lock().unwrap().sent.len());
        assert_eq!(made.counts.logical_bytes, disk.size);
        assert_eq!(made.counts.data_bytes, 3 * 294_912);
        let listed = &repository.ls(made.snapshot).unwrap()[0];
        assert_eq!(listed.data_bytes, 3 * 294_912);
        // A backup without the others reads the whole disk, and its bytes are those of the last backup.
        let whole = BackupRequest::new("web", vec![DiskSource::new("sda", Box::new(disk.clone()))]);
        let whole = repository.backup(whole, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!((whole.counts.new_chunks, whole.counts.cross_dup_bytes), (0, 0));
        disk.data[1].1[5000..60_000].copy_from_slice(&noise(9, 55_000));
    }
    assert_eq!(asked, [3, 4], "a part without new chunks asks nothing");
    let report = repository.verify(newest_id(&repository), &Silent, &CancelFlag::new());
    assert!(report.unwrap().is_clean());
}

fn newest_id(repository: &Repository) -> SnapshotId {
    repository.snapshots(None).unwrap().last().unwrap().id
}
