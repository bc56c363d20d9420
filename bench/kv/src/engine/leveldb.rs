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
use std::{collections::BTreeMap, fs, path::PathBuf};
use sys::{Db, Settings};

pub(super) struct Leveldb {
    db: Db,
    /// Its own log of events.
    log: PathBuf,
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
        Ok(Leveldb { db, log: spec.directory.join("LOG"), options })
    }

    /// LevelDB's statistics: the tables of each level, from level 0 on.
    fn stats(&self) -> String {
        self.db.property("leveldb.stats").unwrap_or_default()
    }
}

/// Events in LevelDB's own log.
#[derive(Debug, Default, PartialEq)]
struct LogEvents {
    /// Tables written from memory.
    tables: f64,
    compactions: f64,
    /// Tables that went to the next level as they are.
    moves: f64,
}

impl LogEvents {
    fn of(log: &str) -> LogEvents {
        let count = |begin: &str, end: &str| {
            log.lines().filter(|line| line.contains(begin) && line.ends_with(end)).count() as f64
        };
        LogEvents {
            tables: count(" Level-0 table #", ": started"),
            compactions: count(" Compacting ", " files"),
            moves: count(" Moved #", ""),
        }
    }
}

/// Bytes that compactions and flushes of write buffers wrote: the last column of the statistics, in MB.
fn merged_bytes(stats: &str) -> f64 {
    let rows = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let written = rows.filter(|row| row.len() == 6).filter_map(|row| row[5].parse::<f64>().ok());
    written.sum::<f64>() * 1e6
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
        let events = LogEvents::of(&fs::read_to_string(&self.log).unwrap_or_default());
        BTreeMap::from(
            [
                ("memory_bytes_now", memory),
                ("flushes", events.tables),
                ("merges", events.compactions),
                ("moves", events.moves),
                ("merged_bytes", merged_bytes(&self.stats())),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        )
    }

    fn describe(&self) -> (String, String) {
        (sys::version(), self.options.clone())
    }

    fn close(&self) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those of LevelDB 1.23: another version that words them in another way would count as none.
    #[test]
    fn the_statistics_are_those_of_the_library() {
        let log = "2026/11/29-09:50:01.000001 140 Level-0 table #5: started\n\
            2026/11/29-09:50:01.000002 140 Level-0 table #5: 3967432 bytes OK\n\
            2026/11/29-09:50:02.000001 140 Compacting 4@0 + 2@1 files\n\
            2026/11/29-09:50:02.000002 140 Compacted 4@0 + 2@1 files => 8111222 bytes\n\
            2026/11/29-09:50:03.000001 140 Moved #7 to level-1 2100000 bytes OK: files[ 0 1 0 ]\n";
        assert_eq!(LogEvents::of(log), LogEvents { tables: 1.0, compactions: 1.0, moves: 1.0 });
        let stats = "                               Compactions\n\
            Level  Files Size(MB) Time(sec) Read(MB) Write(MB)\n\
            --------------------------------------------------\n  \
            0        2        8         1        0        60\n  \
            1        5       10         2       70        65\n";
        assert_eq!(merged_bytes(stats), 125e6);
    }
}
