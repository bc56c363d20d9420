//! `copal-sim deletion`: each VM deletes its oldest snapshot, by each of the paper's methods and by Copal's.
//!
//! Paper: low-profile-dedup §4, §5, table 3. All hosts read at once, at the back end's speed for so many
//! readers; a host reads its VMs one after another. Mark-and-sweep has a phase for each host, in which all
//! hosts read the recipes of all their VMs. Real: the geometry of summary vectors, and, on scaled VMs, the
//! vectors themselves ([`vectors`]).

mod methods;
mod vectors;

use super::engine::{Engine, hours};
use super::inputs::{back_end_read_bytes_per_s, copal, paper};
use super::sizes::{Fleet, Placement, Sizes, Vm};
use anyhow::{Result, ensure};
use methods::{Method, private};
use serde_json::json;
use vectors::{Freed, delete_oldest};

/// Arguments of `copal-sim deletion`; the defaults are the paper's cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Hosts, of 25 VMs each
    #[arg(long, default_value_t = 100)]
    pub(crate) hosts: usize,
    /// The largest VM, times the average
    #[arg(long, default_value_t = 20.0)]
    pub(crate) skew: f64,
    /// Number of 4 KiB chunks for each id, in runs with real vectors
    #[arg(long, default_value_t = 1000)]
    pub(crate) scale: u64,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

const VMS_OF_A_HOST: usize = 25;

/// Result of one method on the cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    method: Method,
    hours: f64,
    memory_mean_bytes: f64,
    memory_most_bytes: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let (costs, freed) = simulate(arguments)?;
    if arguments.json {
        let rows = costs.iter().map(|cost| {
            json!({
                "method": cost.method.name(),
                "hours": cost.hours,
                "memory_mb": cost.memory_mean_bytes / 1e6,
                "most_memory_mb": cost.memory_most_bytes / 1e6,
            })
        });
        let value = json!({
            "hosts": arguments.hosts, "skew": arguments.skew, "seed": arguments.seed, "scale": arguments.scale,
            "methods": rows.collect::<Vec<_>>(),
            "freed_ids": freed.dead, "leaked_ids": freed.leaked,
        });
        println!("{value}");
        return Ok(());
    }
    println!(
        "{:16} {:>9} {:>24} {:>14} {:>10} {:>10}",
        "", "hours", "paper, 100 and 50 hosts", "paper", "MB", "most MB"
    );
    for cost in &costs {
        let printed = cost.method.printed();
        let hours = printed.map_or_else(String::new, |(at_100, at_50, _)| format!("{at_100} and {at_50}"));
        let memory = printed.map_or("", |(_, _, memory)| memory);
        println!(
            "{:16} {:>9.4} {hours:>24} {memory:>14} {:>10.1} {:>10.1}",
            cost.method.name(),
            cost.hours,
            cost.memory_mean_bytes / 1e6,
            cost.memory_most_bytes / 1e6
        );
    }
    println!("Summary vectors freed {} ids and leaked {}; no live id was freed", freed.dead, freed.leaked);
    Ok(())
}

/// Simulates all methods.
pub(crate) fn simulate(arguments: &Arguments) -> Result<(Vec<Cost>, Freed)> {
    ensure!((1..=65_535).contains(&arguments.hosts), "--hosts must be from 1 to 65535");
    ensure!(arguments.skew >= 1.0 && arguments.scale >= 1, "--skew and --scale must be at least 1");
    let size = (arguments.hosts, arguments.hosts * VMS_OF_A_HOST);
    let draw = |placement| Fleet::draw(size, Sizes::Lognormal, arguments.skew, placement, arguments.seed);
    let (balanced, random) = (draw(Placement::Balanced), draw(Placement::Random));
    let costs = Method::ALL.map(|method| Cost {
        method,
        hours: time(&balanced, method),
        ..memory(&balanced, &random, method)
    });
    let mut freed = Freed::default();
    let chunks_per_id = arguments.scale as f64 * paper::CHUNK_BYTES / copal::CHUNK_BYTES;
    for (number, vm) in balanced.vms.iter().enumerate() {
        let ids = ((private(vm) / chunks_per_id) as u64).max(1);
        let new = ((ids as f64 * paper::NEW_SHARE).round() as u64).max(1);
        let seed = arguments.seed.wrapping_mul(0x1_0000_0001) ^ number as u64;
        let of_vm = delete_oldest(ids, new, paper::SNAPSHOTS, seed)?;
        freed.dead += of_vm.dead;
        freed.leaked += of_vm.leaked;
    }
    Ok((costs.to_vec(), freed))
}

/// Time until the last host has read its last VM, over all phases.
fn time(fleet: &Fleet, method: Method) -> f64 {
    let mut engine = Engine::new();
    let hosts = fleet.hosts.len();
    let links: Vec<_> = (0..hosts).map(|_| engine.link(back_end_read_bytes_per_s(hosts))).collect();
    for _ in 0..method.phases(hosts) {
        let mut left: Vec<_> = fleet.hosts.iter().map(|vms| vms.iter()).collect();
        for (host, &link) in links.iter().enumerate() {
            engine.send(link, 0.0, host);
        }
        while let Some(host) = engine.next() {
            if let Some(&vm) = left[host].next() {
                engine.send(links[host], method.read_bytes(&fleet.vms[vm]), host);
            }
        }
    }
    hours(engine.now())
}

/// Mean and greatest memory. Mark-and-sweep holds a table of the host's share of the chunks; with randomly
/// placed VMs the shares differ. The other methods hold one VM at a time.
fn memory(balanced: &Fleet, random: &Fleet, method: Method) -> Cost {
    let of_host = |fleet: &Fleet, host: usize| {
        let vms: Vec<&Vm> = fleet.hosts[host].iter().map(|&vm| &fleet.vms[vm]).collect();
        method.memory_bytes(&vms)
    };
    let each: Vec<f64> = match method.phases(2) {
        1 => balanced.vms.iter().map(|vm| method.memory_bytes(&[vm])).collect(),
        _ => (0..random.hosts.len()).map(|host| of_host(random, host)).collect(),
    };
    Cost {
        method,
        hours: 0.0,
        memory_mean_bytes: each.iter().sum::<f64>() / each.len() as f64,
        memory_most_bytes: each.iter().copied().fold(0.0, f64::max),
    }
}
