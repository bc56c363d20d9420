//! `object-ageing`: durable operations on a full, overwritten disk that turns, `cow` with inline data and `log`
//! beside `cow` that writes data and records apart.
//!
//! Each layout has a disk of its own, 80 % of it live, on which values were replaced at random until twice as much is
//! written as is live. So the cleaner of `log` is at work in all that is measured. Times are those of the model.

use super::{
    clients::{ClientOperation, MeasuredWindow},
    store::{AgedLayout, AgedStore},
};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::emulated::{Hdd, HddProfile};
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    /// Size of the disk; its head moves over all of it
    #[arg(long, default_value_t = 8)]
    gib: u64,
    /// Percent of the store that is live
    #[arg(long, default_value_t = 80)]
    full: u64,
    /// Bytes replaced before the measurement, as a multiple of the live bytes
    #[arg(long, default_value_t = 2.0)]
    passes: f64,
    /// Measure `log` only
    #[arg(long)]
    log_only: bool,
    /// Measure on the disk with a limit of commands only
    #[arg(long, conflicts_with = "log_only")]
    limited_only: bool,
}

/// Two groups are on their way at any time, so half as many commits share a flush.
const GROUPED_CLIENTS: usize = 32;

/// One measured case.
struct AgeingCase {
    name: &'static str,
    operation: ClientOperation,
    clients: usize,
    count: u64,
    /// Least rate, in operations a second.
    rate: Option<f64>,
    /// Least rate as a multiple of that with data apart.
    gain: f64,
}

const CASES: [AgeingCase; 4] = [
    AgeingCase {
        name: "commit, alone",
        operation: ClientOperation::Commit,
        clients: 1,
        count: 12_000,
        rate: Some(114.0),
        gain: 2.0,
    },
    AgeingCase {
        name: "commit, groups of 16",
        operation: ClientOperation::Commit,
        clients: GROUPED_CLIENTS,
        count: 48_000,
        rate: Some(1500.0),
        gain: 4.0,
    },
    AgeingCase {
        name: "put of 28 KiB, alone",
        operation: ClientOperation::Put,
        clients: 1,
        count: 8000,
        rate: None,
        gain: 2.5,
    },
    AgeingCase {
        name: "put of 28 KiB, groups of 16",
        operation: ClientOperation::Put,
        clients: GROUPED_CLIENTS,
        count: 24_000,
        rate: None,
        gain: 2.5,
    },
];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    if options.log_only {
        let log = measure(AgedLayout::Log, options)?;
        for (case, window) in CASES.iter().zip(&log) {
            report.fact(format!("{}: {}", case.name, AgedLayout::Log.name()), window.rate(), "/s");
            detail(case, AgedLayout::Log, window, &mut report);
        }
        return report.finish(root, "object-ageing");
    }
    let scratch = crate::default_below_cache(root, None, "bench").join("object-ageing");
    if options.limited_only {
        super::limited::measure(&scratch, &mut report)?;
        return report.finish(root, "object-ageing");
    }
    let apart = measure(AgedLayout::CowApart, options)?;
    let inline = measure(AgedLayout::CowInline, options)?;
    let log = measure(AgedLayout::Log, options)?;
    for (index, case) in CASES.iter().enumerate() {
        let apart = &apart[index];
        report.fact(format!("{}: {}", case.name, AgedLayout::CowApart.name()), apart.rate(), "/s");
        let better = [(AgedLayout::CowInline, &inline[index]), (AgedLayout::Log, &log[index])];
        for (layout, window) in better {
            let name = layout.name();
            match case.rate {
                Some(least) => report.at_least(format!("{}: {name}", case.name), window.rate(), "/s", least),
                None => report.fact(format!("{}: {name}", case.name), window.rate(), "/s"),
            }
            let gain = window.rate() / apart.rate();
            report.at_least(format!("{}: {name} : data apart", case.name), gain, "x", case.gain);
        }
        let [(_, inline), (_, log)] = better;
        for (layout, window) in AgedLayout::ALL.into_iter().zip([apart, inline, log]) {
            detail(case, layout, window, &mut report);
        }
    }
    super::limited::measure(&scratch, &mut report)?;
    report.finish(root, "object-ageing")
}

/// Commands of an operation.
fn detail(case: &AgeingCase, layout: AgedLayout, window: &MeasuredWindow, report: &mut Report) {
    let name = layout.name();
    let per = |value: u64| value as f64 / window.operations as f64;
    let kib = |bytes: u64| per(bytes) / 1024.0;
    report.detail(format!("{}: {name} writes per operation", case.name), kib(window.written), "KiB");
    report.detail(format!("{}: {name} reads per operation", case.name), kib(window.read), "KiB");
    report.detail(format!("{}: {name} flushes per operation", case.name), per(window.flushes), "");
}

fn measure(layout: AgedLayout, options: &Options) -> Result<Vec<MeasuredWindow>> {
    let disk = Hdd::new(options.gib << 30, HddProfile::default());
    let mut aged = AgedStore::make(disk, layout)?;
    aged.age(options.full as f64 / 100.0, options.passes)?;
    let space = aged.store.space();
    eprintln!("{}: {} values, {space:?}", layout.name(), aged.values.len());
    CASES.iter().map(|case| aged.measure(case.operation, case.clients, case.count)).collect()
}
