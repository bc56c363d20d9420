//! Tests of a detector: its answers, and that restarts, damage and full disks change none of them.

mod twin;

use super::limits::{BUFFER_BYTES, BUFFERS};
use super::*;
use copal_testkit::scattered;
use std::time::Duration;
use std::{fs, io};
use tempfile::TempDir;

/// Short id number `number`; ids spread over all partitions.
pub(super) fn id(number: u64) -> ShortId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&scattered(number + 1).to_be_bytes());
    id[8..].copy_from_slice(&number.to_be_bytes());
    id
}

pub(super) fn ids(numbers: std::ops::Range<u64>) -> Vec<ShortId> {
    numbers.map(id).collect()
}

pub(super) fn batch(vm: u32, batch: u64, partition: u32) -> BatchHeader {
    BatchHeader { job: [1; 16], round: 1, host: [vm as u8; 16], vm, batch, partition }
}

/// A log in memory.
#[derive(Default)]
pub(super) struct Log(pub(super) Vec<PopularPack>, pub(super) Vec<u32>);

impl Log {
    pub(super) fn append(&mut self, first_ordinal: u32, ids: Vec<ShortId>, is_checked: bool) {
        let position = self.newest() + 3;
        self.0.push(PopularPack { position, first_ordinal, ids, is_checked });
    }
}

impl PopularPacks for Log {
    fn newest(&self) -> u64 {
        self.0.last().map_or(0, |pack| pack.position)
    }

    fn for_each_since(
        &self,
        after: u64,
        visit: &mut dyn FnMut(PopularPack) -> io::Result<()>,
    ) -> io::Result<()> {
        let since = self.0.iter().filter(|pack| pack.position > after);
        since.cloned().try_for_each(visit)
    }

    fn is_backing_up(&self, vm: u32) -> bool {
        !self.1.contains(&vm)
    }
}

/// A log that cannot be read.
struct Unreadable;

impl PopularPacks for Unreadable {
    fn newest(&self) -> u64 {
        1
    }

    fn for_each_since(&self, _: u64, _: &mut dyn FnMut(PopularPack) -> io::Result<()>) -> io::Result<()> {
        Err(io::Error::other("the network is down"))
    }
}

pub(super) type Replies = Vec<(BatchHeader, Vec<Answer>)>;

pub(super) fn compare(detector: &Detector, partition: u32, now: Instant, log: &Log) -> (Replies, Compared) {
    let mut replies = Vec::new();
    let compared = detector
        .compare(partition, now, log, &mut |header, answers| replies.push((*header, answers.to_vec())))
        .unwrap();
    (replies, compared)
}

/// A detector with one partition in its own directory.
struct Alone {
    home: TempDir,
    detector: Detector,
    log: Log,
    now: Instant,
}

impl Alone {
    fn new(popular_millionths: u32) -> Alone {
        let home = tempfile::tempdir().unwrap();
        let detector = Detector::open(home.path(), 0, popular_millionths).unwrap();
        let (log, now) = (Log::default(), Instant::now());
        Alone { home, detector, log, now }
    }

    /// The answers to VM `vm` if it alone asks.
    fn ask(&self, vm: u32, ids: &[ShortId]) -> Vec<Answer> {
        self.ask_in(1, vm, ids)
    }

    /// The same in another round.
    fn ask_in(&self, round: u32, vm: u32, ids: &[ShortId]) -> Vec<Answer> {
        let header = BatchHeader { round, ..batch(vm, 0, 0) };
        self.detector.take(&header, ids).unwrap();
        let (mut replies, _) = compare(&self.detector, 0, self.now, &self.log);
        assert_eq!(replies.len(), 1);
        replies.remove(0).1
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(format!("{name}.0.0000"))
    }
}

use Answer as A;

#[test]
fn the_first_job_of_twelve_vms_stores_shared_chunks_once() {
    let alone = Alone::new(300_000);
    for vm in 0..12_u32 {
        let own = 1000 + u64::from(vm) * 10;
        let mut asked = ids(0..40);
        asked.extend(ids(own..own + 9));
        alone.detector.take(&batch(vm, u64::from(vm), 0), &asked).unwrap();
    }
    let (replies, compared) = compare(&alone.detector, 0, alone.now, &alone.log);
    assert_eq!(compared.candidates, 40 + 12 * 9);
    assert_eq!((compared.batches, compared.requests), (12, 12 * 49));
    assert_eq!((compared.stores_popular, compared.carried), (40, 40 * 11));
    let first: Vec<Answer> = replies[0].1[..40].to_vec();
    assert_eq!(first, vec![A::STORE_POPULAR; 40], "the first that asks stores");
    for (_, answers) in &replies[1..] {
        assert_eq!(answers[..40], vec![A::CARRY; 40]);
        assert_eq!(answers[40..], vec![A::NEW; 9]);
    }
}

