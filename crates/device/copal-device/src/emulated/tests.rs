//! The devices against the conformance suite, and the order of their commands.

mod collection;
mod flash;
mod hard_disk;
mod paced;

use super::*;
use crate::conformance::{Traits, run};
use crate::random::DeviceRandom;
use crate::{AlignedBuf, Device, Io, IoClass, IoKind};
use std::sync::Arc;
use std::time::Duration;

const TIB: u64 = 1 << 40;
const MIB: u64 = 1 << 20;

fn command(kind: CommandKind, at: u64, len: u64) -> ModelCommand {
    ModelCommand { kind, at, len }
}

/// Commands a second when `depth` commands are in the drive at any time.
fn rate(model: &mut dyn DiskModel, depth: usize, commands: impl Iterator<Item = ModelCommand>) -> f64 {
    let begin = model.now();
    let mut in_drive = 0;
    let mut count = 0;
    for (id, command) in (0..).zip(commands) {
        if in_drive == depth {
            assert!(model.serve().is_some());
            in_drive -= 1;
        }
        model.accept(id, command, model.now());
        in_drive += 1;
        count += 1;
    }
    while model.serve().is_some() {}
    f64::from(count) / (model.now() - begin).as_secs_f64()
}

fn random_places(span: u64, len: u64, count: usize) -> impl Iterator<Item = u64> {
    let mut random = DeviceRandom::new(5);
    std::iter::repeat_with(move || random.below(span / len) * len).take(count)
}

#[track_caller]
fn near(found: f64, expected: f64, share: f64) {
    assert!((found / expected - 1.0).abs() <= share, "{found}, not {expected} +- {share}");
}

const FIXED: Traits = Traits { grows: false, counts_exactly: true };

#[test]
fn an_emulated_hard_disk_conforms() {
    let cached =
        HddProfile { write_cache_bytes: MIB, read_ahead: true, logical_block: 512, ..HddProfile::default() };
    for profile in [HddProfile::default(), cached] {
        run(&|size| Hdd::new(size, profile.clone()), FIXED);
    }
}

#[test]
fn an_emulated_flash_drive_conforms() {
    for profile in [SsdProfile::default(), SsdProfile::consumer().with_spare(0.07)] {
        run(&|size| Ssd::new(size, profile.clone()), FIXED);
    }
}

fn write_of(at: u64, class: IoClass) -> Io {
    Io { at, kind: IoKind::Write { buf: AlignedBuf::zeroed(4096), fua: false }, class }
}

#[test]
fn nothing_ends_before_the_drive_is_driven_and_the_clock_moves_with_each_end() {
    let disk = Hdd::new(TIB, HddProfile::default());
    let places = [0, TIB / 2, 4096];
    let mut writes = places.map(|at| disk.submit(vec![write_of(at, IoClass::Foreground)]));
    assert!(writes.iter().all(|write| !write.is_ready()) && disk.now() == Duration::ZERO);
    let mut before = Duration::ZERO;
    for place in [0, 2, 1] {
        assert!(!writes[place].is_ready() && disk.drive());
        assert!(writes[place].try_take().is_some() && disk.now() > before, "{place} is next");
        before = disk.now();
    }
    assert!(!disk.drive() && disk.now() == before);
    assert_eq!(disk.model_counters().media_writes, 3);
}

/// A thread that waits for its own command may hold a lock that the hook of another one takes.
#[test]
fn a_read_on_this_thread_runs_no_hook() {
    let disk = Hdd::new(TIB, HddProfile::default());
    let lock = Arc::new(parking_lot::Mutex::new(0));
    for place in 0..40 {
        let hooked = Arc::clone(&lock);
        disk.submit(vec![write_of(place * 4096, IoClass::Commit)]).on_complete(move |_| *hooked.lock() += 1);
    }
    let mut held = lock.lock();
    assert!(disk.read_now(TIB / 2, AlignedBuf::zeroed(4096)).is_ok());
    assert_eq!(*held, 0);
    *held = 100;
    drop(held);
    while disk.drive() {}
    assert_eq!((*lock.lock(), disk.counters().writes), (140, 40));
}

/// A commit must not wait for a scrub that fills the queue of the drive.
#[test]
fn commits_pass_commands_that_wait_at_the_host() {
    let disk = Hdd::new(TIB, HddProfile::default());
    let background: Vec<_> = random_places(TIB, 4096, 200)
        .map(|at| disk.submit(vec![write_of(at, IoClass::Background)]))
        .collect();
    let mut commit = disk.submit(vec![write_of(0, IoClass::Commit)]);
    let mut served = 0;
    while commit.try_take().is_none() {
        assert!(disk.drive());
        served += 1;
    }
    assert!(served <= 32, "{served} commands came first");
    background.into_iter().for_each(|write| drop(write.wait()));
}

#[test]
fn a_terabyte_takes_memory_for_written_contents_only() {
    let drive = Ssd::new(TIB, SsdProfile::default().with_spare(0.28));
    for at in [0, TIB / 2, TIB - 4096] {
        let mut buf = AlignedBuf::zeroed(4096);
        buf.fill(7);
        assert!(drive.write_through(at, buf).is_ok());
    }
    let found = drive.read_now(TIB - 4096, AlignedBuf::zeroed(4096)).unwrap();
    assert!(found.iter().all(|byte| *byte == 7));
    let copy = Ssd::with_image(drive.image(), SsdProfile::default());
    assert_eq!(copy.read_now(TIB / 2, AlignedBuf::zeroed(4096)).unwrap()[0], 7);
    assert!(copy.now() > copy.model_counters().busy, "the client's own time is not the drive's");
}
