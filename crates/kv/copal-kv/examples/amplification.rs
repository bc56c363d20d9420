//! Device bytes per user byte: a random load, then steady overwriting of the same keys.
//!
//!     cargo run --release -p copal-kv --example amplification -- [MIB] [MEMORY_MIB]
//!
//! On a device in memory, so only bytes count. The log, both journals of the object layer and every flush and
//! merge are in the figures. Targets (kv.md, T8): 10 for the load, 15 for overwriting.

#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use copal_device::{Device, Image, MemoryDevice};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
use std::{error::Error, sync::Arc};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const VALUE_BYTES: usize = 1000;
const KEY_BYTES: u64 = 8;

struct Run {
    device: Arc<dyn Device>,
    store: Store,
    space: Keyspace,
    keys: u64,
    tag: u64,
}

impl Run {
    /// Writes keys in random order; prints what that cost the device.
    fn write(&mut self, what: &str, keys: impl Iterator<Item = u64>) -> Result<()> {
        let before = (self.device.counters().write_bytes, self.store.stats());
        let mut written = 0;
        for key in keys {
            self.tag += 1;
            let mut value = vec![0; VALUE_BYTES];
            value[..8].copy_from_slice(&self.tag.to_le_bytes());
            self.space.put(&key.to_be_bytes(), &value, Durability::Deferred)?;
            written += KEY_BYTES + VALUE_BYTES as u64;
        }
        self.store.flush()?;
        let stats = self.store.stats();
        let device = self.device.counters().write_bytes - before.0;
        let tables = stats.write_bytes - before.1.write_bytes;
        println!(
            "{what:<24} {:>6} MiB written, {:>5.2} device bytes per byte ({:.2} by flushes and merges), {} flushes, {} merge steps, {} MiB of debt",
            written >> 20,
            device as f64 / written as f64,
            tables as f64 / written as f64,
            stats.flushes - before.1.flushes,
            stats.merges - before.1.merges,
            stats.debt_bytes >> 20,
        );
        Ok(())
    }
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| match arguments.next() {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    let (mib, memory): (u64, u64) = (number(256)?, number(4)?);
    let size = (mib * 4) << 20;
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(size), size);
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default())?;
    let (objects, _) = copal_object::Store::open(device.clone(), &copal_object::OpenOptions::default())?;
    let options = Options { memory_bytes: memory << 20, table_bytes: 4 << 20, ..Options::default() };
    let store = Store::open(objects, options)?;
    let space = store.keyspace("a", KeyspaceOptions::default())?;
    let keys = (mib << 20) / (KEY_BYTES + VALUE_BYTES as u64);
    let mut run = Run { device, store, space, keys, tag: 0 };
    run.write("random load", (0..keys).map(copal_testkit::scattered))?;
    let keys = run.keys;
    let mut random = copal_testkit::Random::new(7);
    for round in 1..4 {
        let overwrites = (0..keys).map(|_| copal_testkit::scattered(random.below(keys)));
        run.write(&format!("overwrite, round {round}"), overwrites)?;
    }
    run.store.close()?;
    Ok(())
}
