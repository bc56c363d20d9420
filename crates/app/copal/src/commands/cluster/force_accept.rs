//! `copal group force-accept`.

use super::Context;
use crate::{
    cluster::ask_of_group,
    failure::{Failure, Outcome, exit},
};
use copal_client::ClusterStore;
use serde_json::{Value, json};

/// What is ordered.
pub(super) struct Wanted<'a> {
    pub(super) group: u32,
    pub(super) from: &'a str,
    /// Milliseconds since 1970; 0: everything may be lost.
    pub(super) lose_since: Option<u64>,
    pub(super) dry_run: bool,
}

pub(super) fn run(context: &Context<'_>, store: &ClusterStore, wanted: &Wanted<'_>) -> Outcome<()> {
    let Wanted { group, from, lose_since, dry_run } = *wanted;
    let argument = |dry_run: bool| json!({ "group": group, "from": from, "lose_since_ms": lose_since, "dry_run": dry_run });
    let found = ask_of_group(store, group, "force_accept", &argument(true))?;
    let since_ms = found["may_lack_since_ms"].as_u64().unwrap_or(0);
    if dry_run {
        let mut text = outlook(group, from, &found);
        text.push('\n');
        context.output.answer(found, || text);
        return Ok(());
    }
    if lose_since.is_none_or(|since| since > since_ms) {
        let text = format!(
            "{}; to go on from there all the same: --lose-since {}",
            outlook(group, from, &found),
            time(since_ms)
        );
        return Err(Failure::new(exit::USAGE, "usage", text));
    }
    let told = ask_of_group(store, group, "force_accept", &argument(false))?;
    context.output.answer(told, || {
        format!("group {group} goes on from what {from} has; the others take it over from there\n")
    });
    Ok(())
}

/// What may be lost, and who might still have it.
fn outlook(group: u32, from: &str, found: &Value) -> String {
    let is_covered = found["covered"] == true;
    let mut text = match found["may_lack_since_ms"].as_u64().unwrap_or(0) {
        0 if is_covered => format!("{from} may lack what was acknowledged in group {group} since that began"),
        0 => format!("{from} may lack any file of group {group}: it never had all of them, or was damaged"),
        since => format!(
            "{from} has all of group {group} that is older than {}, and may lack what was acknowledged since",
            time(since)
        ),
    };
    let second = found["second_files"].as_u64().unwrap_or(0);
    if second > 0 {
        text.push_str(&format!("; {second} files go whose names belong to others there"));
    }
    for member in found["away"].as_array().into_iter().flatten() {
        let name = member["name"].as_str().unwrap_or_default();
        let since = member["since_ms"].as_u64().unwrap_or(0);
        text.push_str(&format!(
            "; {name}, away since {}, may have everything: start it first if it can be started",
            time(since)
        ));
    }
    text
}

/// A time as --lose-since takes it.
fn time(ms: u64) -> String {
    match i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
        Some(time) if ms > 0 => time.to_string(),
        _ => "everything".to_owned(),
    }
}
