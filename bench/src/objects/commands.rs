//! `object-commands`: device commands of each operation; counts, not times.
//!
//! Counts are those of the store's own device handle. The same work on a journaled ext4 is counted at its
//! loop device. Each number is the mean over many operations, alone and in a row.

use super::{
    fresh,
    loop_device::{BlockCounters, Ext4Mount},
    stores::{FileStore, options},
};
use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::DeviceCounters;
use copal_object::{Ack, FramePos, ObjectKind, Op};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

const STORE_BYTES: u64 = 512 << 20;
const EXT4_BYTES: u64 = 1 << 30;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of store and loop device [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Number of operations of each kind
    #[arg(long, default_value_t = 200)]
    operations: u64,
}

pub(crate) fn run(root: &Path, arguments: &Options) -> Result<()> {
    let scratch =
        crate::default_below_cache(root, arguments.scratch.as_ref(), "bench").join("object-commands");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    cow(&scratch, arguments.operations, &mut report)?;
    hostfs(&scratch, arguments.operations, &mut report)?;
    ext4(&scratch, arguments.operations, &mut report)?;
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "object-commands")
}

fn cow(scratch: &Path, count: u64, report: &mut Report) -> Result<()> {
    let mut store = FileStore::make(&scratch.join("store"), STORE_BYTES)?;
    for bytes in [512, 4000] {
        let stream = store.create(ObjectKind::Stream)?;
        let payload = Bytes::from(vec![0x5a; bytes]);
        store.append_frame(stream, &payload)?;
        let cost = counted(&mut store, count, |store| store.append_frame(stream, &payload))?;
        let name = format!("cow: durable append of {bytes} B to a stream");
        report.exactly(format!("{name}: writes"), cost.writes, "", 1.0);
        report.exactly(format!("{name}: flushes or FUA"), cost.barriers, "", 1.0);
        report.fact(format!("{name}: bytes written"), cost.write_bytes, "B");
    }
    for objects in [1_u64, 3] {
        let payload = Bytes::from(vec![0xa5; 64 << 10]);
        let cost = counted(&mut store, count, |store| {
            let ops = new_objects(store, objects, &payload);
            store.commit(ops, Ack::Durable)
        })?;
        let name = format!("cow: durable commit of {objects} new objects of 64 KiB");
        report.at_most(format!("{name}: writes"), cost.writes, "", objects as f64 + 1.0);
        report.exactly(format!("{name}: flushes or FUA"), cost.barriers, "", 1.0);
    }
    table_manifest_log(&mut store, count, report)?;
    let cost = counted(&mut store, count, |store| {
        let id = store.fresh_id();
        store.commit(vec![Op::Create { id, opts: options(ObjectKind::Plain, 0) }], Ack::Ordered)
    })?;
    report.exactly("cow: ordered commit: flushes or FUA", cost.barriers, "", 0.0);
    Ok(())
}

/// The work of an engine's flush: publish a table, append to the manifest, drop the old log.
fn table_manifest_log(store: &mut FileStore, count: u64, report: &mut Report) -> Result<()> {
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
    // One barrier belongs to the log entry before.
    report.exactly("cow: table + manifest + drop of log: flushes or FUA", cost.barriers - 1.0, "", 1.0);
    report.fact("cow: table of 256 KiB + manifest + drop of log: writes", cost.writes - 1.0, "");
    Ok(())
}

/// Means per operation.
struct Cost {
    writes: f64,
    write_bytes: f64,
    /// Flushes, and writes that are durable by themselves (FUA).
    barriers: f64,
}

fn counted(
    store: &mut FileStore,
    count: u64,
    mut operation: impl FnMut(&mut FileStore) -> Result<()>,
) -> Result<Cost> {
    let before = store.counters();
    for _ in 0..count {
        operation(store)?;
    }
    let DeviceCounters { writes, write_bytes, fua_writes, flushes, .. } = store.counters() - before;
    let mean = |total: u64| total as f64 / count as f64;
    Ok(Cost { writes: mean(writes), write_bytes: mean(write_bytes), barriers: mean(flushes + fua_writes) })
}

