//! Dump of a log, group by group.

use super::{DumpOptions, key_field};
use crate::{
    Error,
    tree::value::ValuePointer,
    write::log::{GroupAssembler, LogGroup, LogOp},
};
use copal_object::{DumpItem, DumpSink, FramePos, ObjectId, Store as Objects};

pub(super) fn dump(
    objects: &Objects,
    id: ObjectId,
    generation: u64,
    options: &DumpOptions,
    sink: &mut DumpSink<'_>,
) -> Result<bool, Error> {
    let mut reader = match objects.frames(id, FramePos(0)).map_err(Error::from) {
        Err(error) if error.is_corruption() => return Ok(sink(DumpItem::damage(1, &error))),
        reader => reader?,
    };
    let mut assembler = GroupAssembler::new(generation);
    loop {
        let (at, frame) = match reader.next_frame().map_err(Error::from) {
            Ok(None) => return Ok(true),
            Ok(Some((FramePos(at), frame))) => (at, frame),
            Err(error) if error.is_corruption() => return Ok(sink(DumpItem::damage(1, &error))),
            Err(error) => return Err(error),
        };
        match assembler.push(at, &frame) {
            Ok(None) => {}
            Ok(Some(group)) => {
                if !show(at, &group, options, sink) {
                    return Ok(false);
                }
            }
            Err(error) => return Ok(sink(DumpItem::damage(1, &error))),
        }
    }
}

fn show(frame: u64, group: &LogGroup, options: &DumpOptions, sink: &mut DumpSink<'_>) -> bool {
    let head = DumpItem::new(1, "group")
        .number("last_frame", frame)
        .number("first_sequence", group.first_seq)
        .number("operations", group.ops.len() as u64);
    if !sink(head) {
        return false;
    }
    if !options.entries {
        return true;
    }
    let mut numbered = group.first_seq..;
    group.ops.iter().all(|op| {
        let new = |kind| DumpItem::new(2, kind).number("sequence", numbered.next().unwrap_or_default());
        sink(operation(op, new))
    })
}

fn operation(op: &LogOp, new: impl FnOnce(&'static str) -> DumpItem) -> DumpItem {
    match op {
        LogOp::Put { key, value } => new("put")
            .with("key", key_field(key))
            .number("value_bytes", value.len() as u64)
            .bytes("value", value),
        LogOp::Delete { key } => new("delete").with("key", key_field(key)),
        LogOp::DeleteRange { start, end } => {
            new("delete-range").with("start", key_field(start)).with("end", key_field(end))
        }
        LogOp::Pointer { key, pointer } => pointed(new("pointer").with("key", key_field(key)), pointer),
    }
}

/// The fields of a pointer.
pub(super) fn pointed(item: DumpItem, pointer: &[u8]) -> DumpItem {
    match ValuePointer::decode(pointer) {
        Ok(pointer) => item
            .number("object", pointer.object.0)
            .number("offset", pointer.offset)
            .number("value_bytes", pointer.len),
        Err(error) => item.text("damage", error.to_string()),
    }
}
