//! Paced devices on clocks of tests: the order and the ends are the model's, and no answer comes early.

use super::*;
use crate::{DeviceError, Image};
use parking_lot::{Condvar, Mutex};
use std::fs::File;
use std::sync::mpsc;

/// A clock without waits. Every second pause returns half way, as if a timer were early.
#[derive(Default)]
struct JumpingClock {
    state: Mutex<JumpState>,
    woken: Condvar,
}

#[derive(Default)]
struct JumpState {
    now: Duration,
    is_woken: bool,
    is_exact: bool,
}

impl PacedClock for JumpingClock {
    fn now(&self) -> Duration {
        self.state.lock().now
    }

    fn pause(&self, until: Option<Duration>) {
        let mut state = self.state.lock();
        if let Some(until) = until {
            state.is_exact = !state.is_exact;
            state.now = if state.is_exact { state.now.max(until) } else { (state.now + until) / 2 };
            return;
        }
        while !state.is_woken {
            self.woken.wait(&mut state);
        }
        state.is_woken = false;
    }

    fn wake(&self) {
        self.state.lock().is_woken = true;
        self.woken.notify_one();
    }
}

#[derive(Default)]
struct ManualState {
    now: Duration,
    is_woken: bool,
    /// End of the pause that goes on.
    until: Option<Option<Duration>>,
}

/// A clock that the test moves.
#[derive(Default)]
struct ManualClock {
    state: Mutex<ManualState>,
    changed: Condvar,
}

impl ManualClock {
    fn advance(&self, to: Duration) {
        self.state.lock().now = to;
        self.changed.notify_all();
    }

    /// Waits until the disk has seen all commands and the time, and pauses; returns the end of its pause.
    fn pause_of_disk(&self) -> Option<Duration> {
        let mut state = self.state.lock();
        loop {
            match state.until {
                Some(until) if !state.is_woken && until.is_none_or(|until| state.now < until) => {
                    return until;
                }
                _ => self.changed.wait(&mut state),
            }
        }
    }
}

impl PacedClock for ManualClock {
    fn now(&self) -> Duration {
        self.state.lock().now
    }

    fn pause(&self, until: Option<Duration>) {
        let mut state = self.state.lock();
        state.until = Some(until);
        self.changed.notify_all();
        while !state.is_woken && until.is_none_or(|until| state.now < until) {
            self.changed.wait(&mut state);
        }
        state.is_woken = false;
        state.until = None;
    }

    fn wake(&self) {
        self.state.lock().is_woken = true;
        self.changed.notify_all();
    }
}

fn hard_disk(size: u64, clock: Arc<dyn PacedClock>) -> Arc<PacedHdd> {
    PacedHdd::new(Box::new(Image::zeroed(size)), HddProfile::default(), clock).unwrap()
}

fn flash(size: u64, clock: Arc<dyn PacedClock>) -> Arc<PacedSsd> {
    PacedSsd::new(Box::new(Image::zeroed(size)), SsdProfile::default(), clock).unwrap()
}

#[test]
fn paced_disks_conform() {
    let jumps = || Arc::new(JumpingClock::default());
    run(&|size| hard_disk(size, jumps()), FIXED);
    run(&|size| flash(size, jumps()), FIXED);
    run(&|size| flash(size, Arc::new(WallClock::new())), FIXED);
    let directory = tempfile::tempdir().unwrap();
    let of_file = |size| -> Arc<dyn Device> {
        let path = directory.path().join("disk");
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        file.set_len(size).unwrap();
        PacedSsd::new(Box::new(file), SsdProfile::consumer(), jumps()).unwrap()
    };
    run(&of_file, FIXED);
}

