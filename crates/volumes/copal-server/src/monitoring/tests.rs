//! Pages of metrics, byte for byte except for the notation of numbers.
//!
//! Dashboards and alerts depend on names, types, labels and values, so a changed page breaks them.

use super::*;
use crate::data::member_scene::{MemberScene, NOW};
use crate::net::status::Status;
use crate::net::traffic::{CallRecord, CloseReason, TrafficCounters};
use copal_client::machine;
use copal_proto::{Method, messages::failure::Code};
use copal_volume::group::Role;
use std::{sync::Arc, time::Duration};

/// Metrics of a data server whose values depend on the engine, the kernel or the time.
const OF_DATA: [&str; 4] =
    ["copal_memory_bytes", "copal_kv_", "copal_device_", "copal_heartbeat_age_seconds"];

/// The page with each value as `{}` prints it, and `*` for metrics whose names begin with one of `changing`.
pub(crate) fn normalised(page: &str, changing: &[&str]) -> String {
    let line = |line: &str| {
        if line.starts_with('#') {
            return line.to_owned();
        }
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let value: f64 = value.parse().unwrap();
        match changing.iter().any(|name| sample.starts_with(name)) {
            true => format!("{sample} *"),
            false => format!("{sample} {value}"),
        }
    };
    page.lines().map(|text| line(text) + "\n").collect()
}

/// Counters after a few calls.
pub(crate) fn traffic() -> Arc<TrafficCounters> {
    let traffic = TrafficCounters::default();
    let note = |method, micros, refusal: Option<Code>| {
        traffic.record(&CallRecord {
            method,
            bytes_in: 4096,
            bytes_out: 2,
            took: Duration::from_micros(micros),
            refusal: refusal.map(Into::into),
        });
    };
    note(Method::Put, 250, None);
    note(Method::Put, 2_000, Some(Code::Exists));
    note(Method::Put, 40_000_000, Some(Code::Stale));
    note(Method::Stat, 1_000_000, None);
    traffic.record_close(CloseReason::Garbage);
    traffic.connection_opened();
    traffic.connection_opened();
    traffic.connection_closed();
    Arc::new(traffic)
}

#[tokio::test]
async fn the_page_of_a_data_server_stays() {
    let script = |_, _| Err(Status::new(Code::Denied, "nothing is asked"));
    let scene = MemberScene::new((Role::Normal, Role::Recovering), script).await;
    scene.put(1, "a", NOW);
    *scene.host.last_ack.lock() = Some(machine::now());
    let pages = DataMetrics { host: Arc::clone(&scene.host), traffic: traffic() };
    let page = normalised(&pages.metrics().unwrap(), &OF_DATA);
    assert_eq!(page, include_str!("tests/data_server.txt"), "{page}");
}
