//! The records behind a checkpoint, with their operations.

use super::item::{DumpItem, DumpSink};
use crate::{
    StoreOpenError,
    format::{
        ops::{ObjectTraits, RecordOp},
        run::pages_of,
        superblock::Superblock,
    },
    recovery::{self, JournalWindow, RecoverySource, WalkedRecord},
    tables::snapshot::CheckpointPosition,
};

/// Shows every record that continues the chain, then its end.
pub(super) fn dump(
    source: &RecoverySource<'_>,
    superblock: &Superblock,
    position: &CheckpointPosition,
    sink: &mut DumpSink<'_>,
) -> Result<(), StoreOpenError> {
    let mut window = JournalWindow::new(source, superblock, position);
    let walked = recovery::walk_journal(&mut window, superblock, position)?;
    for record in &walked.records {
        if !sink(of_record(record)) {
            return Ok(());
        }
        for op in record.ops(&mut window)? {
            if !sink(of_op(&op)) {
                return Ok(());
            }
        }
    }
    let end = DumpItem::new(0, "journal")
        .number("records", walked.records.len() as u64)
        .number("next_record", position.next_seq + walked.records.len() as u64)
        .number("flushed_epoch", walked.flushed_epoch);
    let end = match (walked.lost_durable, walked.end_reason) {
        (Some(seq), _) => {
            end.text("damage", format!("record {seq} is missing, and a later one calls it durable"))
        }
        (None, Some(reason)) => end.text("end", reason),
        (None, None) => end,
    };
    sink(end);
    Ok(())
}

fn of_record(record: &WalkedRecord) -> DumpItem {
    let header = &record.header;
    let item = DumpItem::new(0, "record")
        .number("record", header.seq)
        .number("first_lsn", header.first_lsn)
        .number("transactions", header.transactions)
        .number("epoch", header.epoch)
        .number("flushed_epoch", header.flushed_epoch)
        .number("flushed_record", header.flushed_seq)
        .number("page", record.run.at)
        .number("pages", record.run.pages)
        .text("mount", format!("{:016x}", header.mount));
    match record.data {
        Some((data, sum)) => item.number("data_pages", data.pages).text("data_sum", format!("{sum:08x}")),
        None => item,
    }
}

fn with_traits(item: DumpItem, what: &ObjectTraits) -> DumpItem {
    item.text("object_kind", format!("{:?}", what.kind).to_lowercase())
        .text("check", format!("{:?}", what.check).to_lowercase())
        .bytes("label", super::contents::trimmed(&what.label))
}

fn of_op(op: &RecordOp) -> DumpItem {
    let item = |name| DumpItem::new(1, name);
    match op {
        RecordOp::Create { id, what } => with_traits(item("create").number("object", *id), what),
        RecordOp::Map { id, at, run, epoch, sums, .. } => item("map")
            .number("object", *id)
            .number("at_page", *at)
            .number("page", run.at)
            .number("pages", run.pages)
            .number("epoch", *epoch)
            .number("sums", sums.len() as u64),
        RecordOp::Publish { id, what, len, runs, trailer, epoch } => {
            with_traits(item("publish").number("object", *id), what)
                .number("bytes", *len)
                .number("runs", runs.len() as u64)
                .number("pages", pages_of(runs))
                .text("sums_xxh3", format!("{trailer:032x}"))
                .number("epoch", *epoch)
        }
        RecordOp::Unmap { id, at, pages } => {
            item("unmap").number("object", *id).number("at_page", *at).number("pages", *pages)
        }
        RecordOp::Resum { id, at, pages, sum } => item("resum")
            .number("object", *id)
            .number("at_page", *at)
            .number("pages", *pages)
            .text("sum", format!("{sum:08x}")),
        RecordOp::Length { id, len } => item("length").number("object", *id).number("bytes", *len),
        RecordOp::Clone { from, to } => item("clone").number("object", *to).number("from", *from),
        RecordOp::Seal { id } => item("seal").number("object", *id),
        RecordOp::Delete { id } => item("delete").number("object", *id),
        RecordOp::StreamExtent { id, run, first, incarnation } => item("stream_extent")
            .number("stream", *id)
            .number("page", run.at)
            .number("pages", run.pages)
            .number("first_frame", *first)
            .text("incarnation", format!("{incarnation:016x}")),
        RecordOp::StreamFrame { id, run, frame } => item("stream_frame")
            .number("stream", *id)
            .number("frame", *frame)
            .number("page", run.at)
            .number("pages", run.pages),
        RecordOp::Move { to, parts, .. } => {
            item("move").number("page", to.at).number("pages", to.pages).number("parts", parts.len() as u64)
        }
        RecordOp::StreamTruncate { id, cut } => {
            item("stream_truncate").number("stream", *id).number("first_cut", cut.from)
        }
        RecordOp::StreamTrim { id, upto } => {
            item("stream_trim").number("stream", *id).number("first_kept", *upto)
        }
        RecordOp::Inline { run, .. } => item("inline").number("page", run.at).number("pages", run.pages),
        RecordOp::InlinePlaced { upto } => item("inline_placed").number("upto_lsn", *upto),
        RecordOp::Dep { id, frame } => item("after_frame").number("stream", *id).number("frame", *frame),
        RecordOp::Mount { mount, cuts } => {
            item("mount").text("mount", format!("{mount:016x}")).number("streams", cuts.len() as u64)
        }
        RecordOp::Grow { pages } => item("grow").number("store_pages", *pages),
        RecordOp::Durable { streams } => item("durable_frames").number("streams", streams.len() as u64),
        RecordOp::Frames { streams } => item("durable_frames").number("streams", streams.len() as u64),
    }
}
