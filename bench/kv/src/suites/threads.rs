//! One engine at work with a number of threads, in its own process: a row of `scale-cores`, which starts this
//! program on as many cores.
//!
//! Prints one line of JSON for each kind of work, or one line that names the reason of a skip. Not here: caps on
//! memory, since the whole store fits into the engine's memory.

use crate::{
    engine,
    keys::Skew,
    protocol::{Answer, Filters, Kind, Request, Safety, Spec},
    worker,
};
use anyhow::Result;
use clap::{Args, ValueEnum};
use serde_json::json;
use std::{fs, path::PathBuf};

#[derive(Args)]
pub(crate) struct Options {
    /// Engine
    #[arg(long, value_enum)]
    engine: EngineName,
    /// Number of threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Keys of the store
    #[arg(long, default_value_t = 200_000)]
    keys: u64,
    /// Seconds of each kind of work
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Kinds of work
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = WorkKind::value_variants().to_vec())]
    work: Vec<WorkKind>,
    /// Directory of the store, which is removed before and afterwards
    #[arg(long)]
    directory: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum EngineName {
    Copal,
    Rocksdb,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum WorkKind {
    /// Look-ups of few keys, which are in memory
    Gets,
    /// The same in calls of many keys
    MultiGets,
    /// Half look-ups, half writes that are not durable when they return: YCSB A
    Mixed,
    /// Overwrites that are not durable when they return
    Writes,
    /// A merge of everything into one run, after each key and three times as many new ones were written
    Merges,
}

const VALUE_BYTES: usize = 200;
/// Number of the keys that look-ups ask for.
const HOT_KEYS: u64 = 4000;
/// Keys of one call with several.
const BATCH: usize = 16;
/// Memory of each engine; the store is smaller.
const MEMORY: u64 = 256 << 20;
/// Keys of the store when it is merged as a whole, as a multiple of the others: many tables, so that merges can
/// divide them.
const MERGED: u64 = 4;
/// Work before the measurement, as a share of its time.
const WARM_UP: f64 = 0.2;

pub(crate) fn run(options: &Options) -> Result<()> {
    if matches!(options.engine, EngineName::Rocksdb) && !cfg!(feature = "rocksdb") {
        println!("{}", json!({ "skipped": "built without RocksDB" }));
        return Ok(());
    }
    remove(options)?;
    let engine = engine::open(&spec(options))?;
    worker::measure(&*engine, &load_of(options.keys))?;
    engine.flush()?;
    engine.await_merges()?;
    for (number, work) in options.work.iter().enumerate() {
        let seed = number as u64 * 2;
        let warm_up = match work {
            WorkKind::Merges => load_of(MERGED * options.keys),
            work => request(*work, options, options.seconds * WARM_UP, seed),
        };
        worker::measure(&*engine, &warm_up)?;
        let mut answer = worker::measure(&*engine, &request(*work, options, options.seconds, seed + 1))?;
        if *work == WorkKind::Merges {
            answer.ops = MERGED * options.keys;
        }
        println!("{}", line(*work, &answer));
    }
    engine.close()?;
    drop(engine);
    remove(options)
}

fn remove(options: &Options) -> Result<()> {
    if options.directory.exists() {
        fs::remove_dir_all(&options.directory)?;
    }
    Ok(())
}

fn spec(options: &Options) -> Spec {
    let (name, kind) = match options.engine {
        EngineName::Copal => ("copal", Kind::Copal),
        EngineName::Rocksdb => ("rocksdb", Kind::Rocksdb),
    };
    Spec {
        name: name.to_owned(),
        kind,
        filters: Filters::Shipped,
        bits: 10.0,
        memory_bytes: MEMORY,
        write_buffer_bytes: 16 << 20,
        table_bytes: 0,
        // Overwrites need space until merges drop the replaced entries.
        data_bytes: options.keys * (VALUE_BYTES + crate::keys::KEY_BYTES) as u64 * 4 * MERGED,
        cache_data: true,
        cache_blocks: false,
        merge_for_reads: true,
        // By default, RocksDB has two, and one for each merge; copal half of the processors.
        background_threads: options.threads,
        directory: options.directory.clone(),
    }
}

fn load_of(count: u64) -> Request {
    Request::Load { first: 0, count, value_bytes: VALUE_BYTES, batch: 100, safety: Safety::Bulk }
}

fn request(work: WorkKind, options: &Options, seconds: f64, seed: u64) -> Request {
    let (keys, threads) = (options.keys, options.threads);
    let hot = Skew::Hot(HOT_KEYS.min(keys));
    match work {
        WorkKind::Gets => Request::Gets { keys, skew: hot, missing: 0.0, ops: 0, seconds, threads, seed },
        WorkKind::MultiGets => {
            Request::MultiGets { keys, skew: hot, missing: 0.0, batch: BATCH, seconds, threads, seed }
        }
        WorkKind::Mixed => Request::Ycsb {
            workload: 'A',
            safety: Safety::Bulk,
            keys,
            value_bytes: VALUE_BYTES,
            seconds,
            threads,
            seed,
        },
        WorkKind::Merges => Request::Compact,
        WorkKind::Writes => Request::Writes {
            keys,
            skew: Skew::Uniform,
            value_bytes: VALUE_BYTES,
            safety: Safety::Bulk,
            ops: 0,
            seconds,
            threads,
            seed,
        },
    }
}

fn line(work: WorkKind, answer: &Answer) -> serde_json::Value {
    let name = work.to_possible_value().map(|value| value.get_name().to_owned());
    json!({
        "work": name,
        "per_second": answer.per_second(),
        "cpu_us": answer.cpu_seconds * 1e6 / (answer.ops as f64).max(1.0),
        "p99_us": answer.latency.p99,
        "merges": answer.counter("merges"),
        "paced_seconds": answer.counter("paced_nanos") / 1e9,
        "stalled_seconds": answer.counter("stalled_nanos") / 1e9,
    })
}
