//! `object-crossover`: where segments begin to win, by the cost of a seek and by how full the store is.
//!
//! One disk after the other turns and seeks faster, at the same bandwidth, until it is a flash drive. The probe measures
//! each of them; its ratio and its choice stand beside the rates of both backends. On the flash drive with a
//! translation layer, pages are overwritten at random. The report has the pages that each backend writes and reads for
//! one of them, and those that the medium takes.

use super::{
    clients::ClientOperation,
    store::{AgedLayout, AgedStore},
};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::{
    emulated::{DiskModel, EmulatedDevice, Hdd, HddProfile, Ssd, SsdProfile},
    probe::{DeviceProbe, DeviceProfile, ProbeOptions},
};
use copal_object::StoreError;
use std::{path::Path, sync::Arc};

#[derive(Args)]
pub(crate) struct Options {
    /// Size of each disk that turns; the flash drive has twice as much
    #[arg(long, default_value_t = 2)]
    gib: u64,
}

/// Time of a seek and of a turn, as a part of an ordinary disk's.
const SEEK_SHARES: [f64; 6] = [1.0, 0.3, 0.1, 0.03, 0.01, 0.003];
/// Percent of the store that is live.
const FULL: [u64; 3] = [50, 80, 90];
const OPERATIONS: u64 = 4000;
/// Two groups are on their way at any time, so half as many commits share a flush.
const CLIENTS: usize = 32;
/// Foreground rates on flash may differ by so much.
const FLASH_TOLERANCE: f64 = 0.1;

fn disk_of(share: f64) -> HddProfile {
    let usual = HddProfile::default();
    HddProfile {
        rpm: (f64::from(usual.rpm) / share) as u32,
        // The same bytes pass the head in a second.
        track_bytes: (usual.track_bytes as f64 * share) as u64 / 4096 * 4096,
        seek_base: usual.seek_base.mul_f64(share),
        seek_stroke: usual.seek_stroke.mul_f64(share),
        command_time: usual.command_time.mul_f64(share.max(0.03)),
        ..usual
    }
}

fn probed<M: DiskModel + 'static>(disk: &Arc<EmulatedDevice<M>>) -> Result<DeviceProfile> {
    let options = ProbeOptions::of(disk.as_ref());
    DeviceProbe::new(disk.as_ref(), options).run(&mut |_| {}).map_err(|error| anyhow!("the probe: {error}"))
}

/// Rates of a store: commits alone, commits of many clients. `None`: segments find no room for so much.
fn rates<M: DiskModel + 'static>(
    layout: AgedLayout,
    disk: Arc<EmulatedDevice<M>>,
    full: u64,
) -> Result<Option<[f64; 2]>> {
    let mut aged = AgedStore::make(disk, layout)?;
    if let Err(error) = aged.age(full as f64 / 100.0, 1.0) {
        let is_full = matches!(error.downcast_ref(), Some(StoreError::NoSpace { .. }));
        if is_full && layout == AgedLayout::Log {
            return Ok(None);
        }
        return Err(error.context(format!("{}, {full} % full", layout.name())));
    }
    let alone = aged.measure(ClientOperation::Commit, 1, OPERATIONS)?;
    let many = aged.measure(ClientOperation::Commit, CLIENTS, OPERATIONS * 4)?;
    Ok(Some([alone.rate(), many.rate()]))
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let size = options.gib << 30;
    // Pages that are overwritten at random have an extent each, so the segments need more room for tables.
    flash(&mut report, 2 * size)?;
    for share in SEEK_SHARES {
        let new = || Hdd::new(size, disk_of(share));
        let profile = probed(&new())?;
        let ratio = profile.sequential_ratio;
        let name = format!("seek x {share}");
        eprintln!("{name}: {}", profile.reason);
        report.fact(format!("{name}: sequential to random, by the probe"), ratio.value(), "x");
        let chooses_log = f64::from(profile.backend.name() == "log");
        report.fact(format!("{name}: the probe chooses log"), chooses_log, "");
        for full in FULL {
            let Some(apart) = rates(AgedLayout::CowApart, new(), full)? else { continue };
            for layout in [AgedLayout::CowInline, AgedLayout::Log] {
                let Some(rates) = rates(layout, new(), full)? else {
                    report.note(format!("{name}: {} does not hold {full} %", layout.name()));
                    continue;
                };
                for (clients, (apart, rate)) in [1, CLIENTS].into_iter().zip(apart.into_iter().zip(rates)) {
                    let case =
                        format!("{name}, {full} % full, {clients} clients: {} : data apart", layout.name());
                    report.fact(case, rate / apart, "x");
                }
            }
        }
    }
    report.finish(root, "object-crossover")
}

/// The flash drive: rates without collection in the drive, then pages of a full drive overwritten at random.
fn flash(report: &mut Report, size: u64) -> Result<()> {
    let [cow, log] = [AgedLayout::CowApart, AgedLayout::Log]
        .map(|layout| rates(layout, Ssd::new(size, SsdProfile::default()), 80));
    let (Some(cow), Some(log)) = (cow?, log?) else { bail!("the flash drive is too small for 80 %") };
    for (clients, (cow, log)) in [1, CLIENTS].into_iter().zip(cow.into_iter().zip(log)) {
        report.within(format!("flash, {clients} clients: log : cow"), log / cow, "x", 1.0, FLASH_TOLERANCE);
    }
    for (spare, gain) in [(0.07, 1.2), (0.28, 1.8)] {
        let mut media = Vec::new();
        for layout in [AgedLayout::CowApart, AgedLayout::Log] {
            let profile = SsdProfile { queue_depth: 128, ..SsdProfile::default() }.with_spare(spare);
            let mut aged = AgedStore::make(Ssd::new(size, profile), layout)?;
            let window = aged.overwrite_pages(0.8).with_context(|| format!("flash, {}", layout.name()))?;
            let pages = window.operations as f64;
            let name = format!("flash with {} % spare, {}", (spare * 100.0).round(), layout.name());
            report.fact(
                format!("{name}: pages written per page"),
                window.written as f64 / 4096.0 / pages,
                "",
            );
            report.fact(format!("{name}: pages read per page"), window.read as f64 / 4096.0 / pages, "");
            report.fact(
                format!("{name}: pages on the medium per page"),
                window.media_writes as f64 / pages,
                "",
            );
            media.push(window.media_writes as f64 / pages);
        }
        let name = format!("flash with {} % spare: medium writes of log : cow", (spare * 100.0).round());
        report.at_least(name, media[1] / media[0], "x", gain);
    }
    Ok(())
}
