//! Metrics of calls and connections, as every server has them.

use super::families::{BucketCounts, FamilyEncoder, seconds};
use crate::{
    admission::Admitted,
    traffic::{LATENCY_ENDS_US, OfMethod, Traffic, TurnedAway},
};
use copal_proto::{CallClass, Method};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Writes the families of calls and connections.
pub(super) fn write(families: &mut FamilyEncoder<'_>, traffic: &Traffic) -> fmt::Result {
    calls(families, traffic)?;
    let refused = TurnedAway::ALL.map(|why| ([("why", why.name())], traffic.turned_away_for(why)));
    families.counters(
        "copal_connections_refused_total",
        "Connections that were closed because of what they sent, or did not.",
        refused,
    )?;
    admitted(families, traffic)?;
    let (accepted, open) = traffic.connections();
    families.counter("copal_connections_total", "Connections that were accepted.", accepted)?;
    families.gauge("copal_connections_open", "Connections that are there.", open)
}

fn calls(families: &mut FamilyEncoder<'_>, traffic: &Traffic) -> fmt::Result {
    let called: Vec<(Method, &OfMethod)> = traffic.called().collect();
    let called = || called.iter().map(|(method, counts)| (method.name(), *counts));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    families.counters(
        "copal_rpc_requests_total",
        "Calls that were answered.",
        called().map(|(method, counts)| ([("method", method)], count(&counts.calls))),
    )?;
    families.counters(
        "copal_rpc_errors_total",
        "Calls that were refused, by the code of the refusal.",
        called().flat_map(|(method, counts)| {
            counts.refusals().map(move |(code, refused)| ([("method", method), ("code", code)], refused))
        }),
    )?;
    families.counters(
        "copal_rpc_bytes_total",
        "Bytes of messages.",
        called().flat_map(|(method, counts)| {
            [("in", &counts.bytes_in), ("out", &counts.bytes_out)]
                .map(|(way, bytes)| ([("method", method), ("direction", way)], count(bytes)))
        }),
    )?;
    let times = |counts: &OfMethod| {
        let ends = LATENCY_ENDS_US.iter().map(|end| seconds(*end)).chain([f64::INFINITY]);
        BucketCounts { buckets: ends.zip(counts.latencies()).collect(), sum: seconds(count(&counts.micros)) }
    };
    families.histograms(
        "copal_rpc_seconds",
        "Time from a request to its answer.",
        called().map(|(method, counts)| ([("method", method)], times(counts))),
    )
}

fn admitted(families: &mut FamilyEncoder<'_>, traffic: &Traffic) -> fmt::Result {
    let each = CallClass::ALL.map(|class| (class.name(), traffic.admitted(class)));
    type Bytes = fn(&Admitted) -> u64;
    let gauges: [(&str, &str, Bytes); 3] = [
        ("copal_admitted_bytes", "Bytes that calls under way hold, by class.", |of| of.held_bytes),
        ("copal_admitted_peak_bytes", "The most that they held at a time.", |of| of.peak_bytes),
        ("copal_admitted_limit_bytes", "The most that they may hold.", |of| of.limit_bytes),
    ];
    for (name, help, bytes) in gauges {
        let samples = each.iter().map(|(class, counted)| ([("class", *class)], bytes(counted)));
        families.gauges(name, help, samples)?;
    }
    let refused = each.iter().map(|(class, counted)| ([("class", *class)], counted.refused));
    families.counters("copal_calls_without_room_total", "Calls that were told to come again later.", refused)
}
