//! One durable put, or one get of a key in a table: the call that `cargo xtask callpath` measures.
//!
//! `cargo run -p copal-kv --example put_get_once -- put`

use copal_device::{Device, FileOptions, open_file};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{env, error::Error, hint::black_box, path::Path, sync::Arc};

/// Keys in the table of the get: enough for several partitions.
const KEYS: u32 = 10_000;
const DEVICE_BYTES: u64 = 64 << 20;
const VALUE: &[u8] = &[b'v'; 100];

/// Puts one key; callgrind finds the function by its name.
#[inline(never)]
fn measured_put(names: &Keyspace) -> Result<(), copal_kv::Error> {
    black_box(names.put(b"name", VALUE, Durability::Device))
}

/// Gets one key; callgrind finds the function by its name.
#[inline(never)]
fn measured_get(names: &Keyspace) -> Result<bool, copal_kv::Error> {
    let value = names.get(&black_box(KEYS / 2).to_be_bytes())?;
    Ok(black_box(value).is_some())
}

/// The device in a new file of this size, or in an existing file. Without io_uring, since valgrind does not
/// support all of its calls.
fn device(path: &Path, create_size: Option<u64>) -> Result<Arc<dyn Device>, Box<dyn Error>> {
    let options =
        FileOptions { create_size, force_pread: true, unsafe_volatile: true, ..FileOptions::default() };
    Ok(open_file(path, &options)?)
}

/// Makes a store with one table.
fn prepare(path: &Path) -> Result<(), Box<dyn Error>> {
    let device = device(path, Some(DEVICE_BYTES))?;
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _recovery) = Objects::open(device, &OpenOptions::default())?;
    let store = Store::open(objects.clone(), Options::default())?;
    let names = store.keyspace("names", KeyspaceOptions::default())?;
    for number in 0..KEYS {
        names.put(&number.to_be_bytes(), VALUE, Durability::Deferred)?;
    }
    store.flush()?;
    store.close()?;
    objects.close()?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let operation = env::args().nth(1).ok_or("name the operation: put or get")?;
    let scratch = tempfile::tempdir()?;
    let path = scratch.path().join("store");
    prepare(&path)?;
    let (objects, _recovery) = Objects::open(device(&path, None)?, &OpenOptions::default())?;
    let store = Store::open(objects.clone(), Options::default())?;
    let names = store.open_keyspace("names")?.ok_or("the keyspace was stored durably")?;
    match operation.as_str() {
        "put" => measured_put(&names)?,
        "get" if measured_get(&names)? => {}
        "get" => return Err("the key was stored durably".into()),
        other => return Err(format!("no such operation: {other}").into()),
    }
    store.close()?;
    objects.close()?;
    Ok(())
}
