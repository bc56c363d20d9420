//! What a data server tells a monitor.

use super::{Pages, Said, text::Numbers, text::seconds, text::signed_seconds};
use crate::{data_server::DataServer, traffic::Traffic};
use copal_volume::group::{BUCKET_MS, Role};
use serde_json::json;
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// A master that was not reached for so long counts this server as failed.
const SILENCE: Duration = Duration::from_secs(10);
/// Operations of the journals that are counted at most.
const COUNTED: u64 = 100_000;

/// A data server and its counts.
pub(crate) struct OfData {
    pub(crate) server: Arc<DataServer>,
    pub(crate) traffic: Arc<Traffic>,
}

impl Pages for OfData {
    fn metrics(&self) -> String {
        let mut numbers = Numbers::default();
        numbers.traffic(&self.traffic);
        self.groups(&mut numbers);
        self.journals(&mut numbers);
        let (used, capacity) = self.server.room.bytes();
        numbers.gauge("copal_store_used_bytes", "Bytes of the store that are used.", used);
        numbers.gauge("copal_store_capacity_bytes", "Bytes that the store may take.", capacity);
        if let Some(age) = self.server.silence() {
            let age = seconds(age.as_micros() as u64);
            numbers.gauge("copal_heartbeat_age_seconds", "Since a master took a heartbeat.", age);
        }
        let clock = *self.server.clock.lock();
        numbers.gauge(
            "copal_clock_off_seconds",
            "How far the clock of this machine is ahead of the cluster's, as the master says.",
            signed_seconds(clock.off_ms),
        );
        numbers.gauge(
            "copal_clock_shut_out",
            "1: this server takes no part in writes until its clock is right.",
            u8::from(clock.is_shut_out),
        );
        let failed = u8::from(self.server.store.failure().is_some());
        numbers.gauge("copal_store_failed", "1: the disk takes no more writes.", failed);
        let full = u8::from(self.server.store.is_full());
        numbers.gauge("copal_store_full", "1: the disk takes no new files.", full);
        let host_full = u8::from(self.server.store.is_host_full());
        let help =
            "1: the host ran full inside a write, and the disk takes no operation before the next start.";
        numbers.gauge("copal_store_host_full", help, host_full);
        let repairs = &self.server.repairs;
        numbers.counter(
            "copal_compared_groups_total",
            "Groups whose files were compared with another member's though nothing was known to be wrong.",
            repairs.compared.load(Ordering::Relaxed),
        );
        numbers.counter(
            "copal_differing_groups_total",
            "Groups in which another whole member had other files.",
            repairs.differing.load(Ordering::Relaxed),
        );
        let entered = self.server.entered.load(Ordering::Acquire);
        numbers.gauge("copal_map_version", "The newest map that this server has entered.", entered);
        numbers.gauge(
            "copal_map_heard_version",
            "The newest map that this server has heard of.",
            self.server.map.version().max(entered),
        );
        self.engine(&mut numbers);
        numbers.finish()
    }

    fn health(&self) -> Said {
        let bad = |sentence: String| Said {
            is_good: false,
            json: json!({ "health": "failed", "sentence": sentence }),
        };
        if let Some(reason) = self.server.store.failure() {
            return bad(format!("the disk takes no more writes: {reason}"));
        }
        if self.server.store.is_host_full() {
            let what = "the disk takes no more operations: its host has no space left";
            return bad(format!("{what}; free some there, then start this server again"));
        }
        let clock = *self.server.clock.lock();
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
        match self.server.silence() {
            None => bad("no master was reached since this server was started".to_owned()),
            Some(silence) if silence > SILENCE => {
                bad(format!("no master was reached for {} s", silence.as_secs()))
            }
            Some(_) => Said {
                is_good: true,
                json: json!({ "health": "healthy", "sentence": "the disk is written, and the master is reached" }),
            },
        }
    }

    fn ready(&self) -> Said {
        let is_good = self.server.entered.load(Ordering::Acquire) > 0;
        let sentence = match is_good {
            true => "calls are answered",
            false => "this server has heard of no view since it was started",
        };
        Said { is_good, json: json!({ "ready": is_good, "sentence": sentence }) }
    }
}

