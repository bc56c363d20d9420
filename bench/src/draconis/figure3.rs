//! `draconis-fig3`: writes of a page a second by the number on their way, and by threads on disks of the machine.
//!
//! The flash drive gets 25 us of the host before each command: the paper's knee at 8 threads is partly its host.
//!
//! Paper: draconis §3.1.3

use super::{
    Study, StudyOptions,
    closed_load::{ClosedLoad, LoadRate, in_turns, on_threads},
    disks::{DiskKind, StudyDisk},
};
use anyhow::Result;
use copal_bench_harness::{chart::LineChart, report::Report};
use copal_device::Device;
use std::{path::Path, sync::Arc};

const PAGE: u32 = 4096;
const DEPTHS: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Thousands of writes a second on the paper's drive.
const BANDS: [(u64, f64); 7] =
    [(1, 23.0), (2, 47.0), (4, 93.0), (8, 176.0), (16, 176.0), (32, 176.0), (64, 176.0)];
const SENTENCE: &str = "\"SSD write throughput scales to 8 threads. The throughput does not increase beyond 16 threads, \
    however this is mostly due to the hardware maximum throughput (175K from the specification)\" (3.1.3, figure 3).";

pub(crate) fn run(root: &Path, options: &StudyOptions) -> Result<()> {
    let mut study = Study::begin(root, options, "draconis-fig3")?;
    let mut chart = LineChart::new(
        "Writes of 4 KiB a second by the number on their way",
        "writes on their way",
        "writes a second",
    );
    study.on_each_disk(|report, disk| measure(report, disk, &mut chart))?;
    chart.store(root, "draconis-fig3")?;
    study.finish(root, SENTENCE)
}

fn measure(report: &mut Report, disk: &StudyDisk, chart: &mut LineChart) -> Result<()> {
    let name = disk.name();
    let device: Arc<dyn Device> = match disk.kind.model() {
        Some(model) => model.device_of_slow_host(disk.device.geometry().size),
        None => disk.device.clone(),
    };
    let mut rates = Vec::new();
    let best = in_turns(&*device, &DEPTHS, |&depth, limit| {
        ClosedLoad::random(PAGE, depth).run(&*device, limit).map(LoadRate::per_second)
    })?;
    for (depth, rate) in DEPTHS.into_iter().zip(best) {
        let row = format!("{name}: {depth} on their way");
        let wanted = BANDS.iter().find(|(band, _)| *band == depth).map_or(0.0, |(_, thousands)| *thousands);
        match disk.kind {
            DiskKind::Ssd => report.within(row, rate / 1000.0, "k/s", wanted, wanted / 10.0),
            _ => report.fact(row, rate / 1000.0, "k/s"),
        }
        rates.push((depth as f64, rate));
    }
    if disk.kind == DiskKind::Ssd {
        let at = |index: usize| rates[index].1;
        report.at_least(format!("{name}: 8 on their way / 1"), at(3) / at(0), "x", 7.0);
        report.at_most(format!("{name}: 64 on their way / 16"), at(6) / at(4), "x", 1.05);
    }
    chart.series(format!("{name}, by depth"), rates);
    if !disk.kind.is_model() {
        let mut rates = Vec::new();
        let best = in_turns(&*device, &DEPTHS, |&threads, limit| {
            on_threads(&*device, PAGE, threads, limit).map(LoadRate::per_second)
        })?;
        for (threads, rate) in DEPTHS.into_iter().zip(best) {
            report.fact(format!("{name}: {threads} threads"), rate / 1000.0, "k/s");
            rates.push((threads as f64, rate));
        }
        chart.series(format!("{name}, by threads"), rates);
    }
    Ok(())
}
