//! Metrics, health and readiness of a data server.

use super::{
    HealthReply, MonitorPages,
    families::{FamilyEncoder, page, seconds, signed_seconds},
    traffic_metrics,
};
use crate::net::traffic::TrafficCounters;
use crate::replica::host::ReplicaHost;
use copal_volume::group::{BUCKET_MS, Role};
use serde_json::json;
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Silence after which the master counts this server as failed.
const SILENCE: Duration = Duration::from_secs(10);
/// Most journal operations that are counted.
const COUNTED: u64 = 100_000;

/// Pages of a data server.
pub(crate) struct DataMetrics {
    pub(crate) host: Arc<ReplicaHost>,
    pub(crate) traffic: Arc<TrafficCounters>,
}

impl MonitorPages for DataMetrics {
    fn metrics(&self) -> Result<String, fmt::Error> {
        let (host, traffic) = (Arc::clone(&self.host), Arc::clone(&self.traffic));
        page(move |families| {
            traffic_metrics::write(families, &traffic)?;
            write(families, &host)
        })
    }

    fn health(&self) -> HealthReply {
        let bad = |sentence: String| HealthReply {
            is_good: false,
            json: json!({ "health": "failed", "sentence": sentence }),
        };
        if let Some(reason) = self.host.store.failure() {
            return bad(format!("the disk takes no more writes: {reason}"));
        }
        if self.host.store.is_host_full() {
            let what = "the disk takes no more operations: its host has no space left";
            return bad(format!("{what}; free some there, then start this server again"));
        }
        let clock = *self.host.clock.lock();
        if clock.is_wrong {
            let off = signed_seconds(clock.off_ms);
            let then = match clock.is_shut_out {
                true => ", and this server takes no part in writes",
                false => "",
            };
            return bad(format!(
                "the clock of this machine is {off} s from the cluster's{then}; let it follow a time server"
            ));
        }
        match self.host.heartbeat_age() {
            None => bad("no master was reached since this server was started".to_owned()),
            Some(silence) if silence > SILENCE => {
                bad(format!("no master was reached for {} s", silence.as_secs()))
            }
            Some(_) => HealthReply {
                is_good: true,
                json: json!({ "health": "healthy", "sentence": "the disk is written, and the master is reached" }),
            },
        }
    }

    fn ready(&self) -> HealthReply {
        let is_good = self.host.entered_version.load(Ordering::Acquire) > 0;
        let sentence = match is_good {
            true => "calls are answered",
            false => "this server has entered no view since it was started",
        };
        HealthReply { is_good, json: json!({ "ready": is_good, "sentence": sentence }) }
    }
}

fn write(families: &mut FamilyEncoder<'_>, host: &ReplicaHost) -> fmt::Result {
    groups(families, host)?;
    journals(families, host)?;
    let (used, capacity) = host.space.bytes();
    families.gauge("copal_store_used_bytes", "Bytes of the store that are used.", used)?;
    families.gauge("copal_store_capacity_bytes", "Bytes that the store may take.", capacity)?;
    if let Some(age) = host.heartbeat_age() {
        let age = seconds(age.as_micros() as u64);
        families.gauge("copal_heartbeat_age_seconds", "Time since the last acknowledged heartbeat.", age)?;
    }
    let clock = *host.clock.lock();
    families.gauge(
        "copal_clock_off_seconds",
        "How far the clock of this machine is ahead of the cluster's, according to the master.",
        signed_seconds(clock.off_ms),
    )?;
    families.gauge(
        "copal_clock_shut_out",
        "1: this server takes no part in writes until its clock is right.",
        u32::from(clock.is_shut_out),
    )?;
    let failed = u32::from(host.store.failure().is_some());
    families.gauge("copal_store_failed", "1: the disk takes no more writes.", failed)?;
    let full = u32::from(host.store.is_full());
    families.gauge("copal_store_full", "1: the disk takes no new files.", full)?;
    let host_full = u32::from(host.store.is_host_full());
    let help = "1: the host ran full inside a write, and the disk takes no operation before the next start.";
    families.gauge("copal_store_host_full", help, host_full)?;
    let repairs = &host.damage;
    families.counter(
        "copal_compared_groups_total",
        "Groups whose files were compared with another member's without any sign of damage.",
        repairs.compared.load(Ordering::Relaxed),
    )?;
    families.counter(
        "copal_differing_groups_total",
        "Groups in which another in-sync member had other files.",
        repairs.differing.load(Ordering::Relaxed),
    )?;
    let entered = host.entered_version.load(Ordering::Acquire);
    families.gauge(
        "copal_map_version",
        "Version of the newest map that this server has entered.",
        entered,
    )?;
    families.gauge(
        "copal_map_heard_version",
        "Version of the newest map that this server has received.",
        host.map.version().max(entered),
    )?;
    engine(families, host)
}

