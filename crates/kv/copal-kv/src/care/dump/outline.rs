//! Outline of the whole store: a few lines per object.

use super::{key_field, manifest::level, state};
use crate::{
    Error,
    open::leftovers::{FoundObjects, UnnamedObject, unnamed},
    tree::{
        manifest::{MANIFEST, format::TreeLevel, state::TableState},
        value::ValuePointer,
    },
    write::log::{LogOp, replay},
};
use copal_object::{DumpItem, DumpSink, ObjectId, Store as Objects};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
};

type Runs<'a> = BTreeMap<(TreeLevel, Reverse<u64>), Vec<(&'a ObjectId, &'a TableState)>>;

pub(super) fn outline(objects: &Objects, sink: &mut DumpSink<'_>) -> Result<(), Error> {
    let mut items = Vec::new();
    let Some(stat) = objects.stat(MANIFEST) else {
        sink(DumpItem::new(0, "empty").text("what", "there is no key-value store in these objects"));
        return Ok(());
    };
    let (state, seed, stopped) = state(objects)?;
    items.push(
        DumpItem::new(0, "manifest")
            .number("object", MANIFEST.0)
            .number("bytes", stat.len)
            .number("seed", seed)
            .number("flushed_generation", state.flushed_generation)
            .number("newest_flushed_sequence", state.last_seq)
            .number("settled_below_object", state.settled_below),
    );
    items.extend(stopped.iter().map(|error| DumpItem::damage(1, error)));
    for (id, space) in &state.keyspaces {
        items.push(DumpItem::new(0, "keyspace").number("id", id.0).text("name", space.name.clone()));
    }
    let mut runs = Runs::new();
    for (object, table) in &state.tables {
        let run = runs.entry((table.level, Reverse(table.run))).or_default();
        run.push((object, table));
    }
    for ((at, Reverse(run)), mut tables) in runs {
        let bytes = tables.iter().map(|(_, table)| table.meta.bytes).sum::<u64>();
        items.push(
            DumpItem::new(0, "run")
                .text("level", level(at))
                .number("run", run)
                .number("tables", tables.len() as u64)
                .number("bytes", bytes),
        );
        tables.sort_by(|a, b| a.1.meta.start.cmp(&b.1.meta.start));
        items.extend(tables.into_iter().map(|(object, table)| show_table(objects, *object, table)));
    }
    for (object, value) in &state.values {
        let missing = objects.stat(*object).is_none();
        let item = DumpItem::new(0, "value-object")
            .number("object", object.0)
            .number("keyspace", value.meta.keyspace.0)
            .bytes("group", &value.meta.group)
            .number("accounted_bytes", value.meta.accounted)
            .number("dead_bytes", value.dead.total());
        items.push(if missing { item.text("damage", "it is missing") } else { item });
    }
    let found = FoundObjects::list(objects);
    let mut logged = HashSet::new();
    for (generation, log) in found.logs.range(state.flushed_generation + 1..) {
        let bytes = objects.stat(*log).map_or(0, |stat| stat.allocated_bytes);
        items.push(
            DumpItem::new(0, "log")
                .number("object", log.0)
                .number("generation", *generation)
                .number("allocated_bytes", bytes),
        );
        let read = replay(
            objects,
            *generation,
            *log,
            |_| (),
            |group| {
                for op in group.ops {
                    if let LogOp::Pointer { pointer, .. } = op {
                        logged.insert(ValuePointer::decode(&pointer)?.object);
                    }
                }
                Ok(())
            },
            None,
        );
        match read {
            Err(error) if error.is_corruption() => items.push(DumpItem::damage(1, &error)),
            read => drop(read?),
        }
    }
    if let Some(room) = found.page_cache_log {
        let bytes = objects.stat(room).map_or(0, |stat| stat.allocated_bytes);
        items.push(
            DumpItem::new(0, "page-cache-log").number("object", room.0).number("allocated_bytes", bytes),
        );
    }
    for object in logged.iter().filter(|object| !state.values.contains_key(object)) {
        items.push(
            DumpItem::new(0, "value-object").number("object", object.0).text("what", "named by a log only"),
        );
    }
    for UnnamedObject { object, role, explained } in unnamed(&state, &found, |value| logged.contains(value)) {
        let what = if explained { "left over from an interrupted run" } else { "has no owner" };
        items.push(
            DumpItem::new(0, "unnamed")
                .number("object", object.0)
                .text("role", role.word())
                .text("what", what),
        );
    }
    for item in items {
        if !sink(item) {
            return Ok(());
        }
    }
    Ok(())
}

fn show_table(objects: &Objects, object: ObjectId, table: &TableState) -> DumpItem {
    let item = DumpItem::new(1, "table")
        .number("object", object.0)
        .number("bytes", table.meta.bytes)
        .number("entries", table.meta.entries)
        .number("slices", table.parts.len() as u64)
        .with("start", key_field(&table.meta.start))
        .with("end", key_field(&table.meta.end));
    if objects.stat(object).is_none() {
        return item.text("damage", "it is missing");
    }
    item
}
