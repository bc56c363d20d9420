//! `copal status` and `copal events`.

use super::{CommandContext, answer};
use crate::{
    arguments::{EventsArgs, StatusArgs, WaitCondition},
    cluster::{self, administer, as_json},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_client::administration::{ClusterStatus, ServerStatus, TaskStatus, requests};
use std::time::{Duration, Instant};

/// Interval between queries.
const ASK: Duration = Duration::from_millis(200);

pub(crate) fn status(context: &CommandContext<'_>, words: &StatusArgs) -> Outcome<()> {
    let end = Instant::now() + words.timeout;
    let wanted = match &context.arguments.common.wait {
        Some(WaitCondition::Until(health)) => Some(health.as_str()),
        Some(WaitCondition::For(_)) => {
            return Err(Failure::usage(
                "--wait needs a state here: give --wait healthy, and the longest wait with --timeout",
            ));
        }
        None => None,
    };
    let common = &context.arguments.common;
    let store = loop {
        // A starting cluster has not written its profile yet, or its master does not answer yet.
        let is_profile_missing = common.cluster.as_deref().is_some_and(|path| !path.exists());
        match cluster::connect(common) {
            Ok(store) => break store,
            Err(failure)
                if wanted.is_some()
                    && (is_profile_missing || failure.exit_code == exit::TOO_FEW)
                    && Instant::now() < end =>
            {
                context.pause(ASK);
            }
            Err(failure) => return Err(failure),
        }
        if context.is_ended() {
            return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted"));
        }
    };
    loop {
        let status = administer(&store, &requests::ShowStatus {});
        let is_wanted = match (wanted, &status) {
            (None, _) => true,
            (Some(wanted), Ok(status)) => status.health == wanted,
            (Some(_), Err(_)) => false,
        };
        if is_wanted {
            let status = status?;
            return answer(context, &status, || as_text(&status));
        }
        let sentence = status.map_or_else(|failure| failure.sentence, |status| status.sentence);
        if context.is_ended() {
            return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted"));
        }
        if Instant::now() >= end {
            let wanted = wanted.unwrap_or_default();
            let seconds = words.timeout.as_secs();
            let sentence = format!("the cluster was not {wanted} within {seconds} s: {sentence}");
            return Err(Failure::new(exit::TOO_FEW, "timeout", sentence));
        }
        context.pause(ASK);
    }
}

fn as_text(status: &ClusterStatus) -> String {
    let row = |server: &ServerStatus| {
        vec![
            server.name.clone(),
            format!("{}{}", server.state, if server.full { ", full" } else { "" }),
            server.address.clone(),
            server.pid.to_string(),
            human::bytes(server.used_bytes),
            human::bytes(server.capacity_bytes),
            server.groups.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = status.servers.iter().map(row).collect();
    let titles = ["Server", "State", "Address", "Process", "Used", "Capacity", "Groups"];
    format!("{}\n{}{}", status.sentence, human::table(&titles, &rows), recovery_as_text(status))
}

/// Running copies, the number of waiting ones, and obstacles; empty if there are none.
fn recovery_as_text(status: &ClusterStatus) -> String {
    const MOST: usize = 20;
    let (tasks, recovery) = (&status.tasks, &status.recovery);
    let name = |server: &Option<String>| server.clone().unwrap_or_else(|| "-".to_owned());
    let mut said = String::new();
    if !tasks.is_empty() {
        let row = |task: &TaskStatus| {
            vec![
                task.kind.clone(),
                task.gid.to_string(),
                name(&task.src),
                name(&task.dst),
                task.priority.whole_copies.map_or_else(|| "-".to_owned(), |copies| copies.to_string()),
                task.state.replace('_', " "),
                format!("{:.0} %", task.done * 100.0),
            ]
        };
        let rows: Vec<Vec<String>> = tasks.iter().take(MOST).map(row).collect();
        let titles = ["Task", "Group", "From", "To", "Copies", "State", "Done"];
        let counts = format!("{} copies run, {} wait", recovery.running, recovery.waiting);
        let end = match recovery.ends_in_s {
            Some(seconds) => format!("done in {}", human::age(seconds)),
            None => "the end is not known yet".to_owned(),
        };
        said = format!("\n{counts}; {end}\n{}", human::table(&titles, &rows));
    }
    for blocked in &recovery.blocked {
        said.push_str(&format!("\nblocked: {blocked}\n"));
    }
    said
}

pub(crate) fn events(context: &CommandContext<'_>, words: &EventsArgs) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    for event in administer(&store, &requests::ListEvents { after: words.after })?.events {
        context.output.message("event", as_json(&event)?);
        let at = human::local_time(event.at_ms);
        context.output.line(&format!("{}  {at}  {}", event.number, event.text));
    }
    Ok(())
}