/// Writes, reads and flushes that wait together, more than the drive takes at a time.
fn batch() -> Vec<Io> {
    let classes = [IoClass::Foreground, IoClass::Background, IoClass::Commit];
    let ios = random_places(TIB, 4096, 150).enumerate().map(|(number, at)| match number % 10 {
        3 | 7 => Io { at, kind: IoKind::Read(AlignedBuf::zeroed(4096)), class: classes[number % 3] },
        9 => Io { at: 0, kind: IoKind::Flush, class: IoClass::Commit },
        _ => write_of(at, classes[number % 3]),
    });
    ios.collect()
}

type AnswerLog = mpsc::Receiver<(usize, Duration)>;

/// Submits the batch. Each answer leaves its number and the time.
fn submit_batch(device: &dyn Device, now: impl Fn() -> Duration + Clone + Send + 'static) -> AnswerLog {
    let (sender, receiver) = mpsc::channel();
    for (number, io) in batch().into_iter().enumerate() {
        let (sender, now) = (sender.clone(), now.clone());
        device.submit(vec![io]).on_complete(move |done| {
            assert!(done.iter().all(|done| done.result.is_ok()));
            sender.send((number, now())).unwrap();
        });
    }
    receiver
}

/// The same commands in virtual time and on a clock that is late: the same order, and no answer before its time.
#[test]
fn order_and_ends_are_those_of_virtual_time() {
    let disk = Hdd::new(TIB, HddProfile::default());
    let clock = disk.clone();
    let expected = submit_batch(&*disk, move || clock.now());
    while disk.drive() {}
    drop(disk);
    let expected: Vec<_> = expected.try_iter().collect();
    assert_eq!(expected.len(), 150);
    let by_number = expected.windows(2).filter(|pair| pair[0].0 > pair[1].0).count();
    assert!(by_number > 20, "the drive has an order of its own: {by_number}");
    for late in [Duration::ZERO, Duration::from_micros(700), Duration::from_millis(40)] {
        let clock = Arc::new(ManualClock::default());
        let disk = hard_disk(TIB, clock.clone());
        let shown = clock.clone();
        let found = submit_batch(&*disk, move || shown.now());
        while let Some(end) = clock.pause_of_disk() {
            clock.advance(end + late);
        }
        let found: Vec<_> = found.try_iter().collect();
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.0, expected.0, "the order of the drive");
            assert!(
                (expected.1..=expected.1 + late).contains(&found.1),
                "{found:?}, not {expected:?} + {late:?}"
            );
        }
    }
}

/// The head keeps to the command that it has begun; the next one begins when that one has ended, not when its
/// answer came.
#[test]
fn a_command_that_comes_meanwhile_follows_the_one_under_the_head() {
    let clock = Arc::new(ManualClock::default());
    let disk = hard_disk(TIB, clock.clone());
    clock.advance(Duration::from_secs(7));
    let mut far = disk.submit(vec![write_of(TIB / 2, IoClass::Foreground)]);
    let first = clock.pause_of_disk().unwrap();
    let arrival = Duration::from_secs(7) + Duration::from_millis(2);
    clock.advance(arrival);
    let mut near = disk.submit(vec![write_of(4096, IoClass::Foreground)]);
    assert_eq!(clock.pause_of_disk(), Some(first));
    assert!(far.try_take().is_none(), "its time has not come");
    clock.advance(first + Duration::from_millis(1));
    let second = clock.pause_of_disk().unwrap();
    assert!(far.try_take().is_some() && near.try_take().is_none());
    clock.advance(second);
    assert_eq!(clock.pause_of_disk(), None);
    assert!(near.try_take().is_some());

    let mut model = HddModel::new(TIB, HddProfile::default());
    model.accept(0, command(CommandKind::Write, TIB / 2, 4096), Duration::from_secs(7));
    assert_eq!(model.next_end(), Some(first));
    model.accept(1, command(CommandKind::Write, 4096, 4096), arrival);
    assert_eq!((model.serve(), model.next_end()), (Some(0), Some(second)));
    assert_eq!(model.serve(), Some(1));
    let busy = second - Duration::from_secs(7);
    assert_eq!((disk.model_counters().busy, model.counters().busy), (busy, busy), "idle time is no work");
}

