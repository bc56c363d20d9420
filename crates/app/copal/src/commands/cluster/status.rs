//! `copal status` and `copal events`.

use super::Context;
use crate::{
    arguments::{Events, Status, Wait},
    cluster,
    failure::{Failure, Outcome, exit},
    human,
};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Between two questions.
const ASK: Duration = Duration::from_millis(200);

pub(crate) fn status(context: &Context<'_>, words: &Status) -> Outcome<()> {
    let end = Instant::now() + words.timeout;
    let wanted = match &context.arguments.common.wait {
        Some(Wait::Until(health)) => Some(health.as_str()),
        Some(Wait::For(_)) => {
            return Err(Failure::usage("wait for what? --wait healthy; --timeout says how long"));
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
        let told = cluster::ask(&store, "status", "");
        let sentence = match &told {
            Ok(told) => told["sentence"].as_str().unwrap_or_default().to_owned(),
            Err(failure) => failure.sentence.clone(),
        };
        let is_wanted = match (wanted, &told) {
            (None, _) => true,
            (Some(wanted), Ok(told)) => told["health"] == wanted,
            (Some(_), Err(_)) => false,
        };
        if is_wanted {
            let told = told?;
            context.output.answer(told.clone(), || as_text(&told));
            return Ok(());
        }
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

fn as_text(told: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let servers = told["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<Vec<String>> = servers
        .iter()
        .map(|server| {
            vec![
                text(&server["name"]),
                text(&server["state"]) + if server["full"] == true { ", full" } else { "" },
                text(&server["address"]),
                number(&server["pid"]).to_string(),
                human::bytes(number(&server["used_bytes"])),
                human::bytes(number(&server["capacity_bytes"])),
                number(&server["groups"]).to_string(),
            ]
        })
        .collect();
    let titles = ["Server", "State", "Address", "Process", "Used", "Capacity", "Groups"];
    format!("{}\n{}{}", text(&told["sentence"]), human::table(&titles, &rows), recovery_as_text(told))
}

/// Copies that run, how many wait, and what blocks them; nothing while there are none.
fn recovery_as_text(told: &Value) -> String {
    const MOST: usize = 20;
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let tasks = told["tasks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let recovery = &told["recovery"];
    let mut said = String::new();
    if !tasks.is_empty() {
        let row = |task: &Value| {
            vec![
                text(&task["kind"]),
                task["gid"].to_string(),
                text(&task["src"]),
                text(&task["dst"]),
                task["priority"]["whole_copies"].to_string(),
                text(&task["state"]).replace('_', " "),
                format!("{:.0} %", task["done"].as_f64().unwrap_or_default() * 100.0),
            ]
        };
        let rows: Vec<Vec<String>> = tasks.iter().take(MOST).map(row).collect();
        let titles = ["Task", "Group", "From", "To", "Copies", "State", "Done"];
        let counts = format!("{} copies run, {} wait", recovery["running"], recovery["waiting"]);
        let end = match recovery["ends_in_s"].as_u64() {
            Some(seconds) => format!("done in {}", human::age(seconds)),
            None => "the end is not known yet".to_owned(),
        };
        said = format!("\n{counts}; {end}\n{}", human::table(&titles, &rows));
    }
    for blocked in recovery["blocked"].as_array().map(Vec::as_slice).unwrap_or_default() {
        said.push_str(&format!("\nblocked: {}\n", text(blocked)));
    }
    said
}

pub(crate) fn events(context: &Context<'_>, words: &Events) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    let told = cluster::ask(&store, "events", &words.after.to_string())?;
    let events = told["events"].as_array().cloned().unwrap_or_default();
    for event in events {
        context.output.message("event", event.clone());
        let at = human::local_time(event["at_ms"].as_u64().unwrap_or_default());
        let text = event["text"].as_str().unwrap_or_default();
        context.output.line(&format!("{}  {at}  {text}", event["number"]));
    }
    Ok(())
}
