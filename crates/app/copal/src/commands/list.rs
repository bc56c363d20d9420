//! `copal snapshots` and `copal ls`.

use super::{
    CommandContext, close,
    fields::{self, SnapshotFields},
};
use crate::{
    arguments::{LsArgs, SnapshotsArgs},
    failure::{Failure, Outcome, exit},
    human,
    repository::RemoteView,
};
use copal_backup::{Listing, Snapshot};
use copal_node::Access;
use serde_json::json;

pub(super) fn snapshots(context: &CommandContext<'_>, snapshots: &SnapshotsArgs) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let found = opened.repository().list(snapshots.vm.as_deref()).map_err(Failure::from);
    let Listing { snapshots: mut found, damaged } = close(opened, found)?;
    found.retain(|snapshot| is_wanted(snapshots, snapshot));
    for (vm, detail) in &damaged {
        let sentence = format!("the snapshots of {} cannot be listed: {detail}", vm.name);
        let fields = json!({ "code": "damaged", "message": sentence, "vm": vm.name });
        context.output.error(fields, &sentence);
    }
    let fields = json!({
        "command": "snapshots",
        "snapshots": fields::snapshots(&found),
        "damaged_vms": damaged.iter().map(|(vm, _)| &vm.name).collect::<Vec<_>>(),
    });
    context.output.answer(fields, || as_table(&found));
    match damaged.len() {
        0 => Ok(()),
        count => Err(Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "the log of {count} {} is damaged, all other snapshots are listed and restore; put back a good copy of \
                 the store to have the rest",
                if count == 1 { "VM" } else { "VMs" }
            ),
        )),
    }
}

/// Whether a snapshot matches the filters of the command line.
fn is_wanted(typed: &SnapshotsArgs, snapshot: &Snapshot) -> bool {
    let has_tags = typed.tags.iter().all(|tag| snapshot.tags.contains(tag));
    let text = typed.description.as_deref().unwrap_or_default();
    has_tags && snapshot.description.contains(text)
}

/// Holds, verification and damage of a snapshot, as text.
fn marks(snapshot: &Snapshot) -> String {
    let mut marks = Vec::new();
    if snapshot.damage.is_some() {
        marks.push("damaged".to_owned());
    }
    if let Some(misdated) = snapshot.misdated {
        marks.push(misdated.to_string());
    }
    if !snapshot.doubts.is_empty() {
        marks.push(if snapshot.is_accepted { "accepted" } else { "doubtful" }.to_owned());
    }
    marks.extend(copy_mark(snapshot));
    if snapshot.is_verified {
        marks.push("verified".to_owned());
    }
    match snapshot.held_until_ms {
        u64::MAX => marks.push("held".to_owned()),
        until_ms if until_ms > human::now_ms() => {
            marks.push(format!("held until {}", human::local_time(until_ms)));
        }
        _ => {}
    }
    marks.join(", ")
}

/// The snapshot that this one is a copy of, with its day if the time is another one.
fn copy_mark(snapshot: &Snapshot) -> Option<String> {
    let origin = snapshot.copied_from?;
    let mark = format!("copy of {}", origin.snapshot.short());
    match origin.created_ms == snapshot.created_ms {
        true => Some(mark),
        false => Some(format!("{mark} of {}", human::local_day(origin.created_ms))),
    }
}

fn as_table(found: &[Snapshot]) -> String {
    if found.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let rows: Vec<Vec<String>> = found.iter().map(row).collect();
    // Most repositories have no descriptions, so their table has a column less.
    let is_described = found.iter().any(|snapshot| !snapshot.description.is_empty());
    let description = if is_described { "Description" } else { "" };
    human::table(&["ID", "Time", "VM", "Disks", "Size", "New", "Stored", "Tags", "", description], &rows)
}

fn row(snapshot: &Snapshot) -> Vec<String> {
    let names = snapshot.disks.iter().map(|disk| disk.name.as_str()).collect::<Vec<_>>();
    // The counts of a damaged manifest are unknown, not zero.
    let bytes = |count| match snapshot.damage {
        None => human::bytes(count),
        Some(_) => String::new(),
    };
    vec![
        snapshot.id.short(),
        human::local_time(snapshot.created_ms),
        snapshot.vm.name.clone(),
        names.join(" "),
        bytes(snapshot.counts.logical_bytes),
        bytes(snapshot.counts.new_bytes),
        bytes(snapshot.counts.stored_bytes),
        snapshot.tags.join(" "),
        marks(snapshot),
        snapshot.description.clone(),
    ]
}

pub(super) fn ls(context: &CommandContext<'_>, ls: &LsArgs) -> Outcome<()> {
    let opened = context.open_for(Access::Read, RemoteView::AtStart)?;
    let repository = opened.repository();
    let found = repository
        .resolve(&ls.which.snapshot, ls.which.vm.as_deref())
        .and_then(|snapshot| Ok((repository.ls(snapshot.id)?, snapshot)))
        .map_err(Failure::from);
    let (disks, snapshot) = close(opened, found)?;
    let fields_of_disks = disks.iter().map(|listing| {
        json!({
            "name": listing.disk.name,
            "size_bytes": listing.disk.size_bytes,
            "mode": listing.disk.mode,
            "reason": listing.disk.reason,
            "data_bytes": listing.data_bytes,
            "hole_bytes": listing.hole_bytes,
            "chunks": listing.chunks,
            "segments": listing.segments,
        })
    });
    let fields_of_disks: Vec<_> = fields_of_disks.collect();
    let fields =
        json!({ "command": "ls", "snapshot": SnapshotFields::from(&snapshot), "disks": fields_of_disks });
    context.output.answer(fields, || {
        let rows: Vec<Vec<String>> = disks
            .iter()
            .map(|listing| {
                vec![
                    listing.disk.name.clone(),
                    human::bytes(listing.disk.size_bytes),
                    human::bytes(listing.data_bytes),
                    human::bytes(listing.hole_bytes),
                    listing.chunks.to_string(),
                    listing.disk.mode.to_string(),
                    listing.disk.reason.clone(),
                ]
            })
            .collect();
        let mut title = format!(
            "snapshot {} of {}, {}\n",
            snapshot.id.short(),
            human::visible(&snapshot.vm.name),
            human::local_time(snapshot.created_ms)
        );
        for (name, words) in
            [("tags", snapshot.tags.join(" ")), ("description", snapshot.description.clone())]
        {
            if !words.is_empty() {
                title.push_str(&format!("{name}: {}\n", human::visible(&words)));
            }
        }
        if let Some(origin) = snapshot.copied_from {
            title.push_str(&format!(
                "copy of: {} of {}, in the repository {}\n",
                origin.snapshot,
                human::local_time(origin.created_ms),
                origin.repository
            ));
        }
        for doubt in &snapshot.doubts {
            let word = if snapshot.is_accepted { "accepted" } else { "doubtful" };
            title.push_str(&format!("{word}: {}\n", human::visible(&doubt.to_string())));
        }
        title + &human::table(&["Disk", "Size", "Data", "Holes", "Chunks", "Mode", "Reason"], &rows)
    });
    Ok(())
}
