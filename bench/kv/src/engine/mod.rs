//! One face for all engines, and what stands behind it.
//!
//! Invariant: what a method promises here every engine keeps, or refuses; a `get` has the whole value in
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

    /// Stores all or nothing.
    fn batch(&self, entries: &[(Key, Vec<u8>)], safety: Safety) -> Result<()>;

    /// Deletes the key, be it there or not.
    fn delete(&self, key: &[u8], safety: Safety) -> Result<()>;

    /// Length of the value, read in full; `None`: not there.
    fn get(&self, key: &[u8]) -> Result<Option<usize>>;

    /// How many of the keys are there.
    fn multi_get(&self, keys: &[Key]) -> Result<u64> {
        let mut found = 0;
        for key in keys {
            found += u64::from(self.get(key)?.is_some());
        }
        Ok(found)
    }

    /// Reads up to `entries` entries from `from` on, keys and values; how many there were.
    fn scan(&self, from: &[u8], entries: usize) -> Result<usize>;

    /// Deletes every key with the prefix and gives their space back, as far as the engine has a call for it.
    fn purge(&self, prefix: &[u8]) -> Result<()>;

    /// Write buffers to tables.
    fn flush(&self) -> Result<()>;

    /// Returns when nothing is left to merge.
    fn await_merges(&self) -> Result<()>;

    /// Merges everything into one run. Asked only of copal.
    fn compact(&self) -> Result<()> {
        anyhow::bail!("the bench asks no peer for a full merge")
    }

    /// Counters since opening; those that end in `_now` are levels.
    fn counters(&self) -> BTreeMap<String, f64>;

    /// Version and options, for the record.
    fn describe(&self) -> (String, String);

    /// Makes everything durable. The engine is dropped next.
    fn close(&self) -> Result<()>;
}

/// Opens the engine of the spec, making its store when there is none.
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

#[expect(clippy::disallowed_methods, reason = "there is nothing to wait on but time")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `state` has stood still for a while: the only way to know that an engine without a call for it
/// has nothing left to merge.
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
