//! Look-ups of one key: memtables, then the row cache, then runs, newest first.
//!
//! Invariants
//! - Range tombstones are checked before filters: a filter that excludes the key does not lift a tombstone.
//! - The view is held until a separated value is read, so its bytes are not freed earlier.

use crate::{
    Error,
    engine::Engine,
    format::entry::EntryKind,
    memory::rows::RowEpoch,
    session::read_counters::{ReadCount, ReadCounters},
    table::KeepPolicy,
    tree::{
        value::{self, ValuePointer},
        version::SuperVersion,
    },
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_filter::KeyHash;
use std::ops::Range;

/// Part of the value that a look-up wants.
#[derive(Clone, Debug)]
pub(crate) enum WantedPart {
    /// Only whether the key exists; the answer is empty.
    Presence,
    /// These bytes of it.
    Part(Range<u64>),
    /// At most this many first bytes, without a read of a value object.
    Head(usize),
}

impl WantedPart {
    pub(crate) fn all() -> WantedPart {
        WantedPart::Part(0..u64::MAX)
    }

    fn is_all(&self) -> bool {
        matches!(self, WantedPart::Part(part) if *part == (0..u64::MAX))
    }
}

/// The item that a look-up caches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CachePolicy<'a> {
    /// The row, unless the keyspace was written to meanwhile.
    Row(&'a RowEpoch),
    /// The block.
    Block,
    Nothing,
}

impl CachePolicy<'_> {
    pub(crate) fn blocks(self) -> KeepPolicy {
        match self {
            CachePolicy::Row(_) => KeepPolicy::Pointers,
            CachePolicy::Block => KeepPolicy::Blocks,
            CachePolicy::Nothing => KeepPolicy::Nothing,
        }
    }
}

/// A visible version.
pub(crate) struct FoundVersion {
    pub(crate) seq: u64,
    pub(crate) kind: EntryKind,
    pub(crate) value: Bytes,
}

/// The value of internal key `key` as a reader at `seq` sees it in `super_version`. Blocks on reads.
pub(crate) fn get(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    key: &[u8],
    want: &WantedPart,
    kept: CachePolicy<'_>,
) -> Result<Option<Bytes>, Error> {
    let answer = look_up(engine, view, seq, key, want, kept);
    if let Ok(found) = &answer {
        engine.recorder.note(key, found.is_some());
    }
    answer
}

fn look_up(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    key: &[u8],
    want: &WantedPart,
    kept: CachePolicy<'_>,
) -> Result<Option<Bytes>, Error> {
    check_open(engine)?;
    engine.counters.reads.add(ReadCount::Gets);
    engine.caches.cache.elastic().count_get();
    if let Some(answer) = in_memtables(view, seq, key) {
        let resolve = |version: FoundVersion| resolve(engine, version.kind, version.value, want);
        return answer.map(resolve).transpose();
    }
    if let Some(row) = row(engine, kept, key, seq) {
        return Ok(Some(part_of(&row, want)));
    }
    match in_runs(view, seq, key, engine.seed, kept.blocks(), &engine.counters.reads)? {
        None => Ok(None),
        Some(version) => found(engine, key, seq, version, want, kept).map(Some),
    }
}

/// # Errors
/// `Closed`.
pub(crate) fn check_open(engine: &Engine) -> Result<(), Error> {
    if engine.closed.load(std::sync::atomic::Ordering::Acquire) {
        return Err(Error::Closed);
    }
    Ok(())
}

/// The value of `key` for a reader at `seq`, from the row cache.
pub(crate) fn row(engine: &Engine, kept: CachePolicy<'_>, key: &[u8], seq: u64) -> Option<Bytes> {
    let CachePolicy::Row(space) = kept else { return None };
    let row = engine.caches.rows.get(space, key, seq)?;
    engine.counters.reads.add(ReadCount::RowHits);
    Some(row)
}

