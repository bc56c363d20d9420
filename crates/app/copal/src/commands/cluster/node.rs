//! `copal node`.

use super::{CommandContext, answer};
use crate::{
    arguments::NodeCommand,
    cluster::{self, administer},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::{
    ClusterStore,
    administration::{AbsenceReport, AdminRequest, DrainReport, ServerStatus, requests},
};
use serde_json::json;

pub(crate) fn run(context: &CommandContext<'_>, verb: &NodeCommand) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        NodeCommand::Ls => {
            let servers = administer(&store, &requests::ShowStatus {})?.servers;
            context.output.answer(json!({ "nodes": servers }), || as_table(&servers));
            Ok(())
        }
        NodeCommand::Token { master } => {
            let drawn = administer(&store, &requests::DrawToken { master: *master })?;
            answer(context, &drawn, || format!("{}\n", drawn.token))
        }
        NodeCommand::Lost { name, dry_run } => lose(context, &store, name, *dry_run),
        NodeCommand::Drain { name, undo, dry_run } => {
            let drain = requests::DrainServer { name: name.clone(), undo: *undo, dry_run: *dry_run };
            let report = order(&store, name, &drain)?;
            answer(context, &report, || drain_as_text(&report, *undo))
        }
        NodeCommand::Rm { name, dry_run } => {
            let removal = requests::RemoveServer { name: name.clone(), dry_run: *dry_run };
            let report = order(&store, name, &removal)?;
            answer(context, &report, || match dry_run {
                true => format!("{name} is empty, and would be removed\n"),
                false => format!("{name} is removed\n"),
            })
        }
        NodeCommand::Maintenance { name, duration, dry_run } => {
            let for_ms = duration.as_millis() as u64;
            let absence = requests::AnnounceAbsence { name: name.clone(), for_ms, dry_run: *dry_run };
            let report = order(&store, name, &absence)?;
            answer(context, &report, || absence_as_text(&report, for_ms))
        }
    }
}

/// A table with one server per line.
fn as_table(servers: &[ServerStatus]) -> String {
    let row = |server: &ServerStatus| {
        let draining = if server.draining { ", draining" } else { "" };
        let shut_out = if server.shut_out { ", clock wrong" } else { "" };
        let host_full = if server.host_full { ", host full" } else { "" };
        vec![
            server.name.clone(),
            format!("{}{draining}{shut_out}{host_full}", server.state),
            server.address.clone(),
            super::site_as_text(&server.zone, &server.rack),
            server.pid.to_string(),
            server.incarnation.to_string(),
            server.groups.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = servers.iter().map(row).collect();
    human::table(&["Name", "State", "Address", "Rack", "Process", "Boot", "Groups"], &rows)
}

fn lose(context: &CommandContext<'_>, store: &ClusterStore, name: &str, dry_run: bool) -> Outcome<()> {
    let status = administer(store, &requests::ShowStatus {})?;
    let found = status.servers.iter().find(|server| server.name == name);
    let groups = found.ok_or_else(|| no_server(name))?.groups;
    if !dry_run {
        administer(store, &requests::LoseServer { name: name.to_owned() })?;
    }
    context.output.answer(json!({ "lost": name, "groups": groups, "dry_run": dry_run }), || match dry_run {
        true => format!("{name} would be declared lost, and its {groups} groups copied from others\n"),
        false => format!("{name} is declared lost; its {groups} groups are copied from others\n"),
    });
    Ok(())
}

/// Sends a request about a server.
fn order<R: AdminRequest>(store: &ClusterStore, name: &str, request: &R) -> Outcome<R::Reply> {
    administer(store, request).map_err(|failure| match failure.exit_code {
        exit::NOT_FOUND => no_server(name),
        _ => failure,
    })
}

fn no_server(name: &str) -> Failure {
    let sentence = format!("there is no server {name}; `copal node ls` lists them");
    Failure::new(exit::NOT_FOUND, "not_found", sentence)
}

fn absence_as_text(report: &AbsenceReport, for_ms: u64) -> String {
    let (name, until) = (&report.name, human::local_time(report.until_ms));
    let mut text = match (for_ms, report.dry_run) {
        (0, _) => format!("the maintenance of {name} has ended\n"),
        (_, true) => format!("{name} could be down until {until}\n"),
        (_, false) => format!("{name} may be down until {until}; until then it does not count as lost\n"),
    };
    let short = report.groups_too_few;
    if short > 0 && for_ms > 0 {
        text.push_str(&format!(
            "without it {short} groups have too few replicas: nothing can be written to them\n"
        ));
    }
    text
}

fn drain_as_text(report: &DrainReport, undo: bool) -> String {
    let (name, groups, bytes) = (&report.name, report.groups, human::bytes(report.bytes));
    if undo {
        return format!("{name} is no longer being drained\n");
    }
    let end = match report.ends_in_s {
        Some(seconds) => format!(", in about {}", human::age(seconds)),
        None => String::new(),
    };
    let mut text = match report.dry_run {
        true => format!("{name} would be drained: {groups} groups, {bytes}, would move to others{end}\n"),
        false => format!("{name} is being drained: {groups} groups, {bytes}, move to others{end}\n"),
    };
    for blocked in &report.blocked {
        text.push_str(&format!("blocked: {blocked}\n"));
    }
    text
}
