//! Copal in one preallocated file.

use super::{Engine, pause, until_still};
use crate::{
    keys::Key,
    protocol::{Filters, Safety, Spec},
};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use copal_device::{Device, DeviceOpenError, FileOptions, open_file};
use copal_filter::{Kind as Unit, rules::RuleKind};
use copal_kv::{
    CacheMode, Durability, FilterMemory, FilterOptions, Keyspace, KeyspaceOptions, Options, Store,
};
use copal_object::{MkfsOptions, OpenOptions};
use std::{
    collections::BTreeMap,
    fs,
    ops::Bound,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

const KEYSPACE: &str = "bench";

pub(super) struct Copal {
    device: Arc<dyn Device>,
    store: Store,
    space: Keyspace,
    options: String,
}

impl Copal {
    pub(super) fn open(spec: &Spec) -> Result<Copal> {
        fs::create_dir_all(&spec.directory)?;
        let path = spec.directory.join("store");
        let fresh = !path.exists();
        // Space for garbage of unfinished merges and purges.
        let size = (spec.data_bytes * 2 + (384 << 20)).next_multiple_of(1 << 20);
        let file = FileOptions {
            create_size: fresh.then_some(size),
            allow_cow: true,
            unsafe_volatile: true,
            ..FileOptions::default()
        };
        let device = open_released(&path, &file).context("opening the store's file")?;
        if fresh {
            copal_object::Store::mkfs(&device, &MkfsOptions::default()).context("formatting the store")?;
        }
        let (objects, _) = copal_object::Store::open(device.clone(), &OpenOptions::default())
            .context("opening the object store")?;
        let options = options(spec)?;
        let text = format!("{options:?}");
        let mut space = KeyspaceOptions::default();
        if !spec.cache_data {
            space.cache = CacheMode::Nothing;
        }
        if spec.cache_blocks {
            space.cache = CacheMode::Blocks;
        }
        let store = Store::open(objects, options).context("opening the engine")?;
        let space = store.keyspace(KEYSPACE, space).context("opening the keyspace")?;
        Ok(Copal { device, store, space, options: text })
    }
}

/// Opens the file once the previous process has released it. The kernel drops the descriptors of a ring, and
/// with them the lock, a little after the process has ended.
fn open_released(path: &Path, options: &FileOptions) -> Result<Arc<dyn Device>, DeviceOpenError> {
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        match open_file(path, options) {
            Err(DeviceOpenError::Locked { .. }) if Instant::now() < patience => {
                pause(Duration::from_millis(20))
            }
            opened => return opened,
        }
    }
}

fn options(spec: &Spec) -> Result<Options> {
    // Bloom units come in steps of 4 bits.
    let units = |step: f64| RuleKind::Fixed { units: (spec.bits / step).round().max(1.0) as u8 };
    let (kind, rule) = match spec.filters {
        Filters::Shipped => {
            let shipped = FilterOptions::default();
            (shipped.kind, shipped.rule)
        }
        Filters::BloomFixed => (Unit::Bloom, units(4.0)),
        Filters::BloomPerRun => (Unit::Bloom, RuleKind::Monkey),
        Filters::BloomPaper => (Unit::Bloom, RuleKind::Paper),
        Filters::RibbonFixed => (Unit::Ribbon, units(1.0)),
        Filters::RibbonMq => (Unit::Ribbon, RuleKind::Paper),
        Filters::RibbonPerRun => (Unit::Ribbon, RuleKind::Monkey),
        Filters::BloomClasses => (Unit::Bloom, RuleKind::Classes),
        Filters::Tuned => bail!("`tuned` is for the peers"),
    };
    let shipped = Options::default();
    Ok(Options {
        memory_bytes: spec.memory_bytes,
        table_bytes: if spec.table_bytes > 0 { spec.table_bytes } else { shipped.table_bytes },
        merge_for_reads: spec.merge_for_reads,
        merge_threads: spec.background_threads as u32,
        filters: FilterOptions {
            kind,
            rule,
            memory: FilterMemory::BitsPerKey(if spec.filters == Filters::RibbonFixed {
                // A column takes 1.013 bits per key, more in small partitions. The surplus gives the control
                // its nominal number of columns in every partition.
                spec.bits * 1.1
            } else {
                spec.bits
            }),
            ..shipped.filters
        },
        ..shipped
    })
}

