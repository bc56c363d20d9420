//! `draconis-fig9`: a durable append through a file system beside one through a stream.
//!
//! All variants use one journaled ext4 on a loop device. They take turns in short slices, in rotating order,
//! so that other load on the machine affects all of them. The median of each is compared with the median of
//! append + fdatasync of 512 B, the paper's append. The paper names read-modify-write as the cause; the
//! commands reported beside the times distinguish it from journal traffic.

use super::{
    fresh,
    loop_device::{BlockCounters, Ext4Mount},
    stores::FileStore,
};
use anyhow::{Context, Result};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_object::{ObjectId, ObjectKind};
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const EXT4_BYTES: u64 = 2 << 30;
const STORE_BYTES: u64 = 512 << 20;
/// The file that is updated in place.
const UPDATED_BYTES: u64 = 64 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the loop device [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Turns of each variant
    #[arg(long, default_value_t = 60)]
    turns: usize,
    /// Operations in one turn
    #[arg(long, default_value_t = 50)]
    slice: usize,
}

/// A way to make a few bytes durable.
struct Variant<'a> {
    name: &'static str,
    operation: Box<dyn FnMut() -> Result<()> + 'a>,
    times: Vec<Duration>,
    commands: BlockCounters,
}

pub(crate) fn run(root: &Path, arguments: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, arguments.scratch.as_ref(), "bench").join("draconis-fig9");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    let device = Ext4Mount::make(&scratch, EXT4_BYTES)?;
    let store = StoreWithStream::new(FileStore::make(&device.directory().join("store"), STORE_BYTES)?)?;
    let control = StoreWithStream::new(FileStore::in_directory(&device.directory().join("files"))?)?;
    let mut variants = vec![
        variant("ext4 append 512 B + fdatasync", append(device.directory(), 512)?),
        variant("ext4 append 4096 B + fdatasync", append(device.directory(), 4096)?),
        variant("ext4 update 512 B + fdatasync", update(device.directory(), 512)?),
        variant("ext4 update 4096 B + fdatasync", update(device.directory(), 4096)?),
        variant("cow stream append 512 B", store.append(512)),
        variant("cow stream append 4000 B", store.append(4000)),
        variant("hostfs stream append 512 B", control.append(512)),
    ];
    let order = variants.len();
    for turn in 0..arguments.turns {
        for step in 0..order {
            let variant = &mut variants[(turn + step) % order];
            let before = device.counters()?;
            for _ in 0..arguments.slice {
                let started = Instant::now();
                (variant.operation)().context(variant.name)?;
                variant.times.push(started.elapsed());
            }
            let cost = device.counters()? - before;
            variant.commands.writes += cost.writes;
            variant.commands.write_bytes += cost.write_bytes;
            variant.commands.flushes += cost.flushes;
        }
    }
    judge(&mut report, &variants);
    drop(variants);
    drop((store, control));
    drop(device);
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "draconis-fig9")
}

/// Times and commands of each variant, and the ratios of their medians.
fn judge(report: &mut Report, variants: &[Variant<'_>]) {
    let micros = |variant: &Variant<'_>, share: f64| quantile(&variant.times, share).as_secs_f64() * 1e6;
    for variant in variants {
        let operations = variant.times.len() as f64;
        report.fact(format!("{}: p50", variant.name), micros(variant, 0.5), "us");
        report.detail(format!("{}: p90", variant.name), micros(variant, 0.9), "us");
        report.detail(format!("{}: p99", variant.name), micros(variant, 0.99), "us");
        report.fact(
            format!("{}: writes and bare flushes", variant.name),
            variant.commands.writes as f64 / operations,
            "",
        );
        report.fact(format!("{}: flushes", variant.name), variant.commands.flushes as f64 / operations, "");
        report.fact(
            format!("{}: bytes", variant.name),
            variant.commands.write_bytes as f64 / operations,
            "B",
        );
    }
    let append = micros(&variants[0], 0.5);
    let ratio = append / micros(&variants[4], 0.5);
    report.at_least("ext4 append 512 B / cow stream append 512 B, medians", ratio, "x", 2.5);
    let paper = append / micros(&variants[2], 0.5);
    report.fact("ext4 append 512 B / ext4 update 512 B, medians (the paper: more than 4)", paper, "x");
    let files = append / micros(&variants[6], 0.5);
    report.fact("ext4 append 512 B / hostfs stream append 512 B, medians (the control)", files, "x");
}

fn variant<'a>(name: &'static str, operation: impl FnMut() -> Result<()> + 'a) -> Variant<'a> {
    Variant { name, operation: Box::new(operation), times: Vec::new(), commands: BlockCounters::default() }
}

fn append(directory: &Path, bytes: usize) -> Result<impl FnMut() -> Result<()>> {
    let mut file = File::create_new(directory.join(format!("append{bytes}")))?;
    let payload = vec![0x5a; bytes];
    Ok(move || {
        file.write_all(&payload)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

/// Overwrites places of a fully written file, in a scattered order.
fn update(directory: &Path, bytes: usize) -> Result<impl FnMut() -> Result<()>> {
    let mut file = File::create_new(directory.join(format!("update{bytes}")))?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..UPDATED_BYTES >> 20 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    let payload = vec![0x5a; bytes];
    let mut place = 0;
    Ok(move || {
        place = (place + 4096 * 1021) % UPDATED_BYTES;
        file.write_all_at(&payload, place)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

struct StoreWithStream {
    store: FileStore,
    stream: ObjectId,
}

impl StoreWithStream {
    fn new(mut store: FileStore) -> Result<StoreWithStream> {
        let stream = store.create(ObjectKind::Stream)?;
        Ok(StoreWithStream { store, stream })
    }

    fn append(&self, bytes: usize) -> impl FnMut() -> Result<()> + '_ {
        let payload = Bytes::from(vec![0x5a; bytes]);
        move || self.store.append_frame(self.stream, &payload)
    }
}

fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
