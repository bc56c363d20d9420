//! Separated values: placement and reads.
//!
//! Format: docs/formats/kv-values.md v2
//! Not here: writing them (`commit::values` for direct ones, `compact::value_separation` for those of a
//! flush).

pub(crate) mod interval;
pub(crate) mod pointer;

use crate::Error;
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{ObjectId, Store as Objects, StoreError};
pub(crate) use pointer::ValuePointer;
use std::{ops::Range, sync::Arc};

/// A read of part of a separated value: whole 64 KiB pieces, which are verified.
pub(crate) struct PlannedRead {
    pointer: Arc<ValuePointer>,
    /// The wanted bytes of the value, clamped to its end.
    part: Range<u64>,
    /// The pieces that overlap them.
    cover: Range<u64>,
}

impl PlannedRead {
    /// # Errors
    /// `Corrupt`: the bytes are no pointer.
    pub(crate) fn new(pointer: &[u8], part: &Range<u64>) -> Result<PlannedRead, Error> {
        Ok(PlannedRead::of(&Arc::new(ValuePointer::decode(pointer)?), part))
    }

    /// A read of part of the value at `pointer`.
    pub(crate) fn of(pointer: &Arc<ValuePointer>, part: &Range<u64>) -> PlannedRead {
        let len = u64::from(pointer.len);
        let part = part.start.min(len)..part.end.min(len).max(part.start.min(len));
        let cover = pointer.cover(&part);
        PlannedRead { pointer: Arc::clone(pointer), part, cover }
    }

    /// Object and bytes to read.
    pub(crate) fn range(&self) -> (ObjectId, Range<u64>) {
        let start = self.pointer.offset;
        (self.pointer.object, start + self.cover.start..start + self.cover.end)
    }

    /// Whether no byte is wanted.
    pub(crate) fn is_empty(&self) -> bool {
        self.part.is_empty()
    }

    fn place(&self) -> String {
        let (object, range) = self.range();
        format!("value in object {} at byte {}", object.0, range.start)
    }

    /// Verifies the bytes that were read from `objects`, and returns the wanted part. The store notes that they are
    /// verified.
    /// # Errors
    /// `Corrupt` when the bytes are not those that were written.
    pub(crate) fn take(&self, objects: &Objects, read: Result<Bytes, StoreError>) -> Result<Bytes, Error> {
        let bytes = match read {
            // A reader holds a version that contains the object, so the object was lost, not deleted.
            Err(StoreError::NotFound(_)) => {
                return Err(Error::corrupt(self.place(), "the object is missing"));
            }
            read => read?,
        };
        if bytes.len() as u64 != self.cover.end - self.cover.start {
            return Err(Error::corrupt(self.place(), "the object ends inside it"));
        }
        self.pointer.verify(self.cover.start, &bytes)?;
        let (object, range) = self.range();
        objects.note_verified(object, &range);
        let from = self.part.start - self.cover.start;
        Ok(bytes.slice(from as usize..(self.part.end - self.cover.start) as usize))
    }
}

/// Reads `part` of the value of an encoded pointer; shorter where the value ends first. Blocks.
///
/// Reads and verifies whole 64 KiB pieces, in one read. A piece that does not verify is read once more.
/// # Errors
/// `Corrupt` when the bytes are not those that were written.
pub(crate) fn read(
    objects: &Objects,
    pointer: &[u8],
    part: &Range<u64>,
    class: IoClass,
) -> Result<Bytes, Error> {
    let planned = PlannedRead::new(pointer, part)?;
    if planned.is_empty() {
        return Ok(Bytes::new());
    }
    let (object, range) = planned.range();
    let once = || planned.take(objects, objects.read(object, range.clone(), class).wait());
    once().or_else(|error| if error.is_corruption() { once() } else { Err(error) })
}
