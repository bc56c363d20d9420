//! Repeatable reads, iterators in both directions, and deletion of a prefix at once.
//!
//! `cargo run -p copal-kv --example snapshots_and_scans`

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use copal_device::MemoryDevice;
use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    error::Error,
    ops::Bound::{Excluded, Included, Unbounded},
};

fn store() -> Result<(Store, Keyspace), Box<dyn Error>> {
    let device = MemoryDevice::new(64 << 20);
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _recovery) = Objects::open(device, &OpenOptions::default())?;
    let store = Store::open(objects, Options::default())?;
    let mails = store.keyspace("mails", KeyspaceOptions::default())?;
    for user in ["ada", "bob", "cyd"] {
        for number in 0..5 {
            let key = format!("{user}/{number}");
            mails.put(key.as_bytes(), b"hello", Durability::Process)?;
        }
    }
    Ok((store, mails))
}

fn main() -> Result<(), Box<dyn Error>> {
    let (store, mails) = store()?;

    // A snapshot does not change with later writes.
    let before = store.snapshot();
    mails.put(b"ada/9", b"late", Durability::Process)?;
    mails.purge_prefix(b"bob/", Durability::Process)?;
    let count = before.iter(&mails, (Unbounded, Unbounded)).keys_only().count();
    println!("now {} mails, at the snapshot {count}", mails.prefix(b"").count());

    // Ascending and descending, also from both ends of one iterator.
    let range = (Included(&b"ada/"[..]), Excluded(&b"ada0"[..]));
    let newest: Result<Vec<_>, _> = mails.iter(range).rev().take(2).collect();
    for (key, value) in newest? {
        println!("{} -> {}", key.escape_ascii(), value.escape_ascii());
    }

    drop(before);
    store.close()?;
    Ok(())
}