fn durability(safety: Safety) -> Durability {
    match safety {
        Safety::Device => Durability::Device,
        Safety::Process => Durability::Process,
        Safety::Bulk => Durability::Deferred,
    }
}

impl Engine for Copal {
    fn put(&self, key: &[u8], value: &[u8], safety: Safety) -> Result<()> {
        Ok(self.space.put(key, value, durability(safety))?)
    }

    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()> {
        let mut batch = self.store.batch();
        for (key, value) in entries {
            batch.put(&self.space, key, Bytes::copy_from_slice(value));
        }
        Ok(batch.commit(durability(safety))?)
    }

    fn delete(&self, key: &[u8], safety: Safety) -> Result<()> {
        Ok(self.space.delete(key, durability(safety))?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.space.get(key)?.map(|value| value.len()))
    }

    fn multi_get(&self, keys: &[Key]) -> Result<u64> {
        let mut found = 0;
        for value in self.space.multi_get(keys) {
            found += u64::from(value?.is_some());
        }
        Ok(found)
    }

    fn scan(&self, from: &[u8], entries: usize) -> Result<usize> {
        let range = (Bound::Included(from), Bound::Unbounded);
        let mut count = 0;
        for entry in self.space.iter(range).take(entries) {
            let (key, value) = entry?;
            std::hint::black_box((key, value));
            count += 1;
        }
        Ok(count)
    }

    fn purge(&self, prefix: &[u8]) -> Result<()> {
        Ok(self.space.purge_prefix(prefix, Durability::Device)?)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.store.flush()?)
    }

    /// The tree has its final shape after a time without writes: each merge may make the next one due.
    fn await_merges(&self) -> Result<()> {
        self.store.flush()?;
        until_still(|| {
            let stats = self.store.stats();
            (stats.merges, stats.write_bytes)
        });
        Ok(())
    }

    fn compact(&self) -> Result<()> {
        Ok(self.space.compact_range((Bound::Unbounded, Bound::Unbounded))?)
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        let stats = self.store.stats();
        let device = self.device.counters();
        BTreeMap::from(
            [
                ("filter_probes", stats.filter_probes),
                ("filter_negatives", stats.filter_negatives),
                ("false_positives", stats.false_positives),
                ("data_block_reads", stats.data_block_reads),
                ("index_page_reads", stats.index_page_reads),
                ("filter_page_reads", stats.filter_page_reads),
                ("row_hits", stats.row_hits),
                ("flushes", stats.flushes),
                ("merges", stats.merges),
                ("flush_nanos", stats.flush_nanos),
                ("merge_nanos", stats.merge_nanos),
                ("paced_nanos", stats.paced_nanos),
                ("stalled_nanos", stats.stalled_nanos),
                ("merged_bytes", stats.write_bytes),
                ("groups", stats.groups),
                ("writes", stats.writes),
                ("user_bytes", stats.user_bytes),
                ("memory_bytes_now", stats.memory_bytes),
                ("filter_bytes_now", stats.memory.filters),
                ("index_bytes_now", stats.memory.index_pages),
                ("row_bytes_now", stats.memory.rows),
                ("table_bytes_now", stats.memory.tables + stats.memory.manifest),
                ("debt_bytes_now", stats.debt_bytes),
                ("live_bytes_now", self.store.objects().space().live_bytes),
                ("device_reads", device.reads),
                ("device_read_bytes", device.read_bytes),
                ("device_writes", device.writes),
                ("device_write_bytes", device.write_bytes),
                ("device_flushes", device.flushes + device.fua_writes),
            ]
            .map(|(name, value)| (name.to_owned(), value as f64)),
        )
    }

    fn describe(&self) -> (String, String) {
        (env!("CARGO_PKG_VERSION").to_owned(), self.options.clone())
    }

    fn close(&self) -> Result<()> {
        self.store.close()?;
        Ok(self.store.objects().close()?)
    }
}
