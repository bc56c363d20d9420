//! Every device runs the conformance suite.

use crate::scratch;
use copal_device::conformance::{Traits, run};
use copal_device::fault::{CompletionOrder, FaultDevice, FaultOptions};
use copal_device::{Device, FileOptions, Image, MemoryDevice, open_file};
use std::cell::Cell;
use std::sync::Arc;

const EXACT: Traits = Traits { grows: true, counts_exactly: true };

fn run_on_files(options: &FileOptions, engine: &str) {
    let directory = scratch();
    let number = Cell::new(0);
    let make = |size| -> Arc<dyn Device> {
        number.set(number.get() + 1);
        let path = directory.path().join(format!("device-{}", number.get()));
        let device = open_file(&path, &FileOptions { create_size: Some(size), ..options.clone() }).unwrap();
        assert_eq!(device.engine(), engine);
        device
    };
    run(&make, EXACT);
}

#[test]
fn memory() {
    run(&|size| MemoryDevice::new(size), EXACT);
}

#[test]
fn fault_device_in_every_order() {
    for order in
        [CompletionOrder::Immediate, CompletionOrder::Fifo, CompletionOrder::Lifo, CompletionOrder::Shuffled]
    {
        let options = FaultOptions { order, seed: 3, record: false, ..FaultOptions::default() };
        run(&|size| FaultDevice::with_options(Image::zeroed(size), options.clone()), EXACT);
    }
}

#[test]
fn fault_device_with_small_blocks() {
    let options = FaultOptions { logical_block: 512, record: false, ..FaultOptions::default() };
    run(&|size| FaultDevice::with_options(Image::zeroed(size), options.clone()), EXACT);
}

#[test]
fn file_by_io_uring_or_its_fallback() {
    let directory = scratch();
    let options = FileOptions { create_size: Some(8 << 20), ..FileOptions::default() };
    let engine = open_file(&directory.path().join("probe"), &options).unwrap().engine();
    run_on_files(&FileOptions::default(), engine);
}

#[test]
fn file_by_the_thread_pool() {
    run_on_files(&FileOptions { force_pread: true, ..FileOptions::default() }, "thread pool");
}

#[test]
fn file_with_holes_punched() {
    run_on_files(
        &FileOptions { punch_holes: true, force_pread: true, ..FileOptions::default() },
        "thread pool",
    );
}

/// Containers block io_uring; the engine then falls back to the pool.
#[test]
fn file_where_the_ring_is_refused() {
    let refused = crate::seccomp::without_io_uring(|| run_on_files(&FileOptions::default(), "thread pool"));
    assert!(refused.is_ok(), "the suite failed on the pool that took over");
}
