//! `copal kv verify`.

use super::{close, damaged, engine, failed};
use crate::{
    arguments::kv::{EnginePlace, KvVerifyArgs},
    commands::CommandContext,
    failure::Outcome,
    human,
};
use copal_kv::{DamagedRange, Store};
use copal_node::Access;
use serde_json::{Value, json};
use std::{path::Path, thread::park_timeout, time::Duration};

/// Poll interval of a running scrub.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const ADVICE: &str =
    "replace it from a replica with `copal kv repair --from`, or keep the readable rows with --salvage";

pub(super) fn run(
    context: &CommandContext<'_>,
    place: &EnginePlace<'_>,
    words: &KvVerifyArgs,
) -> Outcome<()> {
    let (path, store) = engine(place, Access::Read)?;
    let checked = match words.rate {
        Some(rate) => scrub(context, &path, &store, rate),
        None => verify(context, &path, &store, words.deep),
    };
    close(&store, Access::Read)?;
    checked
}

fn verify(context: &CommandContext<'_>, path: &Path, store: &Store, deep: bool) -> Outcome<()> {
    let report = store.verify(deep).map_err(failed)?;
    for problem in &report.problems {
        problem_found(context, problem);
    }
    let ranges = store.damaged_ranges();
    let places = report.problems.len() as u64;
    let fields = json!({
        "command": "kv verify",
        "clean": report.is_sound(),
        "damages": places,
        "tables": report.tables,
        "entries": report.entries,
        "values": report.values,
        "value_bytes": report.value_bytes,
        "leftovers": report.leftovers,
        "leftover_bytes": report.leftover_bytes,
        "damaged_ranges": ranges.iter().map(range).collect::<Vec<_>>(),
    });
    context.output.summary(fields, || {
        let mut text = format!(
            "{}: {} tables, {} entries, {} separated values ({})",
            path.display(),
            report.tables,
            report.entries,
            report.values,
            human::bytes(report.value_bytes)
        );
        if report.leftovers > 0 {
            text.push_str(&format!(
                "; {} objects ({}) left over from an interrupted run, freed at the next opening with write access",
                report.leftovers,
                human::bytes(report.leftover_bytes)
            ));
        }
        text.push_str(if report.is_sound() { "; no damage found\n" } else { "\n" });
        text.push_str(&as_text(&ranges));
        text
    });
    if report.is_sound() { Ok(()) } else { Err(damaged(path, places, ADVICE)) }
}

fn scrub(context: &CommandContext<'_>, path: &Path, store: &Store, rate: u64) -> Outcome<()> {
    let scrub = store.scrub(rate).map_err(failed)?;
    let mut printed = 0;
    loop {
        let progress = scrub.progress();
        for problem in &progress.damaged[printed..] {
            problem_found(context, problem);
        }
        printed = progress.damaged.len();
        if scrub.is_over() {
            break;
        }
        if context.cancel.is_cancelled() {
            scrub.cancel();
        }
        context.output.message(
            "status",
            json!({ "done_bytes": progress.done_bytes, "total_bytes": progress.total_bytes }),
        );
        park_timeout(POLL_INTERVAL);
    }
    let progress = scrub.wait().map_err(failed)?;
    for problem in &progress.damaged[printed..] {
        problem_found(context, problem);
    }
    let ranges = store.damaged_ranges();
    let places = progress.damaged.len() as u64;
    let fields = json!({
        "command": "kv verify",
        "clean": places == 0 && progress.finished,
        "finished": progress.finished,
        "damages": places,
        "partitions": progress.partitions,
        "values": progress.values,
        "done_bytes": progress.done_bytes,
        "damaged_ranges": ranges.iter().map(range).collect::<Vec<_>>(),
    });
    context.output.summary(fields, || {
        let mut text = format!(
            "{}: {} read, {} partitions and {} separated values{}\n",
            path.display(),
            human::bytes(progress.done_bytes),
            progress.partitions,
            progress.values,
            if places == 0 { "; no damage found" } else { "" }
        );
        text.push_str(&as_text(&ranges));
        text
    });
    if places > 0 {
        return Err(damaged(path, places, ADVICE));
    }
    Ok(())
}

fn problem_found(context: &CommandContext<'_>, problem: &str) {
    context.output.error(json!({ "code": "damaged", "message": problem }), problem);
}

/// A range as JSON.
pub(super) fn range(range: &DamagedRange) -> Value {
    json!({
        "keyspace": range.keyspace,
        "start": range.start.escape_ascii().to_string(),
        "end": range.end.as_ref().map(|end| end.escape_ascii().to_string()),
        "object": range.object,
        "what": range.what,
    })
}

/// Ranges as text, one per line.
pub(super) fn as_text(ranges: &[DamagedRange]) -> String {
    let line = |range: &DamagedRange| {
        let end = match &range.end {
            Some(end) => format!("before {}", end.escape_ascii()),
            None => "the end".to_owned(),
        };
        let start = if range.start.is_empty() {
            "the beginning".to_owned()
        } else {
            range.start.escape_ascii().to_string()
        };
        format!("damaged: keyspace {}, keys from {start} to {end}\n", range.keyspace)
    };
    ranges.iter().map(line).collect()
}
