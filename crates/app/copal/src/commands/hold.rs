//! `copal hold`: protects snapshots from being forgotten.

use super::{CommandContext, close, resolve_each};
use crate::{
    arguments::HoldArgs,
    failure::{Failure, Outcome},
    human,
};
use copal_backup::SnapshotId;
use copal_node::Access;
use serde_json::json;

pub(super) fn run(context: &CommandContext<'_>, hold: &HoldArgs) -> Outcome<()> {
    let until_ms = match (hold.release, hold.within) {
        (true, _) => 0,
        (false, None) => u64::MAX,
        (false, Some(within)) => {
            let within_ms = u64::try_from(within.as_millis()).unwrap_or(0);
            human::now_ms().saturating_add(within_ms)
        }
    };
    let opened = context.open(Access::Write)?;
    let held = resolve_each(&opened, &hold.snapshots, hold.vm.as_deref()).and_then(|snapshots| {
        let ids: Vec<SnapshotId> = snapshots.iter().map(|snapshot| snapshot.id).collect();
        opened.repository().hold(&ids, until_ms).map_err(Failure::from)?;
        Ok(ids)
    });
    let held = close(opened, held)?;
    let until = match until_ms {
        0 => "released".to_owned(),
        u64::MAX => "held until they are released".to_owned(),
        until_ms => format!("held until {}", human::local_time(until_ms)),
    };
    let fields = json!({
        "command": "hold",
        "snapshots": held,
        "until": (until_ms > 0 && until_ms < u64::MAX).then(|| human::utc_time(until_ms)),
        "released": hold.release,
    });
    context.output.summary(fields, || format!("{} {until}\n", human::count(held.len() as u64, "snapshot")));
    Ok(())
}
