//! The suites, one module each.

pub(crate) mod deletes;
pub(crate) mod draconis;
pub(crate) mod fig5;
pub(crate) mod fig6;
pub(crate) mod fig7;
pub(crate) mod load;
pub(crate) mod memory;
pub(crate) mod purge;
pub(crate) mod scan;
pub(crate) mod sync;
pub(crate) mod table1;
pub(crate) mod threads;
pub(crate) mod ycsb;

use crate::{
    peer::Outcome,
    suite_runner::{Entrant, SuiteRunner},
};
use anyhow::Result;
use copal_bench_harness::report::Report;

/// Filter bits per key in the paper's main experiment, and in every comparison with a fixed number.
const BITS: f64 = 4.0;

/// Opens every engine on its own loaded base set, with that many filter bits and that share of the data as
/// memory.
fn contestants(
    runner: &mut SuiteRunner<'_>,
    names: &[&str],
    bits: f64,
    percent: f64,
) -> Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    let mut taken: Vec<String> = Vec::new();
    for &name in names {
        let mut store = runner.loaded(name, bits, true)?;
        if taken.contains(&store) {
            store = runner.copied(&store, name)?;
        }
        taken.push(store.clone());
        let role = runner.reading_role(bits, percent, true, store);
        entrants.push(runner.entrant(name, &role)?);
    }
    Ok(entrants)
}

/// The entrant of that name, if the suite has it and its process is running.
fn find<'e>(entrants: &'e [Entrant], name: &str) -> Option<&'e Entrant> {
    let standing = |entrant: &&Entrant| entrant.name == name && !entrant.outcomes.is_empty();
    entrants.iter().find(standing)
}

/// Adds a row `figure(ours) / figure(theirs)` with `target` as lower limit; none when either is missing.
fn ratio_row(
    report: &mut Report,
    label: &str,
    entrants: &[Entrant],
    (ours, theirs): (&str, &str),
    figure: impl Fn(&Entrant) -> Option<f64>,
    target: f64,
) {
    let value = |name| find(entrants, name).and_then(&figure);
    if let (Some(ours_is), Some(theirs_is)) = (value(ours), value(theirs)) {
        report.at_least(format!("{label}: {ours} / {theirs}"), ours_is / theirs_is, "x", target);
    }
}

/// All peers.
const PEERS: [&str; 5] = ["leveldb", "rocksdb", "rocksdb-tuned", "fjall", "fjall-tuned"];

/// Adds a row that compares copal with each peer, for a figure that is better if larger.
fn compare_with_peers(
    report: &mut Report,
    label: &str,
    entrants: &[Entrant],
    figure: impl Fn(&Entrant) -> Option<f64>,
) {
    for peer in PEERS {
        ratio_row(report, label, entrants, ("copal", peer), &figure, 1.0);
    }
}

/// Reports the engines that fell.
fn name_the_fallen(report: &mut Report, label: &str, entrants: &[Entrant]) {
    for entrant in entrants.iter().filter(|entrant| entrant.peer.is_none()) {
        report.fact(format!("{label}: {} did not survive (1 = fell)", entrant.name), 1.0, "");
    }
}

/// Processor time of one operation, microseconds.
fn cpu_micros(outcome: &Outcome) -> f64 {
    outcome.answer.cpu_seconds * 1e6
}
