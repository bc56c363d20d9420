//! Comparisons of key-value engines: copal beside LevelDB, RocksDB and fjall, one suite per module of
//! `suites`. `cargo xtask bench NAME` builds and runs this.
//!
//! Each engine runs in its own process (this binary again), under a memory cap, and alternates with the
//! others in short slices of work: `peer`, `memory_cap`, `protocol`. `worker` has the work, `engine` the
//! calls of each engine, `keys` the keys.

mod engine;
mod keys;
mod latency;
mod memory_cap;
mod peer;
mod protocol;
mod suite_runner;
mod suites;
mod worker;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::{path::Path, process::ExitCode};

#[derive(Parser)]
#[command(name = "cargo xtask bench", about = "Comparisons of key-value engines, each with its targets")]
struct Arguments {
    #[command(subcommand)]
    suite: Suite,
}

#[derive(Subcommand)]
enum Suite {
    /// Reads per Get, filter kinds and rules in our engine and the peers: the paper's Table 1
    #[command(name = "elasticbf-table1")]
    Table1(suites::table1::Options),
    /// Gets per second under the caps: the paper's Figure 5
    #[command(name = "elasticbf-fig5")]
    Fig5(suites::fig5::Options),
    /// Gets per second by bits per key: the paper's Figure 6
    #[command(name = "elasticbf-fig6")]
    Fig6(suites::fig6::Options),
    /// Time to load, with and without elastic filters: the paper's Figure 7
    #[command(name = "elasticbf-fig7")]
    Fig7(suites::fig7::Options),
    /// Memory that grows with the data, and peaks under the caps
    KvMemory(suites::memory::Options),
    /// Durable writes by threads
    KvSync(suites::sync::Options),
    /// YCSB A to F
    KvYcsb(suites::ycsb::Options),
    /// Range scans
    KvScan(suites::scan::Options),
    /// Deleting everything below a prefix
    KvPurge(suites::purge::Options),
    /// Deleting: bytes written, space given back, scans over deleted ranges
    KvDeletes(suites::deletes::Options),
    /// Random load and steady overwrite: speed, write amplification, waits, reopening
    KvLoad(suites::load::Options),
    /// Deferred writes a second by key space, in LevelDB and Copal: the Draconis paper's Figure 4
    #[command(name = "draconis-fig4")]
    DraconisFig4(suites::draconis::Options),
    /// Tables written from memory by key space, in LevelDB and Copal: the Draconis paper's Figure 5
    #[command(name = "draconis-fig5")]
    DraconisFig5(suites::draconis::Options),
    /// Compactions of deferred writes by key space, in LevelDB and Copal: the Draconis paper's Figure 6
    #[command(name = "draconis-fig6")]
    DraconisFig6(suites::draconis::Options),
    /// Durable writes a second, in LevelDB and Copal: the Draconis paper's Figure 7
    #[command(name = "draconis-fig7")]
    DraconisFig7(suites::draconis::Options),
    /// Compactions of durable writes, in LevelDB and Copal: the Draconis paper's Figure 8
    #[command(name = "draconis-fig8")]
    DraconisFig8(suites::draconis::Options),
    /// One engine by a number of threads; `scale-cores` starts it on a number of cores
    #[command(hide = true)]
    EngineThreads(suites::threads::Options),
}

fn main() -> ExitCode {
    let first = std::env::args().nth(1);
    let done = if first.as_deref() == Some(peer::CHILD) { worker::serve() } else { run() };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("bench/kv lies in the repository")?;
    match Arguments::parse().suite {
        Suite::Table1(options) => suites::table1::run(root, &options),
        Suite::Fig5(options) => suites::fig5::run(root, &options),
        Suite::Fig6(options) => suites::fig6::run(root, &options),
        Suite::Fig7(options) => suites::fig7::run(root, &options),
        Suite::KvMemory(options) => suites::memory::run(root, &options),
        Suite::KvSync(options) => suites::sync::run(root, &options),
        Suite::KvYcsb(options) => suites::ycsb::run(root, &options),
        Suite::KvScan(options) => suites::scan::run(root, &options),
        Suite::KvPurge(options) => suites::purge::run(root, &options),
        Suite::KvDeletes(options) => suites::deletes::run(root, &options),
        Suite::KvLoad(options) => suites::load::run(root, &options),
        Suite::DraconisFig4(options) | Suite::DraconisFig5(options) | Suite::DraconisFig6(options) => {
            suites::draconis::run_deferred(root, &options)
        }
        Suite::DraconisFig7(options) | Suite::DraconisFig8(options) => {
            suites::draconis::run_durable(root, &options)
        }
        Suite::EngineThreads(options) => suites::threads::run(&options),
    }
}
