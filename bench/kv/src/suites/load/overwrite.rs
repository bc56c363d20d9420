//! Steady overwriting of a loaded store, look-ups beside it, and the time to open again.
//!
//! Beside the look-ups everyone writes as fast as it can: who writes more has more to merge meanwhile.

use super::{CAP, Options};
use crate::{
    keys::{KEY_BYTES, Skew},
    lab::Lab,
    peer::Peer,
    protocol::{Request, Safety, Spec},
    suites::PEERS,
};
use anyhow::Result;
use std::{collections::HashMap, time::Instant};
use xtask::report::Report;

/// What duels are judged by.
pub(super) struct Overwritten {
    megabytes_per_second: f64,
    gets_per_second: f64,
    get_p99_micros: f64,
}

/// Overwrites a loaded store, and looks up meanwhile.
pub(super) fn overwrite(
    lab: &mut Lab<'_>,
    options: &Options,
    name: &str,
    spec: &Spec,
) -> Result<Overwritten> {
    let started = Instant::now();
    let mut peer = Peer::open(spec, Some(CAP))?;
    let open_seconds = started.elapsed().as_secs_f64();
    let gets = |seconds| Request::Gets {
        keys: lab.scale.keys(),
        skew: Skew::Uniform,
        missing: 0.5,
        ops: 0,
        seconds,
        threads: 1,
        seed: 1,
    };
    peer.ask(&gets(1.0))?;
    let idle = peer.ask(&gets(lab.scale.slice_seconds()))?;
    let ops = (lab.scale.keys() as f64 * options.overwrite) as u64;
    let written = peer.ask(&Request::Writes {
        keys: lab.scale.keys(),
        skew: Skew::Uniform,
        value_bytes: lab.scale.value,
        safety: Safety::Bulk,
        ops,
        seconds: 0.0,
        threads: 1,
        outstanding: 1,
        seed: 7,
    })?;
    let mixed_seconds = options
        .minutes
        .map_or(lab.scale.slice_seconds().max(3.0), |minutes| minutes * 60.0);
    // Flushes and merges go on all the time now.
    let busy = peer.ask(&Request::ReadsBesideWrites {
        keys: lab.scale.keys(),
        value_bytes: lab.scale.value,
        safety: Safety::Bulk,
        seconds: mixed_seconds,
        seed: 9,
    })?;
    let settled = peer.ask(&Request::Settle)?;
    peer.close()?;
    let user_bytes = ops as f64 * (lab.scale.value + KEY_BYTES) as f64;
    let bytes = [&written, &settled]
        .iter()
        .map(|outcome| outcome.traffic.write_bytes as f64)
        .sum::<f64>();
    let report = &mut lab.report;
    let speed = user_bytes / 1e6 / written.answer.seconds.max(1e-9);
    report.fact(format!("{name}: overwrite"), speed, "MB/s");
    report.fact(
        format!("{name}: overwrite: bytes written / user bytes"),
        bytes / user_bytes,
        "x",
    );
    report.fact(
        format!("{name}: overwrite: longest put"),
        written.answer.latency.max / 1e3,
        "ms",
    );
    report.detail(
        format!("{name}: overwrite: processor time"),
        written.answer.cpu_seconds,
        "s",
    );
    report.detail(format!("{name}: overwrite: time"), written.answer.seconds, "s");
    for (counter, what) in [
        ("flush_nanos", "in flushes"),
        ("merge_nanos", "in merges"),
        ("paced_nanos", "writers slowed"),
        ("stalled_nanos", "writers stalled"),
    ] {
        if name == "copal" {
            let seconds = written.answer.counter(counter) / 1e9;
            report.detail(format!("{name}: overwrite: {what}"), seconds, "s");
        }
    }
    report.detail(format!("{name}: beside overwriting: time"), mixed_seconds, "s");
    report.fact(
        format!("{name}: longest put beside Gets"),
        busy.answer.write_latency.max / 1e3,
        "ms",
    );
    report.fact(format!("{name}: open again"), open_seconds, "s");
    let (quiet, beside) = (idle.answer.latency.p99, busy.answer.latency.p99);
    report.detail(format!("{name}: p99 of a Get, idle"), quiet, "us");
    report.fact(format!("{name}: p99 of a Get beside overwriting"), beside, "us");
    report.fact(
        format!("{name}: Gets/s beside overwriting"),
        busy.answer.per_second(),
        "Gets/s",
    );
    if name == "copal" {
        let vain = busy.answer.counter("false_positives") + busy.answer.counter("filter_page_reads");
        report.at_most(
            "criterion: extra reads per Get beside overwriting",
            vain / busy.answer.ops as f64,
            "",
            0.10,
        );
        report.at_most(
            "T9 copal: longest put beside Gets",
            busy.answer.write_latency.max / 1e3,
            "ms",
            100.0,
        );
        report.at_most(
            "T8 copal: write amplification of the overwrite",
            bytes / user_bytes,
            "x",
            15.0,
        );
        report.at_most(
            "T9 copal: longest put of the overwrite",
            written.answer.latency.max / 1e3,
            "ms",
            100.0,
        );
        report.at_most(
            "T9 copal: p99 of a Get beside overwriting / idle",
            beside / quiet,
            "x",
            2.0,
        );
        report.at_most("T12 copal: open again", open_seconds, "s", 2.0);
    }
    Ok(Overwritten {
        megabytes_per_second: speed,
        gets_per_second: busy.answer.per_second(),
        get_p99_micros: beside,
    })
}

/// Copal against each peer.
pub(super) fn judge(report: &mut Report, all: &HashMap<&str, Overwritten>) {
    let Some(ours) = all.get("copal") else { return };
    for peer in PEERS {
        let Some(theirs) = all.get(peer) else { continue };
        for (what, better) in [
            (
                format!("overwrite: copal / {peer}"),
                ours.megabytes_per_second / theirs.megabytes_per_second,
            ),
            (
                format!("Gets/s beside overwriting: copal / {peer}"),
                ours.gets_per_second / theirs.gets_per_second,
            ),
            (
                format!("p99 of a Get beside overwriting: {peer} / copal"),
                theirs.get_p99_micros / ours.get_p99_micros,
            ),
        ] {
            report.at_least(what, better, "x", 1.0);
        }
    }
}
