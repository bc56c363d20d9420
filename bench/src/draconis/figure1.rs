//! `draconis-fig1`: writes a second and bytes a second by the size of a write, one at a time and 16 at a time.
//!
//! Bytes a second alone mislead: they rise with the size on a disk without pages too. So a cliff is a step in the writes
//! a second.
//!
//! Paper: draconis §3.1.1

use super::{
    Study, StudyOptions,
    closed_load::{ClosedLoad, in_turns},
    disks::{DiskKind, StudyDisk},
};
use anyhow::Result;
use copal_bench_harness::{chart::LineChart, loop_device::BlockCounters, report::Report};
use std::path::Path;

const SIZES: [u32; 8] = [512, 1024, 2048, 4096, 8192, 16 << 10, 32 << 10, 64 << 10];
const PAGE: u32 = 4096;
const DEPTHS: [u64; 2] = [1, 16];
/// Writes a second of the paper's drive below the page and of whole pages, one at a time.
const CLIFF: f64 = 4.3;
/// Megabytes a second of the paper's drive at depth 16.
const MEGABYTES: [(u32, f64); 5] = [(512, 78.0), (1024, 155.0), (2048, 310.0), (4096, 722.0), (8192, 723.0)];
/// A smaller step is no cliff: other work on the machine makes such steps. The probe has calmer turns and takes less.
const STEP: f64 = 2.0;
const SENTENCE: &str = "\"write throughput is much higher with 4KB and 8KB blocks. This demonstrates that the page size \
    of the device is 4KB\" (3.1.1, figure 1).";

pub(crate) fn run(root: &Path, options: &StudyOptions) -> Result<()> {
    let mut study = Study::begin(root, options, "draconis-fig1")?;
    let mut chart =
        LineChart::new("Writes a second by the size of a write", "bytes of a write", "writes a second");
    study.on_each_disk(|report, disk| measure(report, disk, &mut chart))?;
    chart.store(root, "draconis-fig1")?;
    study.finish(root, SENTENCE)
}

fn measure(report: &mut Report, disk: &StudyDisk, chart: &mut LineChart) -> Result<()> {
    let name = disk.name();
    let block = disk.device.geometry().logical_block;
    let sizes: Vec<u32> = SIZES.into_iter().filter(|size| *size >= block).collect();
    for depth in DEPTHS {
        let mut rates = Vec::new();
        let mut costs = vec![(0, BlockCounters::default()); SIZES.len()];
        let places: Vec<usize> = (0..sizes.len()).collect();
        let best = in_turns(&*disk.device, &places, |&place, limit| {
            let before = disk.block_counters()?;
            let rate = ClosedLoad::random(sizes[place], depth).run(&*disk.device, limit)?;
            costs[place].0 += rate.writes;
            costs[place].1 += disk.block_counters()? - before;
            Ok(rate.per_second())
        })?;
        for (place, rate) in best.into_iter().enumerate() {
            let bytes = sizes[place];
            let row = format!("{name}: {bytes} B, {depth} at a time");
            report.fact(format!("{row}: writes a second"), rate.round(), "/s");
            let megabytes = rate * f64::from(bytes) / 1e6;
            let wanted = MEGABYTES.iter().find(|(size, _)| *size == bytes);
            match wanted.filter(|_| disk.kind == DiskKind::Ssd && depth == 16) {
                Some((_, wanted)) => {
                    report.within(format!("{row}: bandwidth"), megabytes, "MB/s", *wanted, wanted / 10.0);
                }
                None => report.detail(format!("{row}: bandwidth"), megabytes, "MB/s"),
            }
            let (writes, cost) = costs[place];
            if cost.writes > 0 {
                let each = |count: u64| count as f64 / writes as f64;
                report.detail(format!("{row}: write commands of the block device"), each(cost.writes), "");
                report.detail(format!("{row}: read commands of the block device"), each(cost.reads), "");
            }
            rates.push((bytes, rate));
        }
        judge(report, disk, depth, &rates);
        let points = rates.into_iter().map(|(bytes, rate)| (f64::from(bytes), rate));
        chart.series(format!("{name}, {depth} at a time"), points);
    }
    Ok(())
}

/// The step at the page, and on a disk of the machine the size at which one is found.
fn judge(report: &mut Report, disk: &StudyDisk, depth: u64, rates: &[(u32, f64)]) {
    let name = disk.name();
    let rate = |size: u32| rates.iter().find(|(bytes, _)| *bytes == size).map(|(_, rate)| *rate);
    if let (Some(part), Some(whole)) = (rate(512), rate(PAGE)) {
        let row = format!("{name}: 4096 B / 512 B, {depth} at a time, writes a second");
        match (disk.kind, depth) {
            (DiskKind::Ssd, 1) => report.within(row, whole / part, "x", CLIFF, CLIFF / 10.0),
            _ => report.fact(row, whole / part, "x"),
        }
    }
    if depth != 1 {
        return;
    }
    // Every smaller size is slower by a step than every size from the page to 16 KiB: a moment's noise is no cliff.
    let near: Vec<_> = rates.iter().filter(|(bytes, _)| *bytes <= 16 << 10).collect();
    let is_cliff = |place: &usize| {
        let (below, from) = near.split_at(*place);
        let most = below.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        most > 0.0 && from.iter().all(|(_, rate)| *rate > STEP * most)
    };
    match (0..near.len()).find(is_cliff) {
        Some(place) => report.note(format!("{name}: a cliff below {} B.", near[place].0)),
        None => report.note(format!("{name}: no cliff.")),
    }
}