fn groups(families: &mut FamilyEncoder<'_>, host: &ReplicaHost) -> fmt::Result {
    let Ok(memberships) = host.store.memberships() else {
        return Ok(());
    };
    let of_role = Role::ALL.map(|role| {
        let count = memberships.iter().filter(|own| own.role == role).count();
        ([("role", role.letter().to_string())], count)
    });
    families.gauges("copal_groups", "Groups that this disk is a member of, by its role.", of_role)?;
    let behind = memberships.iter().map(|own| {
        let received = host.map.view(own.group).map(|view| view.epoch);
        received.map_or(0, |epoch| epoch.0.saturating_sub(own.epoch.0))
    });
    families.gauge(
            "copal_epoch_lag_versions",
            "Largest number of map versions by which a group is behind: from its epoch here to the newest one received.",
            behind.max().unwrap_or_default(),
        )
}

fn journals(families: &mut FamilyEncoder<'_>, host: &ReplicaHost) -> fmt::Result {
    let Ok(depth) = host.store.journal_depth(COUNTED) else {
        return Ok(());
    };
    families.gauge(
        "copal_journal_operations",
        "Operations in the journals, counted up to 100000.",
        depth.operations,
    )?;
    families.gauge(
        "copal_journal_unstable_operations",
        "Operations in the journals that are not known to be on every member.",
        depth.unstable,
    )?;
    let now_ms = host.map.now_ms();
    let age =
        depth.oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest.0.saturating_mul(BUCKET_MS)) / 1000);
    families.gauge(
        "copal_oldest_unstable_seconds",
        "Age of the oldest bucket with an operation that is not known to be on every member.",
        age,
    )
}

fn engine(families: &mut FamilyEncoder<'_>, host: &ReplicaHost) -> fmt::Result {
    let stats = host.store.kv().stats();
    families.gauge(
        "copal_memory_bytes",
        "Memory of the engine, all classes together.",
        stats.memory_bytes,
    )?;
    families.gauge("copal_kv_debt_bytes", "Bytes by which merges are behind.", stats.debt_bytes)?;
    families.gauge("copal_kv_damaged_ranges", "Key ranges that cannot be read.", stats.damaged_ranges)?;
    families.gauge(
        "copal_kv_value_objects",
        "Value objects, which hold bodies above 4 KiB.",
        stats.value_objects,
    )?;
    families.gauge("copal_kv_value_bytes", "Bytes of value objects.", stats.value_bytes)?;
    families.gauge("copal_kv_dead_value_bytes", "Dead bytes of value objects.", stats.dead_value_bytes)?;
    for (name, help, count) in [
        ("copal_kv_gets_total", "Look-ups of one key.", stats.gets),
        ("copal_kv_batches_total", "Batches that were committed.", stats.writes),
        ("copal_kv_log_groups_total", "Writes of the log; each has a number of batches.", stats.groups),
        ("copal_kv_flushes_total", "Memtables that were written to tables.", stats.flushes),
        ("copal_kv_merges_total", "Merge steps that were done.", stats.merges),
        ("copal_kv_user_bytes_total", "Bytes of the keys and values that were written.", stats.user_bytes),
        ("copal_device_reads_total", "Read commands of the device.", stats.device_reads),
        ("copal_device_read_bytes_total", "Bytes read from the device.", stats.device_read_bytes),
        ("copal_device_writes_total", "Write commands of the device.", stats.device_writes),
        ("copal_device_write_bytes_total", "Bytes written to the device.", stats.device_write_bytes),
        ("copal_device_flushes_total", "Flushes of the device.", stats.device_flushes),
    ] {
        families.counter(name, help, count)?;
    }
    for (name, help, nanos) in [
        ("copal_kv_paced_seconds_total", "Time by which writers were slowed.", stats.paced_nanos),
        ("copal_kv_stalled_seconds_total", "Time that writers waited for a flush.", stats.stalled_nanos),
    ] {
        families.counter(name, help, seconds(nanos / 1000))?;
    }
    Ok(())
}
