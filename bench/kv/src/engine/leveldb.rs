//! LevelDB through its C API.
//!
//! As shipped, except for:
//! - the Bloom policy that its documentation recommends;
//! - no compression (the values do not compress anyway);
//! - the sizes of cache and write buffer, which follow from the memory cap;
//! - as many open files as there are tables.

mod sys;

use super::{Engine, beyond, until_still};
use crate::{
    keys::Key,
    protocol::{Safety, Spec},
};
use anyhow::Result;
use std::{collections::BTreeMap, fs};
use sys::{Db, Settings};

pub(super) struct Leveldb {
    db: Db,
    options: String,
}

impl Leveldb {
    pub(super) fn open(spec: &Spec) -> Result<Leveldb> {
        fs::create_dir_all(&spec.directory)?;
        let settings = Settings {
            bloom_bits: spec.bits.round() as i32,
            // The indexes and filters of open tables are not in this cache.
            cache_bytes: if spec.cache_data { spec.memory_bytes / 2 } else { 0 },
            write_buffer_bytes: spec.write_buffer_bytes,
            max_file_bytes: spec.table_bytes,
            max_open_files: open_files(spec),
        };
        let options = format!("{settings:?}");
        let db = Db::open(&spec.directory, &settings)?;
        Ok(Leveldb { db, options })
    }

    /// LevelDB's statistics: the tables of each level, from level 0 on.
    fn stats(&self) -> String {
        self.db.property("leveldb.stats").unwrap_or_default()
    }
}

/// Its default of 1000, or enough to keep every table open: reopening a table reads its index and its filter.
fn open_files(spec: &Spec) -> i32 {
    const DEFAULT: u64 = 1000;
    const TABLE_BYTES: u64 = 2 << 20;
    let table_bytes = if spec.table_bytes > 0 { spec.table_bytes } else { TABLE_BYTES };
    // A merge writes its output tables before it deletes its input tables.
    (spec.data_bytes / table_bytes * 2).max(DEFAULT) as i32
}

impl Engine for Leveldb {
    fn put(&self, key: &[u8], value: &[u8], safety: Safety) -> Result<()> {
        self.db.put(key, value, safety == Safety::Device)
    }

    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()> {
        let pairs = entries.iter().map(|(key, value)| (&key[..], &value[..]));
        self.db.write(pairs, safety == Safety::Device)
    }

    fn delete(&self, key: &[u8], safety: Safety) -> Result<()> {
        self.db.delete(std::iter::once(key), safety == Safety::Device)
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        self.db.get(key)
    }

    fn scan(&self, from: &[u8], entries: usize) -> Result<usize> {
        self.db.scan(from, entries, |key, value| {
            std::hint::black_box((key[0], value.to_vec()));
        })
    }

    /// LevelDB has no range delete: deletes key by key, then merges the range.
    fn purge(&self, prefix: &[u8]) -> Result<()> {
        let mut doomed = Vec::new();
        self.db.scan(prefix, usize::MAX, |key, _| {
            if key.starts_with(prefix) {
                doomed.push(key.to_vec());
            }
        })?;
        for part in doomed.chunks(1000) {
            self.db.delete(part.iter().map(Vec::as_slice), false)?;
        }
        self.db.compact(prefix, beyond(prefix).as_deref());
        Ok(())
    }

    /// LevelDB has no call to flush: the write buffer is written when it is full, or by a manual merge.
    fn flush(&self) -> Result<()> {
        Ok(())
    }

    /// LevelDB has no call to await merges either: waits until the statistics stop changing.
    fn await_merges(&self) -> Result<()> {
        until_still(|| self.stats());
        Ok(())
    }

    fn counters(&self) -> BTreeMap<String, f64> {
        let memory = self
            .db
            .property("leveldb.approximate-memory-usage")
            .and_then(|text| text.parse().ok())
            .unwrap_or(0.0);
        BTreeMap::from([("memory_bytes_now".to_owned(), memory)])
    }

    fn describe(&self) -> (String, String) {
        (sys::version(), self.options.clone())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}
