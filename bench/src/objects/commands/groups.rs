//! Flushes of 16 writers that wait together: commits, frames in one stream, frames in 16 streams.
//!
//! The device is the model of a hard disk, in virtual time: the groups do not depend on the machine.

use crate::objects::stores::{BenchStore, new_objects};
use anyhow::{Context, Result};
use bytes::Bytes;
use copal_bench_harness::{model_disk::ModelDisk, report::Report};
use copal_device::{Completion, Device};
use copal_object::{Ack, BackendKind, ObjectKind, StoreError, Txn};
use std::sync::Arc;

const DEVICE_BYTES: u64 = 256 << 20;
const WRITERS: usize = 16;
const OPERATIONS: u64 = 1600;
/// Flushes of a durable operation.
const SHARE: f64 = 0.15;

/// A durable operation that has begun.
type Answer = Completion<Result<(), StoreError>>;

pub(super) fn count(backend: BackendKind, report: &mut Report) -> Result<()> {
    let payload = Bytes::from(vec![0x5a; 512]);
    for streams in [0, 1, WRITERS] {
        let device = ModelDisk::Hdd.device(DEVICE_BYTES);
        let mut store = BenchStore::on_device(&device, backend)?;
        let ids = (0..streams).map(|_| store.create(ObjectKind::Stream)).collect::<Result<Vec<_>>>()?;
        let before = store.counters();
        let begin = device.clock().now();
        together(&device, |number| match ids.get(number as usize % streams.max(1)) {
            Some(stream) => store
                .store
                .append_frame(*stream, payload.clone(), None, Ack::Durable)
                .map(|done| done.map(drop)),
            None => {
                let ops = new_objects(&mut store, 1, &payload);
                store.store.commit(Txn::new().ops(ops), Ack::Durable).map(|done| done.map(drop))
            }
        })?;
        let seconds = device.clock().since(begin).as_secs_f64();
        let cost = store.counters() - before;
        let each = |total: u64| total as f64 / OPERATIONS as f64;
        let what = match streams {
            0 => "commits of a small object".to_owned(),
            1 => "frames in one stream".to_owned(),
            streams => format!("frames in {streams} streams"),
        };
        let row = format!("{}, HDD model: {WRITERS} writers, {what}", backend.name());
        report.at_most(format!("{row}: flushes or FUA"), each(cost.flushes + cost.fua_writes), "", SHARE);
        report.fact(format!("{row}: writes"), each(cost.writes), "");
        report.fact(format!("{row}: a second"), OPERATIONS as f64 / seconds, "/s");
    }
    Ok(())
}

/// Runs the operations so that [`WRITERS`] of them wait at any time.
fn together(device: &Arc<dyn Device>, mut begin: impl FnMut(u64) -> Answer) -> Result<()> {
    let mut numbers = 0..OPERATIONS;
    let mut waiting: Vec<Answer> = numbers.by_ref().take(WRITERS).map(&mut begin).collect();
    while !waiting.is_empty() {
        // Nothing to serve: the store answered some of them without a command.
        device.drive();
        for mut answer in std::mem::take(&mut waiting) {
            match answer.try_take() {
                None => waiting.push(answer),
                Some(ended) => {
                    ended.context("an operation of a writer")?;
                    waiting.extend(numbers.next().map(&mut begin));
                }
            }
        }
    }
    Ok(())
}
