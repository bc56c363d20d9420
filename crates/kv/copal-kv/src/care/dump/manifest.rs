//! Dump of the manifest, edit by edit.

use super::key_field;
use crate::{
    Error,
    tree::manifest::{
        format::{ManifestRecord, TreeLevel},
        read::EditReader,
    },
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{DumpItem, DumpSink, ObjectId, Store as Objects};

pub(super) fn dump(objects: &Objects, id: ObjectId, sink: &mut DumpSink<'_>) -> Result<bool, Error> {
    let mut edits = match EditReader::open(objects, id, IoClass::Background) {
        Err(error) if error.is_corruption() => return Ok(sink(DumpItem::damage(1, &error))),
        edits => edits?,
    };
    let (version, seed) = edits.header;
    let header = DumpItem::new(1, "header").number("version", version).number("seed", seed);
    if !sink(header) {
        return Ok(false);
    }
    loop {
        let edit = match edits.next(&mut |_| Ok(())) {
            Err(error) if error.is_corruption() => return Ok(sink(DumpItem::damage(1, &error))),
            edit => edit?,
        };
        let Some(edit) = edit else { return Ok(true) };
        let head = DumpItem::new(1, "edit")
            .number("offset", edit.offset)
            .number("records", edit.records().count() as u64);
        if !sink(head) {
            return Ok(false);
        }
        for item in edit.records().flat_map(|edited| record(&edited)) {
            if !sink(item) {
                return Ok(false);
            }
        }
    }
}

/// Readable name of a level.
pub(super) fn level(level: TreeLevel) -> String {
    if level == TreeLevel::BOTTOM { "bottom".to_owned() } else { level.0.to_string() }
}

fn record(record: &ManifestRecord) -> Vec<DumpItem> {
    let new = |kind| DumpItem::new(2, kind);
    let item = match record {
        ManifestRecord::Keyspace { id, name, options } => new("keyspace")
            .number("id", id.0)
            .text("name", name.clone())
            .number("group_prefix_len", options.group_prefix_len)
            .number("separate_from_bytes", options.separate_from_bytes)
            .number("direct_from_bytes", options.direct_from_bytes)
            .text("compress", if options.compress { "lz4" } else { "none" }),
        ManifestRecord::DropKeyspace { id } => new("drop-keyspace").number("id", id.0),
        ManifestRecord::Table(meta) => new("table")
            .number("object", meta.object.0)
            .number("bytes", meta.bytes)
            .number("entries", meta.entries)
            .number("droppable", meta.droppable)
            .number("newest_sequence", meta.max_seq)
            .with("start", key_field(&meta.start))
            .with("end", key_field(&meta.end)),
        ManifestRecord::Slices { object, level: at, run, parts } => {
            let head = new(if parts.is_empty() { "drop-table" } else { "slices" })
                .number("object", object.0)
                .text("level", level(*at))
                .number("run", *run);
            let part = |part: &std::ops::Range<Bytes>| {
                DumpItem::new(3, "slice")
                    .with("start", key_field(&part.start))
                    .with("end", key_field(&part.end))
            };
            return std::iter::once(head).chain(parts.iter().map(part)).collect();
        }
        ManifestRecord::Value(meta) => new("value-object")
            .number("object", meta.object.0)
            .number("keyspace", meta.keyspace.0)
            .bytes("group", &meta.group)
            .number("accounted_bytes", meta.accounted)
            .number("newest_sequence", meta.max_seq)
            .text("written_by", if meta.by_worker { "flush" } else { "commit" }),
        ManifestRecord::DropValue { object } => new("drop-value-object").number("object", object.0),
        ManifestRecord::Dead { object, ranges } => new("dead")
            .number("object", object.0)
            .number("ranges", ranges.len() as u64)
            .number("bytes", ranges.iter().map(|range| range.end - range.start).sum::<u64>()),
        ManifestRecord::Flushed { generation, last_seq } => {
            new("flushed").number("generation", *generation).number("newest_sequence", *last_seq)
        }
        ManifestRecord::Counters { next_object, next_run, next_keyspace } => new("counters")
            .number("next_object", *next_object)
            .number("next_run", *next_run)
            .number("next_keyspace", *next_keyspace),
        ManifestRecord::Ingested { object, seq } => {
            new("ingested").number("object", object.0).number("sequence", *seq)
        }
        ManifestRecord::Settled { below } => new("settled").number("below_object", *below),
    };
    vec![item]
}
