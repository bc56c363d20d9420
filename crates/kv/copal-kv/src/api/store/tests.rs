//! Locks at the end of a session, and a view that changes while a reader takes it, step by step.

use super::*;
use crate::{open::close, write::admission};
use copal_device::{Device, Image, MemoryDevice};
use copal_object::{MkfsOptions, OpenOptions};
use std::sync::Barrier;

const SIZE: u64 = 64 << 20;

fn store() -> Store {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
    copal_object::Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &OpenOptions::default()).unwrap();
    let options = Options { memory_bytes: 4 << 20, ..Options::default() };
    Store::open(objects, options).unwrap()
}

/// Symptom: `close` and a thread that holds the writer lock waited for each other forever. Cause: `close`
/// locked the worker's step and then the writer; the other thread, as a put into a full store does, the
/// writer and then the step. Fix: the writer comes first everywhere.
#[test]
fn settling_locks_the_writer_before_the_step_as_a_put_into_a_full_store_does() {
    let store = store();
    let engine = store.engine();
    for _ in 0..300 {
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            let writer = engine.writes.writer.lock();
            scope.spawn(|| {
                begun.wait();
                close::end_session(engine).unwrap();
            });
            begun.wait();
            let still = engine.compactor.stand_still();
            drop((still, writer));
        });
    }
}

/// Symptom: no test would have noticed a reader that took a view, and then a sequence whose write is in a memtable
/// of the next view: the reader misses that write. A model of threads reaches this moment too rarely.
#[test]
fn a_reader_takes_no_sequence_that_its_view_does_not_hold() {
    let store = store();
    let engine = store.engine();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let has_changed = std::cell::Cell::new(false);
    let (view, seq) = engine.view.now(|| {
        // Between the look at the view and the look at the sequence, once.
        if !has_changed.replace(true) {
            space.put(b"k", b"1", Durability::Process).unwrap();
            admission::rotate(engine, &mut engine.writes.writer.lock()).unwrap();
            space.put(b"k", b"2", Durability::Process).unwrap();
        }
        engine.snapshots.visible()
    });
    assert_eq!(view.active.last_seq(), seq, "the view holds the newest visible write");
}
