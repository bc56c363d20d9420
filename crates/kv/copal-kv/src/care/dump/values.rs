//! Dump of a value object: its dead bytes, and the entries that point into the others.

use super::{DumpOptions, key_field, state, table::open};
use crate::{
    Error,
    format::entry::EntryKind,
    table::TableVerifier,
    tree::{
        manifest::{ObjectRole, parse_label},
        value::{self, ValuePointer},
    },
    write::log::{LogGroup, LogOp, replay},
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{DumpItem, DumpSink, ObjectId, Store as Objects};

pub(super) fn dump(
    objects: &Objects,
    id: ObjectId,
    options: &DumpOptions,
    sink: &mut DumpSink<'_>,
) -> Result<bool, Error> {
    let (state, seed, stopped) = state(objects)?;
    if let Some(error) = stopped
        && !sink(DumpItem::damage(1, &error))
    {
        return Ok(false);
    }
    let known = match state.values.get(&id) {
        None => DumpItem::new(1, "not-in-manifest"),
        Some(value) => DumpItem::new(1, "account")
            .number("keyspace", value.meta.keyspace.0)
            .bytes("group", &value.meta.group)
            .number("accounted_bytes", value.meta.accounted)
            .number("dead_bytes", value.dead.total())
            .number("newest_sequence", value.meta.max_seq)
            .text("written_by", if value.meta.by_worker { "flush" } else { "commit" }),
    };
    if !sink(known) {
        return Ok(false);
    }
    for range in state.values.get(&id).iter().flat_map(|value| value.dead.iter()) {
        let item =
            DumpItem::new(1, "dead").number("offset", range.start).number("bytes", range.end - range.start);
        if !sink(item) {
            return Ok(false);
        }
    }
    if !options.entries {
        return Ok(true);
    }
    for (object, table) in &state.tables {
        if !table.meta.values.iter().any(|(used, _)| *used == id) {
            continue;
        }
        let source = DumpItem::new(1, "from-table").number("object", object.0);
        let table = match open(objects, *object, seed) {
            Err(error) if error.is_corruption() => {
                if !sink(source) || !sink(DumpItem::damage(2, &error)) {
                    return Ok(false);
                }
                continue;
            }
            table => table?,
        };
        if !sink(source) {
            return Ok(false);
        }
        for partition in 0..table.meta().partitions {
            let mut found = Vec::new();
            let report = TableVerifier::new(&table).verify_partition(
                partition,
                IoClass::Background,
                &mut |entry| {
                    if entry.kind == EntryKind::Pointer {
                        found.push((Bytes::copy_from_slice(entry.key), Bytes::copy_from_slice(entry.value)));
                    }
                },
            )?;
            for (key, pointer) in found {
                if !show(objects, id, &key, &pointer, sink)? {
                    return Ok(false);
                }
            }
            for damaged in report.damaged {
                if !sink(DumpItem::damage(2, &damaged)) {
                    return Ok(false);
                }
            }
        }
    }
    from_logs(objects, id, sink)
}

/// Shows values that a log names and no table does yet.
fn from_logs(objects: &Objects, id: ObjectId, sink: &mut DumpSink<'_>) -> Result<bool, Error> {
    for stat in objects.list(ObjectId(0), usize::MAX) {
        let Some((ObjectRole::Log, generation)) = parse_label(&stat.label) else {
            continue;
        };
        if !sink(DumpItem::new(1, "from-log").number("object", stat.id.0)) {
            return Ok(false);
        }
        let mut more = true;
        let read = replay(
            objects,
            generation,
            stat.id,
            |_| (),
            |group: LogGroup| {
                for op in group.ops {
                    if let LogOp::Pointer { key, pointer } = op {
                        more = more && show(objects, id, &key, &pointer, sink)?;
                    }
                }
                Ok(())
            },
            None,
        );
        match read {
            Err(error) if error.is_corruption() => more = more && sink(DumpItem::damage(2, &error)),
            read => drop(read?),
        }
        if !more {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Shows one value, if it lies in the object: its place, and whether its checksums match.
fn show(
    objects: &Objects,
    id: ObjectId,
    key: &[u8],
    pointer: &[u8],
    sink: &mut DumpSink<'_>,
) -> Result<bool, Error> {
    let decoded = match ValuePointer::decode(pointer) {
        Ok(pointer) => pointer,
        Err(error) => return Ok(sink(DumpItem::damage(2, &error))),
    };
    if decoded.object != id {
        return Ok(true);
    }
    let item = DumpItem::new(2, "value")
        .with("key", key_field(key))
        .number("offset", decoded.offset)
        .number("bytes", decoded.len);
    match value::read(objects, pointer, &(0..u64::from(decoded.len)), IoClass::Background) {
        Err(error) if error.is_corruption() => Ok(sink(item.text("damage", error.to_string()))),
        read => {
            read?;
            Ok(sink(item))
        }
    }
}
