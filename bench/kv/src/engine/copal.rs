//! Copal in one preallocated file.

use super::{Engine, pause, until_still};
use crate::{
    keys::Key,
    protocol::{Filters, Safety, Spec},
};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use copal_device::{Device, FileOptions, OpenError, open_file};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
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
        // Room for both sides of the largest merge, and for values that a purge left behind.
        let size = (spec.data_bytes * 3 + (512 << 20)).next_multiple_of(1 << 20);
        let file = FileOptions {
            create_size: fresh.then_some(size),
            allow_cow: true,
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
        let store = Store::open(objects, options).context("opening the engine")?;
        let space = store
            .keyspace(KEYSPACE, KeyspaceOptions::default())
            .context("opening the keyspace")?;
        Ok(Copal {
            device,
            store,
            space,
            options: text,
        })
    }
}

/// Opens the file once the process before has let go of it: the kernel drops the descriptors of a ring, and with
/// them the lock, a little after the process has ended.
fn open_released(path: &Path, options: &FileOptions) -> Result<Arc<dyn Device>, OpenError> {
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        match open_file(path, options) {
            Err(OpenError::Locked { .. }) if Instant::now() < patience => pause(Duration::from_millis(20)),
            opened => return opened,
        }
    }
}

fn options(spec: &Spec) -> Result<Options> {
    let mut options = Options {
        memory_bytes: spec.memory_bytes,
        ..Options::default()
    };
    if spec.table_bytes > 0 {
        options.table_bytes = spec.table_bytes;
    }
    match spec.filters {
        Filters::Shipped | Filters::RibbonFixed => options.filter_columns = spec.bits as u8,
        other => bail!("the engine cannot open filters {other:?}"),
    }
    Ok(options)
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

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.space.get(key)?.map(|value| value.len()))
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

    /// The tree has its shape once nothing was written for a while: each step may find the next one due.
    fn settle(&self) -> Result<()> {
        self.store.flush()?;
        until_still(|| {
            let stats = self.store.stats();
            (stats.merges, stats.write_bytes)
        });
        Ok(())
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
                ("flushes", stats.flushes),
                ("merges", stats.merges),
                ("groups", stats.groups),
                ("writes", stats.writes),
                ("user_bytes", stats.user_bytes),
                ("memory_bytes_now", stats.memory_bytes),
                ("debt_bytes_now", stats.debt_bytes),
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
