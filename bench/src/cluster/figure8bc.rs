//! Creates of 32 KB by the number of servers, and by the number of clients.
//!
//! Paper: beanfs §7, figure 8 (b) and (c) (images; scales with both)
//! All servers run on one machine; a throttled disk (`throttled`) limits each. Groups have one replica, so
//! that one server is a cluster too.

use super::{
    hosted::Hosted,
    operations::{self, end},
    throttled::Speed,
};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_client::ClusterStore;
use copal_master::PoolConfig;
use copal_volume::{PutOptions, VolumeId};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const FILE_BYTES: usize = 32 << 10;
const VOLUMES: u64 = 256;

#[derive(Args)]
pub(crate) struct Options {
    /// Greatest numbers of servers, and of clients
    #[arg(long, default_value_t = 8)]
    most: usize,
    /// Commands a second of each disk
    #[arg(long, default_value_t = 150)]
    commands: u32,
    /// Kilobytes a second of each disk
    #[arg(long, default_value_t = 3000)]
    kilobytes: u32,
    /// Creates in flight of each client
    #[arg(long, default_value_t = 4)]
    under_way: usize,
    /// Seconds of each point
    #[arg(long, default_value_t = 8)]
    seconds: u64,
    /// Directory of the masters' databases [default: .cache/bench/cluster]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/cluster");
    fs::create_dir_all(&scratch)?;
    let mut report = Report::new(root, &scratch);
    let mut points = Vec::new();
    for servers in 1..=options.most {
        let directory = tempfile::tempdir_in(&scratch)?;
        let hosted = start(directory.path(), servers, options)?;
        let volumes = operations::volumes(hosted.store(), VOLUMES)?;
        // Enough clients to saturate all disks.
        let rate = creates(&hosted, &volumes, 2 * options.most, options)?;
        report.fact(format!("creates with {servers} servers"), rate, "/s");
        points.push((servers as f64, rate));
    }
    report.at_least("R2 by servers (paper: scales)", operations::r_squared(&points), "", 0.95);
    let mut points = Vec::new();
    let directory = tempfile::tempdir_in(&scratch)?;
    let hosted = start(directory.path(), options.most, options)?;
    let volumes = operations::volumes(hosted.store(), VOLUMES)?;
    // The first creates fill buffers of new stores and do not measure disks.
    creates(&hosted, &volumes, options.most, options)?;
    for clients in 1..=options.most {
        let rate = creates(&hosted, &volumes, clients, options)?;
        report.fact(format!("creates of {clients} clients"), rate, "/s");
        points.push((clients as f64, rate));
    }
    report.at_least("R2 by clients (paper: scales)", operations::r_squared(&points), "", 0.95);
    report.finish(root, "beanfs-fig8bc")
}

fn start(directory: &Path, servers: usize, options: &Options) -> Result<Hosted> {
    let pool = PoolConfig { replicas: 1, min_ack: 1, groups: 256 };
    let speed =
        Speed { commands_per_s: options.commands.into(), bytes_per_s: f64::from(options.kilobytes) * 1000.0 };
    Hosted::start(directory, servers, pool, speed)
}

/// Creates a second of that many clients, each with its own connections, after two seconds of warm-up.
fn creates(hosted: &Hosted, volumes: &Arc<Vec<VolumeId>>, clients: usize, options: &Options) -> Result<f64> {
    static ROUND: AtomicU64 = AtomicU64::new(0);
    let round = ROUND.fetch_add(1, Ordering::Relaxed);
    let made = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + Duration::from_secs(2 + options.seconds);
    let stores: Result<Vec<ClusterStore>> = (0..clients).map(|_| hosted.client()).collect();
    let stores = stores?;
    thread::scope(|scope| {
        let mut running = Vec::new();
        for (client, store) in stores.iter().enumerate() {
            let (made, volumes) = (Arc::clone(&made), Arc::clone(volumes));
            let under_way = options.under_way;
            running.push(scope.spawn(move || {
                let body = operations::random_bytes(FILE_BYTES);
                operations::each(store, under_way, u64::MAX >> 1, move |cluster, number| {
                    let at = (number + 31 * client as u64) % volumes.len() as u64;
                    let (vid, made, body) = (volumes[at as usize], Arc::clone(&made), body.clone());
                    async move {
                        if Instant::now() >= until {
                            // Ends the tasks of this client.
                            anyhow::bail!("over");
                        }
                        let name = format!("{round}-{client}-{number}");
                        let put = PutOptions::default();
                        cluster.put(vid, name.as_bytes(), body, &put, end()).await?;
                        made.fetch_add(1, Ordering::Relaxed);
                        Ok(())
                    }
                })
            }));
        }
        thread::sleep(Duration::from_secs(2));
        let (before, begun) = (made.load(Ordering::Relaxed), Instant::now());
        thread::sleep(Duration::from_secs(options.seconds).saturating_sub(Duration::from_millis(100)));
        let rate = (made.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64();
        for client in running {
            match client.join().map_err(|_| anyhow::anyhow!("a client panicked"))? {
                Err(error) if error.to_string() != "over" => return Err(error),
                _ => {}
            }
        }
        Ok(rate)
    })
}
