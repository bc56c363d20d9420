//! The conformance suite of `VolumeStore` on the embedded store.

use crate::stack::{MIB, format, fresh, open};
use copal_device::{FileOptions, open_file};

#[test]
fn the_store_keeps_every_promise_on_a_device_in_memory() {
    copal_volume::conformance::run(&|| Box::new(fresh()));
}

#[test]
fn the_store_keeps_every_promise_on_a_file() {
    let directory = tempfile::tempdir().expect("scratch directory");
    let made = std::cell::Cell::new(0);
    copal_volume::conformance::run(&|| {
        made.set(made.get() + 1);
        let path = directory.path().join(format!("store-{}", made.get()));
        let options = FileOptions { create_size: Some(128 * MIB), allow_cow: true, ..FileOptions::default() };
        let device = open_file(&path, &options).expect("a preallocated file");
        format(&device);
        let store = open(&device);
        // The handle keeps the file alive; its space is freed at the end of the case.
        std::fs::remove_file(&path).expect("unlink");
        Box::new(store)
    });
}
