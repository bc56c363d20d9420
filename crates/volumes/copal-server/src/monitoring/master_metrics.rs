//! Metrics, health and readiness of a master.

use super::{
    HealthReply, MonitorPages,
    families::{FamilyEncoder, page, seconds, signed_seconds},
    traffic_metrics,
};
use crate::master::leadership::MasterCandidate;
use crate::net::traffic::TrafficCounters;
use copal_proto::administration::{ClusterStatus, ServerStatus};
use serde_json::json;
use std::{fmt, sync::Arc, time::Duration};

/// Age of the last database access from which the master counts as unhealthy.
const SILENCE: Duration = Duration::from_secs(5);

/// Pages of a master.
pub(crate) struct MasterMetrics {
    pub(crate) candidate: Arc<MasterCandidate>,
    pub(crate) traffic: Arc<TrafficCounters>,
}

impl MonitorPages for MasterMetrics {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let (candidate, traffic) = (Arc::clone(&self.candidate), Arc::clone(&self.traffic));
        page(move |families| {
            traffic_metrics::write(families, &traffic)?;
            write(families, &candidate)
        })
    }

    fn health(&self) -> HealthReply {
        let Some(server) = self.candidate.leader() else {
            let (health, sentence) = match self.candidate.has_reached_database() {
                true => ("healthy", "another master leads, and this one stands by"),
                false => (
                    "failed",
                    "this master waits for its database, which has not answered since the start; look at its log",
                ),
            };
            return HealthReply {
                is_good: health == "healthy",
                json: json!({ "health": health, "sentence": sentence, "leader": false }),
            };
        };
        let status = server.status();
        let reply = |is_good: bool, sentence: &str| HealthReply {
            is_good,
            json: json!({ "health": if is_good { "healthy" } else { "failed" }, "sentence": sentence,
                "cluster": status.sentence, "leader": status.master.leader }),
        };
        match server.database_age() {
            Some(age) if age <= SILENCE => reply(true, "the database answers"),
            _ => reply(
                false,
                "the database does not answer, or cannot be written; look at the log of this master",
            ),
        }
    }

    fn ready(&self) -> HealthReply {
        let is_good = match self.candidate.leader() {
            Some(server) => server.database_age().is_some(),
            None => self.candidate.has_reached_database(),
        };
        HealthReply { is_good, json: json!({ "ready": is_good }) }
    }
}

fn write(families: &mut FamilyEncoder<'_>, candidate: &MasterCandidate) -> fmt::Result {
    let Some(server) = candidate.leader() else {
        return families.gauge("copal_master_leads", "1: this master leads.", 0u32);
    };
    let status = server.status();
    let groups = &status.groups;
    let groups = [
        ("total", groups.total),
        ("whole", groups.whole),
        ("two_copies", groups.two_copies),
        ("one_copy", groups.one_copy),
        ("incomplete", groups.incomplete),
    ];
    families.gauges(
        "copal_cluster_groups",
        "Groups of the cluster, by number of in-sync replicas.",
        groups.map(|(copies, count)| ([("copies", copies)], count)),
    )?;
    let healths = ["healthy", "recovering", "degraded", "incomplete"];
    families.gauges(
        "copal_cluster_health",
        "1 for the present health of the cluster.",
        healths.map(|health| ([("health", health)], u32::from(status.health == health))),
    )?;
    servers(families, &status)?;
    families.gauge("copal_tasks", "Copies in progress or queued.", status.tasks.len())?;
    families.gauge("copal_map_version", "Version of the map.", status.map_version)?;
    families.gauge("copal_master_term", "Number of the leader's term.", status.master.term)?;
    families.gauge(
        "copal_master_clock_off_seconds",
        "How far the clock of this machine is ahead of the cluster's.",
        signed_seconds(status.master.clock_off_ms),
    )?;
    let leads = u32::from(status.master.leader);
    families.gauge("copal_master_leads", "1: this master leads.", leads)?;
    if let Some((age, left)) = candidate.lease() {
        let micros = |time: Duration| seconds(time.as_micros() as u64);
        families.gauge(
            "copal_master_lease_age_seconds",
            "Time since the last renewal of the lease among masters over one database.",
            micros(age),
        )?;
        families.gauge(
            "copal_master_lease_left_seconds",
            "Time until this master stops leading unless the lease is renewed.",
            micros(left),
        )?;
    }
    if let Some(age) = server.database_age() {
        let age = seconds(age.as_micros() as u64);
        families.gauge(
            "copal_master_database_age_seconds",
            "Time since the last access to the database.",
            age,
        )?;
    }
    Ok(())
}

fn servers(families: &mut FamilyEncoder<'_>, status: &ClusterStatus) -> fmt::Result {
    let servers = &status.servers;
    let labels = |server: &ServerStatus| [("server", server.name.clone())];
    families.gauges(
        "copal_server_up",
        "1: the data server is up and in sync.",
        servers.iter().map(|server| (labels(server), u32::from(server.state == "up"))),
    )?;
    type Field = fn(&ServerStatus) -> u64;
    let fields: [(&str, Field, &str); 3] = [
        ("copal_server_used_bytes", |server| server.used_bytes, "Used bytes of a data server."),
        (
            "copal_server_capacity_bytes",
            |server| server.capacity_bytes,
            "Capacity of a data server in bytes.",
        ),
        ("copal_server_groups", |server| server.groups as u64, "Groups that a data server is a member of."),
    ];
    for (metric, value, help) in fields {
        families.gauges(metric, help, servers.iter().map(|server| (labels(server), value(server))))?;
    }
    families.gauges(
        "copal_server_clock_off_seconds",
        "How far the clock of a data server is ahead of the cluster's.",
        servers.iter().filter_map(|server| {
            let off_ms = server.clock_off_ms?;
            Some((labels(server), signed_seconds(off_ms)))
        }),
    )?;
    families.gauges(
        "copal_server_shut_out",
        "1: the data server takes no part in writes until its clock is right.",
        servers.iter().map(|server| (labels(server), u32::from(server.shut_out))),
    )?;
    let silence = |server: &ServerStatus| seconds(server.silent_ms * 1000);
    families.gauges(
        "copal_server_heartbeat_age_seconds",
        "Time since the last heartbeat of a data server.",
        servers.iter().map(|server| (labels(server), silence(server))),
    )
}