#[test]
fn ids_that_most_vms_ask_for_are_promoted_first_up_to_the_fraction() {
    let alone = Alone::new(100_000);
    // Ids 0..10 are asked for by two VMs, 10..12 by four, and 60..108 by one.
    for vm in 0..4_u32 {
        let asked = match vm {
            0 | 1 => ids(0..12),
            2 => ids(10..12),
            _ => [ids(10..12), ids(60..108)].concat(),
        };
        alone.detector.take(&batch(vm, 0, 0), &asked).unwrap();
    }
    let (replies, compared) = compare(&alone.detector, 0, alone.now, &alone.log);
    assert_eq!(compared.candidates, 60);
    assert_eq!(compared.stores_popular, 3, "10 % of 60 are 6; above 3 a third VM is needed");
    assert_eq!(replies[0].1[10..], [A::STORE_POPULAR; 2]);
    assert_eq!(alone.ask(9, &ids(0..10)).iter().filter(|answer| **answer == A::STORE_POPULAR).count(), 3);
}

#[test]
fn the_same_vm_twice_is_one_vm() {
    let alone = Alone::new(1_000_000);
    assert_eq!(alone.ask(1, &[id(1), id(1)]), [A::NEW; 2]);
    assert_eq!(alone.ask(1, &[id(1)]), [A::NEW]);
    assert_eq!(alone.ask(2, &[id(1)]), [A::STORE_POPULAR]);
}

#[test]
fn a_grant_is_repeated_to_its_holder_and_expires() {
    let mut alone = Alone::new(1_000_000);
    alone.ask(1, &[id(1)]);
    for _ in 0..2 {
        assert_eq!(alone.ask(2, &[id(1)]), [A::STORE_POPULAR]);
        assert_eq!(alone.ask(1, &[id(1)]), [A::CARRY]);
    }
    alone.now += Duration::from_secs(600);
    assert_eq!(alone.ask(1, &[id(1)]), [A::STORE_POPULAR]);
    assert_eq!(alone.ask(2, &[id(1)]), [A::CARRY]);
}

/// Symptom: VMs waited for a chunk that no VM stored, up to their time-out, for ten minutes on end.
/// Cause: a grant was kept for its VM for ten minutes, although the VM had continued, or its backup had
/// ended.
/// Fix: a grant ends with its holder's next question, or once its holder is no longer backed up.
#[test]
fn a_grant_lapses_with_the_next_question_of_its_holder_or_with_its_session() {
    let mut alone = Alone::new(1_000_000);
    // Other ids are known, so that a third of all may be popular.
    alone.ask(1, &[1, 2, 11, 12, 13, 14, 15, 16, 17].map(id));
    assert_eq!(alone.ask(2, &[id(1), id(2)]), [A::STORE_POPULAR; 2]);
    assert_eq!(alone.ask(3, &[id(1)]), [A::CARRY]);
    // It asks for another id, and for one of these again: it has stored neither, and will not.
    assert_eq!(alone.ask_in(2, 2, &[id(2), id(7)]), [A::NEW, A::NEW]);
    assert_eq!(alone.ask(3, &[id(1), id(2)]), [A::STORE_POPULAR; 2], "the next VM that asks stores them");
    // Its backup ends. At first its session is not checked: the grant is too young.
    alone.log.1.push(3);
    assert_eq!(alone.ask(4, &[id(1)]), [A::CARRY]);
    alone.now += Duration::from_secs(5);
    assert_eq!(alone.ask(4, &[id(1)]), [A::STORE_POPULAR]);
    // Ids that were stored meanwhile stay stored.
    alone.log.append(9, vec![id(1)], true);
    assert_eq!(alone.ask_in(3, 4, &[id(1)]), [A::hit(9).unwrap()]);
}

#[test]
fn a_stored_id_is_a_hit_once_it_is_checked_and_the_copy_checked_first_counts() {
    let mut alone = Alone::new(1_000_000);
    alone.log.append(5, ids(0..3), false);
    alone.log.append(50, ids(2..4), false);
    assert_eq!(alone.ask(1, &ids(0..5)), [A::CARRY, A::CARRY, A::CARRY, A::CARRY, A::NEW]);
    alone.log.append(50, ids(2..4), true);
    let hit = |ordinal| A::hit(ordinal).unwrap();
    assert_eq!(alone.ask(1, &ids(1..4)), [A::CARRY, hit(50), hit(51)]);
    alone.log.append(5, ids(0..3), true);
    let expected = [hit(5), hit(6), hit(50), hit(51)];
    assert_eq!(alone.ask(1, &ids(0..4)), expected);
    fs::remove_file(alone.path("popular")).unwrap();
    assert_eq!(alone.ask(1, &ids(0..4)), expected, "made anew");
    alone.log = Log::default();
    assert_eq!(alone.ask(1, &[id(0)]), [A::NEW], "a run ahead of the log is another log's");
}

