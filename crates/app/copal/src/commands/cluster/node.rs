//! `copal node`.

use super::Context;
use crate::{
    arguments::Node,
    cluster,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::ClusterStore;
use serde_json::{Value, json};

pub(crate) fn run(context: &Context<'_>, verb: &Node) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        Node::Ls => {
            let told = cluster::ask(&store, "status", "")?;
            let nodes = told["servers"].clone();
            context.output.answer(json!({ "nodes": nodes }), || {
                let nodes = nodes.as_array().map(Vec::as_slice).unwrap_or_default();
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let rows: Vec<Vec<String>> = nodes
                    .iter()
                    .map(|node| {
                        let draining = if node["draining"] == true { ", draining" } else { "" };
                        let shut_out = match node["shut_out"] == true {
                            true => ", clock wrong",
                            false => "",
                        };
                        let host_full = match node["host_full"] == true {
                            true => ", host full",
                            false => "",
                        };
                        vec![
                            text(&node["name"]),
                            text(&node["state"]) + draining + shut_out + host_full,
                            text(&node["address"]),
                            super::site_as_text(node),
                            node["pid"].to_string(),
                            node["incarnation"].to_string(),
                            node["groups"].to_string(),
                        ]
                    })
                    .collect();
                human::table(&["Name", "State", "Address", "Rack", "Process", "Boot", "Groups"], &rows)
            });
        }
        Node::Token { master } => {
            let joiner = if *master { "master" } else { "" };
            let told = cluster::ask(&store, "token", joiner)?;
            let token = told["token"].as_str().unwrap_or_default().to_owned();
            context.output.answer(told, || format!("{token}\n"));
        }
        Node::Lost { name, dry_run } => {
            let status = cluster::ask(&store, "status", "")?;
            let servers = status["servers"].as_array().cloned().unwrap_or_default();
            let found = servers.iter().find(|server| server["name"] == name.as_str());
            let groups = found.map_or(0, |server| server["groups"].as_u64().unwrap_or_default());
            if found.is_none() {
                return Err(no_server(name));
            }
            if !dry_run {
                cluster::ask(&store, "lost", name)?;
            }
            context.output.answer(json!({ "lost": name, "groups": groups, "dry_run": dry_run }), || {
                match dry_run {
                    true => format!("{name} would be given up, and its {groups} groups copied from others\n"),
                    false => format!("{name} is given up; its {groups} groups are copied from others\n"),
                }
            });
        }
        Node::Drain { name, undo, dry_run } => {
            let told =
                order(&store, name, "drain", &json!({ "name": name, "undo": undo, "dry_run": dry_run }))?;
            let text = drain_as_text(&told, *undo);
            context.output.answer(told, || text);
        }
        Node::Rm { name, dry_run } => {
            let told = order(&store, name, "remove", &json!({ "name": name, "dry_run": dry_run }))?;
            context.output.answer(told, || match dry_run {
                true => format!("{name} is empty, and would be removed\n"),
                false => format!("{name} is removed\n"),
            });
        }
        Node::Maintenance { name, duration, dry_run } => {
            let for_ms = duration.as_millis() as u64;
            let argument = json!({ "name": name, "for_ms": for_ms, "dry_run": dry_run });
            let told = order(&store, name, "maintenance", &argument)?;
            let short = told["groups_too_few"].as_u64().unwrap_or_default();
            let until = human::local_time(told["until_ms"].as_u64().unwrap_or_default());
            context.output.answer(told, || {
                let mut text = match (for_ms, dry_run) {
                    (0, _) => format!("{name} is not announced to be away any more\n"),
                    (_, true) => format!("{name} could be away until {until}\n"),
                    (_, false) => format!("{name} may be away until {until}; it is not given up before\n"),
                };
                if short > 0 && for_ms > 0 {
                    text.push_str(&format!(
                        "without it {short} groups have too few members that are there: nothing can be written to them\n"
                    ));
                }
                text
            });
        }
    }
    Ok(())
}

/// An order about a server.
fn order(store: &ClusterStore, name: &str, verb: &str, argument: &Value) -> Outcome<Value> {
    cluster::ask(store, verb, &argument.to_string()).map_err(|failure| match failure.exit_code {
        exit::NOT_FOUND => no_server(name),
        _ => failure,
    })
}

fn no_server(name: &str) -> Failure {
    let sentence = format!("there is no server {name}; `copal node ls` lists them");
    Failure::new(exit::NOT_FOUND, "not_found", sentence)
}

fn drain_as_text(told: &Value, undo: bool) -> String {
    let name = told["name"].as_str().unwrap_or_default();
    if undo {
        return format!("{name} is not emptied any more\n");
    }
    let groups = told["groups"].as_u64().unwrap_or_default();
    let bytes = human::bytes(told["bytes"].as_u64().unwrap_or_default());
    let end = match told["ends_in_s"].as_u64() {
        Some(seconds) => format!(", in about {}", human::age(seconds)),
        None => String::new(),
    };
    let mut text = match told["dry_run"] == true {
        true => format!("{name} would be emptied: {groups} groups, {bytes}, would go to others{end}\n"),
        false => format!("{name} is emptied: {groups} groups, {bytes}, go to others{end}\n"),
    };
    for blocked in told["blocked"].as_array().map(Vec::as_slice).unwrap_or_default() {
        text.push_str(&format!("blocked: {}\n", blocked.as_str().unwrap_or_default()));
    }
    text
}
