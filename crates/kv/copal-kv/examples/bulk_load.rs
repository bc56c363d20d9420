//! Loading many keys that are sorted already: past log and memtable, straight into tables, visible all at
//! once.
//!
//! `cargo run --release -p copal-kv --example bulk_load`

#![expect(clippy::print_stdout, reason = "an example talks to whoever runs it")]

use copal_device::MemoryDevice;
use copal_kv::{Durability, KeyspaceOptions, Options, Store};
use copal_object::{Ack, MkfsOptions, OpenOptions, Store as Objects, Txn};
use std::error::Error;

const KEYS: u64 = 200_000;

fn load(sorted: bool) -> Result<u64, Box<dyn Error>> {
    let device = MemoryDevice::new(512 << 20);
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _recovery) = Objects::open(device, &OpenOptions::default())?;
    let store = Store::open(objects.clone(), Options::default())?;
    let space = store.keyspace("rows", KeyspaceOptions::default())?;
    let before = store.stats().device_write_bytes;
    if sorted {
        let mut ingest = space.ingest_writer()?;
        for i in 0..KEYS {
            ingest.put(&i.to_be_bytes(), &[7; 100])?;
        }
        assert_eq!(space.get(&1u64.to_be_bytes())?, None, "nothing is seen before the end");
        ingest.finish()?;
    } else {
        for i in 0..KEYS {
            space.put(&i.to_be_bytes(), &[7; 100], Durability::Deferred)?;
        }
        store.flush()?;
    }
    objects.commit(Txn::default(), Ack::Durable).wait()?;
    assert_eq!(space.prefix(b"").keys_only().count() as u64, KEYS);
    let written = store.stats().device_write_bytes - before;
    store.close()?;
    Ok(written)
}

fn main() -> Result<(), Box<dyn Error>> {
    let user = KEYS * 108;
    for (name, sorted) in [("puts", false), ("ingest", true)] {
        let written = load(sorted)?;
        println!(
            "{name}: {} MB of keys and values, {} MB written, {:.2} times as much",
            user / 1_000_000,
            written / 1_000_000,
            written as f64 / user as f64
        );
    }
    Ok(())
}