#[test]
fn ordinals_that_no_frame_can_have_are_left_out() {
    let mut alone = Alone::new(1_000_000);
    alone.log.append(A::FIRST_CODE - 1, ids(0..3), true);
    let answers = alone.ask(1, &ids(0..3));
    assert_eq!(answers, [A::hit(A::FIRST_CODE - 1).unwrap(), A::NEW, A::NEW]);
}

#[test]
fn batches_out_of_bounds_are_refused_and_counted() {
    let home = tempfile::tempdir().unwrap();
    let limits = DetectLimits { spool_bytes: 150, ..DetectLimits::default() };
    let detector = Detector::open_limited(home.path(), 1, 40_000, limits).unwrap();
    let inside = id((0..).find(|&number| id(number)[0] < 0x80).unwrap());
    let outside = id((0..).find(|&number| id(number)[0] >= 0x80).unwrap());
    let take = |partition, ids: &[ShortId]| detector.take(&batch(1, 1, partition), ids);
    assert!(matches!(take(2, &[inside]), Err(BatchRefusal::NoSuchPartition(2))));
    assert!(matches!(take(0, &[inside, outside]), Err(BatchRefusal::OutsidePartition(0))));
    assert!(matches!(take(0, &[]), Err(BatchRefusal::Len(0))));
    assert!(matches!(take(0, &[inside; MAX_BATCH_IDS + 1]), Err(BatchRefusal::Len(4097))));
    take(0, &[inside]).unwrap();
    assert!(matches!(take(1, &[outside]), Err(BatchRefusal::SpoolFull { spooled_bytes: 116 })));
    assert_eq!(detector.refused(), 5);
    assert_eq!(detector.waiting(), [0]);
    compare(&detector, 0, Instant::now(), &Log::default());
    assert!(detector.waiting().is_empty());
    take(1, &[outside]).unwrap();
    assert!(matches!(
        detector.compare(2, Instant::now(), &Log::default(), &mut |_, _| {}),
        Err(DetectError::NoSuchPartition { .. })
    ));
    assert!(matches!(Detector::open(home.path(), 17, 0), Err(DetectError::TooManyBits { bits: 17 })));
}

#[test]
fn memory_stays_within_its_bound_however_much_comes() {
    let home = tempfile::tempdir().unwrap();
    let limits = DetectLimits { memory_bytes: 2 << 20, ..DetectLimits::default() };
    let detector = Detector::open_limited(home.path(), 0, 40_000, limits).unwrap();
    let mut log = Log::default();
    (0..10).for_each(|pack| {
        log.append(pack * 10_000, ids(u64::from(pack) * 10_000..u64::from(pack + 1) * 10_000), true)
    });
    for number in 0..16 {
        let asked = ids(number * 4096..(number + 1) * 4096);
        detector.take(&batch(1, number, 0), &asked).unwrap();
    }
    // Batches of one id take the most memory for a request.
    (0..4000).for_each(|number| detector.take(&batch(2, 100 + number, 0), &[id(number)]).unwrap());
    let (replies, compared) = compare(&detector, 0, Instant::now(), &log);
    assert_eq!(compared.requests, 16 * 4096 + 4000);
    assert_eq!((compared.hits, compared.popular), (compared.requests, 100_000));
    assert_eq!(replies.len(), 4016);
    let rows_of_all = compared.requests * 36;
    assert!(compared.slices >= rows_of_all.div_ceil(limits.slice_bytes()), "{compared:?}");
    assert!(compared.peak_bytes <= limits.slice_bytes(), "{compared:?} of {}", limits.slice_bytes());
    for memory_bytes in [0, 2 << 20, 5 << 20, 12 << 20, 64 << 20] {
        let limits = DetectLimits { memory_bytes, ..limits };
        let grants = grants::most_grants(limits.grants_bytes()) as u64 / 7 * 8 * 29;
        let buffers = BUFFERS * BUFFER_BYTES as u64;
        let all = limits.slice_bytes() + limits.new_rows_bytes() + grants + buffers;
        assert!(all <= limits.memory_bytes(), "{all} of {memory_bytes}");
    }
}

