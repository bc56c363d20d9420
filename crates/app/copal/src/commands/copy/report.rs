//! Lines and summary of a copy.

use super::super::{
    CommandContext,
    fields::{MeasuredFields, SnapshotFields},
};
use crate::{
    arguments::CopyArgs,
    failure::{Failure, Outcome},
    human,
    output::{CommandOutput, write_out},
};
use copal_backup::{
    BackupSummary, CopyOrigin, Snapshot,
    copy::{CopyPlan, FinishedCopy},
};
use serde::Serialize;
use serde_json::json;
use std::time::Instant;

/// Snapshots that a notice names.
const NAMED: usize = 5;

/// Counts of a copy, and its lines.
pub(super) struct CopyReport<'a> {
    output: CommandOutput,
    fields: CopyFields<'a>,
    began: Instant,
    /// Copies that are held longer now.
    pub(super) held: u64,
    /// Copies whose sources are held, made with a key that may not hold.
    lacking_holds: u64,
}

/// Fields of the summary.
#[derive(Clone, Serialize)]
struct CopyFields<'a> {
    to: &'a str,
    dry_run: bool,
    copied: u64,
    present: u64,
    older: u64,
    failed: u64,
    held: u64,
    logical_bytes: u64,
    read_bytes: u64,
    new_bytes: u64,
    stored_bytes: u64,
    seconds: f64,
}

/// Fields of the line of one copy.
#[derive(Serialize)]
struct CopiedFields<'a> {
    command: &'static str,
    #[serde(flatten)]
    summary: &'a BackupSummary,
    short_id: String,
    time: String,
    copied_from: CopyOrigin,
}

