//! `object-open`: reads of an opening, counted, with the time that they take on the model of a hard disk.
//!
//! Stores are made and opened on the model in virtual time, where zeros that are written take no memory. The head moves
//! over the store only: on a larger disk a seek within the store is shorter.

use super::stores::options;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Args;
use copal_bench_harness::{model_disk::ModelDisk, report::Report};
use copal_device::DeviceCounters;
use copal_object::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, ObjectKind, OpenOptions, ReadCheck, Store, Txn,
};
use std::path::Path;

const MIB: u64 = 1 << 20;
const STREAMS: u64 = 1000;
const RECORDS: u64 = 14_000;

#[derive(Args)]
pub(crate) struct Options {}

/// A store before its opening, and the reads that the opening may take.
struct OpeningCase {
    name: &'static str,
    store_bytes: u64,
    /// Size of the journal; `None`: the default.
    journal_bytes: Option<u64>,
    /// Works on a new store.
    fill: fn(&Store) -> Result<()>,
    /// Closes the store at the end; otherwise its process is killed.
    closes: bool,
    /// Targets; `None`: a fact.
    most_reads: Option<f64>,
    most_mib: Option<f64>,
}

const CASES: [OpeningCase; 6] = [
    OpeningCase {
        name: "empty, closed",
        store_bytes: 1 << 30,
        journal_bytes: None,
        fill: |_| Ok(()),
        closes: true,
        most_reads: Some(24.0),
        most_mib: None,
    },
    OpeningCase {
        name: "200 MiB of frames, closed",
        store_bytes: 512 * MIB,
        journal_bytes: None,
        fill: frames,
        closes: true,
        most_reads: Some(24.0),
        most_mib: Some(4.0),
    },
    OpeningCase {
        name: "1,000 streams, closed",
        store_bytes: 4 << 30,
        journal_bytes: None,
        fill: streams,
        closes: true,
        most_reads: Some((STREAMS + 24) as f64),
        most_mib: Some(68.0),
    },
    OpeningCase {
        name: "1,000 streams, killed",
        store_bytes: 4 << 30,
        journal_bytes: None,
        fill: streams,
        closes: false,
        most_reads: None,
        most_mib: None,
    },
    OpeningCase {
        name: "14,000 records of a page, killed",
        store_bytes: 1 << 30,
        journal_bytes: Some(128 * MIB),
        fill: records,
        closes: false,
        most_reads: Some(120.0),
        most_mib: Some(128.0),
    },
    OpeningCase {
        name: "1 GiB published without a flush, killed",
        store_bytes: 3 << 30,
        journal_bytes: None,
        fill: published,
        closes: false,
        most_reads: Some(300.0),
        most_mib: Some(128.0),
    },
];

pub(crate) fn run(root: &Path, _options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    for backend in [BackendKind::Cow, BackendKind::Log] {
        for case in &CASES {
            open(backend, case, &mut report).with_context(|| format!("{}: {}", backend.name(), case.name))?;
        }
    }
    report.note("Seconds are of the HDD model; the processor time of an opening is not in them.");
    report.finish(root, "object-open")
}

fn open(backend: BackendKind, case: &OpeningCase, report: &mut Report) -> Result<()> {
    let device = ModelDisk::Hdd.device(case.store_bytes);
    let journal_bytes = case.journal_bytes.filter(|_| backend == BackendKind::Cow);
    Store::mkfs(&device, &MkfsOptions { backend, journal_bytes, ..MkfsOptions::default() })?;
    let (store, _) = Store::open(device.clone(), &OpenOptions::default())?;
    (case.fill)(&store)?;
    if case.closes {
        store.close()?;
    }
    drop(store);
    let (before, begin) = (device.counters(), device.clock().now());
    let (store, found) = Store::open(device.clone(), &OpenOptions::default())?;
    let seconds = device.clock().since(begin).as_secs_f64();
    ensure!(found.damaged_streams.is_empty() && found.tail_lost.is_none(), "{found:?}");
    let DeviceCounters { reads: count, read_bytes, .. } = device.counters() - before;
    let row = format!("{}: {}", backend.name(), case.name);
    let mib = read_bytes as f64 / MIB as f64;
    for (row, value, unit, most) in [
        (format!("{row}: reads"), count as f64, "", case.most_reads),
        (format!("{row}: MiB read"), mib, "MiB", case.most_mib),
    ] {
        match most {
            Some(most) => report.at_most(row, value, unit, most),
            None => report.fact(row, value, unit),
        }
    }
    report.fact(format!("{row}: seconds of the HDD model"), seconds, "s");
    drop(store);
    Ok(())
}

fn zeros(len: u64) -> Bytes {
    Bytes::from(vec![0; len as usize])
}

fn frames(store: &Store) -> Result<()> {
    let log = ObjectId(1);
    store.commit(Txn::new().create(log, options(ObjectKind::Stream, 0)), Ack::Durable).wait()?;
    for _ in 0..800 {
        store.append_frame(log, zeros(256 << 10), None, Ack::Ordered).wait()?;
    }
    Ok(())
}

fn streams(store: &Store) -> Result<()> {
    let mut txn = Txn::new();
    for id in 1..=STREAMS {
        txn = txn.create(ObjectId(id), options(ObjectKind::Stream, 0));
    }
    store.commit(txn, Ack::Durable).wait()?;
    for frame in 0..5 {
        for id in 1..=STREAMS {
            store.append_frame(ObjectId(id), zeros(5000 * frame), None, Ack::Ordered).wait()?;
        }
    }
    Ok(())
}

fn records(store: &Store) -> Result<()> {
    let id = ObjectId(2);
    for round in 0..RECORDS {
        let txn = match round % 2 {
            0 => Txn::new().create(id, options(ObjectKind::Plain, 0)),
            _ => Txn::new().delete(id),
        };
        store.commit(txn, Ack::Durable).wait()?;
    }
    Ok(())
}

fn published(store: &Store) -> Result<()> {
    let part = vec![0; MIB as usize];
    for id in 1..=64 {
        // The caller checks its reads, as the engine does.
        let opts = CreateOptions { check: ReadCheck::Caller, ..options(ObjectKind::Sealed, 16 * MIB) };
        let mut writer = store.writer(ObjectId(id), opts)?;
        for _ in 0..16 {
            writer.append(&part)?;
        }
        store.commit(Txn::new().publish(writer.finish()?), Ack::Ordered).wait()?;
    }
    Ok(())
}
