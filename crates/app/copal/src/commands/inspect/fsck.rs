//! `copal device fsck`.

use super::{FoundDamages, place, read_data};
use crate::{
    arguments::DeviceFsckArgs,
    commands::CommandContext,
    failure::{Failure, Outcome, exit},
    human,
};
use copal_node::{Access, OpenedStore, StoreLocation};
use copal_object::{CheckOptions, RecoveryReport, Store, StoreDamage};
use serde_json::json;

const ADVICE: &str =
    "nothing was changed; put back a good copy, or save the readable part with `copal repair store`";

pub(super) fn run(context: &CommandContext<'_>, words: &DeviceFsckArgs) -> Outcome<()> {
    let place = place(&words.path)?;
    let mut found = FoundDamages::new(context);
    let opened = open(context, &place, &mut found)?;
    let Some((store, recovery)) = opened else { return found.conclude(place.path(), ADVICE) };
    note_recovery(&recovery, &mut found);
    let checked = check(context, words.read_data, &store, &mut found)?;
    let fields = json!({
        "command": "device fsck",
        "store": place.path().display().to_string(),
        "clean": found.count == 0,
        "damages": found.count,
        "objects": checked.objects,
        "read_bytes": checked.read_bytes,
        "read_data": words.read_data,
        "tail_dropped": recovery.tail_dropped,
    });
    context.output.summary(fields, || {
        let depth =
            if words.read_data { "all data read" } else { "metadata and streams only, see --read-data" };
        let sound = if found.count == 0 { "; no damage found" } else { "" };
        format!(
            "{}: {}, {} read, {depth}{sound}\n",
            place.path().display(),
            human::count(checked.objects, "object"),
            human::bytes(checked.read_bytes)
        )
    });
    found.conclude(place.path(), ADVICE)
}

/// Opens the store for reading. A damaged one is opened as far as it is readable; `None`: nothing is.
fn open(
    context: &CommandContext<'_>,
    place: &StoreLocation,
    found: &mut FoundDamages<'_>,
) -> Outcome<Option<OpenedStore>> {
    let options = context.arguments.common.store_options();
    let failure = match place.open(Access::Read, &options, &context.patience()) {
        Ok(opened) => return Ok(Some(opened)),
        Err(error) => Failure::from(error),
    };
    if failure.exit_code != exit::DAMAGED {
        return Err(failure);
    }
    found.note_text(&failure.sentence);
    Ok(place.open_to_save(&options, &context.patience()).ok())
}

/// Damage that recovery met. Dropped records that no caller was told of are none.
fn note_recovery(recovery: &RecoveryReport, found: &mut FoundDamages<'_>) {
    if recovery.cut_bytes > 0 && found.count == 0 {
        let cut = human::bytes(recovery.cut_bytes);
        found.note_text(&format!("the last {cut} of the store are missing, where nothing lay"));
    }
    if let Some(reason) = &recovery.tail_lost {
        found.note_text(&format!("the last acknowledged writes are lost: {reason}"));
    }
    if let Some(older) = &recovery.older_state {
        let (generation, newest) = (older.generation, older.newest);
        found.note_text(&format!(
            "the newest tables cannot be read: state {generation} was checked, the newest is {newest}"
        ));
    }
}

/// Counts of a check.
#[derive(Default)]
struct CheckedParts {
    objects: u64,
    read_bytes: u64,
}

/// Checks metadata and streams, then all data in the order of its addresses.
fn check(
    context: &CommandContext<'_>,
    with_data: bool,
    store: &Store,
    found: &mut FoundDamages<'_>,
) -> Outcome<CheckedParts> {
    let failed =
        |error: copal_object::StoreError| Failure::plain("check", format!("the check failed: {error}"));
    let report = store.check(&CheckOptions::default()).map_err(failed)?;
    report.damages.iter().for_each(|damage| found.note(damage));
    let mut checked = CheckedParts { objects: report.objects, read_bytes: store.counters().read_bytes };
    if !with_data {
        return Ok(checked);
    }
    let mut scrub = store.scrub();
    // Metadata and streams were reported before.
    let mut note = |damage: &StoreDamage| {
        if matches!(damage, StoreDamage::Object { .. }) {
            found.note(damage);
        }
    };
    read_data(context, 0, &mut scrub, &mut note).map_err(failed)?;
    if !scrub.progress().finished {
        return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted; nothing was changed"));
    }
    checked.read_bytes = store.counters().read_bytes;
    Ok(checked)
}
