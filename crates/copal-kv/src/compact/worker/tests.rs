//! The worker, a step at a time, on the real object layer.

use super::*;
use crate::{
    Durability, Options,
    commit::{Write, WriteOp},
    entry::MAX_SEQ,
    key::KeyspaceId,
    manifest::format::Level,
    read::{Kept, Want},
    recovery,
};
use bytes::Bytes;
use copal_device::{Device, Image, MemoryDevice};
use copal_object::{MkfsOptions, OpenOptions};

fn worker() -> Worker {
    const SIZE: u64 = 128 << 20;
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
    copal_object::Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &OpenOptions::default()).unwrap();
    let options = Options {
        memory_bytes: 4 << 20,
        // Tiers fill up before anything goes to the bottom.
        bottom_share: 0,
        table_bytes: 1 << 20,
        ..Options::default()
    };
    let (engine, values) = recovery::open(objects, options).unwrap();
    Worker::new(engine, values)
}

impl Worker {
    fn key(i: u64) -> Bytes {
        KeyspaceId(1).key(&i.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())
    }

    /// One memtable, frozen and flushed.
    fn flushed_memtable(&mut self, round: u64) {
        for i in 0..500 {
            let value = Bytes::from(vec![round as u8; 700]);
            let key = Worker::key((i * 7 + round) % 3000);
            let write = Write::new(vec![WriteOp::Put { key, value }], Durability::Process);
            self.engine.commit(write).unwrap();
        }
        let engine = self.engine.clone();
        engine.rotate(&mut engine.writer.lock()).unwrap();
        assert!(engine.flush_all(&mut self.values).unwrap());
    }

    fn runs(&self, level: u8) -> usize {
        self.engine.view().version.level(Level(level)).count()
    }
}

/// A deep merge is under way, four flushes come: the first tier is merged before the deep merge goes on, and both
/// come to their ends.
#[test]
fn a_first_tier_that_fills_up_goes_before_a_deeper_merge() {
    let mut worker = worker();
    let mut round = 0;
    while worker.jobs.last().map(|job| job.urgency) != Some(Urgency::Tier(Level(1))) {
        if !worker.job_step().unwrap() {
            round += 1;
            worker.flushed_memtable(round);
        }
        assert!(round < 64, "the second tier never filled");
    }
    let deep = worker.runs(1);
    for _ in 0..4 {
        round += 1;
        worker.flushed_memtable(round);
    }
    assert_eq!(worker.runs(0), 4);
    assert!(worker.job_step().unwrap());
    let urgencies = |worker: &Worker| worker.jobs.iter().map(|job| job.urgency).collect::<Vec<_>>();
    let (first, second) = (Urgency::Tier(Level(0)), Urgency::Tier(Level(1)));
    assert_eq!(urgencies(&worker), vec![second, first]);
    while worker.jobs.len() == 2 {
        worker.job_step().unwrap();
    }
    assert_eq!((worker.runs(0), urgencies(&worker)), (0, vec![second]));
    assert!(deep >= 4, "the deeper merge had its four runs");
    while worker.job_step().unwrap() {}
    assert_eq!(worker.runs(2), 1, "what the deeper merge wrote is one run");
    assert_eq!(worker.runs(1), 1, "what came in between is one run above it");
    let engine = worker.engine.clone();
    for key in 0..3000 {
        // The newest round that wrote the key.
        let newest = (1..=round).rev().find(|round| {
            let offset = (key + 3000 - round % 3000) % 3000;
            (0..500).any(|i| i * 7 % 3000 == offset)
        });
        let found = engine
            .get(
                &engine.view(),
                MAX_SEQ,
                &Worker::key(key),
                &Want::all(),
                Kept::Nothing,
            )
            .unwrap();
        assert_eq!(found.map(|value| u64::from(value[0])), newest, "key {key}");
    }
}
