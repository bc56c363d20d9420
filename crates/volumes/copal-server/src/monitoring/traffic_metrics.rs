//! Metrics of calls and connections, common to all servers.

use super::families::{BucketCounts, FamilyEncoder, seconds};
use crate::net::admission::ClassUsage;
use crate::net::traffic::{CloseReason, LATENCY_ENDS_US, MethodCounts, TrafficCounters};
use copal_proto::{CallClass, Method};
use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

/// Writes the families of calls and connections.
pub(super) fn write(families: &mut FamilyEncoder<'_>, traffic: &TrafficCounters) -> fmt::Result {
    calls(families, traffic)?;
    let refused = CloseReason::ALL.map(|why| ([("why", why.name())], traffic.closes_for(why)));
    families.counters(
        "copal_connections_refused_total",
        "Connections that the server closed, by reason.",
        refused,
    )?;
    admitted(families, traffic)?;
    let (accepted, open) = traffic.connections();
    families.counter("copal_connections_total", "Connections that were accepted.", accepted)?;
    families.gauge("copal_connections_open", "Open connections.", open)
}

fn calls(families: &mut FamilyEncoder<'_>, traffic: &TrafficCounters) -> fmt::Result {
    let called: Vec<(Method, &MethodCounts)> = traffic.called_methods().collect();
    let called = || called.iter().map(|(method, counts)| (method.name(), *counts));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    families.counters(
        "copal_rpc_requests_total",
        "Calls that were answered.",
        called().map(|(method, counts)| ([("method", method)], count(&counts.calls))),
    )?;
    families.counters(
        "copal_rpc_errors_total",
        "Refused calls, by error code.",
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
    let times = |counts: &MethodCounts| {
        let ends = LATENCY_ENDS_US.iter().map(|end| seconds(*end)).chain([f64::INFINITY]);
        BucketCounts { buckets: ends.zip(counts.latencies()).collect(), sum: seconds(count(&counts.micros)) }
    };
    families.histograms(
        "copal_rpc_seconds",
        "Time from a request to its answer.",
        called().map(|(method, counts)| ([("method", method)], times(counts))),
    )
}

fn admitted(families: &mut FamilyEncoder<'_>, traffic: &TrafficCounters) -> fmt::Result {
    let each = CallClass::ALL.map(|class| (class.name(), traffic.class_usage(class)));
    type Bytes = fn(&ClassUsage) -> u64;
    let gauges: [(&str, &str, Bytes); 3] = [
        ("copal_admitted_bytes", "Bytes that calls in progress hold, by class.", |of| of.held_bytes),
        ("copal_admitted_peak_bytes", "Most bytes that calls in progress held at a time, by class.", |of| {
            of.peak_bytes
        }),
        (
            "copal_admitted_limit_bytes",
            "Limit of the bytes that calls in progress may hold, by class.",
            |of| of.limit_bytes,
        ),
    ];
    for (name, help, bytes) in gauges {
        let samples = each.iter().map(|(class, counted)| ([("class", *class)], bytes(counted)));
        families.gauges(name, help, samples)?;
    }
    let refused = each.iter().map(|(class, counted)| ([("class", *class)], counted.refused));
    families.counters(
        "copal_calls_without_room_total",
        "Calls refused for lack of memory; clients retry them.",
        refused,
    )
}
