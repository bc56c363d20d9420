//! What a master tells a monitor.

use super::{
    Pages, Said,
    families::{FamilyEncoder, page, seconds, signed_seconds},
    of_traffic,
};
use crate::{leading::Candidate, traffic::Traffic};
use copal_proto::administration::{ClusterStatus, ServerStatus};
use serde_json::json;
use std::{fmt, sync::Arc, time::Duration};

/// A master that wrote nothing to its database for so long does not rule.
const SILENCE: Duration = Duration::from_secs(5);

/// A master and its counts.
pub(crate) struct OfMaster {
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) traffic: Arc<Traffic>,
}

impl Pages for OfMaster {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let (candidate, traffic) = (Arc::clone(&self.candidate), Arc::clone(&self.traffic));
        page(move |families| {
            of_traffic::write(families, &traffic)?;
            write(families, &candidate)
        })
    }

    fn health(&self) -> Said {
        let Some(server) = self.candidate.leading() else {
            let (health, sentence) = match self.candidate.has_reached_database() {
                true => ("healthy", "another master leads, and this one stands by"),
                false => (
                    "failed",
                    "this master waits for its database, which has not answered since the start; look at its log",
                ),
            };
            return Said {
                is_good: health == "healthy",
                json: json!({ "health": health, "sentence": sentence, "leader": false }),
            };
        };
        let status = server.status();
        let told = |is_good: bool, sentence: &str| Said {
            is_good,
            json: json!({ "health": if is_good { "healthy" } else { "failed" }, "sentence": sentence,
                "cluster": status.sentence, "leader": status.master.leader }),
        };
        match server.database_age() {
            Some(age) if age <= SILENCE => told(true, "the database answers"),
            _ => told(
                false,
                "the database does not answer, or cannot be written; look at the log of this master",
            ),
        }
    }

    fn ready(&self) -> Said {
        let is_good = match self.candidate.leading() {
            Some(server) => server.database_age().is_some(),
            None => self.candidate.has_reached_database(),
        };
        Said { is_good, json: json!({ "ready": is_good }) }
    }
}

fn write(families: &mut FamilyEncoder<'_>, candidate: &Candidate) -> fmt::Result {
    let Some(server) = candidate.leading() else {
        return families.gauge("copal_master_leads", "1: this master rules.", 0u32);
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
        "Groups of the cluster, by how many whole copies there are.",
        groups.map(|(copies, count)| ([("copies", copies)], count)),
    )?;
    let healths = ["healthy", "recovering", "degraded", "incomplete"];
    families.gauges(
        "copal_cluster_health",
        "1 for what the cluster is.",
        healths.map(|health| ([("health", health)], u32::from(status.health == health))),
    )?;
    servers(families, &status)?;
    families.gauge("copal_tasks", "Copies under way, or waiting for their turn.", status.tasks.len())?;
    families.gauge("copal_map_version", "Version of the map.", status.map_version)?;
    families.gauge("copal_master_term", "Number of the reign.", status.master.term)?;
    families.gauge(
        "copal_master_clock_off_seconds",
        "How far the clock of this machine is ahead of the cluster's.",
        signed_seconds(status.master.clock_off_ms),
    )?;
    let leads = u32::from(status.master.leader);
    families.gauge("copal_master_leads", "1: this master rules.", leads)?;
    if let Some((age, left)) = candidate.lease() {
        let micros = |time: Duration| seconds(time.as_micros() as u64);
        families.gauge(
            "copal_master_lease_age_seconds",
            "Since the lease was renewed that masters over one database lead by.",
            micros(age),
        )?;
        families.gauge(
            "copal_master_lease_left_seconds",
            "Until this master leads no more unless the lease is renewed.",
            micros(left),
        )?;
    }
    if let Some(age) = server.database_age() {
        let age = seconds(age.as_micros() as u64);
        families.gauge(
            "copal_master_database_age_seconds",
            "Since the database was last written to or asked.",
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
        "1: the data server is up and has all it should have.",
        servers.iter().map(|server| (labels(server), u32::from(server.state == "up"))),
    )?;
    type Field = fn(&ServerStatus) -> u64;
    let fields: [(&str, Field, &str); 3] = [
        ("copal_server_used_bytes", |server| server.used_bytes, "Bytes that are used."),
        ("copal_server_capacity_bytes", |server| server.capacity_bytes, "Bytes that there are."),
        ("copal_server_groups", |server| server.groups as u64, "Groups that it is a member of."),
    ];
    for (metric, value, help) in fields {
        families.gauges(metric, help, servers.iter().map(|server| (labels(server), value(server))))?;
    }
    families.gauges(
        "copal_server_clock_off_seconds",
        "How far its clock is ahead of the cluster's.",
        servers.iter().filter_map(|server| {
            let off_ms = server.clock_off_ms?;
            Some((labels(server), signed_seconds(off_ms)))
        }),
    )?;
    families.gauges(
        "copal_server_shut_out",
        "1: it takes no part in writes until its clock is right.",
        servers.iter().map(|server| (labels(server), u32::from(server.shut_out))),
    )?;
    let silence = |server: &ServerStatus| seconds(server.silent_ms * 1000);
    families.gauges(
        "copal_server_heartbeat_age_seconds",
        "Since the master heard of it.",
        servers.iter().map(|server| (labels(server), silence(server))),
    )
}
