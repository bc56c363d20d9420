//! Operations of a store in a file or in files, and the same work by hand, counted at the loop device below the file
//! system.

use crate::objects::{
    fresh,
    stores::{BenchStore, new_objects},
};
use anyhow::Result;
use bytes::Bytes;
use copal_bench_harness::{
    mounted_disk::{FileSystem, MountedDisk},
    report::Report,
};
use copal_object::{Ack, BackendKind, FramePos, ObjectKind, Op};
use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

const DISK_BYTES: u64 = 1 << 30;
/// A store in a file: segments of 2 MiB.
const STORE_BYTES: u64 = 256 << 20;
/// Appends of two pages that fill eight segments.
const SEGMENT_APPENDS: u64 = 2048;

pub(super) fn count(scratch: &Path, count: u64, report: &mut Report) -> Result<()> {
    for system in [FileSystem::Ext4, FileSystem::Xfs] {
        if let Some(reason) = system.obstacle() {
            report.note(format!("{}: skipped, {reason}.", system.name()));
            continue;
        }
        let home = scratch.join("mounted");
        fresh(&home)?;
        let disk = MountedDisk::make(&home, DISK_BYTES, system)?;
        for backend in [BackendKind::Cow, BackendKind::Log] {
            store_in_file(&disk, system, backend, report)?;
        }
        store_of_files(&disk, system, count, report)?;
        by_hand(&disk, system, count, report)?;
        drop(disk);
        fs::remove_dir_all(&home)?;
    }
    Ok(())
}

/// Runs the operation and adds its mean commands.
fn counted(
    disk: &MountedDisk,
    name: &str,
    count: u64,
    report: &mut Report,
    mut operation: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    let before = disk.counters()?;
    for number in 0..count {
        operation(number)?;
    }
    let cost = disk.counters()? - before;
    let mean = |total: u64| total as f64 / count as f64;
    report.fact(format!("{name}: writes and bare flushes"), mean(cost.writes), "");
    report.fact(format!("{name}: flushes"), mean(cost.flushes), "");
    report.fact(format!("{name}: bytes written"), mean(cost.write_bytes), "B");
    Ok(())
}

/// Appends over many segments, so that headers and zeros are counted too.
fn store_in_file(
    disk: &MountedDisk,
    system: FileSystem,
    backend: BackendKind,
    report: &mut Report,
) -> Result<()> {
    let path = disk.directory().join(backend.name());
    let mut store = BenchStore::in_file(&path, STORE_BYTES, backend)?;
    let name = format!("{} in a file on {}", backend.name(), system.name());
    let stream = store.create(ObjectKind::Stream)?;
    let payload = Bytes::from(vec![0x5a; 512]);
    (0..SEGMENT_APPENDS).try_for_each(|_| store.append_frame(stream, &payload))?;
    let row = format!("{name}: durable append of 512 B to a stream");
    counted(disk, &row, SEGMENT_APPENDS, report, |_| store.append_frame(stream, &payload))?;
    drop(store);
    Ok(fs::remove_file(path)?)
}

fn store_of_files(disk: &MountedDisk, system: FileSystem, count: u64, report: &mut Report) -> Result<()> {
    let mut store = BenchStore::in_directory(&disk.directory().join("store"))?;
    let name = format!("hostfs on {}", system.name());
    let stream = store.create(ObjectKind::Stream)?;
    let payload = Bytes::from(vec![0x5a; 512]);
    store.append_frame(stream, &payload)?;
    let row = format!("{name}: durable append of 512 B to a stream");
    counted(disk, &row, count, report, |_| store.append_frame(stream, &payload))?;
    for objects in [1_u64, 3] {
        let payload = Bytes::from(vec![0xa5; 64 << 10]);
        let row = format!("{name}: durable commit of {objects} new objects of 64 KiB");
        counted(disk, &row, count, report, |_| {
            let ops = new_objects(&mut store, objects, &payload);
            store.commit(ops, Ack::Durable)
        })?;
    }
    let manifest = store.create(ObjectKind::Plain)?;
    let row = format!("{name}: table of 256 KiB + manifest + drop of log");
    let (table, entry) = (Bytes::from(vec![0x77; 256 << 10]), Bytes::from(vec![1; 200]));
    counted(disk, &row, count, report, |number| {
        let mut ops = new_objects(&mut store, 1, &table);
        ops.push(Op::Append { id: manifest, at: number * 200, data: entry.clone() });
        ops.push(Op::TrimStream { id: stream, upto: FramePos(number) });
        store.commit(ops, Ack::Durable)
    })
}

/// A careful program: it syncs each file, and the directory when names changed.
fn by_hand(disk: &MountedDisk, system: FileSystem, count: u64, report: &mut Report) -> Result<()> {
    let directory = disk.directory();
    let name = format!("by hand on {}", system.name());
    let sync_names = || File::open(directory)?.sync_all();
    for bytes in [512, 4096] {
        let mut file = File::create_new(directory.join(format!("log{bytes}")))?;
        let payload = vec![0x5a; bytes];
        file.write_all(&payload)?;
        file.sync_all()?;
        counted(disk, &format!("{name}: append of {bytes} B + fdatasync"), count, report, |_| {
            file.write_all(&payload)?;
            Ok(rustix::fs::fdatasync(&file)?)
        })?;
    }
    let new_file = |name: String, bytes: usize| -> Result<()> {
        let mut file = File::create_new(directory.join(name))?;
        file.write_all(&vec![0xa5; bytes])?;
        Ok(file.sync_all()?)
    };
    for parts in [1, 3] {
        let row = format!("{name}: {parts} new files of 64 KiB, each synced, and their directory");
        counted(disk, &row, count, report, |number| {
            for part in 0..parts {
                new_file(format!("object{parts}-{number}-{part}"), 64 << 10)?;
            }
            Ok(sync_names()?)
        })?;
    }
    let mut manifest = OpenOptions::new().create(true).append(true).open(directory.join("manifest"))?;
    let row = format!("{name}: table of 256 KiB + manifest + drop of log");
    counted(disk, &row, count, report, |number| {
        new_file(format!("table{number}"), 256 << 10)?;
        sync_names()?;
        manifest.write_all(&[1; 200])?;
        rustix::fs::fdatasync(&manifest)?;
        fs::remove_file(directory.join(format!("object1-{number}-0")))?;
        Ok(sync_names()?)
    })
}
