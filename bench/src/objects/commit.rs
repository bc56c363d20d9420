//! `object-commit`: processor time of one operation, by the number of streams and of objects in the store.
//!
//! The store lies in memory, where a command costs nothing but its copy, and completes on the caller's thread:
//! the time is that of the store alone. Sizes take turns, and each figure is the smallest of several rounds.
//! A checkpoint of many objects is measured in two ways. Where commands complete at once, commits write its pages: the
//! longest one counts. Where a gate holds its pages, commits go on: the pages that are held at a time count.

use anyhow::{Result, anyhow};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::{Device, IoClass, MemoryDevice};
use copal_object::{
    Ack, CreateOptions, FramePos, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, ReadCheck, Store, Txn,
};
use copal_testkit::GatedDevice;
use std::{path::Path, sync::Arc, time::Duration};

const STORE_BYTES: u64 = 4 << 30;
/// The cost with many may differ from the cost with few by so much.
const TOLERANCE: f64 = 0.2;
/// Most operations that create objects in one transaction.
const CREATES: usize = 1000;
/// Objects of the store that takes a checkpoint beside commits.
const CHECKPOINT_OBJECTS: u64 = 1_000_000;
/// A commit beside a checkpoint may wait for this part of the checkpoint.
const CHECKPOINT_SHARE: f64 = 0.1;
/// A commit that writes more carries pages of a checkpoint.
const COMMIT_BYTES_MAX: u64 = 64 << 10;

const PLAIN: ObjectId = ObjectId(1);
const LOG: ObjectId = ObjectId(2);
/// Other streams and objects have ids from here on.
const OTHERS: u64 = 100;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of operations of each kind in a round
    #[arg(long, default_value_t = 2000)]
    operations: u64,
    /// Number of rounds
    #[arg(long, default_value_t = 15)]
    rounds: u64,
}

/// Processor time per operation in microseconds, by kind.
type Costs = [f64; KINDS.len()];

const KINDS: [&str; 4] = ["ordered commit", "durable commit", "durable frame", "read of 4 KiB"];

/// Most microseconds of an operation, where the design has a limit.
const LIMITS: [Option<f64>; KINDS.len()] = [Some(5.0), None, None, Some(2.0)];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    for (what, kind, counts) in [
        ("streams", ObjectKind::Stream, [0, 100, 10_000]),
        ("objects", ObjectKind::Plain, [1, 10_000, 1_000_000]),
    ] {
        let store = |&count: &u64| store_with(MemoryDevice::new(STORE_BYTES), kind, count);
        let stores = counts.iter().map(store).collect::<Result<Vec<_>>>()?;
        let mut best = vec![[f64::INFINITY; KINDS.len()]; stores.len()];
        for _ in 0..options.rounds {
            for (store, best) in stores.iter().zip(&mut best) {
                let costs = costs(store, options.operations)?;
                best.iter_mut().zip(costs).for_each(|(best, cost)| *best = best.min(cost));
            }
        }
        for (index, operation) in KINDS.iter().enumerate() {
            let few = best[0][index];
            for (count, costs) in counts.iter().zip(&best) {
                let name = format!("{operation}: processor time with {count} {what}");
                if *count == counts[0] {
                    match LIMITS[index] {
                        Some(limit) => report.at_most(name, costs[index], "us", limit),
                        None => report.fact(name, costs[index], "us"),
                    }
                } else {
                    report.within(name, costs[index], "us", few, hundredths(few * TOLERANCE));
                }
            }
        }
    }
    checkpoint_beside_commits(&mut report)?;
    checkpoint_in_commits(&mut report)?;
    report.finish(root, "object-commit")
}

/// A commit beside a checkpoint waits at most for the pages in flight: the gate holds them until the commits are done.
fn checkpoint_beside_commits(report: &mut Report) -> Result<()> {
    let gate = GatedDevice::new(MemoryDevice::new(STORE_BYTES));
    let store = store_with(gate.clone(), ObjectKind::Plain, CHECKPOINT_OBJECTS)?;
    gate.hold_background(true);
    let opener = gate.open_at_end();
    let (most, pages) = std::thread::scope(|scope| -> Result<(usize, usize)> {
        let checkpoint = scope.spawn(|| store.checkpoint());
        gate.wait(|gate| gate.background > 0);
        let (mut most, mut pages) = (0, 0);
        while !checkpoint.is_finished() {
            if gate.look().background == 0 {
                std::thread::yield_now();
                continue;
            }
            write(&store, pages as u64, Ack::Durable)?;
            most = most.max(gate.look().background);
            // The superblock counts as one of them.
            pages += gate.release_background(1);
        }
        checkpoint.join().map_err(|_| anyhow!("the checkpoint panicked"))??;
        Ok((most, pages))
    })?;
    drop(opener);
    let name = format!("checkpoint of {CHECKPOINT_OBJECTS} objects: chain pages");
    report.fact(&name, pages as f64, "");
    let limit = (pages as f64 * CHECKPOINT_SHARE).floor();
    report.at_most(format!("{name} in flight beside a commit"), most as f64, "", limit);
    Ok(())
}

