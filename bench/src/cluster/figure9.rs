//! Time until a returned server is in sync again, by the number of missed operations.
//!
//! Paper: beanfs §5.2, figure 9 (volume synchronization; an image: only its shape is known).
//! One of three servers is killed; the others take creates and deletes; it is restarted. The time is from its
//! start until the master reports that every group is in sync. It includes the start of the process, and the
//! servers' polling interval of a second.

use super::{
    operations::{self as load, each, end},
    running::{Running, Setup},
};
use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::Report;
use copal_volume::{PutOptions, VolumeId};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use xtask::copal;

/// The server that is killed.
const AWAY: usize = 2;
const VOLUMES: u64 = 1000;
/// Time limit of the resync.
const LIMIT: Duration = Duration::from_secs(1800);
/// Calls of a resync, counted at the servers that receive them.
const CALLS: [&str; 5] = ["Compare", "SyncOpen", "SyncNext", "SyncJournal", "SyncFetch"];

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of missed operations, one round each
    #[arg(long, value_delimiter = ',', default_value = "1000,3000,10000,30000,100000")]
    operations: Vec<u64>,
    /// Bytes of each file
    #[arg(long, default_value_t = 4096)]
    bytes: usize,
    /// Directory of the cluster [default: .cache/bench/cluster]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/cluster");
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    by_operations(&mut report, &binary, &scratch, options)?;
    untouched(&mut report, &binary, &scratch)?;
    report.finish(root, "beanfs-fig9")
}

fn by_operations(report: &mut Report, binary: &Path, scratch: &Path, options: &Options) -> Result<()> {
    let directory = tempfile::tempdir_in(scratch)?;
    let mut running = Running::start(binary, &directory.path().join("c"), &Setup::of(3))?;
    let volumes = load::volumes(running.store(), VOLUMES)?;
    load::create(running.store(), &volumes, VOLUMES, options.bytes, "before")?;
    let mut points = Vec::new();
    for &operations in &options.operations {
        take_away(&mut running)?;
        let begun = Instant::now();
        operate(&running, &volumes, operations, options.bytes)?;
        let rate = operations as f64 / begun.elapsed().as_secs_f64();
        eprintln!("{operations} operations at {rate:.0}/s");
        let seconds = come_back(&mut running)?.as_secs_f64();
        report.fact(format!("whole after {operations} entries"), seconds, "s");
        points.push((operations as f64, seconds));
    }
    let first = points.first().context("a round")?.1;
    let (entries, most) = *points.last().context("a round")?;
    report.fact("time for an entry more", (most - first) / entries * 1e6, "us");
    if points.len() > 2 {
        report.at_least("R2 of time by entries (paper: proportional)", load::r_squared(&points), "", 0.98);
    }
    Ok(())
}

/// Two creates and the delete of the first of them, repeated.
fn operate(running: &Running, volumes: &Arc<Vec<VolumeId>>, operations: u64, bytes: usize) -> Result<()> {
    let (volumes, body) = (Arc::clone(volumes), load::random_bytes(bytes));
    each(running.store(), 16, operations / 3, move |cluster, number| {
        let vid = volumes[(number % VOLUMES) as usize];
        let body = body.clone();
        async move {
            let put = PutOptions::default();
            let word = format!("{operations}-{number}");
            let gone = format!("{word}-gone");
            let made = cluster.put(vid, gone.as_bytes(), body.clone(), &put, end()).await?;
            cluster.put(vid, word.as_bytes(), body, &put, end()).await?;
            cluster.delete(vid, gone.as_bytes(), made.fid, end()).await?;
            Ok(())
        }
    })
}

fn take_away(running: &mut Running) -> Result<()> {
    running.kill(AWAY)?;
    let limit = Duration::from_secs(60);
    running.wait_until(limit, |status| status.health == "degraded")?;
    Ok(())
}

fn come_back(running: &mut Running) -> Result<Duration> {
    let begun = Instant::now();
    running.start_again(AWAY)?;
    running.wait_healthy(LIMIT)?;
    Ok(begun.elapsed())
}

/// Groups without missed operations: counts the calls of their resync.
fn untouched(report: &mut Report, binary: &Path, scratch: &Path) -> Result<()> {
    for groups in [64, 1000] {
        let directory = tempfile::tempdir_in(scratch)?;
        let setup = Setup { groups, ..Setup::of(3) };
        let mut running = Running::start(binary, &directory.path().join("c"), &setup)?;
        let volumes = load::volumes(running.store(), 1)?;
        load::create(running.store(), &volumes, 1, 4096, "before")?;
        take_away(&mut running)?;
        let before = calls(&running)?;
        let seconds = come_back(&mut running)?.as_secs_f64();
        let after = calls(&running)?;
        report.fact(format!("{groups} untouched groups: whole after"), seconds, "s");
        let (at_members, at_master) = (after.0 - before.0, after.1 - before.1);
        report.at_most(format!("{groups} untouched groups: calls to other members"), at_members, "", 4.0);
        report.at_most(
            format!("{groups} untouched groups: calls to the master that tell it"),
            at_master,
            "",
            4.0,
        );
    }
    Ok(())
}

/// Calls of resyncs, at the two other servers and at the master.
fn calls(running: &Running) -> Result<(f64, f64)> {
    let of = |numbers: &std::collections::BTreeMap<String, f64>, method: &str| {
        let name = format!("copal_rpc_requests_total{{method=\"{method}\"}}");
        numbers.get(&name).copied().unwrap_or_default()
    };
    let mut at_members = 0.0;
    for at in (0..3).filter(|at| *at != AWAY) {
        let numbers = running.server(at)?.metrics()?;
        at_members += CALLS.iter().map(|method| of(&numbers, method)).sum::<f64>();
    }
    Ok((at_members, of(&running.master().metrics()?, "BecomeWhole")))
}
