//! One object with its extents and sums, or one stream with its frames.

use super::{
    item::{DumpItem, DumpSink},
    passed_read,
};
use crate::{
    ObjectId, StoreError,
    check::piece_frames::{PieceFrame, PieceFrames},
    format::{
        hash128,
        ops::ObjectTraits,
        run::{PageRun, pages_of},
        sum_rule::SumRule,
    },
    state::StoreCore,
    tables::{ObjectEntry, StreamEntry, StreamPiece, TableEntry},
};
use std::sync::Arc;

/// See `Store::dump_object`.
pub(crate) fn object(
    store: &Arc<StoreCore>,
    id: ObjectId,
    sink: &mut DumpSink<'_>,
) -> Result<(), StoreError> {
    let (entry, limits, ticket) = {
        let mut state = store.state.lock();
        let entry = state.tables.entries.get(id.0).cloned().ok_or(StoreError::NotFound(id))?;
        let next = state.streams.next_frame(id.0);
        let runs = match &entry {
            TableEntry::Object(object) => object.map.iter().map(|extent| extent.run).collect(),
            TableEntry::Stream(stream) => stream.pieces.iter().map(|piece| piece.run).collect(),
        };
        (entry, next, state.space.pin(runs))
    };
    let shown = match &entry {
        TableEntry::Object(object) => show_object(store, id, object, sink),
        TableEntry::Stream(stream) => show_stream(store, id, stream, limits, sink),
    };
    store.unpin(ticket);
    shown
}

/// A label without the zeros behind it.
pub(super) fn trimmed(label: &[u8; 16]) -> &[u8] {
    let len = label.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    &label[..len]
}

fn header(id: ObjectId, what: &ObjectTraits) -> DumpItem {
    DumpItem::new(0, "object")
        .number("object", id.0)
        .text("object_kind", format!("{:?}", what.kind).to_lowercase())
        .text("check", format!("{:?}", what.check).to_lowercase())
        .text("sums", if what.sums == SumRule::Crc32c { "of bytes" } else { "over hashes" })
        .text("lifetime", format!("{:?}", what.lifetime).to_lowercase())
        .bytes("label", trimmed(&what.label))
}

fn show_object(
    store: &StoreCore,
    id: ObjectId,
    object: &ObjectEntry,
    sink: &mut DumpSink<'_>,
) -> Result<(), StoreError> {
    let page_bytes = store.shape.page_bytes;
    let unit = object.unit(page_bytes);
    let head = header(id, &object.what)
        .number("bytes", object.len)
        .number("pages", object.map.pages())
        .number("extents", object.map.extents() as u64)
        .number("pages_per_sum", unit)
        .text("sealed", if object.sealed { "yes" } else { "no" })
        .text("shared", if object.shares { "yes" } else { "no" });
    let head = match &object.trailer {
        Some(hash) => head.text("sums_xxh3", format!("{:032x}", **hash)),
        None => head,
    };
    if !sink(head) {
        return Ok(());
    }
    for extent in object.map.iter() {
        let item = DumpItem::new(1, "extent")
            .number("at_page", extent.at)
            .number("page", extent.run.at)
            .number("pages", extent.run.pages);
        if !sink(item) {
            return Ok(());
        }
        if object.trailer.is_some() {
            continue;
        }
        let units = crate::state::pieces(extent.run, unit).zip(object.map.sums_of(extent.at, unit));
        for (run, sum) in units {
            if !sink(of_sum(extent.at + (run.at - extent.run.at), run.pages.into(), *sum)) {
                return Ok(());
            }
        }
    }
    match &object.trailer {
        Some(hash) => show_trailer(store, object, **hash, sink),
        None => Ok(()),
    }
}

fn of_sum(at: u64, pages: u64, sum: u32) -> DumpItem {
    DumpItem::new(2, "sum").number("at_page", at).number("pages", pages).text("sum", format!("{sum:08x}"))
}

