//! Dump of the page-cache log: its session and its size. The logs decide which of its records count.

use crate::{Error, write::page_cache_log};
use copal_object::{DumpItem, DumpSink, ObjectId, Store as Objects};

pub(super) fn dump(objects: &Objects, id: ObjectId, sink: &mut DumpSink<'_>) -> Result<bool, Error> {
    let Some(extent) = objects.raw_extent(id, 0)? else {
        return Ok(true);
    };
    match page_cache_log::header_of(&extent) {
        Ok(None) => Ok(true),
        Ok(Some(header)) => Ok(sink(
            DumpItem::new(1, "session")
                .number("session", header.session)
                .number("half_bytes", header.half_bytes),
        )),
        Err(error) if error.is_corruption() => Ok(sink(DumpItem::damage(1, &error))),
        Err(error) => Err(error),
    }
}
