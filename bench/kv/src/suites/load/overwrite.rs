//! Steady overwriting of a loaded store, look-ups during it, and the time to reopen the store.
//!
//! During the look-ups every engine writes at its full speed: one that writes more also merges more. Each
//! round overwrites its own load; the report has the median, and the longest put of all rounds.

use super::Options;
use crate::{
    keys::{KEY_BYTES, Skew},
    peer::{Outcome, Peer},
    protocol::{Request, Safety, Spec},
    suite_runner::SuiteRunner,
    suites::PEERS,
};
use anyhow::Result;
use copal_bench_harness::report::{Report, median};
use std::{collections::HashMap, time::Instant};

/// Figures of one engine in one round.
pub(super) struct Overwritten {
    open_seconds: f64,
    user_bytes: f64,
    mixed_seconds: f64,
    idle: Outcome,
    written: Outcome,
    merged: Outcome,
    busy: Outcome,
}

/// Overwrites a loaded store, then looks up during further overwriting.
pub(super) fn overwrite(runner: &SuiteRunner<'_>, options: &Options, spec: &Spec) -> Result<Overwritten> {
    let started = Instant::now();
    let mut peer = Peer::open(spec, Some(options.cap << 20))?;
    let open_seconds = started.elapsed().as_secs_f64();
    let gets = |seconds| Request::Gets {
        keys: runner.scale.keys(),
        skew: Skew::Uniform,
        missing: 0.5,
        ops: 0,
        seconds,
        threads: 1,
        seed: 1,
    };
    peer.ask(&gets(1.0))?;
    let idle = peer.ask(&gets(runner.scale.slice_seconds()))?;
    let ops = (runner.scale.keys() as f64 * options.overwrite) as u64;
    let written = peer.ask(&Request::Writes {
        keys: runner.scale.keys(),
        skew: Skew::Uniform,
        value_bytes: runner.scale.value,
        safety: Safety::Bulk,
        ops,
        seconds: 0.0,
        threads: 1,
        seed: 7,
    })?;
    // Merges due after the overwriting count as its own; writes during the look-ups do not.
    let merged = peer.ask(&Request::AwaitMerges)?;
    let mixed_seconds =
        options.minutes.map_or(runner.scale.slice_seconds().max(3.0), |minutes| minutes * 60.0);
    let busy = peer.ask(&Request::ReadsBesideWrites {
        keys: runner.scale.keys(),
        value_bytes: runner.scale.value,
        safety: Safety::Bulk,
        seconds: mixed_seconds,
        seed: 9,
    })?;
    peer.close()?;
    Ok(Overwritten {
        open_seconds,
        user_bytes: ops as f64 * (runner.scale.value + KEY_BYTES) as f64,
        mixed_seconds,
        idle,
        written,
        merged,
        busy,
    })
}

impl Overwritten {
    fn megabytes_per_second(&self) -> f64 {
        self.user_bytes / 1e6 / self.written.answer.seconds.max(1e-9)
    }

    fn amplification(&self) -> f64 {
        let bytes = self.written.traffic.write_bytes + self.merged.traffic.write_bytes;
        bytes as f64 / self.user_bytes
    }

    /// Unnecessary reads per Get during overwriting.
    fn extra_reads(&self) -> f64 {
        let answer = &self.busy.answer;
        let vain = answer.counter("false_positives") + answer.counter("filter_page_reads");
        vain / (answer.ops as f64).max(1.0)
    }
}

fn median_of(rounds: &[Overwritten], figure: impl Fn(&Overwritten) -> f64) -> f64 {
    median(rounds.iter().map(figure).collect()).unwrap_or(0.0)
}

fn longest(rounds: &[Overwritten], figure: impl Fn(&Overwritten) -> f64) -> f64 {
    rounds.iter().map(figure).fold(0.0, f64::max)
}

/// All rounds of one engine.
pub(super) fn tell(report: &mut Report, name: &str, rounds: &[Overwritten]) {
    let of = |figure: fn(&Overwritten) -> f64| median_of(rounds, figure);
    let speed = of(Overwritten::megabytes_per_second);
    let amplification = of(Overwritten::amplification);
    let longest_put = longest(rounds, |one| one.written.answer.latency.max / 1e3);
    let longest_beside = longest(rounds, |one| one.busy.answer.write_latency.max / 1e3);
    let open_seconds = of(|one| one.open_seconds);
    let idle = of(|one| one.idle.answer.latency.p99);
    let beside = of(|one| one.busy.answer.latency.p99);
    report.fact(format!("{name}: overwrite"), speed, "MB/s");
    let written = format!("{name}: overwrite: bytes written / user bytes");
    report.fact(written, amplification, "x");
    report.fact(format!("{name}: overwrite: longest put"), longest_put, "ms");
    let processor = of(|one| one.written.answer.cpu_seconds);
    report.detail(format!("{name}: overwrite: processor time"), processor, "s");
    let seconds = of(|one| one.written.answer.seconds);
    report.detail(format!("{name}: overwrite: time"), seconds, "s");
    if name == "copal" {
        for (counter, what) in [
            ("flush_nanos", "in flushes"),
            ("merge_nanos", "in merges"),
            ("paced_nanos", "writers slowed"),
            ("stalled_nanos", "writers stalled"),
        ] {
            let seconds = median_of(rounds, |one| one.written.answer.counter(counter) / 1e9);
            report.detail(format!("{name}: overwrite: {what}"), seconds, "s");
        }
    }
    let mixed = of(|one| one.mixed_seconds);
    report.detail(format!("{name}: beside overwriting: time"), mixed, "s");
    report.fact(format!("{name}: longest put beside Gets"), longest_beside, "ms");
    report.fact(format!("{name}: open again"), open_seconds, "s");
    report.detail(format!("{name}: p99 of a Get, idle"), idle, "us");
    report.fact(format!("{name}: p99 of a Get beside overwriting"), beside, "us");
    let gets = of(|one| one.busy.answer.per_second());
    report.fact(format!("{name}: Gets/s beside overwriting"), gets, "Gets/s");
    if name != "copal" {
        return;
    }
    let extra = of(Overwritten::extra_reads);
    for (what, value, unit, most) in [
        ("criterion: extra reads per Get beside overwriting", extra, "", 0.10),
        ("T9 copal: longest put beside Gets", longest_beside, "ms", 100.0),
        ("T8 copal: write amplification of the overwrite", amplification, "x", 15.0),
        ("T9 copal: longest put of the overwrite", longest_put, "ms", 100.0),
        ("T9 copal: p99 of a Get beside overwriting / idle", beside / idle, "x", 2.0),
        ("T12 copal: open again", open_seconds, "s", 2.0),
    ] {
        report.at_most(what, value, unit, most);
    }
}

/// Compares copal with each peer.
pub(super) fn judge(report: &mut Report, all: &HashMap<&str, Vec<Overwritten>>) {
    let Some(ours) = all.get("copal") else { return };
    for peer in PEERS {
        let Some(theirs) = all.get(peer) else { continue };
        let ratio = |figure: fn(&Overwritten) -> f64| median_of(ours, figure) / median_of(theirs, figure);
        for (what, better) in [
            (format!("overwrite: copal / {peer}"), ratio(Overwritten::megabytes_per_second)),
            (format!("Gets/s beside overwriting: copal / {peer}"), ratio(|one| one.busy.answer.per_second())),
            (
                format!("p99 of a Get beside overwriting: {peer} / copal"),
                1.0 / ratio(|one| one.busy.answer.latency.p99),
            ),
        ] {
            report.at_least(what, better, "x", 1.0);
        }
    }
}
