use super::*;
use crate::messages::{AdministrationReply, ShowStatus};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Fields that are absent from some replies, for example if an order changed nothing.
const OPTIONAL: &[&str] = &["ahead", "boost", "epoch of an accept", "has_begun", "whole of an accept"];

/// A reply to each request, with every field.
fn samples() -> Vec<(Method, Value)> {
    let server = json!({
        "name": "data1", "uuid": "00ff", "disk": 1, "state": "up", "zone": "", "rack": "r1", "pid": 7,
        "address": "127.0.0.1:7401", "incarnation": 1, "used_bytes": 1, "capacity_bytes": 2, "groups": 3,
        "draining": false, "full": false, "host_full": false, "announced_until_ms": null, "clock_off_ms": -1,
        "clock_wrong": false, "shut_out": false, "silent_ms": 10,
    });
    let task = json!({
        "kind": "copy", "gid": 1, "src": "data1", "dst": null, "leaves": null, "state": "waiting",
        "priority": { "whole_copies": 2, "since_ms": null, "boost": 0 }, "done": 0.5, "bytes": 9,
    });
    let recovery = json!({
        "running": 0, "waiting": 1, "bytes_left": 9, "bytes_per_s": null, "ends_in_s": 4, "hold": null, "blocked": ["b"],
        "drains": [], "paused": false,
    });
    let master = json!({
        "leader": true, "address": "127.0.0.1:7400", "term": 1, "masters": [], "clock_off_ms": 0, "clock_wrong": false,
    });
    let status = json!({
        "health": "healthy", "sentence": "healthy", "servers": [server], "tasks": [task], "recovery": recovery,
        "groups": { "total": 1, "whole": 1, "two_copies": 0, "one_copy": 0, "incomplete": 0 }, "map_version": 5,
        "gone_volumes": 0, "version": "0.1.0", "master": master,
    });
    let member = json!({ "name": "data1", "address": "127.0.0.1:7401", "disk": 1, "role": "N" });
    let group = json!({ "group": 1, "epoch": 4, "members": [member] });
    let event = json!({ "number": 1, "at_ms": 2, "kind": "state", "text": "data1 is back" });
    let story = json!({
        "group": 1, "whole": false, "sentence": "s", "replicas": 3, "whole_copies": 2, "next": null, "blocked": [],
        "ends_in_s": null, "events": [event],
        "members": [{
            "name": "data1", "disk": 1, "role": "F", "kind": "full", "zone": "", "rack": "", "since_ms": 1, "why": "w",
        }],
    });
    let disk = json!({
        "name": "data1", "disk": 1, "zone": "", "rack": "", "state": "up", "draining": false, "full": false, "medium": "hdd",
        "used_bytes": 1, "arriving_bytes": 0, "capacity_bytes": 2, "used_percent": 50.0, "groups": 1, "copies_take_bytes": 1,
        "files_take_bytes": 1,
    });
    let client = json!({ "name": "nightly", "path": "vms", "rights": "read", "made_ms": 1 });
    let forecast = json!({
        "name": "data1", "capacity_bytes": 9, "before_bytes": 1, "after_bytes": 2, "before_groups": 1, "after_groups": 2,
    });
    let plan = json!({
        "v": 1, "moves": [{ "group": 1, "from": "data1", "to": "data2", "bytes": 3 }], "disks": [forecast], "bytes": 3,
        "hours": 0.5, "refused": [],
    });
    let moved = json!({ "groups": 1, "done": 0, "bytes": 3, "dry_run": true, "ends_in_s": null });
    let drain = json!({
        "name": "data1", "draining": true, "dry_run": true, "groups": 1, "bytes": 3, "blocked": [], "ends_in_s": 1,
    });
    let absence = json!({ "name": "data1", "until_ms": 1, "dry_run": true, "groups_too_few": 0 });
    let accept = json!({
        "group": 1, "from": "data1", "may_lack_since_ms": 1, "covered": true, "second_files": 0, "dry_run": false,
        "away": [{ "name": "data2", "since_ms": 1 }], "whole": true, "epoch": 9,
    });
    let certificate = json!({ "name": "nightly", "certificate": "PEM" });
    vec![
        (Method::ShowStatus, status),
        (Method::ListGroups, json!({ "groups": [group] })),
        (Method::ShowGroup, group),
        (Method::ExplainGroup, story),
        (Method::ListDisks, json!({ "disks": [disk] })),
        (Method::ListEvents, json!({ "events": [event] })),
        (Method::ListClients, json!({ "clients": [client] })),
        (Method::PlanRebalance, plan),
        (Method::DrawToken, json!({ "token": "t", "minutes": 10 })),
        (Method::DrainServer, drain),
        (Method::RemoveServer, json!({ "name": "data1", "dry_run": true })),
        (Method::AnnounceAbsence, absence),
        (Method::LoseServer, json!({ "lost": "data1" })),
        (Method::BoostGroup, json!({ "group": 1, "lacks": true, "boost": 1, "ahead": 0 })),
        (Method::MoveGroup, moved.clone()),
        (Method::CancelMove, json!({ "group": 1, "moves": true, "has_begun": true, "dry_run": true })),
        (Method::ApplyRebalance, moved),
        (Method::PauseRebalance, json!({ "left_out": 1, "running": 0, "dry_run": true })),
        (Method::ForceAccept, accept),
        (Method::AddClient, certificate.clone()),
        (Method::RenewClient, certificate),
        (Method::RemoveClient, json!({ "removed": "nightly", "minutes": 10 })),
    ]
}

