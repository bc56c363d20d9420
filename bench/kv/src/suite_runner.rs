//! Shared parts of all comparisons: scale, specs of the engines, loaded stores, interleaved slices, the
//! report.
//!
//! Invariants
//! - All engines get the same keys, the same memory and the same cap: data x share + one fixed allowance for
//!   code, threads and stacks.
//! - Slices of the engines alternate, and the first engine rotates, so that other load on the machine affects
//!   all.

mod loads;
mod specs;

pub(crate) use loads::LoadFacts;
pub(crate) use specs::{ALL, Role};

use crate::{
    peer::{Outcome, Peer, is_fallen},
    protocol::Request,
};
use anyhow::{Result, bail};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use std::path::{Path, PathBuf};

/// Scale of a suite.
#[derive(Args, Clone, Debug)]
pub(crate) struct Scale {
    /// Keys in the base set
    #[arg(long, default_value_t = 300_000)]
    keys: u64,
    /// Bytes of a value
    #[arg(long, default_value_t = 1008)]
    pub(crate) value: usize,
    /// The design's base set: 10 M keys of 1 KB, slices of 30 s
    #[arg(long)]
    full: bool,
    /// Seconds of one slice of one engine
    #[arg(long, default_value_t = 1.5)]
    slice: f64,
    /// Slices of each engine
    #[arg(long, default_value_t = 3)]
    pub(crate) rounds: usize,
    /// Caps on memory, percent of the data
    #[arg(long, value_delimiter = ',', default_values_t = [0.5, 1.0, 4.0])]
    pub(crate) caps: Vec<f64>,
    /// MiB added to the cap of every engine: code, threads, stacks, write buffers
    #[arg(long, default_value_t = 24)]
    pub(crate) allowance: u64,
    /// Run only these engines
    #[arg(long, value_delimiter = ',')]
    engines: Vec<String>,
    /// Load stores again, even if an earlier suite has loaded them
    #[arg(long)]
    fresh: bool,
    /// Directory of the stores [default: .cache/bench/kv]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

impl Scale {
    pub(crate) fn keys(&self) -> u64 {
        if self.full { 10_000_000 } else { self.keys }
    }

    pub(crate) fn slice_seconds(&self) -> f64 {
        if self.full { 30.0 } else { self.slice }
    }

    /// Bytes of all keys and values.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.keys() * (self.value + crate::keys::KEY_BYTES) as u64
    }

    /// Memory for data-dependent structures under a cap of that many percent.
    pub(crate) fn memory_bytes(&self, percent: f64) -> u64 {
        // Copal needs at least 4 MiB in all; the peers get as much.
        ((self.data_bytes() as f64 * percent / 100.0) as u64).max(2 << 20)
    }

    /// Addition to copal's budget for memtables, log, merges and I/O: 17 parts in 32 of a small budget, at
    /// most half of the allowance that peers have for the same.
    pub(crate) fn copal_extra_bytes(&self, memory_bytes: u64) -> u64 {
        (memory_bytes * 17 / 15).min(self.allowance << 19)
    }

    /// Cap on all memory.
    pub(crate) fn cap_bytes(&self, percent: f64) -> u64 {
        self.memory_bytes(percent) + (self.allowance << 20)
    }
}

/// A running suite.
pub(crate) struct SuiteRunner<'a> {
    pub(crate) root: &'a Path,
    pub(crate) scratch: PathBuf,
    pub(crate) scale: Scale,
    pub(crate) report: Report,
    suite: &'static str,
}

/// One engine of a comparison and the results of its slices.
pub(crate) struct Entrant {
    pub(crate) name: String,
    /// `None` after its process ended unexpectedly.
    pub(crate) peer: Option<Peer>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl<'a> SuiteRunner<'a> {
    pub(crate) fn new(root: &'a Path, suite: &'static str, scale: &Scale) -> Result<SuiteRunner<'a>> {
        let scratch = scale.scratch.clone().unwrap_or_else(|| root.join(".cache/bench/kv"));
        std::fs::create_dir_all(&scratch)?;
        let mut report = Report::new(root, &scratch);
        report.fact("keys", scale.keys() as f64, "");
        report.fact("value", scale.value as f64, "B");
        report.fact("allowance on top of each cap", scale.allowance as f64, "MiB");
        Ok(SuiteRunner { root, scratch, scale: scale.clone(), report, suite })
    }

