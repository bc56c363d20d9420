//! What a master tells a monitor.

use super::{Pages, Said, text::Numbers, text::seconds, text::signed_seconds};
use crate::{leading::Candidate, traffic::Traffic};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

/// A master that wrote nothing to its database for so long does not rule.
const SILENCE: Duration = Duration::from_secs(5);

/// A master and its counts.
pub(crate) struct OfMaster {
    pub(crate) candidate: Arc<Candidate>,
    pub(crate) traffic: Arc<Traffic>,
}

impl Pages for OfMaster {
    fn metrics(&self) -> String {
        let mut numbers = Numbers::default();
        numbers.traffic(&self.traffic);
        let Some(server) = self.candidate.leading() else {
            numbers.gauge("copal_master_leads", "1: this master rules.", 0);
            return numbers.finish();
        };
        let status = server.status();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        numbers.name(
            "copal_cluster_groups",
            "gauge",
            "Groups of the cluster, by how many whole copies there are.",
        );
        for copies in ["total", "whole", "two_copies", "one_copy", "incomplete"] {
            numbers.sample("copal_cluster_groups", &[("copies", copies)], number(&status["groups"][copies]));
        }
        numbers.name("copal_cluster_health", "gauge", "1 for what the cluster is.");
        for health in ["healthy", "recovering", "degraded", "incomplete"] {
            let holds = u8::from(status["health"] == health);
            numbers.sample("copal_cluster_health", &[("health", health)], holds);
        }
        servers(&mut numbers, &status);
        let tasks = status["tasks"].as_array().map_or(0, Vec::len);
        numbers.gauge("copal_tasks", "Copies under way, or waiting for their turn.", tasks);
        numbers.gauge("copal_map_version", "Version of the map.", number(&status["map_version"]));
        numbers.gauge("copal_master_term", "Number of the reign.", number(&status["master"]["term"]));
        let off_ms = status["master"]["clock_off_ms"].as_i64().unwrap_or_default();
        numbers.gauge(
            "copal_master_clock_off_seconds",
            "How far the clock of this machine is ahead of the cluster's.",
            signed_seconds(off_ms),
        );
        let leads = u8::from(status["master"]["leader"] == true);
        numbers.gauge("copal_master_leads", "1: this master rules.", leads);
        if let Some((age, left)) = self.candidate.lease() {
            let micros = |time: Duration| seconds(time.as_micros() as u64);
            numbers.gauge(
                "copal_master_lease_age_seconds",
                "Since the lease was renewed that masters over one database lead by.",
                micros(age),
            );
            numbers.gauge(
                "copal_master_lease_left_seconds",
                "Until this master leads no more unless the lease is renewed.",
                micros(left),
            );
        }
        if let Some(age) = server.database_age() {
            let age = seconds(age.as_micros() as u64);
            numbers.gauge(
                "copal_master_database_age_seconds",
                "Since the database was last written to or asked.",
                age,
            );
        }
        numbers.finish()
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

fn servers(numbers: &mut Numbers, status: &Value) {
    let servers = status["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |server: &Value| server["name"].as_str().unwrap_or_default().to_owned();
    numbers.name("copal_server_up", "gauge", "1: the data server is up and has all it should have.");
    for server in servers {
        let up = u8::from(server["state"] == "up");
        numbers.sample("copal_server_up", &[("server", &name(server))], up);
    }
    for (metric, field, help) in [
        ("copal_server_used_bytes", "used_bytes", "Bytes that are used."),
        ("copal_server_capacity_bytes", "capacity_bytes", "Bytes that there are."),
        ("copal_server_groups", "groups", "Groups that it is a member of."),
    ] {
        numbers.name(metric, "gauge", help);
        for server in servers {
            let value = server[field].as_u64().unwrap_or_default();
            numbers.sample(metric, &[("server", &name(server))], value);
        }
    }
    numbers.name("copal_server_clock_off_seconds", "gauge", "How far its clock is ahead of the cluster's.");
    for server in servers {
        if let Some(off_ms) = server["clock_off_ms"].as_i64() {
            let labels = [("server", &*name(server))];
            numbers.sample("copal_server_clock_off_seconds", &labels, signed_seconds(off_ms));
        }
    }
    numbers.name("copal_server_shut_out", "gauge", "1: it takes no part in writes until its clock is right.");
    for server in servers {
        let shut_out = u8::from(server["shut_out"] == true);
        numbers.sample("copal_server_shut_out", &[("server", &name(server))], shut_out);
    }
    numbers.name("copal_server_heartbeat_age_seconds", "gauge", "Since the master heard of it.");
    for server in servers {
        let silent_ms = server["silent_ms"].as_u64().unwrap_or_default();
        let labels = [("server", &*name(server))];
        numbers.sample("copal_server_heartbeat_age_seconds", &labels, seconds(silent_ms * 1000));
    }
}
