//! What a master tells a monitor.

use super::{
    Pages, Said,
    families::{FamilyEncoder, page, seconds, signed_seconds},
    of_traffic,
};
use crate::{leading::Candidate, traffic::Traffic};
use serde_json::{Value, json};
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
                "cluster": status["sentence"], "leader": status["master"]["leader"] }),
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
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let groups = ["total", "whole", "two_copies", "one_copy", "incomplete"];
    families.gauges(
        "copal_cluster_groups",
        "Groups of the cluster, by how many whole copies there are.",
        groups.map(|copies| ([("copies", copies)], number(&status["groups"][copies]))),
    )?;
    let healths = ["healthy", "recovering", "degraded", "incomplete"];
    families.gauges(
        "copal_cluster_health",
        "1 for what the cluster is.",
        healths.map(|health| ([("health", health)], u32::from(status["health"] == health))),
    )?;
    servers(families, &status)?;
    let tasks = status["tasks"].as_array().map_or(0, Vec::len);
    families.gauge("copal_tasks", "Copies under way, or waiting for their turn.", tasks)?;
    families.gauge("copal_map_version", "Version of the map.", number(&status["map_version"]))?;
    families.gauge("copal_master_term", "Number of the reign.", number(&status["master"]["term"]))?;
    let off_ms = status["master"]["clock_off_ms"].as_i64().unwrap_or_default();
    families.gauge(
        "copal_master_clock_off_seconds",
        "How far the clock of this machine is ahead of the cluster's.",
        signed_seconds(off_ms),
    )?;
    let leads = u32::from(status["master"]["leader"] == true);
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

fn servers(families: &mut FamilyEncoder<'_>, status: &Value) -> fmt::Result {
    let servers = status["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let labels = |server: &Value| [("server", server["name"].as_str().unwrap_or_default().to_owned())];
    families.gauges(
        "copal_server_up",
        "1: the data server is up and has all it should have.",
        servers.iter().map(|server| (labels(server), u32::from(server["state"] == "up"))),
    )?;
    for (metric, field, help) in [
        ("copal_server_used_bytes", "used_bytes", "Bytes that are used."),
        ("copal_server_capacity_bytes", "capacity_bytes", "Bytes that there are."),
        ("copal_server_groups", "groups", "Groups that it is a member of."),
    ] {
        let value = |server: &Value| server[field].as_u64().unwrap_or_default();
        families.gauges(metric, help, servers.iter().map(|server| (labels(server), value(server))))?;
    }
    families.gauges(
        "copal_server_clock_off_seconds",
        "How far its clock is ahead of the cluster's.",
        servers.iter().filter_map(|server| {
            let off_ms = server["clock_off_ms"].as_i64()?;
            Some((labels(server), signed_seconds(off_ms)))
        }),
    )?;
    families.gauges(
        "copal_server_shut_out",
        "1: it takes no part in writes until its clock is right.",
        servers.iter().map(|server| (labels(server), u32::from(server["shut_out"] == true))),
    )?;
    let silence = |server: &Value| seconds(server["silent_ms"].as_u64().unwrap_or_default() * 1000);
    families.gauges(
        "copal_server_heartbeat_age_seconds",
        "Since the master heard of it.",
        servers.iter().map(|server| (labels(server), silence(server))),
    )
}