#[test]
fn ids_without_room_in_the_grant_table_are_asked_again() {
    let home = tempfile::tempdir().unwrap();
    let limits = DetectLimits { memory_bytes: 0, ..DetectLimits::default() };
    let detector = Detector::open_limited(home.path(), 0, 1_000_000, limits).unwrap();
    for vm in 0..3 {
        (0..2).for_each(|half| {
            let asked = ids(half * 4000..(half + 1) * 4000);
            detector.take(&batch(vm, half, 0), &asked).unwrap();
        });
    }
    let (_, compared) = compare(&detector, 0, Instant::now(), &Log::default());
    let most_grants = grants::most_grants(limits.grants_bytes()) as u64;
    assert!((1..8000).contains(&most_grants));
    assert_eq!((compared.slices, compared.stores_popular, compared.new), (1, most_grants, 0));
}

#[test]
fn requests_that_were_not_answered_are_kept() {
    let alone = Alone::new(1_000_000);
    alone.detector.take(&batch(1, 1, 0), &[id(1)]).unwrap();
    let failed = alone.detector.compare(0, alone.now, &Unreadable, &mut |_, _| panic!("answered"));
    assert!(matches!(failed, Err(DetectError::Popular(_))));
    alone.detector.take(&batch(2, 2, 0), &[id(1)]).unwrap();
    assert_eq!(alone.detector.waiting(), [0]);
    let (replies, compared) = compare(&alone.detector, 0, alone.now, &alone.log);
    assert_eq!((replies.len(), compared.slices), (2, 2));
    assert_eq!((&replies[0].1, &replies[1].1), (&vec![A::NEW], &vec![A::STORE_POPULAR]));
}

#[test]
fn batches_are_taken_while_others_are_answered() {
    let alone = Alone::new(1_000_000);
    alone.detector.take(&batch(1, 1, 0), &[id(1)]).unwrap();
    let mut replies = 0;
    let mut reply = |_: &BatchHeader, _: &[Answer]| {
        replies += 1;
        alone.detector.take(&batch(2, 2, 0), &[id(2)]).unwrap();
    };
    alone.detector.compare(0, alone.now, &alone.log, &mut reply).unwrap();
    assert_eq!((replies, alone.detector.waiting()), (1, vec![0]));
}

#[test]
fn a_torn_spool_loses_the_torn_batch_and_no_later_one() {
    let mut alone = Alone::new(1_000_000);
    (0..3).for_each(|number| alone.detector.take(&batch(1, number, 0), &[id(number)]).unwrap());
    let spool = alone.path("spool");
    let file = fs::OpenOptions::new().write(true).open(&spool).unwrap();
    file.set_len(fs::metadata(&spool).unwrap().len() - 5).unwrap();
    alone.detector = Detector::open(alone.home.path(), 0, 1_000_000).unwrap();
    alone.detector.take(&batch(1, 3, 0), &[id(3)]).unwrap();
    let (replies, _) = compare(&alone.detector, 0, alone.now, &alone.log);
    let numbers: Vec<u64> = replies.iter().map(|(header, _)| header.batch).collect();
    assert_eq!(numbers, [0, 1, 3]);
}

#[test]
fn deleted_and_foreign_files_cost_no_more_than_their_requests() {
    let mut alone = Alone::new(1_000_000);
    alone.detector.take(&batch(1, 1, 0), &[id(1)]).unwrap();
    fs::remove_file(alone.path("spool")).unwrap();
    alone.detector.take(&batch(1, 2, 0), &[id(2)]).unwrap();
    assert_eq!(compare(&alone.detector, 0, alone.now, &alone.log).0.len(), 1);
    alone.detector.take(&batch(1, 3, 0), &[id(3)]).unwrap();
    fs::remove_file(alone.path("spool")).unwrap();
    assert_eq!(compare(&alone.detector, 0, alone.now, &alone.log).0, []);
    for name in ["spool", "compared", "popular", "candidates"] {
        fs::write(alone.path(name), "something else").unwrap();
    }
    fs::write(alone.home.path().join("popular.0.0000.tmp"), "half").unwrap();
    fs::write(alone.home.path().join("popular.3.0005"), "of more partitions").unwrap();
    fs::write(alone.home.path().join("notes.txt"), "mine").unwrap();
    alone.detector = Detector::open(alone.home.path(), 0, 1_000_000).unwrap();
    alone.log.append(1, ids(7..8), true);
    let (replies, _) = compare(&alone.detector, 0, alone.now, &alone.log);
    assert_eq!(replies, []);
    assert_eq!(alone.ask(1, &[id(7), id(8)]), [A::hit(1).unwrap(), A::NEW]);
    let mut names: Vec<String> = fs::read_dir(alone.home.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["candidates.0.0000", "notes.txt", "popular.0.0000"]);
}
