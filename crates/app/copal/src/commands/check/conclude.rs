//! How a look at a repository ends: what is wrong, line by line, and the exit code of damage.

use crate::{
    commands::{CommandContext, fields::MeasuredFields},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_backup::{CheckReport, SnapshotId};
use serde::Serialize;
use serde_json::json;

/// Fields of the summary, with those of the command.
#[derive(Serialize)]
struct CheckFields<'a, M> {
    clean: bool,
    damages: u64,
    misdated_snapshots: usize,
    #[serde(flatten)]
    report: &'a CheckReport,
    #[serde(flatten)]
    more: M,
}

/// Lists what is wrong; damage is exit code 20. `more`: fields for the summary.
pub(super) fn conclude(
    context: &CommandContext<'_>,
    command: &'static str,
    subject: &str,
    report: &CheckReport,
    more: impl Serialize,
) -> Outcome<()> {
    list_damages(context, report);
    for (snapshot, misdated) in &report.misdated {
        let short = snapshot.short();
        context.output.notice(&format!("snapshot {short} is {misdated}: a clock was wrong, nothing is lost"));
    }
    let damages = count(report);
    let fields = CheckFields {
        clean: report.is_clean(),
        damages,
        misdated_snapshots: report.misdated.len(),
        report,
        more,
    };
    context.output.summary(MeasuredFields::new(command, fields), || text(subject, report));
    if damages == 0 {
        return Ok(());
    }
    let sentence = format!(
        "{subject} is damaged in {damages} {}; make new backups (they store lost chunks again) and restore what is \
         whole",
        if damages == 1 { "place" } else { "places" }
    );
    Err(Failure::new(exit::DAMAGED, "damaged", sentence))
}

/// Damages, those that are only counted too.
fn count(report: &CheckReport) -> u64 {
    report.damages.len() as u64 + report.more_damages
}

fn list_damages(context: &CommandContext<'_>, report: &CheckReport) {
    for damage in &report.damages {
        let mut sentence = format!("{}: {}", damage.what, damage.detail);
        if !damage.snapshots.is_empty() {
            sentence.push_str(&format!("; hurts {}", shorts(&damage.snapshots)));
        }
        let fields = json!({
            "code": "damaged",
            "message": sentence,
            "what": damage.what,
            "detail": damage.detail,
            "snapshots": damage.snapshots,
        });
        context.output.error(fields, &sentence);
    }
    if report.more_damages > 0 {
        let hurt = &report.more_snapshots;
        let mut sentence = format!("{} more damages are only counted", report.more_damages);
        if !hurt.is_empty() {
            sentence.push_str(&format!("; hurts {}", shorts(hurt)));
        }
        let fields = json!({ "code": "damaged", "message": sentence, "snapshots": hurt });
        context.output.error(fields, &sentence);
    }
}

fn text(subject: &str, report: &CheckReport) -> String {
    let mut text = format!(
        "{subject}: {}, {}, {}",
        human::count(report.snapshots, "snapshot"),
        human::count(report.packs, "pack"),
        human::count(report.references, "reference")
    );
    if report.decoded_frames > 0 {
        let bytes = human::bytes(report.decoded_bytes);
        text.push_str(&format!(", {} chunks decoded from {bytes}", report.decoded_frames));
    }
    text.push_str(if count(report) == 0 { "; no damage found\n" } else { "\n" });
    text
}

fn shorts(snapshots: &[SnapshotId]) -> String {
    let short: Vec<String> = snapshots.iter().map(SnapshotId::short).collect();
    short.join(", ")
}
