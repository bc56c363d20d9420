//! Look-ups of one key: memtables, then runs, newest first.
//!
//! Invariants
//! - Range tombstones are asked before filters: a filter that says no does not lift a tombstone.
//! - The view is held until a separated value is read: its bytes are not freed before.

use crate::{Error, engine::Engine, entry::EntryKind, stats::Counters, value, view::View};
use bytes::Bytes;
use copal_device::Class;
use copal_filter::KeyHash;
use std::ops::Range;

/// What a look-up wants of the value.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// Only whether the key is there; the answer is empty.
    Presence,
    /// These bytes of it.
    Part(Range<u64>),
}

impl Want {
    pub(crate) fn all() -> Want {
        Want::Part(0..u64::MAX)
    }
}

impl Engine {
    /// The value of internal key `key` as a reader at `seq` sees it in `view`. Blocks on reads.
    pub(crate) fn get(&self, view: &View, seq: u64, key: &[u8], want: &Want) -> Result<Option<Bytes>, Error> {
        if self.closed.load(std::sync::atomic::Ordering::Acquire) {
            return Err(Error::Closed);
        }
        Counters::add(&self.counters.gets, 1);
        match find(view, seq, key, self.seed)? {
            None => Ok(None),
            Some((kind, value)) => self.resolve(kind, value, want).map(Some),
        }
    }

    /// The wanted part of a value that stands in an entry or behind its pointer.
    pub(crate) fn resolve(&self, kind: EntryKind, value: Bytes, want: &Want) -> Result<Bytes, Error> {
        let Want::Part(part) = want else {
            return Ok(Bytes::new());
        };
        if kind == EntryKind::Pointer {
            return value::read(&self.objects, &value, part, Class::Foreground);
        }
        let len = value.len() as u64;
        let (start, end) = (part.start.min(len), part.end.min(len));
        Ok(value.slice(start as usize..end.max(start) as usize))
    }
}

/// The newest visible version of `key` that no tombstone covers.
fn find(view: &View, seq: u64, key: &[u8], seed: u64) -> Result<Option<(EntryKind, Bytes)>, Error> {
    for memtable in view.memtables() {
        let cover = memtable.tombstones().cover(key, seq);
        if let Some((found, version)) = memtable.get(key, seq) {
            return Ok(visible(found, cover, version.kind, version.value));
        }
        if cover > 0 {
            return Ok(None);
        }
    }
    let hash = KeyHash::new(key, seed);
    for run in &view.version.runs {
        let Some(slice) = run.find(key) else { continue };
        let cover = slice.table.tombstones.cover(key, seq);
        if let Some(found) = slice.table.table.get(key, seq, &hash)? {
            return Ok(visible(found.seq, cover, found.kind, found.value));
        }
        if cover > 0 {
            return Ok(None);
        }
    }
    Ok(None)
}

fn visible(seq: u64, cover: u64, kind: EntryKind, value: Bytes) -> Option<(EntryKind, Bytes)> {
    (kind != EntryKind::Delete && cover < seq).then_some((kind, value))
}