/// A write ends in the buffer of the drive while an earlier read waits for its die.
#[test]
fn a_short_command_of_a_flash_drive_passes_a_long_one() {
    let clock = Arc::new(ManualClock::default());
    let drive = flash(TIB, clock.clone());
    let mut read = drive.submit(vec![Io {
        at: 0,
        kind: IoKind::Read(AlignedBuf::zeroed(4096)),
        class: IoClass::Foreground,
    }]);
    let long = clock.pause_of_disk().unwrap();
    let mut write = drive.submit(vec![write_of(TIB / 2, IoClass::Foreground)]);
    let short = clock.pause_of_disk().unwrap();
    assert!(short < long, "{short:?}, {long:?}");
    clock.advance(short);
    assert_eq!(clock.pause_of_disk(), Some(long));
    assert!(write.try_take().is_some() && read.try_take().is_none());
    clock.advance(long);
    assert_eq!(clock.pause_of_disk(), None);
    assert!(read.try_take().is_some());
}

/// A hook that waits for a command of its own lets no other hook in, which could take a lock that it holds.
#[test]
fn a_hook_may_read() {
    let clock = Arc::new(ManualClock::default());
    let disk = hard_disk(TIB, clock.clone());
    let log = Arc::new(Mutex::new(Vec::new()));
    for place in 0..40u64 {
        let (device, log) = (disk.clone(), log.clone());
        disk.submit(vec![write_of(place * 4096, IoClass::Commit)]).on_complete(move |_| {
            let mut log = log.lock();
            if place == 0 {
                assert!(device.read_now(TIB / 2, AlignedBuf::zeroed(4096)).is_ok());
                device.wait_idle();
            }
            log.push(place);
        });
    }
    while let Some(end) = clock.pause_of_disk() {
        clock.advance(end);
    }
    let log = log.lock();
    assert_eq!((log.len(), log[0], disk.counters().reads), (40, 0, 1));
}

#[test]
fn a_dropped_device_serves_what_was_submitted() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(MIB).unwrap();
    let contents = Box::new(file.try_clone().unwrap());
    let disk = PacedHdd::new(contents, HddProfile::default(), Arc::new(JumpingClock::default())).unwrap();
    for place in 0..50 {
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(place as u8 + 1);
        let kind = IoKind::Write { buf, fua: false };
        drop(disk.submit(vec![Io { at: place * 4096, kind, class: IoClass::Background }]));
    }
    drop(disk);
    let mut found = [0; 4096];
    for place in 0..50 {
        DiskContents::read_at(&file, place * 4096, &mut found).unwrap();
        assert_eq!(found, [place as u8 + 1; 4096]);
    }
}

/// Symptom avoided: a file that has become too short fails a write, and later writes must not seem to succeed.
#[test]
fn a_failed_write_poisons_and_a_panicking_hook_breaks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk");
    File::create(&path).unwrap().set_len(MIB).unwrap();
    let file = File::open(&path).unwrap();
    let clock = Arc::new(JumpingClock::default());
    let disk = PacedHdd::new(Box::new(file), HddProfile::default(), clock).unwrap();
    assert!(matches!(disk.write_through(0, AlignedBuf::zeroed(4096)), Err(DeviceError::Io { .. })));
    assert!(matches!(disk.write_through(0, AlignedBuf::zeroed(4096)), Err(DeviceError::Poisoned)));
    assert!(disk.read_now(0, AlignedBuf::zeroed(4096)).is_ok());

    let clock = Arc::new(ManualClock::default());
    let disk = hard_disk(TIB, clock.clone());
    disk.submit(vec![write_of(0, IoClass::Commit)]).on_complete(|_| panic!("a bug of a hook"));
    clock.advance(Duration::from_secs(1));
    disk.wait_idle();
    let refused = disk.write_through(0, AlignedBuf::zeroed(4096));
    assert!(matches!(refused, Err(DeviceError::Poisoned)), "{refused:?}");
}
