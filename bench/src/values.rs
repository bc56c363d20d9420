//! Large values: straight into their value object, written once, or through the log first and separated at
//! flush.
//!
//! Criterion of the design: the direct path is at least 1.3 times as fast; below that, the path through the
//! log alone would do.

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_device::{Device, FileOptions, open_file};
use copal_kv::{Durability, KeyspaceOptions, Options as Engine, Store};
use copal_object::{MkfsOptions, OpenOptions};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

#[derive(Args)]
pub(crate) struct Options {
    /// MiB of values in each round
    #[arg(long, default_value_t = 128)]
    data: u64,
    /// Rounds of each path, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// KiB of one value
    #[arg(long, value_delimiter = ',', default_values_t = [64, 1024])]
    value: Vec<u64>,
    /// Directory of the stores [default: .cache/bench/values]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// Result of one round.
struct Round {
    seconds: f64,
    written_bytes: f64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/values");
    std::fs::create_dir_all(&scratch)?;
    let mut report = Report::new(root, &scratch);
    for &kib in &options.value {
        let (value_bytes, count) = ((kib << 10) as usize, (options.data << 10) / kib);
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..options.rounds {
            for step in 0..2 {
                let path = (round + step) % 2;
                rounds[path].push(write(&scratch.join("store"), path == 0, count, value_bytes)?);
            }
        }
        let user_bytes = (options.data << 20) as f64;
        let of = |path: usize, figure: fn(&Round) -> f64| {
            median(rounds[path].iter().map(figure).collect()).unwrap_or(0.0)
        };
        for (path, name) in [(0, "direct"), (1, "through the log")] {
            let label = format!("values of {kib} KiB, {name}");
            report.fact(&label, user_bytes / 1e6 / of(path, |round| round.seconds), "MB/s");
            let written = of(path, |round| round.written_bytes) / user_bytes;
            report.fact(format!("{label}: bytes written / user bytes"), written, "x");
        }
        report.at_least(
            format!("criterion: values of {kib} KiB, direct / through the log"),
            of(1, |round| round.seconds) / of(0, |round| round.seconds),
            "x",
            1.3,
        );
    }
    report.finish(root, "kv-values")
}

/// Stores `count` values, each durable when its put returns, in a new store; returns the time until all are
/// in their objects.
fn write(file: &Path, direct: bool, count: u64, value_bytes: usize) -> Result<Round> {
    let size = (count * value_bytes as u64 * 4 + (512 << 20)).next_multiple_of(1 << 20);
    let create = FileOptions { create_size: Some(size), allow_cow: true, ..FileOptions::default() };
    let device: Arc<dyn Device> = open_file(file, &create).context("making the store's file")?;
    copal_object::Store::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _) = copal_object::Store::open(device.clone(), &OpenOptions::default())?;
    let store = Store::open(objects, Engine::default())?;
    let keyspace = KeyspaceOptions {
        direct_from_bytes: if direct { 1 } else { u32::MAX },
        ..KeyspaceOptions::default()
    };
    let space = store.keyspace("values", keyspace)?;
    let before = device.counters().write_bytes;
    let started = Instant::now();
    for number in 0..count {
        let value = vec![number as u8; value_bytes];
        space.put(&number.to_be_bytes(), &value, Durability::Device)?;
    }
    store.flush()?;
    let round = Round {
        seconds: started.elapsed().as_secs_f64(),
        written_bytes: (device.counters().write_bytes - before) as f64,
    };
    store.close()?;
    store.objects().close()?;
    drop((space, store, device));
    std::fs::remove_file(file)?;
    Ok(round)
}
