//! Memory that grows with the data, and memory of each engine under the caps.
//!
//! *Growing memory* is the anonymous memory with the base set open, after steady Gets, minus that with an
//! empty store and the same options. Caches have the least size that each engine accepts. With a small set it
//! is mostly buffers and the allocator, and is judged all the same; copal's own count is reported too. Then
//! follow, under each cap: speed, peak, and the engines that do not survive.

use super::{BITS, PEERS, compare_with_peers, contestants, name_the_fallen};
use crate::{
    keys::Skew,
    peer::{Outcome, Peer},
    protocol::{Request, Safety, Spec},
    suite_runner::{Entrant, Role, Scale, SuiteRunner},
};
use anyhow::{Context, Result};
use clap::Args;
use std::{collections::HashMap, fs, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Gets before memory is measured
    #[arg(long, default_value_t = 50_000)]
    gets: u64,
}

const NAMES: [&str; 6] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall", "fjall-tuned"];

/// Enough memory for every index and filter, so that their growth is visible.
const ROOMY: u64 = 64 << 20;

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-memory", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    let mut shares: HashMap<&str, f64> = HashMap::new();
    for &name in &names {
        let share = growth(&mut runner, name, options.gets)?;
        shares.insert(name, share);
        runner.report.fact(format!("{name}: memory per 10 GB of data"), share * 10_000.0, "MB");
    }
    for peer in PEERS {
        if let (Some(ours), Some(theirs)) = (shares.get("copal"), shares.get(peer)) {
            let label = format!("memory that grows with the data: {peer} / copal");
            // Adds a millionth to each, so that two engines without growth are equal.
            let ratio = (theirs + 1e-6) / (ours + 1e-6);
            runner.report.at_least(label, ratio, "x", 1.0);
        }
    }
    for percent in runner.scale.caps.clone() {
        let mut entrants = contestants(&mut runner, &names, BITS, percent)?;
        let mixed = |round: usize| Request::Ycsb {
            workload: 'B',
            safety: Safety::Bulk,
            keys: runner.scale.keys(),
            value_bytes: runner.scale.value,
            seconds: runner.scale.slice_seconds(),
            threads: 2,
            seed: round as u64 + 1,
        };
        runner.rounds(&mut entrants, 1 + runner.scale.rounds, mixed)?;
        under_cap(&mut runner, &entrants, percent);
        for entrant in entrants {
            entrant.close()?;
        }
    }
    runner.finish()
}

/// Additional memory of one engine with the base set over an empty store, as a share of the data.
fn growth(runner: &mut SuiteRunner<'_>, name: &str, gets: u64) -> Result<f64> {
    let role = Role {
        memory_bytes: ROOMY,
        cache_data: false,
        store: runner.loaded(name, BITS, false)?,
        ..runner.loading_role(BITS)
    };
    let full = runner.spec(name, &role)?;
    let empty = Spec { directory: runner.scratch.join("memory-empty"), ..full.clone() };
    remove(&empty.directory)?;
    // The same calls on a store with one key, so that code and pools are warm in both.
    let baseline = memory_after_merges(runner, &empty, gets, 1)?.anonymous_bytes as f64;
    remove(&empty.directory)?;
    let steady = memory_after_merges(runner, &full, gets, 0)?;
    let loaded = steady.anonymous_bytes as f64;
    let share = (loaded - baseline).max(0.0) / runner.scale.data_bytes() as f64;
    runner.report.detail(
        format!("{name}: anonymous memory, nothing stored"),
        baseline / f64::from(1 << 20),
        "MiB",
    );
    let label = format!("{name}: memory that grows with the data, share of the data");
    runner.report.fact(label, share * 100.0, "%");
    if name == "copal" {
        runner.report.at_most(
            "T5 copal: memory that grows with the data, as the kernel sees it, share of the data",
            share * 100.0,
            "%",
            0.2,
        );
        // With a small set, the difference above is mostly buffers and the allocator; the target is about
        // these figures.
        let classes = ["filter_bytes_now", "index_bytes_now", "table_bytes_now"];
        let counted: f64 = classes.iter().map(|class| steady.answer.counter(class)).sum();
        runner.report.at_most(
            "T5 copal: filters, indexes and descriptors by its own count, share of the data",
            counted / runner.scale.data_bytes() as f64 * 100.0,
            "%",
            0.2,
        );
    }
    Ok(share)
}

fn under_cap(runner: &mut SuiteRunner<'_>, entrants: &[Entrant], percent: f64) {
    let label = format!("cap {percent} %, 95 % reads");
    for entrant in entrants {
        let name = &entrant.name;
        if let Some(speed) = entrant.per_second() {
            runner.report.fact(format!("{label}: {name}"), speed, "ops/s");
        }
        let most = |figure: fn(&Outcome) -> f64| entrant.outcomes.iter().map(figure).fold(0.0, f64::max);
        if !entrant.outcomes.is_empty() {
            let anonymous = most(|one| one.anonymous_bytes as f64);
            runner.report.fact(
                format!("{label}: {name}: anonymous memory"),
                anonymous / f64::from(1 << 20),
                "MiB",
            );
            let peak = most(|one| one.peak_bytes as f64);
            runner.report.detail(
                format!("{label}: {name}: peak with page cache"),
                peak / f64::from(1 << 20),
                "MiB",
            );
            if name == "copal" {
                let counted = most(|one| one.answer.counter("memory_bytes_now"));
                let budget = entrant.peer.as_ref().map_or(0, |peer| peer.spec.memory_bytes) as f64;
                runner.report.at_most(
                    format!("T5 {label}: copal's own count of its memory / its budget"),
                    counted / budget,
                    "",
                    1.0,
                );
                runner.report.at_most(
                    format!("T5 {label}: copal's anonymous memory beyond its budget: code's, threads', the allocator's"),
                    (anonymous - budget).max(0.0) / f64::from(1 << 20),
                    "MiB",
                    12.0,
                );
            }
        }
    }
    compare_with_peers(&mut runner.report, &label, entrants, Entrant::per_second);
    name_the_fallen(&mut runner.report, &label, entrants);
}

/// Memory after steady look-ups; stores `keys` keys first, unless 0.
fn memory_after_merges(runner: &SuiteRunner<'_>, spec: &Spec, gets: u64, store: u64) -> Result<Outcome> {
    let mut peer = Peer::open(spec, Some(512 << 20))?;
    let keys = if store > 0 {
        peer.ask(&Request::Load {
            first: 0,
            count: store,
            value_bytes: runner.scale.value,
            batch: 1,
            safety: Safety::Bulk,
        })?;
        peer.ask(&Request::Flush)?;
        store
    } else {
        runner.scale.keys()
    };
    let outcome = peer.ask(&Request::Gets {
        keys,
        skew: Skew::Uniform,
        missing: 0.5,
        ops: gets,
        seconds: 0.0,
        threads: 1,
        seed: 1,
    })?;
    peer.close()?;
    Ok(outcome)
}

fn remove(directory: &Path) -> Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory).context("removing an empty store")?;
    }
    Ok(())
}