/// The device completes each command at once, so commits carry the checkpoint.
fn checkpoint_in_commits(report: &mut Report) -> Result<()> {
    let store = store_with(MemoryDevice::new(STORE_BYTES), ObjectKind::Plain, CHECKPOINT_OBJECTS)?;
    let (mut longest, mut all) = (Duration::ZERO, Duration::ZERO);
    let (mut most, mut bytes) = (0, 0);
    // Until the journal is half full, and until the checkpoint is complete.
    for number in 0_u64.. {
        let (before, begin) = (store.counters(), processor_time());
        write(&store, number, Ack::Ordered)?;
        let (took, written) = (processor_time() - begin, (store.counters() - before).write_bytes);
        if written > COMMIT_BYTES_MAX {
            (longest, all) = (longest.max(took), all + took);
            (most, bytes) = (most.max(written), bytes + written);
        } else if bytes > 0 {
            break;
        }
    }
    let name = format!("checkpoint of {CHECKPOINT_OBJECTS} objects in commits");
    report.fact(format!("{name}: processor time"), hundredths(all.as_secs_f64() * 1e3), "ms");
    let limit = hundredths(all.as_secs_f64() * 1e3 * CHECKPOINT_SHARE);
    report.at_most(format!("{name}: longest commit"), hundredths(longest.as_secs_f64() * 1e3), "ms", limit);
    report.fact(format!("{name}: bytes written"), bytes as f64, "B");
    let limit = (bytes as f64 * CHECKPOINT_SHARE).floor();
    report.at_most(format!("{name}: most bytes of one commit"), most as f64, "B", limit);
    Ok(())
}

fn store_with(device: Arc<dyn Device>, kind: ObjectKind, count: u64) -> Result<Store> {
    Store::mkfs(&device, &MkfsOptions::default())?;
    let (store, _) = Store::open(device, &OpenOptions::default())?;
    let options = |kind| CreateOptions { kind, check: ReadCheck::Caller, ..CreateOptions::default() };
    let own = Txn::new()
        .create(PLAIN, options(ObjectKind::Plain))
        .create(LOG, options(ObjectKind::Stream))
        .write(PLAIN, 0, vec![1; 1 << 20]);
    store.commit(own, Ack::Durable).wait()?;
    let ids: Vec<u64> = (OTHERS..OTHERS + count).collect();
    for part in ids.chunks(CREATES) {
        let ops = part.iter().map(|&id| Op::Create { id: ObjectId(id), opts: options(kind) });
        store.commit(Txn::new().ops(ops), Ack::Durable).wait()?;
    }
    store.checkpoint()?;
    Ok(store)
}

/// One round. A checkpoint before it keeps the next one out of it.
fn costs(store: &Store, operations: u64) -> Result<Costs> {
    let frame = Bytes::from(vec![7; 4000]);
    let mut costs = [0.0; KINDS.len()];
    for (kind, cost) in costs.iter_mut().enumerate() {
        store.checkpoint()?;
        let begin = processor_time();
        for number in 0..operations {
            match kind {
                0 => write(store, number, Ack::Ordered)?,
                1 => write(store, number, Ack::Durable)?,
                2 => store.append_frame(LOG, frame.clone(), None, Ack::Durable).wait().map(drop)?,
                _ => {
                    let at = number % 256 * 4096;
                    store.read(PLAIN, at..at + 4096, IoClass::Foreground).wait().map(drop)?;
                }
            }
        }
        *cost = hundredths((processor_time() - begin).as_secs_f64() * 1e6 / operations as f64);
    }
    let next = store.stat(LOG).map_or(0, |stat| stat.len);
    let trim = Txn::new().trim_stream(LOG, FramePos(next));
    store.commit(trim, Ack::Durable).wait()?;
    Ok(costs)
}

/// Writes a page of [`PLAIN`].
fn write(store: &Store, number: u64, ack: Ack) -> Result<()> {
    store.commit(Txn::new().write(PLAIN, number % 256 * 4096, vec![7; 4096]), ack).wait()?;
    Ok(())
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}
