//! Opening a store, writing with three levels of durability, a batch over two keyspaces, reopening.
//!
//! `cargo run -p copal-kv --example quick_start`

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use copal_kv::{Durability, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{error::Error, path::Path};

fn open(path: &Path) -> Result<(Objects, Store), Box<dyn Error>> {
    let (objects, _recovery) = Objects::open_dir(path, &OpenOptions::default())?;
    let options = Options { memory_bytes: 16 << 20, ..Options::default() };
    let store = Store::open(objects.clone(), options)?;
    Ok((objects, store))
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("store");
    Objects::mkfs_dir(&path, &MkfsOptions::default())?;
    let (objects, store) = open(&path)?;
    let names = store.keyspace("names", KeyspaceOptions::default())?;
    let mails = store.keyspace("mails", KeyspaceOptions::default())?;

    // Survives power loss; survives a kill; survives once the log is written anyway.
    names.put(b"ada", b"1", Durability::Device)?;
    names.put(b"bob", b"2", Durability::Process)?;
    names.put(b"cyd", b"3", Durability::Deferred)?;

    // Both keyspaces change atomically. A large value is written directly to a value object.
    let mut batch = store.batch();
    batch.put(&mails, b"1/0001", vec![b'x'; 300_000].into());
    batch.put(&names, b"ada", b"1, one mail".as_slice().into());
    batch.commit(Durability::Device)?;

    let part = mails.get_range(b"1/0001", 1000..1010)?;
    println!("ten bytes of a mail of 300 kB: {part:?}");
    store.close()?;
    objects.close()?;
    drop((names, mails, store, objects));

    let (objects, store) = open(&path)?;
    let Some(names) = store.open_keyspace("names")? else {
        return Err("the keyspace was stored durably".into());
    };
    for entry in names.prefix(b"") {
        let (key, value) = entry?;
        println!("{} -> {}", key.escape_ascii(), value.escape_ascii());
    }
    store.close()?;
    objects.close()?;
    Ok(())
}
