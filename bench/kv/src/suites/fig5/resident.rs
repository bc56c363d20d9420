//! Processor time of a Get that reads nothing from the device: columns beside the paper's Bloom units.
//!
//! The target is a 99th percentile of at most 5 us. Under the caps one Get in a hundred reads from the
//! device, and that system call alone takes longer. So here the Gets use a small part of the keys, with
//! memory for its blocks and all index pages. Blocks are cached instead of rows: a row would answer a hit
//! before any filter, and the block that a false positive reads must be in memory too.

use crate::{
    keys::Skew,
    protocol::Request,
    suite_runner::{Role, SuiteRunner},
    suites::{BITS, find},
};
use anyhow::Result;

const NAMES: [&str; 2] = ["copal-ribbon-classes", "copal-bloom-classes"];

const MEMORY: u64 = 96 << 20;
/// Their blocks occupy a third of the memory.
const HOT_KEYS: u64 = 4000;
/// Limit of the design, microseconds.
const CRITERION: f64 = 5.0;

pub(super) fn resident(runner: &mut SuiteRunner<'_>) -> Result<()> {
    let mut entrants = Vec::new();
    for name in runner.chosen(&NAMES)? {
        let loading = Role { cache_blocks: true, ..runner.loading_role(BITS) };
        let role = Role {
            memory_bytes: MEMORY,
            cap_bytes: None,
            store: runner.loaded_for(name, &loading)?,
            ..loading
        };
        entrants.push(runner.entrant(name, &role)?);
    }
    let hot = HOT_KEYS.min(runner.scale.keys() / 10);
    let gets = |round: usize| Request::Gets {
        keys: runner.scale.keys(),
        skew: Skew::Hot(hot),
        missing: 0.5,
        ops: 0,
        seconds: runner.scale.slice_seconds(),
        threads: 1,
        seed: round as u64 + 1,
    };
    // Warm-up: blocks, index pages and units are loaded.
    runner.rounds(&mut entrants, 2, |round| gets(round + 100))?;
    runner.await_merges(&mut entrants)?;
    runner.rounds(&mut entrants, runner.scale.rounds, gets)?;
    for name in NAMES {
        let Some(entrant) = find(&entrants, name) else {
            continue;
        };
        let label = format!("everything resident: {name}");
        let report = &mut runner.report;
        if let Some(reads) = entrant.per_op(|one| one.traffic.reads as f64) {
            // One read in a hundred Gets would determine the percentile.
            report.at_most(format!("{label}: reads per Get"), reads, "", 0.001);
        }
        if let Some(p50) = entrant.median(|one| one.answer.cpu.p50) {
            report.fact(format!("{label}: processor time per Get, p50"), p50, "us");
        }
        if let Some(p99) = entrant.median(|one| one.answer.cpu.p99) {
            let label = format!("criterion: {label}: processor time per Get, p99");
            report.at_most(label, p99, "us", CRITERION);
        }
    }
    for entrant in entrants {
        entrant.close()?;
    }
    Ok(())
}
