//! Operations of a store on a device, each counted alone.

use crate::objects::stores::{BenchStore, new_objects, options};
use anyhow::{Context, Result};
use bytes::Bytes;
use copal_bench_harness::report::Report;
use copal_object::{Ack, BackendKind, FramePos, ObjectKind, Op};
use std::path::Path;

const STORE_BYTES: u64 = 512 << 20;

/// Operations between two checkpoints.
const CHECKPOINT_EVERY: u64 = 64;

/// Means per operation.
struct OperationCost {
    /// Without one for each segment entered.
    writes: f64,
    write_bytes: f64,
    /// Flushes, and writes that are durable by themselves (FUA).
    barriers: f64,
}

fn free_segments(store: &BenchStore) -> u64 {
    store.store.segments().map_or(0, |segments| segments.free)
}

fn counted(
    store: &mut BenchStore,
    count: u64,
    mut operation: impl FnMut(&mut BenchStore) -> Result<()>,
) -> Result<OperationCost> {
    let (mut writes, mut write_bytes, mut barriers) = (0, 0, 0);
    for place in 0..count {
        // Checkpoints have a row of their own: none falls due in the operations counted.
        if place % CHECKPOINT_EVERY == 0 {
            store.store.checkpoint()?;
            // Ordered commits before it end in this one.
            operation(store)?;
        }
        let (before, free) = (store.counters(), free_segments(store));
        operation(store)?;
        let done = store.counters() - before;
        // A segment ends with the group that has no room in it: one write more, with the header of the next segment.
        writes += done.writes - free.saturating_sub(free_segments(store));
        write_bytes += done.write_bytes;
        barriers += done.flushes + done.fua_writes;
    }
    let mean = |total: u64| total as f64 / count as f64;
    Ok(OperationCost { writes: mean(writes), write_bytes: mean(write_bytes), barriers: mean(barriers) })
}

pub(super) fn count(scratch: &Path, backend: BackendKind, count: u64, report: &mut Report) -> Result<()> {
    let path = scratch.join(backend.name());
    let mut store = BenchStore::in_file(&path, STORE_BYTES, backend)?;
    let store = &mut store;
    let name = backend.name();
    for bytes in [512, 4000] {
        let stream = store.create(ObjectKind::Stream)?;
        let payload = Bytes::from(vec![0x5a; bytes]);
        let cost = counted(store, count, |store| store.append_frame(stream, &payload))?;
        let row = format!("{name}: durable append of {bytes} B to a stream");
        report.exactly(format!("{row}: writes"), cost.writes, "", 1.0);
        report.exactly(format!("{row}: flushes or FUA"), cost.barriers, "", 1.0);
        report.fact(format!("{row}: bytes written"), cost.write_bytes, "B");
    }
    for objects in [1_u64, 3] {
        let payload = Bytes::from(vec![0xa5; 64 << 10]);
        let cost = counted(store, count, |store| {
            let ops = new_objects(store, objects, &payload);
            store.commit(ops, Ack::Durable)
        })?;
        let row = format!("{name}: durable commit of {objects} new objects of 64 KiB");
        let writes = if backend == BackendKind::Log { 1.0 } else { objects as f64 + 1.0 };
        report.at_most(format!("{row}: writes"), cost.writes, "", writes);
        report.exactly(format!("{row}: flushes or FUA"), cost.barriers, "", 1.0);
    }
    table_manifest_log(store, name, count, report)?;
    ordered_and_rest(store, name, count, report)
}

/// The work of an engine's flush: publish a table, append to the manifest, drop the old log.
fn table_manifest_log(store: &mut BenchStore, name: &str, count: u64, report: &mut Report) -> Result<()> {
    let manifest = store.create(ObjectKind::Plain)?;
    let log = store.create(ObjectKind::Stream)?;
    let entry = Bytes::from(vec![1; 200]);
    let table = vec![0x77; 256 << 10];
    let mut manifest_len = 0;
    let mut frame = 0;
    let cost = counted(store, count, |store| {
        store.append_frame(log, &entry)?;
        let id = store.fresh_id();
        let mut writer = store.store.writer(id, options(ObjectKind::Sealed, table.len() as u64))?;
        writer.append(&table)?;
        let ops = vec![
            Op::Publish(writer.finish()?),
            Op::Append { id: manifest, at: manifest_len, data: entry.clone() },
            Op::TrimStream { id: log, upto: FramePos(frame) },
        ];
        manifest_len += entry.len() as u64;
        frame += 1;
        store.commit(ops, Ack::Durable)
    })?;
    // One write with its barrier belongs to the log entry before.
    let row = format!("{name}: table of 256 KiB + manifest + drop of log");
    report.exactly(format!("{row}: flushes or FUA"), cost.barriers - 1.0, "", 1.0);
    report.fact(format!("{row}: writes"), cost.writes - 1.0, "");
    Ok(())
}

fn ordered_and_rest(store: &mut BenchStore, name: &str, count: u64, report: &mut Report) -> Result<()> {
    let create = |store: &mut BenchStore, ack| {
        let id = store.fresh_id();
        store.commit(vec![Op::Create { id, opts: options(ObjectKind::Plain, 0) }], ack).map(|()| id)
    };
    let cost = counted(store, count, |store| create(store, Ack::Ordered).map(drop))?;
    report.exactly(format!("{name}: ordered commit: flushes or FUA"), cost.barriers, "", 0.0);
    let mut created = Vec::new();
    for (what, creates) in [("create of an object", true), ("delete of an object", false)] {
        let cost = counted(store, count, |store| {
            if creates {
                created.push(create(store, Ack::Durable)?);
                return Ok(());
            }
            let id = created.pop().context("an object for each delete")?;
            store.commit(vec![Op::Delete { id }], Ack::Durable)
        })?;
        report.exactly(format!("{name}: durable {what}: writes"), cost.writes, "", 1.0);
        report.exactly(format!("{name}: durable {what}: flushes or FUA"), cost.barriers, "", 1.0);
    }
    create(store, Ack::Durable)?;
    let before = store.counters();
    store.store.checkpoint()?;
    let cost = store.counters() - before;
    report.fact(format!("{name}: checkpoint: writes"), cost.writes as f64, "");
    let barriers = cost.flushes + cost.fua_writes;
    report.fact(format!("{name}: checkpoint: flushes or FUA"), barriers as f64, "");
    Ok(())
}
