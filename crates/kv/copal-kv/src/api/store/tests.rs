//! Locks at the end of a session, step by step.

use super::*;
use crate::open::close;
use copal_device::{Device, Image, MemoryDevice};
use copal_object::{MkfsOptions, OpenOptions};
use std::sync::Barrier;

const SIZE: u64 = 64 << 20;

/// Symptom: `close` and a thread that holds the writer lock waited for each other forever. Cause: `close`
/// locked the worker's step and then the writer; the other thread, as a put into a full store does, the
/// writer and then the step. Fix: the writer comes first everywhere.
#[test]
fn settling_locks_the_writer_before_the_step_as_a_put_into_a_full_store_does() {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
    copal_object::Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &OpenOptions::default()).unwrap();
    let options = Options { memory_bytes: 4 << 20, ..Options::default() };
    let store = Store::open(objects, options).unwrap();
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