/// The sums behind the data of a published object, page by page: the hash of all is known at the end.
fn show_trailer(
    store: &StoreCore,
    object: &ObjectEntry,
    hash: u128,
    sink: &mut DumpSink<'_>,
) -> Result<(), StoreError> {
    let unit = u64::from(object.unit(store.shape.page_bytes));
    let data = object.data_pages(store.shape.page_bytes);
    let mut sums = Vec::new();
    for extent in object.map.overlapping(data, u64::MAX) {
        let skip = data.saturating_sub(extent.at);
        let run = PageRun::new(extent.run.at + skip, extent.run.pages - skip as u32);
        match store.read_pages(run) {
            Ok(bytes) => sums.extend(bytes),
            Err(error) => {
                sink(DumpItem::damage(1, &passed_read(error)?));
                return Ok(());
            }
        }
    }
    if hash128(&sums) != hash {
        sink(DumpItem::damage(1, &"the sums differ from the hash in the record that published the object"));
        return Ok(());
    }
    let units = (0..data.div_ceil(unit)).zip(sums.chunks_exact(4));
    for (index, sum) in units {
        let at = index * unit;
        let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
        if !sink(of_sum(at, unit.min(data - at), sum)) {
            return Ok(());
        }
    }
    Ok(())
}

fn show_stream(
    store: &StoreCore,
    id: ObjectId,
    stream: &StreamEntry,
    next: u64,
    sink: &mut DumpSink<'_>,
) -> Result<(), StoreError> {
    let runs: Vec<PageRun> = stream.pieces.iter().map(|piece| piece.run).collect();
    let head = header(id, &stream.what)
        .number("next_frame", next)
        .number("first_kept", stream.trimmed)
        .number("known_durable", stream.durable.next)
        .number("pieces", runs.len() as u64)
        .number("pages", pages_of(&runs))
        .number("frame_pages_max", stream.frame_pages_max);
    if !sink(head) {
        return Ok(());
    }
    for (index, piece) in stream.pieces.iter().enumerate() {
        let limit = stream.pieces.get(index + 1).map_or(next, |behind| behind.first.min(next));
        let item = DumpItem::new(1, "piece")
            .number("page", piece.run.at)
            .number("pages", piece.run.pages)
            .number("first_frame", piece.first)
            .text("incarnation", format!("{:016x}", piece.incarnation))
            .number("lsn", piece.lsn);
        if !sink(item) || !show_piece(store, piece, stream.trimmed, limit, sink)? {
            return Ok(());
        }
    }
    Ok(())
}

/// The frames of one piece; `false`: the sink has enough.
fn show_piece(
    store: &StoreCore,
    piece: &StreamPiece,
    trimmed: u64,
    limit: u64,
    sink: &mut DumpSink<'_>,
) -> Result<bool, StoreError> {
    let read = |run: PageRun| store.read_pages(run);
    let mut frames = PieceFrames::new(piece, 0, limit, store.shape.page_bytes, &read);
    loop {
        let item = match frames.next() {
            Ok(None) => return Ok(true),
            Ok(Some(PieceFrame::Whole { header, at, pages, payload })) => DumpItem::new(2, "frame")
                .number("frame", header.frame)
                .number("page", piece.run.at + u64::from(at))
                .number("pages", pages)
                .number("bytes", payload as u64)
                .number("after_lsn", header.after)
                .number("flushed_frame", header.flushed_frame),
            // Damage in frames that are trimmed has no effect.
            Ok(Some(PieceFrame::Missing { frame })) if frame < trimmed => continue,
            Ok(Some(PieceFrame::Missing { frame })) => {
                DumpItem::damage(2, &"the frame is damaged or missing").number("frame", frame)
            }
            Err(error) => return Ok(sink(DumpItem::damage(2, &passed_read(error)?))),
        };
        if !sink(item) {
            return Ok(false);
        }
    }
}
