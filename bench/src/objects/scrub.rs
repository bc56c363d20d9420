//! `object-scrub`: times of operations beside a scrub (O14), and whether the scrub keeps its pace.
//!
//! One thread reads pages and appends durable frames. In every second slice another thread scrubs the same store at a
//! fixed pace. The slices take turns, so that other load on the machine affects both sides.

use super::{fresh, stores::BenchStore};
use anyhow::{Context, Result, anyhow};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::IoClass;
use copal_object::{Ack, BackendKind, FramePos, ObjectId, ObjectKind, Op, ScrubPace, Store, StoreScrub, Txn};
use copal_testkit::Random;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

const STORE_BYTES: u64 = 768 << 20;
const OBJECTS: u64 = 64;
const OBJECT_BYTES: u64 = 4 << 20;
const READ_BYTES: u64 = 4096;
/// A slice with or without a scrub.
const SLICE: Duration = Duration::from_secs(1);
/// Of so many operations, one is an append.
const APPEND_ONE_IN: u64 = 4;
/// Times of operations beside a scrub may exceed the others by so much.
const RATIO_MAX: f64 = 1.2;
/// A step reads a window at once, so a slice may exceed the pace by one.
const WINDOW_BYTES: f64 = (1 << 20) as f64;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the store [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Seconds of all slices together
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Run for 30 minutes
    #[arg(long)]
    full: bool,
    /// Pace of the scrub
    #[arg(long, default_value_t = 32 << 20)]
    bytes_per_second: u64,
}

/// Times of one side.
#[derive(Default)]
struct SideTimes {
    reads: Vec<Duration>,
    appends: Vec<Duration>,
}

pub(crate) fn run(root: &Path, arguments: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, arguments.scratch.as_ref(), "bench").join("object-scrub");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    let mut made = BenchStore::in_file(&scratch.join("store"), STORE_BYTES, BackendKind::Cow)?;
    let mut objects = Vec::new();
    for number in 0..OBJECTS {
        let id = made.create(ObjectKind::Plain)?;
        let data = Bytes::from(Random::new(number).bytes(OBJECT_BYTES as usize));
        made.commit(vec![Op::Append { id, at: 0, data }], Ack::Durable)?;
        objects.push(id);
    }
    let log = made.create(ObjectKind::Stream)?;
    let store = made.store.clone();
    let seconds = if arguments.full { 30 * 60 } else { arguments.seconds };
    let mut sides = [SideTimes::default(), SideTimes::default()];
    let (mut scrubbed, mut scrub_time, mut passes) = (0, Duration::ZERO, 0_u64);
    let mut scrub = store.scrub();
    let mut random = Random::new(1);
    for slice in 0..seconds.max(2) {
        let ended = AtomicBool::new(false);
        let side = (slice % 2) as usize;
        let (before, begin) = (scrub.progress().read_bytes, Instant::now());
        std::thread::scope(|scope| -> Result<()> {
            let scrubber = (side == 1)
                .then(|| scope.spawn(|| keep_pace(&mut scrub, arguments.bytes_per_second, &ended)));
            let worked = work(&store, &objects, log, &mut random, &mut sides[side]);
            ended.store(true, Ordering::Relaxed);
            if let Some(scrubber) = scrubber {
                scrubber.join().map_err(|_| anyhow!("the scrub panicked"))??;
            }
            worked
        })?;
        if side == 1 {
            scrub_time += begin.elapsed();
            scrubbed += scrub.progress().read_bytes - before;
        }
        if scrub.progress().finished {
            passes += 1;
            anyhow::ensure!(scrub.progress().damages == 0, "the scrub found damage");
            scrub = store.scrub();
        }
        store.commit(trim(&store, log), Ack::Durable).wait()?;
    }
    judge(&mut report, &mut sides);
    let rate = scrubbed as f64 / scrub_time.as_secs_f64();
    let allowed = arguments.bytes_per_second as f64 + WINDOW_BYTES;
    report.at_most("bytes a second that the scrub reads", rate, "B/s", allowed);
    report.fact("passes over the store", passes as f64, "");
    drop((scrub, store, made));
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "object-scrub")
}

fn trim(store: &Store, log: ObjectId) -> Txn {
    Txn::new().trim_stream(log, FramePos(store.stat(log).map_or(0, |stat| stat.len)))
}

/// Scrubs at the pace until the slice ends, or everything is read.
fn keep_pace(scrub: &mut StoreScrub, bytes_per_second: u64, ended: &AtomicBool) -> Result<()> {
    let (mut pace, begin) = (ScrubPace::new(bytes_per_second), Instant::now());
    while !ended.load(Ordering::Relaxed) {
        let Some(bytes) = scrub.step(&mut |_| ()).context("a step of the scrub")? else { break };
        let due = pace.read(bytes);
        while begin.elapsed() < due && !ended.load(Ordering::Relaxed) {
            std::thread::park_timeout((due.saturating_sub(begin.elapsed())).min(Duration::from_millis(10)));
        }
    }
    Ok(())
}

/// One slice of reads and durable appends.
fn work(
    store: &Store,
    objects: &[ObjectId],
    log: ObjectId,
    random: &mut Random,
    times: &mut SideTimes,
) -> Result<()> {
    let payload = Bytes::from(vec![0x5a; 4000]);
    let begin = Instant::now();
    while begin.elapsed() < SLICE {
        let started = Instant::now();
        if random.below(APPEND_ONE_IN) == 0 {
            store.append_frame(log, payload.clone(), None, Ack::Durable).wait().context("an append")?;
            times.appends.push(started.elapsed());
            continue;
        }
        let id = objects[random.below(objects.len() as u64) as usize];
        let at = random.below(OBJECT_BYTES / READ_BYTES) * READ_BYTES;
        store.read(id, at..at + READ_BYTES, IoClass::Foreground).wait().context("a read")?;
        times.reads.push(started.elapsed());
    }
    Ok(())
}

fn judge(report: &mut Report, sides: &mut [SideTimes; 2]) {
    let kinds = |side: &mut SideTimes| [std::mem::take(&mut side.reads), std::mem::take(&mut side.appends)];
    let [alone, beside] = sides;
    let names = ["read of 4 KiB", "durable append"];
    for ((name, mut alone), mut beside) in names.into_iter().zip(kinds(alone)).zip(kinds(beside)) {
        let (without, with) = (quantile(&mut alone, 0.99), quantile(&mut beside, 0.99));
        report.fact(format!("{name}: p99 without a scrub"), without, "us");
        report.fact(format!("{name}: p99 beside a scrub"), with, "us");
        report.detail(format!("{name}: p50 without a scrub"), quantile(&mut alone, 0.5), "us");
        report.detail(format!("{name}: p50 beside a scrub"), quantile(&mut beside, 0.5), "us");
        report.at_most(format!("{name}: p99 beside a scrub / without"), with / without, "x", RATIO_MAX);
    }
}

/// In microseconds.
fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let index = (times.len() as f64 * share) as usize;
    times.get(index.min(times.len().saturating_sub(1))).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}
