//! `copal bitmap`: dirty bitmaps that backups of running VMs have created in QEMU.

use super::{CommandContext, close};
use crate::{
    arguments::{BitmapCommand, BitmapLs, BitmapRm},
    failure::{Failure, Outcome, exit},
    human,
};
use copal_live::{NodeBitmap, list_bitmaps, remove_bitmaps};
use copal_node::Access;
use serde_json::json;
use std::collections::HashMap;

pub(super) fn run(context: &CommandContext<'_>, word: &BitmapCommand) -> Outcome<()> {
    match word {
        BitmapCommand::Ls(words) => list(context, words),
        BitmapCommand::Rm(words) => remove(context, words),
    }
}

fn list(context: &CommandContext<'_>, words: &BitmapLs) -> Outcome<()> {
    let listing = list_bitmaps(&words.qmp)?;
    for warning in &listing.warnings {
        context.output.warning(warning);
    }
    let found = listing.bitmaps;
    // Without a repository no password is needed: QEMU's bitmaps are listed alone.
    let named = match context.arguments.common.repo {
        Some(_) => Some(snapshots_by_bitmap(context)?),
        None => None,
    };
    let snapshot = |found: &NodeBitmap| named.as_ref().map(|named| named.get(&found.bitmap.name));
    let bitmaps = found.iter().map(|found| {
        let bitmap = &found.bitmap;
        json!({
            "node": found.node, "name": bitmap.name, "granularity": bitmap.granularity, "dirty_bytes": bitmap.dirty_bytes,
            "persistent": bitmap.is_persistent, "recording": bitmap.is_recording, "inconsistent": bitmap.is_inconsistent,
            "snapshot": snapshot(found).flatten(),
        })
    });
    let fields = json!({
        "command": "bitmap ls", "bitmaps": bitmaps.collect::<Vec<_>>(), "warnings": listing.warnings,
    });
    context.output.answer(fields, || {
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|found| {
                vec![
                    found.node.clone(),
                    found.bitmap.name.clone(),
                    human::bytes(found.bitmap.granularity),
                    human::bytes(found.bitmap.dirty_bytes),
                    state(found),
                    match snapshot(found) {
                        None => "?".into(),
                        Some(None) => "-".into(),
                        Some(Some(id)) => id[..8].to_owned(),
                    },
                ]
            })
            .collect();
        human::table(&["Node", "Bitmap", "Unit", "Dirty", "State", "Snapshot"], &rows)
    });
    Ok(())
}

fn state(found: &NodeBitmap) -> String {
    let bitmap = &found.bitmap;
    let state = match (bitmap.is_inconsistent, bitmap.is_recording) {
        (true, _) => "inconsistent",
        (false, true) => "recording",
        (false, false) => "disabled",
    };
    let kept = if bitmap.is_persistent { "kept in the image" } else { "in memory" };
    format!("{state}, {kept}")
}

/// The newest snapshot of each bitmap.
fn snapshots_by_bitmap(context: &CommandContext<'_>) -> Outcome<HashMap<String, String>> {
    let opened = context.open(Access::Read)?;
    let listed = opened.repository().list(None).map_err(Failure::from);
    let snapshots = close(opened, listed)?.snapshots;
    let disks = snapshots.iter().flat_map(|snapshot| snapshot.disks.iter().map(move |disk| (snapshot, disk)));
    Ok(disks.filter_map(|(snapshot, disk)| Some((disk.bitmap.clone()?, snapshot.id.to_string()))).collect())
}

fn remove(context: &CommandContext<'_>, words: &BitmapRm) -> Outcome<()> {
    let gone = remove_bitmaps(&words.qmp, &words.node, words.name.as_deref())?;
    if let (Some(name), true) = (&words.name, gone.is_empty()) {
        return Err(Failure::new(
            exit::SOURCE,
            "source",
            format!(
                "the node {} has no dirty bitmap {name} of a Copal backup; `copal bitmap ls --qmp {}` lists them",
                words.node,
                words.qmp.display()
            ),
        ));
    }
    let fields = json!({ "command": "bitmap rm", "node": words.node, "removed": gone });
    context.output.summary(fields, || match gone.len() {
        0 => "there was none\n".to_owned(),
        count => format!("{count} removed; the next backup of {} reads the whole disk\n", words.node),
    });
    Ok(())
}
