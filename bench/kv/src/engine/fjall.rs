//! The fjall engine through its own API.
//!
//! *As shipped*: its filter policy, 10 bits per key and more on level 0. *Tuned*: fewer bits on lower levels,
//! with an average near the bits of the spec.

use super::{Engine, until_still};
use crate::{
    keys::Key,
    protocol::{Filters, Safety, Spec},
};
use anyhow::Result;
use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, PersistMode,
    config::{BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry},
};
use std::{collections::BTreeMap, time::Instant};

pub(super) struct Fjall {
    db: Database,
    space: Keyspace,
    options: String,
}

impl Fjall {
    pub(super) fn open(spec: &Spec) -> Result<Fjall> {
        // Indexes and filters are in the cache, except those of the first levels, which are pinned outside of
        // it.
        let cache_bytes = if spec.cache_data { spec.memory_bytes / 2 } else { 1 << 20 };
        let db = Database::builder(&spec.directory).cache_size(cache_bytes).open()?;
        let filters = (spec.filters == Filters::Tuned).then(|| {
            let bits = |bits: f64| FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(bits as f32));
            // Level 0 to the last: the last holds nine tenths of the keys and so determines the average.
            FilterPolicy::new([
                bits(spec.bits + 12.0),
                bits(spec.bits + 9.0),
                bits(spec.bits + 6.0),
                bits(spec.bits + 3.0),
                bits(spec.bits),
            ])
        });
        let space = db.keyspace("bench", || {
            let options = KeyspaceCreateOptions::default()
                .max_memtable_size(spec.write_buffer_bytes)
                .data_block_compression_policy(CompressionPolicy::disabled());
            match &filters {
                Some(filters) => options.filter_policy(filters.clone()),
                None => options,
            }
        })?;
        Ok(Fjall {
            db,
            space,
            options: format!(
                "{}, cache {cache_bytes} B, memtable {} B",
                if filters.is_some() { "bits by level" } else { "as shipped" },
                spec.write_buffer_bytes
            ),
        })
    }

    fn persist(&self, safety: Safety) -> Result<()> {
        if safety == Safety::Device {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }
}

impl Engine for Fjall {
    /// An insert writes the journal to the operating system; durability needs a second call.
    fn put(&self, key: &[u8], value: &[u8], safety: Safety) -> Result<()> {
        self.space.insert(key, value)?;
        self.persist(safety)
    }

    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()> {
        let mode = match safety {
            Safety::Device => PersistMode::SyncData,
            Safety::Process | Safety::Bulk => PersistMode::Buffer,
        };
        let mut batch = self.db.batch().durability(Some(mode));
        for (key, value) in entries {
            batch.insert(&self.space, &key[..], &value[..]);
        }
        Ok(batch.commit()?)
    }

    fn delete(&self, key: &[u8], safety: Safety) -> Result<()> {
        self.space.remove(key)?;
        self.persist(safety)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.space.get(key)?.map(|value| value.len()))
    }

    fn scan(&self, from: &[u8], entries: usize) -> Result<usize> {
        let mut count = 0;
        for entry in self.space.range::<&[u8], _>(from..).take(entries) {
            std::hint::black_box(entry.into_inner()?);
            count += 1;
        }
        Ok(count)
    }

    /// fjall has no range delete: deletes key by key.
    fn purge(&self, prefix: &[u8]) -> Result<()> {
        let mut batch = self.db.batch();
        let mut pending = 0;
        for entry in self.space.prefix(prefix) {
            batch.remove(&self.space, entry.key()?);
            pending += 1;
            if pending == 1000 {
                std::mem::replace(&mut batch, self.db.batch()).commit()?;
                pending = 0;
            }
        }
        batch.commit()?;
        self.persist(Safety::Device)
    }

    fn flush(&self) -> Result<()> {
        Ok(self.space.rotate_memtable_and_wait()?)
    }

    fn await_merges(&self) -> Result<()> {
        self.flush()?;
        until_still(|| {
            // Running work counts as a change.
            let busy = self.db.active_compactions() + self.db.outstanding_flushes() > 0;
            (busy.then(Instant::now), self.db.compactions_completed())
        });
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        let memory = self.db.cache_size() + self.db.write_buffer_size();
        BTreeMap::from([("memory_bytes_now".to_owned(), memory as f64)])
    }

    fn describe(&self) -> (String, String) {
        ("3.1.13".to_owned(), self.options.clone())
    }

    fn close(&self) -> Result<()> {
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }
}
