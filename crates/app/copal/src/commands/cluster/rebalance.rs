//! `copal rebalance`.

use super::Context;
use crate::{
    arguments::Rebalance,
    cluster,
    failure::{Failure, Outcome},
    human,
};
use serde_json::{Value, json};
use std::path::Path;

/// Longest plan that is read.
const MOST_BYTES: u64 = 256 << 20;

pub(crate) fn run(context: &Context<'_>, verb: &Rebalance) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        Rebalance::Plan { out } => {
            let plan = cluster::ask(&store, "rebalance_plan", "{}")?;
            let mut text = plan_as_text(&plan);
            if let Some(out) = out {
                write(out, &plan)?;
                text.push_str(&format!(
                    "written to {}; `copal rebalance apply` carries it out\n",
                    out.display()
                ));
            }
            context.output.answer(plan, || text);
        }
        Rebalance::Apply { plan, dry_run } => {
            let moves = read(plan)?;
            let argument = json!({ "moves": moves, "dry_run": dry_run }).to_string();
            let told = cluster::ask(&store, "rebalance_apply", &argument)?;
            let text = applied_as_text(&told);
            context.output.answer(told, || text);
        }
        Rebalance::Pause { dry_run } => {
            let told = cluster::ask(&store, "rebalance_pause", &json!({ "dry_run": dry_run }).to_string())?;
            let (left_out, running) = (told["left_out"].clone(), told["running"].clone());
            context.output.answer(told, || {
                let would = if *dry_run { "would be" } else { "are" };
                format!("{left_out} moves {would} left out, {running} under way go on\n")
            });
        }
    }
    Ok(())
}

fn write(out: &Path, plan: &Value) -> Outcome<()> {
    std::fs::write(out, format!("{plan:#}\n"))
        .map_err(|error| Failure::usage(format!("the plan cannot be written to {}: {error}", out.display())))
}

/// The moves of a plan.
fn read(path: &Path) -> Outcome<Value> {
    let unusable = |why: String| Failure::usage(format!("{} is no plan: {why}", path.display()));
    let length = path.metadata().map_err(|error| unusable(error.to_string()))?.len();
    if length > MOST_BYTES {
        return Err(unusable(format!("it has {length} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    let plan: Value = serde_json::from_str(&text).map_err(|error| unusable(error.to_string()))?;
    if plan["v"] != 1 {
        return Err(unusable("its version is none of this release".to_owned()));
    }
    let moves = plan["moves"].as_array().ok_or_else(|| unusable("it has no moves".to_owned()))?;
    // What it says of bytes and disks is for who reads it.
    let named =
        moves.iter().map(|next| json!({ "group": next["group"], "from": next["from"], "to": next["to"] }));
    Ok(named.collect())
}

fn plan_as_text(plan: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let row = |disk: &Value| {
        let capacity = number(&disk["capacity_bytes"]).max(1);
        let percent = |bytes: &Value| format!("{:.1} %", number(bytes) as f64 * 100.0 / capacity as f64);
        vec![
            disk["name"].as_str().unwrap_or_default().to_owned(),
            percent(&disk["before_bytes"]),
            percent(&disk["after_bytes"]),
            disk["before_groups"].to_string(),
            disk["after_groups"].to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = list(&plan["disks"]).iter().map(row).collect();
    let titles = ["Server", "Full", "Then", "Groups", "Then"];
    let mut text = human::table(&titles, &rows);
    let hours = match plan["hours"].as_f64() {
        Some(hours) => format!(", in {} at least", human::seconds(hours * 3600.0)),
        None => String::new(),
    };
    text.push_str(&format!(
        "\n{} groups move, {}{hours}\n",
        list(&plan["moves"]).len(),
        human::bytes(number(&plan["bytes"]))
    ));
    for refused in list(&plan["refused"]) {
        text.push_str(&format!("{}\n", refused.as_str().unwrap_or_default()));
    }
    text
}

/// What an order to move came to.
pub(super) fn applied_as_text(told: &Value) -> String {
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let (groups, done) = (number(&told["groups"]), number(&told["done"]));
    let bytes = human::bytes(number(&told["bytes"]));
    let end = match told["ends_in_s"].as_u64() {
        Some(seconds) => format!(", in about {}", human::age(seconds)),
        None => String::new(),
    };
    let moves = match told["dry_run"] == true {
        true => "would move",
        false => "move",
    };
    let mut text = format!("{} {moves}, {bytes}{end}\n", human::count(groups, "group"));
    if done > 0 {
        text.push_str(&format!("{done} moved before, or move already\n"));
    }
    text
}
