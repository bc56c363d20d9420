//! `copal device dump`.

use super::place;
use crate::{
    arguments::DeviceDumpArgs,
    commands::{CommandContext, dump_lines::DumpLines, kv::damaged},
    failure::{Failure, Outcome, exit},
};
use copal_node::{NodeError, StoreLocation};
use copal_object::{DumpItem, ObjectId, ObjectKind, ObjectStat, Store, StoreError};
use serde_json::json;

/// Objects that are listed at a time.
const LIST_AT_ONCE: usize = 1000;

pub(super) fn run(context: &CommandContext<'_>, words: &DeviceDumpArgs) -> Outcome<()> {
    let place = place(&words.path)?;
    let mut lines = DumpLines::new(context, words.hex, words.limit);
    let shown = match (words.object, words.stream) {
        (Some(object), _) => show_one(context, &place, ObjectId(object), false, &mut lines),
        (_, Some(stream)) => show_one(context, &place, ObjectId(stream), true, &mut lines),
        _ if words.objects => list(context, &place, &mut lines),
        _ => outline(context, &place, &mut lines),
    };
    shown?;
    if context.is_ended() {
        return Err(Failure::new(exit::INTERRUPTED, "cancelled", "interrupted; nothing was changed"));
    }
    let fields = json!({
        "command": "device dump",
        "store": place.path().display().to_string(),
        "lines": lines.lines,
        "damages": lines.damages,
    });
    context.output.answer(fields, String::new);
    match lines.damages {
        0 => Ok(()),
        places => Err(damaged(place.path(), places, "`copal device fsck` lists all of it")),
    }
}

fn outline(context: &CommandContext<'_>, place: &StoreLocation, lines: &mut DumpLines<'_>) -> Outcome<()> {
    let dump = place.dump(&context.arguments.common.store_options(), &context.patience())?;
    let shown = dump.outline(&mut |item| lines.put(&item));
    shown.map_err(|source| NodeError::Objects { path: place.path().to_owned(), source }.into())
}

/// The readable part of the store.
fn open(context: &CommandContext<'_>, place: &StoreLocation) -> Outcome<Store> {
    let options = context.arguments.common.store_options();
    Ok(place.open_to_save(&options, &context.patience())?.0)
}

fn show_one(
    context: &CommandContext<'_>,
    place: &StoreLocation,
    id: ObjectId,
    is_stream: bool,
    lines: &mut DumpLines<'_>,
) -> Outcome<()> {
    let store = open(context, place)?;
    let number = id.0;
    let Some(stat) = store.stat(id) else {
        return Err(Failure::usage(format!(
            "there is no object {number} in {}; `copal device dump --objects` lists them",
            place.path().display()
        )));
    };
    match (stat.kind == ObjectKind::Stream, is_stream) {
        (true, false) => {
            return Err(Failure::usage(format!("object {number} is a stream; give --stream {number}")));
        }
        (false, true) => {
            return Err(Failure::usage(format!("object {number} is no stream; give --object {number}")));
        }
        _ => {}
    }
    let shown = store.dump_object(id, &mut |item| lines.put(&item));
    shown.map_err(|error: StoreError| Failure::plain("read", format!("{}: {error}", place.path().display())))
}

fn list(context: &CommandContext<'_>, place: &StoreLocation, lines: &mut DumpLines<'_>) -> Outcome<()> {
    let store = open(context, place)?;
    let mut from = Some(0);
    while let Some(first) = from {
        let stats = store.list(ObjectId(first), LIST_AT_ONCE);
        from = stats.last().and_then(|stat| stat.id.0.checked_add(1));
        if !stats.iter().all(|stat| lines.put(&of_stat(stat))) {
            return Ok(());
        }
    }
    Ok(())
}

fn of_stat(stat: &ObjectStat) -> DumpItem {
    let (kind, len) = match stat.kind {
        ObjectKind::Stream => ("stream", "next_frame"),
        _ if stat.sealed => ("sealed", "bytes"),
        _ => ("plain", "bytes"),
    };
    let label_len = stat.label.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    DumpItem::new(0, "object")
        .number("object", stat.id.0)
        .text("object_kind", kind)
        .number(len, stat.len)
        .number("allocated_bytes", stat.allocated_bytes)
        .bytes("label", &stat.label[..label_len])
}