impl<'a> CopyReport<'a> {
    pub(super) fn new(context: &CommandContext<'_>, copy: &'a CopyArgs, plan: &CopyPlan) -> CopyReport<'a> {
        let output = *context.output;
        for (vm, detail) in plan.damaged() {
            let sentence = format!("the snapshots of {} cannot be listed: {detail}", vm.name);
            output.error(json!({ "code": "damaged", "message": sentence, "vm": vm.name }), &sentence);
        }
        report_older(output, plan.older());
        let fields = CopyFields {
            to: copy.to.to_str().unwrap_or_default(),
            dry_run: copy.dry_run,
            copied: 0,
            present: plan.present(),
            older: plan.older().len() as u64,
            failed: plan.damaged().len() as u64,
            held: 0,
            logical_bytes: 0,
            read_bytes: 0,
            new_bytes: 0,
            stored_bytes: 0,
            seconds: 0.0,
        };
        CopyReport { output, fields, began: Instant::now(), held: 0, lacking_holds: 0 }
    }

    /// Lists the snapshots to copy.
    pub(super) fn list(&mut self, plan: &CopyPlan) {
        let snapshots = plan.snapshots();
        self.fields.logical_bytes = snapshots.iter().map(|one| one.counts.logical_bytes).sum();
        for snapshot in snapshots {
            self.output
                .message("item", json!({ "command": "copy", "snapshot": SnapshotFields::from(snapshot) }));
        }
        let row = |snapshot: &Snapshot| {
            vec![
                snapshot.id.short(),
                human::local_time(snapshot.created_ms),
                snapshot.vm.name.clone(),
                human::bytes(snapshot.counts.logical_bytes),
                snapshot.tags.join(" "),
            ]
        };
        if !self.output.is_json() && !snapshots.is_empty() {
            let rows: Vec<Vec<String>> = snapshots.iter().map(row).collect();
            let table = human::table(&["ID", "Time", "VM", "Size", "Tags"], &rows);
            write_out(&human::visible_lines(&table));
        }
        let (count, bytes) = (snapshots.len() as u64, self.fields.logical_bytes);
        let present = self.fields.present;
        self.output.answer(MeasuredFields::new("copy", self.fields.clone()), || {
            format!(
                "{} with {} of disks would be copied, {} there\n",
                human::count(count, "snapshot"),
                human::bytes(bytes),
                are(present)
            )
        });
    }

    pub(super) fn copied(&mut self, copy: &FinishedCopy) {
        let FinishedCopy { summary, origin, lacks_hold } = copy;
        let counts = &summary.counts;
        self.fields.copied += 1;
        self.fields.logical_bytes += counts.logical_bytes;
        self.fields.read_bytes += counts.read_bytes + counts.spot_check_bytes;
        self.fields.new_bytes += counts.new_bytes;
        self.fields.stored_bytes += counts.stored_bytes;
        self.lacking_holds += u64::from(*lacks_hold);
        summary.warnings.iter().for_each(|warning| self.output.warning(warning));
        let fields = CopiedFields {
            command: "copy",
            summary,
            short_id: summary.snapshot.short(),
            time: human::utc_time(summary.created_ms),
            copied_from: *origin,
        };
        self.output.message("item", fields);
        self.output.line(&format!(
            "{} of {}, of {}: copied as {}, read {}, new {}, stored {}",
            origin.snapshot.short(),
            summary.vm.name,
            human::local_time(origin.created_ms),
            summary.snapshot.short(),
            human::bytes(counts.read_bytes),
            human::bytes(counts.new_bytes),
            human::bytes(counts.stored_bytes),
        ));
    }

    /// Another process made the copy meanwhile.
    pub(super) fn present(&mut self) {
        self.fields.present += 1;
    }

    pub(super) fn failed(&mut self, snapshot: &Snapshot, failure: &Failure) {
        self.fields.failed += 1;
        let fields = json!({
            "code": failure.code,
            "message": failure.sentence,
            "snapshot": snapshot.id,
            "vm": snapshot.vm.name,
        });
        self.output.error(fields, &failure.sentence);
    }

    /// An older snapshot of the VM has to be copied first.
    pub(super) fn waits(&mut self, snapshot: &Snapshot) {
        let sentence = format!(
            "snapshot {} of {} was not copied: an older one of the VM goes first",
            snapshot.id.short(),
            snapshot.vm.name
        );
        self.failed(snapshot, &Failure::plain("waits", sentence));
    }

    /// Prints the summary.
    pub(super) fn conclude(&mut self) {
        self.fields.held = self.held;
        self.fields.seconds = (self.began.elapsed().as_secs_f64() * 1e3).round() / 1e3;
        if self.lacking_holds > 0 {
            self.output.notice(&format!(
                "{} held in the repository to copy from and not in the other one, since its key may not hold snapshots; hold them \
                 with a key that may delete, or copy once more with it",
                are(self.lacking_holds)
            ));
        }
        let fields = &self.fields;
        self.output.summary(MeasuredFields::new("copy", fields.clone()), || {
            format!(
                "{} copied, {} there before: read {}, new {}, stored {}, {}\n",
                human::count(fields.copied, "snapshot"),
                fields.present,
                human::bytes(fields.read_bytes),
                human::bytes(fields.new_bytes),
                human::bytes(fields.stored_bytes),
                human::seconds(fields.seconds),
            )
        });
    }

    /// The outcome of the command.
    pub(super) fn end(&self) -> Outcome<()> {
        match self.fields.failed {
            0 => Ok(()),
            1 => Err(Failure::plain("incomplete", "one snapshot or VM was not copied; the reason is above")),
            failed => Err(Failure::plain(
                "incomplete",
                format!("{failed} snapshots or VMs were not copied; the reasons are above"),
            )),
        }
    }
}

/// `1 snapshot is`, `2 snapshots are`.
fn are(count: u64) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    format!("{} {verb}", human::count(count, "snapshot"))
}

/// Names the snapshots that are older than the newest one of their VM in the target.
fn report_older(output: CommandOutput, older: &[Snapshot]) {
    if older.is_empty() {
        return;
    }
    let named: Vec<String> = older.iter().take(NAMED).map(|one| one.id.short()).collect();
    let more = match older.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    output.notice(&format!(
        "{} older than the newest snapshot of the VM in the repository to copy to, and not copied: {}{more}",
        are(older.len() as u64),
        named.join(", ")
    ));
}
