//! What the engine itself costs: loads, overwrites, look-ups and large values on a device in memory.
//!
//! `cargo run --release -p copal-kv --example engine -- [KEYS [TRACE]]`. Prints rates and amplification;
//! rates on a shared machine measure its scheduler, the counters do not. The look-ups are recorded into the
//! file TRACE, for `copal-sim rules --trace`.

use copal_device::{Device, MemoryDevice};
use copal_kv::{Durability, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    error::Error,
    sync::Arc,
    time::{Duration, Instant},
};

/// Spread over the key space, as hashes are.
fn key(i: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&copal_testkit::scattered(i).to_be_bytes());
    out[8..].copy_from_slice(&i.to_be_bytes());
    out
}

#[expect(clippy::print_stdout, reason = "an example that prints what it measured")]
fn row(what: &str, count: u64, bytes: u64, longest: Duration, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    let (rate, mib) = (count as f64 / seconds, bytes as f64 / seconds / f64::from(1 << 20));
    println!("{what:34} {rate:>10.0} /s {mib:>9.1} MiB/s   longest {longest:?}");
}

fn timed(
    what: &str,
    count: u64,
    bytes_each: u64,
    mut run: impl FnMut(u64) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let (began, mut longest) = (Instant::now(), Duration::ZERO);
    for i in 0..count {
        let one = Instant::now();
        run(i)?;
        longest = longest.max(one.elapsed());
    }
    row(what, count, count * bytes_each, longest, began);
    Ok(())
}

#[expect(clippy::print_stdout, reason = "an example that prints what it measured")]
fn main() -> Result<(), Box<dyn Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(300_000), |text| text.parse())?;
    let device: Arc<dyn Device> = MemoryDevice::new(256 << 20);
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _) = Objects::open(device.clone(), &OpenOptions::default())?;
    let store = Store::open(objects, Options::default())?;
    let space = store.keyspace("small", KeyspaceOptions::default())?;
    let value = [7u8; 200];
    timed("load, random, 216 B, deferred", keys, 216, |i| {
        Ok(space.put(&key(i), &value, Durability::Deferred)?)
    })?;
    let mut random = copal_testkit::Random::new(1);
    timed("overwrite, random, deferred", keys, 216, |_| {
        Ok(space.put(&key(random.below(keys)), &value, Durability::Deferred)?)
    })?;
    timed("put, durable", 20_000, 216, |i| Ok(space.put(&key(i), &value, Durability::Device)?))?;
    store.flush()?;
    let loaded = store.stats();
    println!("tables written / user bytes {:.2}", loaded.write_bytes as f64 / loaded.user_bytes as f64);
    if let Some(path) = std::env::args().nth(2) {
        store.record_gets(Box::new(std::fs::File::create(path)?))?;
    }
    let before = store.stats();
    timed("get, present", 100_000, 216, |_| {
        space.get(&key(random.below(keys)))?.ok_or("a key is missing")?;
        Ok(())
    })?;
    timed("get, absent", 100_000, 0, |i| {
        assert!(space.get(&key(keys + 1 + i))?.is_none());
        Ok(())
    })?;
    let after = store.stats();
    store.stop_recording_gets()?;
    timed("iterate", 1, keys * 216, |_| {
        assert_eq!(space.iter((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded)).count() as u64, keys);
        Ok(())
    })?;
    let large = vec![9u8; 1 << 20];
    let packs =
        store.keyspace("packs", KeyspaceOptions { group_prefix_len: 4, ..KeyspaceOptions::default() })?;
    timed("put 1 MiB, durable", 300, 1 << 20, |i| Ok(packs.put(&key(i), &large, Durability::Device)?))?;
    timed("get 1 MiB", 300, 1 << 20, |i| {
        packs.get(&key(i))?.ok_or("a value is missing")?;
        Ok(())
    })?;
    let stats = store.stats();
    println!("{stats:#?}");
    let gets = (after.gets - before.gets) as f64;
    println!("block reads per get {:.3}", (after.data_block_reads - before.data_block_reads) as f64 / gets);
    println!(
        "device writes / user bytes {:.2}",
        device.counters().write_bytes as f64 / stats.user_bytes as f64
    );
    store.close()?;
    Ok(())
}
