//! Common interface of all engines, and its implementations.
//!
//! Invariant: each engine fulfils a method's promise or refuses the call. A `get` has the whole value in
//! memory when it returns.

mod copal;
#[cfg(feature = "fjall")]
mod fjall;
#[cfg(feature = "leveldb")]
mod leveldb;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::{
    keys::Key,
    protocol::{Kind, Safety, Spec},
};
use anyhow::Result;
use std::{collections::BTreeMap, time::Duration};

/// An open engine, used by several threads.
pub(crate) trait Engine: Send + Sync {
    /// Stores `value`.
    fn put(&self, key: &[u8], value: &[u8], safety: Safety) -> Result<()>;

    /// Stores all or none.
    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()>;

    /// Deletes the key, whether it exists or not.
    fn delete(&self, key: &[u8], safety: Safety) -> Result<()>;

    /// Length of the value, read in full; `None`: no such key.
    fn get(&self, key: &[u8]) -> Result<Option<usize>>;

    /// Number of the keys that exist.
    fn multi_get(&self, keys: &[Key]) -> Result<u64> {
        let mut found = 0;
        for key in keys {
            found += u64::from(self.get(key)?.is_some());
        }
        Ok(found)
    }

    /// Reads keys and values of up to `entries` entries, starting at `from`; returns their number.
    fn scan(&self, from: &[u8], entries: usize) -> Result<usize>;

    /// Deletes every key with the prefix and frees its space, as far as the engine has a call for it.
    fn purge(&self, prefix: &[u8]) -> Result<()>;

    /// Flushes write buffers to tables.
    fn flush(&self) -> Result<()>;

    /// Returns when no merge is due.
    fn await_merges(&self) -> Result<()>;

    /// Merges everything into one run. Used for copal and RocksDB only.
    fn compact(&self) -> Result<()> {
        anyhow::bail!("the bench needs no full merge of this engine")
    }

    /// Counters since opening; names that end in `_now` are levels.
    fn counters(&self) -> BTreeMap<String, f64>;

    /// Version and options, for the report.
    fn describe(&self) -> (String, String);

    /// Makes everything durable. The caller drops the engine next.
    fn close(&self) -> Result<()>;
}

/// Opens the engine of the spec and creates its store if there is none.
pub(crate) fn open(spec: &Spec) -> Result<Box<dyn Engine>> {
    Ok(match spec.kind {
        Kind::Copal => Box::new(copal::Copal::open(spec)?),
        #[cfg(feature = "leveldb")]
        Kind::Leveldb => Box::new(leveldb::Leveldb::open(spec)?),
        #[cfg(feature = "rocksdb")]
        Kind::Rocksdb => Box::new(rocksdb::Rocks::open(spec)?),
        #[cfg(feature = "fjall")]
        Kind::Fjall => Box::new(fjall::Fjall::open(spec)?),
        #[cfg(not(all(feature = "leveldb", feature = "rocksdb", feature = "fjall")))]
        other => anyhow::bail!("this build has no {other:?}; build with `--features peers`"),
    })
}

#[expect(clippy::disallowed_methods, reason = "no event exists to wait for")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `state` stops changing for a while. An engine without a call for it shows only in this way
/// that no merge is due.
fn until_still<T: PartialEq>(mut state: impl FnMut() -> T) {
    let (mut still, mut last) = (0, state());
    while still < 12 {
        pause(Duration::from_millis(125));
        let now = state();
        still = if now == last { still + 1 } else { 0 };
        last = now;
    }
}

/// The first key beyond all keys with the prefix; `None`: there is none.
#[cfg(any(test, feature = "leveldb", feature = "rocksdb"))]
fn beyond(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::beyond;

    #[test]
    fn the_end_of_a_prefix_is_the_next_prefix() {
        assert_eq!(beyond(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(beyond(&[7, 255]), Some(vec![8]));
        assert_eq!(beyond(&[255]), None);
    }
}
