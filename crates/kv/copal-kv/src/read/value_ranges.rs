//! Reads of many parts of values: keys are searched together, then all parts are read in one call.
//!
//! Design: docs/design/kv.md#look-ups
//! Invariants
//! - All keys are searched at one sequence of one view, which is held until the last part is read.
//! - Each part has one answer, on the caller's thread; damage of one does not affect the others.
//! - The values of keys take memory as long as the call; parts are planned [`PARTS`] at a time.

use crate::{
    Error,
    engine::Engine,
    format::entry::{EntryKind, KeyspaceId},
    read::{
        get::{CachePolicy, WantedPart, part_of},
        key_search::{self, FoundKey, KeyVersion},
    },
    session::counters::EngineCounters,
    tree::{
        value::{PlannedRead, ValuePointer},
        version::SuperVersion,
    },
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::StoreError;
use std::{
    ops::{ControlFlow, Range},
    sync::Arc,
};

/// Most parts that are planned together: 5 MiB of plans.
const PARTS: usize = 1 << 16;

/// Part of a value to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePart {
    /// Index of its key among the keys of the call.
    pub key: usize,
    /// Wanted bytes of the value; they may be empty, reversed (empty as well), or pass its end.
    pub bytes: Range<u64>,
}

/// Receives the answers of [`Keyspace::read_parts`](crate::Keyspace::read_parts): the index of the part, and
/// its bytes, or none if its key does not exist. `Break` ends the call; parts without an answer are then not
/// read.
pub type ValuePartSink<'a> = dyn FnMut(usize, Result<Option<Bytes>, Error>) -> ControlFlow<()> + 'a;

/// A key's value.
enum ValuePlace {
    Absent,
    Here(Bytes),
    Separated(Arc<ValuePointer>),
    Failed(Error),
}

impl ValuePlace {
    fn of(found: FoundKey) -> ValuePlace {
        match found {
            Ok(None) => ValuePlace::Absent,
            Ok(Some(KeyVersion::Row(value))) => ValuePlace::Here(value),
            Ok(Some(KeyVersion::Stored { version, .. })) if version.kind == EntryKind::Pointer => {
                match ValuePointer::decode(&version.value) {
                    Ok(pointer) => ValuePlace::Separated(Arc::new(pointer)),
                    Err(error) => ValuePlace::Failed(error),
                }
            }
            Ok(Some(KeyVersion::Stored { version, .. })) => ValuePlace::Here(version.value),
            Err(error) => ValuePlace::Failed(error),
        }
    }

    /// The part, or the read that it needs.
    fn part(&self, part: &Range<u64>) -> Result<Result<Option<Bytes>, Error>, PlannedRead> {
        let want = WantedPart::Part(part.clone());
        match self {
            ValuePlace::Absent => Ok(Ok(None)),
            ValuePlace::Here(value) => Ok(Ok(Some(part_of(value, &want)))),
            ValuePlace::Failed(error) => Ok(Err(error.clone())),
            ValuePlace::Separated(pointer) => {
                let planned = PlannedRead::of(pointer, part);
                if planned.is_empty() {
                    return Ok(Ok(Some(Bytes::new())));
                }
                if part.end.min(u64::from(pointer.len)) <= pointer.head.len() as u64 {
                    return Ok(Ok(Some(part_of(&Bytes::copy_from_slice(&pointer.head), &want))));
                }
                Err(planned)
            }
        }
    }
}

/// Reads `parts` of the values of `keys` as a reader at `seq` sees them in `view`. At most `budget_bytes` of
/// values are in flight.
#[expect(clippy::too_many_arguments, reason = "the view and the request, which only this function combines")]
pub(crate) fn read_parts<K: AsRef<[u8]>>(
    engine: &Engine,
    view: &SuperVersion,
    seq: u64,
    keyspace: KeyspaceId,
    kept: CachePolicy<'_>,
    keys: &[K],
    parts: &[ValuePart],
    budget_bytes: u64,
    sink: &mut ValuePartSink<'_>,
) {
    let mut places: Vec<ValuePlace> = Vec::with_capacity(keys.len());
    key_search::search(engine, view, seq, keyspace, keys, kept, |_, found| {
        places.extend(found.into_iter().map(ValuePlace::of));
    });
    for (window, parts) in parts.chunks(PARTS).enumerate() {
        let first = window * PARTS;
        if read_window(engine, &places, first, parts, budget_bytes, sink).is_break() {
            break;
        }
    }
}

fn read_window(
    engine: &Engine,
    places: &[ValuePlace],
    first: usize,
    parts: &[ValuePart],
    budget_bytes: u64,
    sink: &mut ValuePartSink<'_>,
) -> ControlFlow<()> {
    let (mut planned, mut reads) = (Vec::new(), Vec::new());
    for (index, ValuePart { key, bytes }) in parts.iter().enumerate() {
        match places.get(*key).unwrap_or(&ValuePlace::Absent).part(bytes) {
            Ok(answer) => sink(first + index, answer)?,
            Err(read) => {
                reads.push(read.range());
                planned.push((first + index, read));
            }
        }
    }
    if reads.is_empty() {
        return ControlFlow::Continue(());
    }
    EngineCounters::add(&engine.counters.read_batches, 1);
    EngineCounters::add(&engine.counters.batched_reads, reads.len() as u64);
    let mut flow = ControlFlow::Continue(());
    engine.objects.read_many(&reads, budget_bytes, IoClass::Foreground, &mut |index, bytes| {
        let (part, read) = &planned[index];
        flow = sink(*part, verify(engine, read, bytes).map(Some));
        flow
    });
    flow
}

/// Verifies the bytes of a read; a damaged part is read again, by itself.
fn verify(engine: &Engine, read: &PlannedRead, bytes: Result<Bytes, StoreError>) -> Result<Bytes, Error> {
    read.take(&engine.objects, bytes).or_else(|error| {
        if !error.is_corruption() {
            return Err(error);
        }
        let (object, range) = read.range();
        read.take(&engine.objects, engine.objects.read(object, range, IoClass::Foreground).wait())
    })
}
