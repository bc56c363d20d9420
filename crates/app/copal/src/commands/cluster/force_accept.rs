//! `copal group force-accept`.

use super::{CommandContext, answer};
use crate::{
    cluster::administer_group,
    failure::{Failure, Outcome, exit},
};
use copal_client::{
    ClusterStore,
    administration::{AcceptReport, requests},
};

pub(super) fn run(
    context: &CommandContext<'_>,
    store: &ClusterStore,
    order: &requests::ForceAccept,
) -> Outcome<()> {
    let (group, from) = (order.group, order.from.as_str());
    let look = requests::ForceAccept { dry_run: true, ..order.clone() };
    let found = administer_group(store, group, &look)?;
    if order.dry_run {
        return answer(context, &found, || format!("{}\n", outlook(&found)));
    }
    let since_ms = found.may_lack_since_ms;
    if order.lose_since_ms.is_none_or(|since| since > since_ms) {
        let text = format!(
            "{}; to continue from there nevertheless: --lose-since {}",
            outlook(&found),
            time(since_ms)
        );
        return Err(Failure::new(exit::USAGE, "usage", text));
    }
    let report = administer_group(store, group, order)?;
    answer(context, &report, || {
        format!("group {group} continues from the replica on {from}; the others copy it\n")
    })
}

/// Describes the possible loss, and the servers that may still hold the data.
fn outlook(found: &AcceptReport) -> String {
    let (group, from) = (found.group, &found.from);
    let mut text = match found.may_lack_since_ms {
        0 if found.covered => {
            format!("{from} may lack operations of group {group} since the group began")
        }
        0 => format!("{from} may lack any file of group {group}: it never had all of them, or was damaged"),
        since => format!(
            "{from} has all operations of group {group} before {}, and may lack operations acknowledged since",
            time(since)
        ),
    };
    if found.second_files > 0 {
        text.push_str(&format!(
            "; {} files are deleted, since their names belong to other files there",
            found.second_files
        ));
    }
    for member in &found.away {
        text.push_str(&format!(
            "; {}, away since {}, may have everything: start it first if it can be started",
            member.name,
            time(member.since_ms)
        ));
    }
    text
}

/// A time in the form of --lose-since.
fn time(ms: u64) -> String {
    match i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
        Some(time) if ms > 0 => time.to_string(),
        _ => "everything".to_owned(),
    }
}
