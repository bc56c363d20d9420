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
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
    time::Duration,
};

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

/// One row per metric of a page: name, type, labels, help.
fn rows(page: &str) -> BTreeMap<String, [String; 3]> {
    let mut rows: BTreeMap<String, [String; 3]> = BTreeMap::new();
    for line in page.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            rows.entry(name.to_owned()).or_default()[2] = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        {
            rows.entry(name.to_owned()).or_default()[0] = kind.to_owned();
        } else if let Some((name, labels)) = line.split_once('{') {
            let name = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|end| {
                    name.strip_suffix(end).filter(|family| rows.contains_key(*family)).map(str::to_owned)
                })
                .unwrap_or_else(|| name.to_owned());
            // The upper end of a bucket belongs to the type.
            let names = labels.split("=\"").filter_map(|part| part.rsplit([',', '{', '"']).next());
            let names: Vec<String> = names
                .filter(|label| {
                    label.chars().all(|c| c.is_ascii_lowercase() || c == '_')
                        && !label.is_empty()
                        && *label != "le"
                })
                .map(|label| format!("`{label}`"))
                .collect();
            if let Some(row) = rows.get_mut(&name).filter(|row| row[1].is_empty()) {
                row[1] = names.join(", ");
            }
        }
    }
    rows
}

/// `docs/operating-a-cluster.md` lists the metrics of all pages. `COPAL_WRITE_GOLDEN=1` writes the table.
#[test]
fn the_operating_page_lists_every_metric() {
    const BEGIN: &str = "<!-- metrics: begin -->\n";
    const END: &str = "<!-- metrics: end -->";
    let data = rows(include_str!("tests/data_server.txt"));
    let mut master = rows(include_str!("../master/leadership/tests/follower.txt"));
    master.extend(rows(include_str!("../master/leadership/tests/leader.txt")));
    let names: BTreeSet<&String> = data.keys().chain(master.keys()).collect();
    let mut table = "| metric | on | type | labels | meaning |\n|---|---|---|---|---|\n".to_owned();
    for name in names {
        let (on, row) = match (data.get(name), master.get(name)) {
            (Some(row), Some(_)) => ("both", row),
            (Some(row), None) => ("data", row),
            (None, Some(row)) => ("master", row),
            (None, None) => unreachable!("the name is of one of them"),
        };
        let [kind, labels, help] = row;
        writeln!(table, "| `{name}` | {on} | {kind} | {labels} | {help} |").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/operating-a-cluster.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has the begin of the table");
    let (listed, after) = rest.split_once(END).expect("the page has the end of the table");
    if std::env::var_os("COPAL_WRITE_GOLDEN").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{table}{END}{after}")).unwrap();
    } else {
        assert_eq!(listed, table, "run this test with COPAL_WRITE_GOLDEN=1 and read the difference");
    }
}