/// The wanted part of a table's entry; caches the row if the policy says so.
pub(crate) fn found(
    engine: &Engine,
    key: &[u8],
    seq: u64,
    version: FoundVersion,
    want: &WantedPart,
    kept: CachePolicy<'_>,
) -> Result<Bytes, Error> {
    let FoundVersion { seq: found, kind, value } = version;
    if let CachePolicy::Row(space) = kept
        && kind == EntryKind::Put
    {
        engine.caches.rows.insert(space, key, &value, found, seq);
    }
    let answer = resolve(engine, kind, value, want)?;
    // A separated value that was read completely may be cached as a row.
    if let (CachePolicy::Row(space), EntryKind::Pointer, true) = (kept, kind, want.is_all()) {
        engine.caches.rows.insert(space, key, &answer, found, seq);
    }
    Ok(answer)
}

/// The wanted part of a value, from its entry or through its pointer.
pub(crate) fn resolve(
    engine: &Engine,
    kind: EntryKind,
    value: Bytes,
    want: &WantedPart,
) -> Result<Bytes, Error> {
    match (kind, want) {
        (_, WantedPart::Presence) => Ok(Bytes::new()),
        (EntryKind::Pointer, want) => {
            let pointer = ValuePointer::decode(&value)?;
            let len = u64::from(pointer.len);
            match want {
                WantedPart::Part(part) if part.end.min(len) > pointer.head.len() as u64 => {
                    value::read(&engine.objects, &value, part, IoClass::Foreground)
                }
                want => Ok(part_of(&Bytes::from(pointer.head), want)),
            }
        }
        (_, want) => Ok(part_of(&value, want)),
    }
}

/// The wanted part of a value in memory, or of its head if that is long enough.
pub(crate) fn part_of(value: &Bytes, want: &WantedPart) -> Bytes {
    let len = value.len() as u64;
    let (start, end) = match want {
        WantedPart::Presence => (0, 0),
        WantedPart::Part(part) => (part.start.min(len), part.end.min(len)),
        WantedPart::Head(head) => (0, len.min(*head as u64)),
    };
    value.slice(start as usize..end.max(start) as usize)
}

/// The version of `key` in the memtables; inner `None`: deleted; outer `None`: not in memory.
pub(crate) fn in_memtables(view: &SuperVersion, seq: u64, key: &[u8]) -> Option<Option<FoundVersion>> {
    for memtable in view.memtables() {
        let cover = memtable.cover(key, seq);
        if let Some((found, version)) = memtable.get(key, seq) {
            return Some(visible(found, cover, version.kind, version.value));
        }
        if cover > 0 {
            return Some(None);
        }
    }
    None
}

/// The newest visible version of `key` in tables that no tombstone covers.
pub(crate) fn in_runs(
    view: &SuperVersion,
    seq: u64,
    key: &[u8],
    seed: u64,
    keep: KeepPolicy,
    counters: &ReadCounters,
) -> Result<Option<FoundVersion>, Error> {
    let hash = KeyHash::new(key, seed);
    let runs = &view.version.runs;
    for (at, run) in runs.iter().enumerate() {
        let Some(slice) = run.find(key) else { continue };
        let (table, cover) = (&slice.table.table, slice.table.tombstones.cover(key, seq));
        if let Some(place) = table.ask(key, seq, &hash)? {
            let (found, was_read) = table.find_at(&place, key, keep)?;
            if let Some(found) = found {
                return Ok(visible(found.seq, cover, found.kind, found.value));
            }
            if was_read && at + 1 < runs.len() {
                counters.add(ReadCount::WastedReads);
            }
        }
        if cover > 0 {
            return Ok(None);
        }
    }
    Ok(None)
}

pub(crate) fn visible(seq: u64, cover: u64, kind: EntryKind, value: Bytes) -> Option<FoundVersion> {
    (kind != EntryKind::Delete && cover < seq).then_some(FoundVersion { seq, kind, value })
}
