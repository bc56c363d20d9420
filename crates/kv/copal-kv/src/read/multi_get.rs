//! Look-ups of many keys at once: the search of `key_search`, then all separated values in one call.
//!
//! Design: docs/design/kv.md#look-ups
//! Invariant: at most [`IN_FLIGHT_BYTES`] of values are in flight.

use crate::{
    Error,
    engine::Engine,
    format::entry::{EntryKind, KeyspaceId},
    read::{
        get::{self, CachePolicy, WantedPart},
        key_search::{self, FoundKey, KeyVersion, read_together},
    },
    tree::{value::PlannedRead, version::SuperVersion},
};
use bytes::Bytes;
use copal_device::IoClass;

/// Most bytes of values in flight, unless one value is larger.
const IN_FLIGHT_BYTES: u64 = 1 << 20;

type Answer = Result<Option<Bytes>, Error>;

/// A separated value to read.
struct SeparatedValue {
    at: usize,
    /// Sequence of its version if a table holds it: the value may be cached as a row.
    seq: Option<u64>,
    planned: PlannedRead,
}

/// The values of `keys` of a keyspace as a reader at `seq` sees them in `super_version`, in the order of the
/// keys. Blocks on reads.
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    keyspace: KeyspaceId,
    keys: &[K],
    kept: CachePolicy<'_>,
) -> Vec<Answer> {
    let mut answers = Vec::with_capacity(keys.len());
    key_search::search(engine, view, seq, keyspace, keys, kept, |keys, found| {
        answers.extend(values(engine, seq, keys, found, kept));
    });
    answers
}

/// The values of the versions that were found.
fn values(
    engine: &Engine,
    seq: u64,
    keys: &[Bytes],
    found: Vec<FoundKey>,
    kept: CachePolicy<'_>,
) -> Vec<Answer> {
    let mut separated = Vec::new();
    let mut answers: Vec<Answer> = Vec::with_capacity(keys.len());
    for (at, found) in found.into_iter().enumerate() {
        answers.push(match found {
            Ok(Some(KeyVersion::Stored { version, from_table })) if version.kind == EntryKind::Pointer => {
                let planned = PlannedRead::new(&version.value, &(0..u64::MAX));
                planned.map(|planned| {
                    let seq = from_table.then_some(version.seq);
                    separated.push(SeparatedValue { at, seq, planned });
                    None
                })
            }
            Ok(Some(KeyVersion::Stored { version, from_table })) => {
                let kept = if from_table { kept } else { CachePolicy::Nothing };
                get::found(engine, &keys[at], seq, version, &WantedPart::all(), kept).map(Some)
            }
            Ok(Some(KeyVersion::Row(row))) => Ok(Some(row)),
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        });
    }
    let reads: Vec<_> = separated.iter().map(|value| value.planned.range()).collect();
    let read = read_together(engine, &reads, IN_FLIGHT_BYTES);
    for ((value, (object, range)), bytes) in separated.into_iter().zip(reads).zip(read) {
        // A damaged value is read again, by itself.
        let answer = value.planned.take(&engine.objects, bytes).or_else(|error| {
            if !error.is_corruption() {
                return Err(error);
            }
            let again = engine.objects.read(object, range, IoClass::Foreground).wait();
            value.planned.take(&engine.objects, again)
        });
        if let (Ok(bytes), CachePolicy::Row(space), Some(found)) = (&answer, kept, value.seq) {
            engine.caches.rows.insert(space, &keys[value.at], bytes, found, seq);
        }
        answers[value.at] = answer.map(Some);
    }
    answers
}
