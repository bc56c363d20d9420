//! `copal rebalance`.

use super::{CommandContext, answer};
use crate::{
    arguments::RebalanceCommand,
    cluster::{self, administer, as_json},
    failure::{Failure, Outcome},
    human,
};
use copal_client::administration::{DiskForecast, MoveReport, RebalancePlan, requests};
use serde::{Deserialize, de::DeserializeOwned};
use std::path::Path;

/// Longest plan file.
const MOST_BYTES: u64 = 256 << 20;

/// The version field of a plan file.
#[derive(Deserialize)]
struct PlanVersion {
    #[serde(default)]
    v: u32,
}

/// The moves field of a plan file. Its other fields are for people.
#[derive(Deserialize)]
struct PlanMoves {
    moves: Vec<PlanMove>,
}

#[derive(Deserialize)]
struct PlanMove {
    group: u32,
    from: String,
    to: String,
}

pub(crate) fn run(context: &CommandContext<'_>, verb: &RebalanceCommand) -> Outcome<()> {
    let store = cluster::connect(&context.arguments.common)?;
    match verb {
        RebalanceCommand::Plan { out } => {
            let plan = administer(&store, &requests::PlanRebalance {})?;
            let mut text = plan_as_text(&plan);
            if let Some(out) = out {
                write(out, &plan)?;
                text.push_str(&format!(
                    "written to {}; `copal rebalance apply` carries it out\n",
                    out.display()
                ));
            }
            answer(context, &plan, || text)
        }
        RebalanceCommand::Apply { plan, dry_run } => {
            let moves = read(plan)?;
            let report = administer(&store, &requests::ApplyRebalance { moves, dry_run: *dry_run })?;
            answer(context, &report, || moved_as_text(&report))
        }
        RebalanceCommand::Pause { dry_run } => {
            let report = administer(&store, &requests::PauseRebalance { dry_run: *dry_run })?;
            answer(context, &report, || {
                let would = if *dry_run { "would be" } else { "are" };
                format!(
                    "{} moves {would} skipped, {} in progress continue\n",
                    report.left_out, report.running
                )
            })
        }
    }
}

fn write(out: &Path, plan: &RebalancePlan) -> Outcome<()> {
    std::fs::write(out, format!("{:#}\n", as_json(plan)?))
        .map_err(|error| Failure::usage(format!("the plan cannot be written to {}: {error}", out.display())))
}

/// The moves of a plan.
fn read(path: &Path) -> Outcome<Vec<requests::WantedMove>> {
    let unusable = |why: String| Failure::usage(format!("{} is no plan: {why}", path.display()));
    let length = path.metadata().map_err(|error| unusable(error.to_string()))?.len();
    if length > MOST_BYTES {
        return Err(unusable(format!("it has {length} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    // The version is checked first: another one may have another form of moves.
    let PlanVersion { v } = part(&text).map_err(unusable)?;
    if v != RebalancePlan::VERSION {
        return Err(unusable("its version is none of this release".to_owned()));
    }
    let PlanMoves { moves } = part(&text).map_err(unusable)?;
    let wanted = |next: PlanMove| requests::WantedMove { group: next.group, from: next.from, to: next.to };
    Ok(moves.into_iter().map(wanted).collect())
}

fn part<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn plan_as_text(plan: &RebalancePlan) -> String {
    let row = |disk: &DiskForecast| {
        let capacity = disk.capacity_bytes.max(1);
        let percent = |bytes: u64| format!("{:.1} %", bytes as f64 * 100.0 / capacity as f64);
        vec![
            disk.name.clone(),
            percent(disk.before_bytes),
            percent(disk.after_bytes),
            disk.before_groups.to_string(),
            disk.after_groups.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = plan.disks.iter().map(row).collect();
    let titles = ["Server", "Full", "Then", "Groups", "Then"];
    let mut text = human::table(&titles, &rows);
    let hours = match plan.hours {
        Some(hours) => format!(", in {} at least", human::seconds(hours * 3600.0)),
        None => String::new(),
    };
    text.push_str(&format!("\n{} groups move, {}{hours}\n", plan.moves.len(), human::bytes(plan.bytes)));
    for refused in &plan.refused {
        text.push_str(&format!("{refused}\n"));
    }
    text
}

/// The result of a request to move, as text.
pub(super) fn moved_as_text(report: &MoveReport) -> String {
    let bytes = human::bytes(report.bytes);
    let end = match report.ends_in_s {
        Some(seconds) => format!(", in about {}", human::age(seconds)),
        None => String::new(),
    };
    let moves = match report.dry_run {
        true => "would move",
        false => "move",
    };
    let mut text = format!("{} {moves}, {bytes}{end}\n", human::count(report.groups as u64, "group"));
    if report.done > 0 {
        text.push_str(&format!("{} have moved or are moving already\n", report.done));
    }
    text
}
