//! The end of a check: prints the damage line by line, and sets the exit code.

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

/// Lists the damage; exit code 20 if there is any. `more`: further fields of the summary.
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
        "{subject} is damaged in {damages} {}; make new backups (they store lost chunks again) and restore undamaged snapshots",
        if damages == 1 { "place" } else { "places" }
    );
    Err(Failure::new(exit::DAMAGED, "damaged", sentence))
}

/// Number of damages, including those that are only counted.
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
        let mut sentence = format!("{} more damages were only counted", report.more_damages);
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
