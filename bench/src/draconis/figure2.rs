//! `draconis-fig2`: random writes, a rewrite in sequence, and appends: through a file system and to a stream of Copal.
//!
//! Writes of a page go to the bare disk, one and 16 at a time, with a flush after every 100, after each, or none. Appends
//! through ext4 are recorded as a block trace of a loop device, which is replayed on the models.
//!
//! Paper: draconis §3.1.2

use super::{
    Study, StudyOptions,
    closed_load::{ClosedLoad, LoadLimit, LoadRate, WriteOrder, in_turns},
    disks::{DiskKind, StudyDisk},
    file_appends::{FileAppends, RecordedAppends},
};
use crate::objects::stores::{BenchStore, StreamStore};
use anyhow::Result;
use copal_bench_harness::{chart::BarChart, report::Report};
use copal_object::BackendKind;
use std::path::Path;

const PAGE: u32 = 4096;
/// Payload of a frame that takes a page.
const FRAME: usize = 4000;
const DEPTHS: [u64; 2] = [1, 16];
/// Writes between two flushes.
const INTERVALS: [u64; 3] = [0, 100, 1];
/// Thousands of writes a second on the paper's drive at depth 16.
const THOUSANDS: f64 = 176.0;
const SENTENCE: &str = "\"random write and sequential rewrite have roughly the same throughput [...] Throughput of \
    sequential write is much lower because the file system has to write small meta data\" (3.1.2, figure 2).";

pub(crate) fn run(root: &Path, options: &StudyOptions) -> Result<()> {
    let mut study = Study::begin(root, options, "draconis-fig2")?;
    let appends = FileAppends::record(&study.scratch, &INTERVALS[1..], PAGE as usize)?;
    if let Err(reason) = &appends {
        study.report.note(format!("Appends through a file system: skipped, {reason}."));
    }
    let mut chart = BarChart::new("Writes of 4 KiB a second, by mode", "writes a second");
    study.on_each_disk(|report, disk| {
        let rewrite = on_the_disk(report, disk, &mut chart)?;
        let appended = appends.as_ref().ok().map(|appends| through_files(report, disk, appends, &mut chart));
        let appended = appended.transpose()?.flatten();
        to_a_stream(report, disk, rewrite, appended, &mut chart)
    })?;
    chart.store(root, "draconis-fig2")?;
    study.finish(root, SENTENCE)
}

/// Random writes and rewrites; returns the rewrites a second with a flush after each.
fn on_the_disk(report: &mut Report, disk: &StudyDisk, chart: &mut BarChart) -> Result<f64> {
    let name = disk.name();
    let mut durable = 0.0;
    for depth in DEPTHS {
        for flush_every in INTERVALS.into_iter().filter(|interval| depth == 1 || *interval != 1) {
            let orders = [WriteOrder::Random, WriteOrder::Sequential];
            let best = in_turns(&*disk.device, &orders, |&order, limit| {
                ClosedLoad { order, bytes: PAGE, depth, flush_every }
                    .run(&*disk.device, limit)
                    .map(LoadRate::per_second)
            })?;
            let (random, rewrite) = (best[0], best[1]);
            let row = format!("{depth} at a time, {}", of_interval(flush_every));
            for (mode, rate) in [("random", random), ("rewrite", rewrite)] {
                let row = format!("{name}: {mode}, {row}");
                match (disk.kind, depth, flush_every) {
                    (DiskKind::Ssd, 16, 0) => {
                        report.within(row, rate / 1000.0, "k/s", THOUSANDS, THOUSANDS / 10.0);
                    }
                    _ => report.fact(row, rate / 1000.0, "k/s"),
                }
            }
            let ratio = format!("{name}: random / rewrite, {row}");
            match disk.kind {
                DiskKind::Ssd => report.within(ratio, random / rewrite, "x", 1.0, 0.1),
                _ => report.fact(ratio, random / rewrite, "x"),
            }
            if (depth, flush_every) == (1, 1) {
                durable = rewrite;
                chart.bar(format!("{name}: random, flushed"), random);
                chart.bar(format!("{name}: rewrite, flushed"), rewrite);
            }
        }
    }
    Ok(durable)
}

/// Appends through a file system: replayed on a model, or as recorded on the loop device. Returns the durable ones a second.
fn through_files(
    report: &mut Report,
    disk: &StudyDisk,
    appends: &FileAppends,
    chart: &mut BarChart,
) -> Result<Option<f64>> {
    let name = disk.name();
    let mut durable = None;
    for RecordedAppends { flush_every, count, seconds, cost, lines } in &appends.recorded {
        let count = *count as f64;
        let row = format!("{name}: append through ext4, {}", of_interval(*flush_every));
        let rate = match disk.kind.model() {
            Some(model) => count / model.replay(lines)?.time.as_secs_f64(),
            None if disk.kind == DiskKind::Loop => {
                report.fact(format!("{row}: writes and bare flushes"), cost.writes as f64 / count, "");
                report.fact(format!("{row}: bytes"), cost.write_bytes as f64 / count, "B");
                count / seconds
            }
            None => return Ok(None),
        };
        report.fact(&row, rate / 1000.0, "k/s");
        if *flush_every == 1 {
            chart.bar(format!("{name}: append through ext4, flushed"), rate);
            durable = Some(rate);
        }
    }
    Ok(durable)
}

/// Durable frames to a stream, beside the rewrite and the append through a file system.
fn to_a_stream(
    report: &mut Report,
    disk: &StudyDisk,
    rewrite: f64,
    appended: Option<f64>,
    chart: &mut BarChart,
) -> Result<()> {
    let name = disk.name();
    let store = StreamStore::new(BenchStore::on_device(&disk.device, BackendKind::Cow)?)?;
    for depth in DEPTHS {
        let best = in_turns(&*disk.device, &[()], |(), LoadLimit { writes, time }| {
            store.rate(&disk.device.clock(), FRAME, depth, writes, time)
        })?;
        let rate = best[0];
        let row = format!("{name}: durable append to a stream, {depth} at a time");
        report.fact(row, rate / 1000.0, "k/s");
        if depth == 1 {
            chart.bar(format!("{name}: append to a stream, durable"), rate);
            let ratios = [("a flushed rewrite", Some(rewrite), 0.9), ("append through ext4", appended, 1.0)];
            for (other, their_rate, least) in ratios {
                let Some(their_rate) = their_rate else { continue };
                let row = format!("{name}: append to a stream / {other}");
                match disk.kind.is_model() {
                    true => report.at_least(row, rate / their_rate, "x", least),
                    false => report.fact(row, rate / their_rate, "x"),
                }
            }
        }
    }
    Ok(())
}

fn of_interval(flush_every: u64) -> String {
    match flush_every {
        0 => "no flush".to_owned(),
        1 => "a flush after each".to_owned(),
        count => format!("a flush after {count}"),
    }
}