/// The control: the same store over files of a journaled ext4, counted at its loop device.
fn hostfs(scratch: &Path, count: u64, report: &mut Report) -> Result<()> {
    let home = scratch.join("hostfs");
    fs::create_dir_all(&home)?;
    let device = Ext4Mount::make(&home, EXT4_BYTES)?;
    let mut store = FileStore::in_directory(&device.directory().join("store"))?;
    let stream = store.create(ObjectKind::Stream)?;
    let payload = Bytes::from(vec![0x5a; 512]);
    store.append_frame(stream, &payload)?;
    let before = device.counters()?;
    for _ in 0..count {
        store.append_frame(stream, &payload)?;
    }
    control(report, "hostfs: durable append of 512 B to a stream", device.counters()? - before, count);
    for objects in [1_u64, 3] {
        let payload = Bytes::from(vec![0xa5; 64 << 10]);
        let before = device.counters()?;
        for _ in 0..count {
            let ops = new_objects(&mut store, objects, &payload);
            store.commit(ops, Ack::Durable)?;
        }
        let name = format!("hostfs: durable commit of {objects} new objects of 64 KiB");
        control(report, &name, device.counters()? - before, count);
    }
    drop(store);
    Ok(())
}

fn control(report: &mut Report, name: &str, cost: BlockCounters, count: u64) {
    let mean = |total: u64| total as f64 / count as f64;
    report.fact(format!("{name}: writes and bare flushes"), mean(cost.writes), "");
    report.fact(format!("{name}: flushes"), mean(cost.flushes), "");
    report.fact(format!("{name}: bytes written"), mean(cost.write_bytes), "B");
}

fn new_objects(store: &mut FileStore, objects: u64, payload: &Bytes) -> Vec<Op> {
    let mut ops = Vec::new();
    for _ in 0..objects {
        let id = store.fresh_id();
        ops.push(Op::Create { id, opts: options(ObjectKind::Plain, 64 << 10) });
        ops.push(Op::Append { id, at: 0, data: payload.clone() });
    }
    ops
}

fn ext4(scratch: &Path, count: u64, report: &mut Report) -> Result<()> {
    let device = Ext4Mount::make(scratch, EXT4_BYTES)?;
    for bytes in [512, 4096] {
        let mut file = File::create_new(device.directory().join(format!("log{bytes}")))?;
        let payload = vec![0x5a; bytes];
        file.write_all(&payload)?;
        file.sync_all()?;
        let before = device.counters()?;
        for _ in 0..count {
            file.write_all(&payload)?;
            rustix::fs::fdatasync(&file)?;
        }
        let BlockCounters { writes, write_bytes, flushes } = device.counters()? - before;
        let name = format!("ext4: append of {bytes} B + fdatasync");
        let mean = |total: u64| total as f64 / count as f64;
        report.fact(format!("{name}: writes and bare flushes"), mean(writes), "");
        report.fact(format!("{name}: flushes"), mean(flushes), "");
        report.fact(format!("{name}: bytes written"), mean(write_bytes), "B");
    }
    let before = device.counters()?;
    let payload = vec![0xa5; 64 << 10];
    for index in 0..count {
        for part in 0..3 {
            let mut file = File::create_new(device.directory().join(format!("object{index}-{part}")))?;
            file.write_all(&payload)?;
            file.sync_all()?;
        }
        File::open(device.directory())?.sync_all()?;
    }
    let cost = device.counters()? - before;
    report.fact(
        "ext4: 3 new files of 64 KiB, each fsynced, and the directory: writes and bare flushes",
        cost.writes as f64 / count as f64,
        "",
    );
    report.fact("ext4: the same: flushes", cost.flushes as f64 / count as f64, "");
    Ok(())
}