/// The value without one of its fields, for each of them, and the name of the field.
fn without_each(value: &Value) -> Vec<(String, Value)> {
    match value {
        Value::Object(fields) => {
            let removed = fields.keys().map(|key| {
                let mut less = fields.clone();
                less.remove(key);
                (key.clone(), Value::Object(less))
            });
            let below = fields.iter().flat_map(|(key, field)| {
                let put_back = |(name, less)| {
                    let mut fields = fields.clone();
                    fields.insert(key.clone(), less);
                    (name, Value::Object(fields))
                };
                without_each(field).into_iter().map(put_back)
            });
            removed.chain(below).collect()
        }
        Value::Array(elements) => {
            let first = elements.first().map(without_each).unwrap_or_default();
            first.into_iter().map(|(name, less)| (name, Value::Array(vec![less]))).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn a_reply_without_one_of_its_fields_is_refused() {
    let mut optional = BTreeSet::new();
    for (method, sample) in samples() {
        let (_, reads) = READERS.iter().find(|(of, _)| *of == method).unwrap();
        assert!(reads(&sample.to_string()), "{}: {sample}", method.name());
        let mut more = sample.clone();
        more["added_later"] = json!([1]);
        assert!(reads(&more.to_string()), "{}: unknown fields are ignored", method.name());
        let mut fields = 0;
        for (name, less) in without_each(&sample) {
            fields += 1;
            if reads(&less.to_string()) {
                let of_accept = if method == Method::ForceAccept { " of an accept" } else { "" };
                optional.insert(format!("{name}{of_accept}"));
            }
        }
        assert!(fields > 0, "{}", method.name());
    }
    assert_eq!(optional.iter().map(String::as_str).collect::<Vec<_>>(), OPTIONAL);
    assert_eq!(samples().len(), Method::ADMINISTRATION.len());
}

#[test]
fn an_incomplete_reply_names_the_field_and_the_release() {
    let message = AdministrationReply { json: r#"{"health":"healthy"}"#.to_owned() };
    let error = reply_of::<ShowStatus>(&message).unwrap_err().to_string();
    assert!(
        error.starts_with("the master answers in another release's form: missing field `sentence`"),
        "{error}"
    );
}

/// A copy in progress has a null place in the queue. A group that lacks no replica has no such field.
#[test]
fn null_and_an_absent_field_differ() {
    let copied = BoostReport { group: 1, lacks: true, boost: Some(2), ahead: Some(None) };
    let complete = BoostReport { lacks: false, boost: None, ahead: None, ..copied.clone() };
    for (report, form) in [
        (copied, r#"{"group":1,"lacks":true,"boost":2,"ahead":null}"#),
        (complete, r#"{"group":1,"lacks":false}"#),
    ] {
        assert_eq!(serde_json::to_string(&report).unwrap(), form);
        assert_eq!(serde_json::from_str::<BoostReport>(form).unwrap(), report);
    }
}
