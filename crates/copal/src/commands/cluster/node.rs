//! `copal node`.

use super::Context;
use crate::{arguments::Node, cluster, failure::Outcome};
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
                        vec![
                            text(&node["name"]),
                            text(&node["state"]),
                            text(&node["address"]),
                            node["pid"].to_string(),
                            node["incarnation"].to_string(),
                        ]
                    })
                    .collect();
                crate::human::table(&["Name", "State", "Address", "Process", "Boot"], &rows)
            });
        }
        Node::Token => {
            let told = cluster::ask(&store, "token", "")?;
            let token = told["token"].as_str().unwrap_or_default().to_owned();
            context.output.answer(told, || format!("{token}\n"));
        }
        Node::Lost { name, dry_run } => {
            let status = cluster::ask(&store, "status", "")?;
            let servers = status["servers"].as_array().cloned().unwrap_or_default();
            let found = servers.iter().find(|server| server["name"] == name.as_str());
            let groups = found.map_or(0, |server| server["groups"].as_u64().unwrap_or_default());
            if found.is_none() {
                return Err(crate::failure::Failure::new(
                    crate::failure::exit::NOT_FOUND,
                    "not_found",
                    format!("there is no server {name}; `copal node ls` lists them"),
                ));
            }
            if !dry_run {
                cluster::ask(&store, "lost", name)?;
            }
            context.output.answer(
                json!({ "lost": name, "groups": groups, "dry_run": dry_run }),
                || match dry_run {
                    true => format!("{name} would be given up, and its {groups} groups copied from others\n"),
                    false => format!("{name} is given up; its {groups} groups are copied from others\n"),
                },
            );
        }
    }
    Ok(())
}