    /// The chosen engines, of those the suite offers.
    pub(crate) fn chosen<'n>(&self, offered: &[&'n str]) -> Result<Vec<&'n str>> {
        for name in &self.scale.engines {
            if !ALL.contains(&name.as_str()) {
                bail!("there is no engine `{name}`; there are {}", ALL.join(", "));
            }
        }
        let wanted = |name: &&&str| {
            self.scale.engines.is_empty() || self.scale.engines.iter().any(|wanted| wanted == **name)
        };
        Ok(offered.iter().filter(wanted).copied().collect())
    }

    /// Opens one engine for a comparison. An engine whose process ends, or that refuses, takes part as
    /// fallen.
    pub(crate) fn entrant(&mut self, name: &str, role: &Role) -> Result<Entrant> {
        let spec = self.spec(name, role)?;
        let peer = match Peer::open(&spec, role.cap_bytes) {
            Ok(peer) => Some(peer),
            Err(error) if is_fallen(&error) => {
                eprintln!("{error:#}");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(Entrant { name: name.to_owned(), peer, outcomes: Vec::new() })
    }

    /// Sends the request of each round to every entrant, one after the other; the first one rotates.
    pub(crate) fn rounds(
        &self,
        entrants: &mut [Entrant],
        rounds: usize,
        request: impl Fn(usize) -> Request,
    ) -> Result<()> {
        for entrant in entrants.iter_mut() {
            entrant.outcomes.clear();
        }
        let count = entrants.len();
        for round in 0..rounds {
            for step in 0..count {
                let entrant = &mut entrants[(round + step) % count];
                let Some(peer) = &mut entrant.peer else { continue };
                match peer.ask(&request(round)) {
                    Ok(outcome) => entrant.outcomes.push(outcome),
                    Err(error) if is_fallen(&error) => {
                        eprintln!("{error:#}");
                        entrant.peer = None;
                        entrant.outcomes.clear();
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Lets every entrant finish its background work.
    pub(crate) fn await_merges(&self, entrants: &mut [Entrant]) -> Result<()> {
        for entrant in entrants {
            let Some(peer) = &mut entrant.peer else { continue };
            peer.ask(&Request::AwaitMerges)?;
        }
        Ok(())
    }

    /// Records versions and options, once per suite and engine.
    pub(crate) fn describe(&mut self, entrants: &[Entrant]) {
        for entrant in entrants {
            match &entrant.peer {
                Some(peer) => println!("{}: {}, {}", entrant.name, peer.version, peer.options),
                None => println!("{}: fell while opening", entrant.name),
            }
        }
    }

    /// Writes the report; the last line names the missed targets.
    pub(crate) fn finish(self) -> Result<()> {
        self.report.finish(self.root, self.suite)?;
        let rows = &self.report.rows;
        let missed: Vec<&str> =
            rows.iter().filter(|row| row.ok == Some(false)).map(|row| row.name.as_str()).collect();
        match (missed.is_empty(), rows.iter().any(|row| row.ok == Some(true))) {
            (false, _) => println!("missed: {}", missed.join("; ")),
            (true, true) => println!("every target was met"),
            (true, false) => println!("no target was judged"),
        }
        Ok(())
    }
}

impl Entrant {
    /// Median over its slices; `None` after its process ended unexpectedly.
    pub(crate) fn median(&self, figure: impl Fn(&Outcome) -> f64) -> Option<f64> {
        median(self.outcomes.iter().map(figure).collect())
    }

    pub(crate) fn per_second(&self) -> Option<f64> {
        self.median(|outcome| outcome.answer.per_second())
    }

    /// Sum over its slices divided by operations.
    pub(crate) fn per_op(&self, figure: impl Fn(&Outcome) -> f64) -> Option<f64> {
        let ops: u64 = self.outcomes.iter().map(|outcome| outcome.answer.ops).sum();
        (ops > 0).then(|| self.outcomes.iter().map(figure).sum::<f64>() / ops as f64)
    }

    /// Closes the engine, unless it has fallen.
    pub(crate) fn close(self) -> Result<()> {
        self.peer.map_or(Ok(()), Peer::close)
    }
}
