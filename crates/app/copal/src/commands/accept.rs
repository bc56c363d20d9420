//! `copal accept`: lifts the doubt from snapshots that were made despite a warning.

use super::{CommandContext, close, resolve_each};
use crate::{
    arguments::AcceptArgs,
    failure::{Failure, Outcome},
    human,
};
use copal_backup::{Snapshot, SnapshotId};
use copal_node::Access;
use serde_json::json;

pub(super) fn run(context: &CommandContext<'_>, accept: &AcceptArgs) -> Outcome<()> {
    let opened = context.open(Access::Write)?;
    let accepted = resolve_each(&opened, &accept.snapshots, accept.vm.as_deref()).and_then(|snapshots| {
        let doubtful: Vec<Snapshot> = snapshots.into_iter().filter(Snapshot::is_doubtful).collect();
        let ids: Vec<SnapshotId> = doubtful.iter().map(|snapshot| snapshot.id).collect();
        if !ids.is_empty() {
            opened.repository().accept(&ids).map_err(Failure::from)?;
        }
        Ok(doubtful)
    });
    let accepted = close(opened, accepted)?;
    let listed = accepted.iter().map(|snapshot| json!({ "id": snapshot.id, "doubts": snapshot.doubts }));
    let fields = json!({ "command": "accept", "accepted": listed.collect::<Vec<_>>() });
    context.output.summary(fields, || {
        let mut text = format!("{} accepted\n", human::count(accepted.len() as u64, "snapshot"));
        for snapshot in &accepted {
            for doubt in &snapshot.doubts {
                let doubt = doubt.to_string();
                text.push_str(&format!("  {}: {}\n", snapshot.id.short(), human::visible(&doubt)));
            }
        }
        text
    });
    Ok(())
}
