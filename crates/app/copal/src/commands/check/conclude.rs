//! How a look at a repository ends: what is wrong, line by line, and the exit code of damage.

use crate::{
    commands::{Context, as_json},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_backup::{CheckReport, SnapshotId};
use serde_json::{Value, json};

/// Lists what is wrong; damage is exit code 20. `more`: fields for the summary.
pub(super) fn conclude(
    context: &Context<'_>,
    command: &str,
    subject: &str,
    report: &CheckReport,
    more: Value,
) -> Outcome<()> {
    list_damages(context, report);
    for (snapshot, misdated) in &report.misdated {
        let short = snapshot.short();
        context.output.notice(&format!("snapshot {short} is {misdated}: a clock was wrong, nothing is lost"));
    }
    let mut fields = fields(command, report);
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    context.output.summary(fields, || text(subject, report));
    let damages = count(report);
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

fn list_damages(context: &Context<'_>, report: &CheckReport) {
    for damage in &report.damages {
        let hurt: Vec<String> = damage.snapshots.iter().map(ToString::to_string).collect();
        let mut sentence = format!("{}: {}", damage.what, damage.detail);
        if !hurt.is_empty() {
            sentence.push_str(&format!("; hurts {}", shorts(&damage.snapshots)));
        }
        let fields = json!({
            "code": "damaged",
            "message": sentence,
            "what": damage.what,
            "detail": damage.detail,
            "snapshots": hurt,
        });
        context.output.error(fields, &sentence);
    }
    if report.more_damages > 0 {
        let hurt = &report.more_snapshots;
        let mut sentence = format!("{} more damages are only counted", report.more_damages);
        if !hurt.is_empty() {
            sentence.push_str(&format!("; hurts {}", shorts(hurt)));
        }
        let hurt: Vec<String> = hurt.iter().map(ToString::to_string).collect();
        context.output.error(json!({ "code": "damaged", "message": sentence, "snapshots": hurt }), &sentence);
    }
}

fn fields(command: &str, report: &CheckReport) -> Value {
    json!({
        "command": command,
        "clean": report.is_clean(),
        "damages": count(report),
        "snapshots": report.snapshots,
        "packs": report.packs,
        "recipes": report.recipes,
        "references": report.references,
        "decoded_frames": report.decoded_frames,
        "decoded_bytes": report.decoded_bytes,
        "unfinished_packs": report.unfinished_packs,
        "misdated_snapshots": report.misdated.len(),
        "peak_memory_bytes": as_json::peak_memory_bytes(),
    })
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
