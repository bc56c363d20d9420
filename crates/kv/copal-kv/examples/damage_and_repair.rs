//! A bit of a table flips: reads that still work, and repair of the range from a copy.
//!
//! `cargo run -p copal-kv --example damage_and_repair`

#![expect(clippy::print_stdout, reason = "an example prints its results")]

use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    error::Error,
    ops::Bound::{Excluded, Included, Unbounded},
    path::{Path, PathBuf},
};

const KEYS: u32 = 20_000;

fn open(path: &Path) -> Result<(Store, Keyspace), Box<dyn Error>> {
    let (objects, _recovery) = Objects::open_dir(path, &OpenOptions::default())?;
    let store = Store::open(objects, Options::default())?;
    let rows = store.keyspace("rows", KeyspaceOptions::default())?;
    Ok((store, rows))
}

fn build(path: PathBuf) -> Result<PathBuf, Box<dyn Error>> {
    Objects::mkfs_dir(&path, &MkfsOptions::default())?;
    let (store, rows) = open(&path)?;
    for i in 0..KEYS {
        let value = format!("row number {i:08} of the table");
        rows.put(format!("{i:08}").as_bytes(), value.as_bytes(), Durability::Deferred)?;
    }
    rows.compact_range((Unbounded, Unbounded))?;
    store.close()?;
    store.objects().close()?;
    Ok(path)
}

/// Flips a bit in every file of the store that holds `needle`.
fn flip(path: &Path, needle: &[u8]) -> Result<(), Box<dyn Error>> {
    for file in std::fs::read_dir(path.join("objects"))? {
        let file = file?.path();
        let mut bytes = std::fs::read(&file)?;
        if let Some(at) = bytes.windows(needle.len()).position(|window| window == needle) {
            bytes[at] ^= 1;
            std::fs::write(&file, bytes)?;
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let path = build(scratch.path().join("store"))?;
    let (replica, copy) = open(&build(scratch.path().join("replica"))?)?;
    flip(&path, b"row number 00012345")?;

    let (store, rows) = open(&path)?;
    let scrubbed = store.scrub(u64::MAX)?.wait()?;
    println!("read {} kB, found: {:?}", scrubbed.done_bytes / 1000, scrubbed.damaged);
    if let Err(error) = rows.get(b"00012345") {
        println!("00012345 -> {error}");
    }
    println!("00000007 -> {:?}", rows.get(b"00000007")?);

    for range in store.damaged_ranges() {
        let end = range.end.as_deref().map_or(Unbounded, Excluded);
        let bounds = (Included(&range.start[..]), end);
        let report = rows.repair(bounds, copy.iter(bounds))?;
        println!("refilled {} entries", report.entries);
    }
    println!("00012345 -> {:?}", rows.get(b"00012345")?);
    println!("sound: {}", store.verify(true)?.is_sound());
    replica.close()?;
    store.close()?;
    Ok(())
}
