//! Effect on clients of two servers that fail for a while, one after the other.
//!
//! Paper: beanfs §7, figure 10 (an image: hardly noticeable with 64 servers, slightly with 4).
//! Each server has its own throttled disk (`throttled`) and runs inside the suite. The load is closed: a
//! constant number of creates is in flight, so a create that waits for a failed server blocks one of them.

use super::{
    hosted::Hosted,
    operations::{self, end},
    throttled::Speed,
};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_master::PoolConfig;
use copal_volume::PutOptions;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const FILE_BYTES: usize = 32 << 10;
/// Seconds per point of the curve; dips are measured in the means of points.
const WINDOW: usize = 5;

#[derive(Args)]
pub(crate) struct Options {
    /// Numbers of servers, a cluster each
    #[arg(long, value_delimiter = ',', default_value = "8,4")]
    servers: Vec<usize>,
    /// Commands a second of each disk
    #[arg(long, default_value_t = 150)]
    commands: u32,
    /// Kilobytes a second of each disk
    #[arg(long, default_value_t = 3000)]
    kilobytes: u32,
    /// Creates in flight
    #[arg(long, default_value_t = 64)]
    under_way: usize,
    /// Seconds before the first failure, of each failure, and between the two
    #[arg(long, default_value_t = 15)]
    seconds: u64,
    /// Directory of the masters' databases [default: .cache/bench/cluster]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/cluster");
    fs::create_dir_all(&scratch)?;
    let mut report = Report::new(root, &scratch);
    for &servers in &options.servers {
        let directory = tempfile::tempdir_in(&scratch)?;
        let most = if servers >= 8 { 10.0 } else { 35.0 };
        let curve = curve(directory.path(), servers, options)?;
        let phase = options.seconds as usize;
        let steady = &curve[WINDOW.min(3)..phase];
        let before = mean(steady);
        let lowest = lowest_window(&curve[phase..]);
        let rest = median(curve[phase..].to_vec()).unwrap_or_default();
        report.fact(format!("{servers} servers: creates before"), before, "/s");
        report.fact(format!("{servers} servers: median from the first failure on"), rest, "/s");
        report.fact(
            format!("{servers} servers: lowest {WINDOW} s before any failure"),
            lowest_window(steady),
            "/s",
        );
        report.fact(format!("{servers} servers: lowest {WINDOW} s"), lowest, "/s");
        for (failure, from) in [("first", phase), ("second", 3 * phase)] {
            let name = format!("{servers} servers: creates while the {failure} is away");
            report.fact(name, mean(&curve[from..from + phase]), "/s");
        }
        let dip = 100.0 * (1.0 - lowest / before).max(0.0);
        report.at_most(format!("{servers} servers: dip"), dip, "%", most);
        for (second, rate) in curve.iter().enumerate() {
            report.detail(format!("{servers} servers: second {second}"), *rate, "/s");
        }
    }
    report.finish(root, "beanfs-fig10")
}

fn mean(rates: &[f64]) -> f64 {
    rates.iter().sum::<f64>() / rates.len().max(1) as f64
}

fn lowest_window(rates: &[f64]) -> f64 {
    rates.windows(WINDOW).map(mean).fold(f64::MAX, f64::min)
}

/// Creates in each second, while: all servers are up, one is down, all are up, another is down, all are up.
fn curve(directory: &Path, servers: usize, options: &Options) -> Result<Vec<f64>> {
    let pool = PoolConfig { replicas: 3, min_ack: 2, groups: 64 };
    let speed =
        Speed { commands_per_s: options.commands.into(), bytes_per_s: f64::from(options.kilobytes) * 1000.0 };
    let mut hosted = Hosted::start(directory, servers, pool, speed)?;
    let volumes = operations::volumes(hosted.store(), 256)?;
    let (made, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let client = hosted.client()?;
    let load = {
        let (made, is_over, under_way) = (Arc::clone(&made), Arc::clone(&is_over), options.under_way);
        let body = operations::random_bytes(FILE_BYTES);
        thread::spawn(move || {
            operations::each(&client, under_way, u64::MAX >> 1, move |cluster, number| {
                let vid = volumes[(number % volumes.len() as u64) as usize];
                let (made, is_over, body) = (Arc::clone(&made), Arc::clone(&is_over), body.clone());
                async move {
                    anyhow::ensure!(!is_over.load(Ordering::Relaxed), "over");
                    let put = PutOptions::default();
                    let name = format!("f{number}");
                    cluster.put(vid, name.as_bytes(), body, &put, end()).await?;
                    made.fetch_add(1, Ordering::Relaxed);
                    Ok(())
                }
            })
        })
    };
    thread::sleep(Duration::from_secs(3));
    let curve = thread::spawn({
        let (made, is_over) = (Arc::clone(&made), Arc::clone(&is_over));
        move || {
            let (begun, mut curve, mut before) = (Instant::now(), Vec::new(), made.load(Ordering::Relaxed));
            while !is_over.load(Ordering::Relaxed) {
                let next = begun + Duration::from_secs(curve.len() as u64 + 1);
                thread::sleep(next.saturating_duration_since(Instant::now()));
                let now = made.load(Ordering::Relaxed);
                curve.push((now - before) as f64);
                before = now;
            }
            curve
        }
    });
    let phase = Duration::from_secs(options.seconds);
    for away in [servers - 1, servers - 2] {
        thread::sleep(phase);
        hosted.stop(away)?;
        thread::sleep(phase);
        hosted.start_again(away)?;
    }
    thread::sleep(phase);
    is_over.store(true, Ordering::Relaxed);
    let curve = curve.join().map_err(|_| anyhow::anyhow!("the clock panicked"))?;
    match load.join().map_err(|_| anyhow::anyhow!("the load panicked"))? {
        Err(error) if error.to_string() != "over" => return Err(error),
        _ => {}
    }
    hosted.wait_healthy()?;
    Ok(curve)
}