impl OfData {
    fn groups(&self, numbers: &mut Numbers) {
        let Ok(memberships) = self.server.store.memberships() else {
            return;
        };
        numbers.name("copal_groups", "gauge", "Groups that this disk is a member of, by its role.");
        for role in Role::ALL {
            let count = memberships.iter().filter(|own| own.role == role).count();
            let letter = role.letter().to_string();
            numbers.sample("copal_groups", &[("role", &letter)], count);
        }
        let behind = memberships.iter().map(|own| {
            let heard = self.server.map.view(own.group).map(|view| view.epoch);
            heard.map_or(0, |heard| heard.0.saturating_sub(own.epoch.0))
        });
        numbers.gauge(
            "copal_epoch_lag_versions",
            "By how many versions of the map the group that is farthest behind is: from its epoch here to the newest one heard of.",
            behind.max().unwrap_or_default(),
        );
    }

    fn journals(&self, numbers: &mut Numbers) {
        let Ok(depth) = self.server.store.journal_depth(COUNTED) else {
            return;
        };
        numbers.gauge(
            "copal_journal_operations",
            "Operations in the journals, counted up to 100000.",
            depth.operations,
        );
        numbers.gauge(
            "copal_journal_unstable_operations",
            "Those that are not known to be on every member.",
            depth.unstable,
        );
        let now_ms = self.server.map.now_ms();
        let age =
            depth.oldest.map_or(0, |oldest| now_ms.saturating_sub(oldest.0.saturating_mul(BUCKET_MS)) / 1000);
        numbers.gauge(
            "copal_oldest_unstable_seconds",
            "Age of the oldest bucket with an operation that is not known to be on every member.",
            age,
        );
    }

    fn engine(&self, numbers: &mut Numbers) {
        let stats = self.server.store.kv().stats();
        numbers.gauge("copal_memory_bytes", "Memory of the engine's classes together.", stats.memory_bytes);
        numbers.gauge("copal_kv_debt_bytes", "Bytes by which merges are behind.", stats.debt_bytes);
        numbers.gauge("copal_kv_damaged_ranges", "Key ranges that cannot be read.", stats.damaged_ranges);
        numbers.gauge(
            "copal_kv_value_objects",
            "Value objects, which hold bodies above 4 KiB.",
            stats.value_objects,
        );
        numbers.gauge("copal_kv_value_bytes", "Bytes of value objects.", stats.value_bytes);
        numbers.gauge("copal_kv_dead_value_bytes", "Those that nothing needs.", stats.dead_value_bytes);
        for (name, help, count) in [
            ("copal_kv_gets_total", "Look-ups of one key.", stats.gets),
            ("copal_kv_batches_total", "Batches that were committed.", stats.writes),
            ("copal_kv_log_groups_total", "Writes of the log; each has a number of batches.", stats.groups),
            ("copal_kv_flushes_total", "Memtables that were written to tables.", stats.flushes),
            ("copal_kv_merges_total", "Steps of merges.", stats.merges),
            ("copal_kv_user_bytes_total", "Bytes of keys and values that were given.", stats.user_bytes),
            ("copal_device_reads_total", "Read commands of the device.", stats.device_reads),
            ("copal_device_read_bytes_total", "Bytes they read.", stats.device_read_bytes),
            ("copal_device_writes_total", "Write commands of the device.", stats.device_writes),
            ("copal_device_write_bytes_total", "Bytes they wrote.", stats.device_write_bytes),
            ("copal_device_flushes_total", "Flushes of the device.", stats.device_flushes),
        ] {
            numbers.counter(name, help, count);
        }
        for (name, help, nanos) in [
            ("copal_kv_paced_seconds_total", "Time that writers were slowed by.", stats.paced_nanos),
            ("copal_kv_stalled_seconds_total", "Time that writers waited for a flush.", stats.stalled_nanos),
        ] {
            numbers.name(name, "counter", help);
            numbers.sample(name, &[], seconds(nanos / 1000));
        }
    }
}
