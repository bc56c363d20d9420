//! Separated values: where they lie, how they are read.
//!
//! Format: docs/formats/kv-values.md v2
//! Not here: writing them (`commit::values` for direct ones, `compact::separate` for those of a flush).

pub(crate) mod interval;
pub(crate) mod pointer;

use crate::Error;
use bytes::Bytes;
use copal_device::Class;
use copal_object::{Store as Objects, StoreError};
pub(crate) use pointer::Pointer;
use std::ops::Range;

/// Reads `part` of the value behind an encoded pointer; short at the value's end. Blocks.
///
/// Reads and verifies whole 64 KiB pieces, in one read. A piece that does not verify is read once more.
/// # Errors
/// `Corrupt` when the bytes are not those that were written.
pub(crate) fn read(
    objects: &Objects,
    pointer: &[u8],
    part: &Range<u64>,
    class: Class,
) -> Result<Bytes, Error> {
    let pointer = Pointer::decode(pointer)?;
    let len = u64::from(pointer.len);
    let part = part.start.min(len)..part.end.min(len).max(part.start.min(len));
    if part.is_empty() {
        return Ok(Bytes::new());
    }
    let cover = pointer.cover(&part);
    let range = pointer.offset + cover.start..pointer.offset + cover.end;
    let once = || -> Result<Bytes, Error> {
        let bytes = match objects.read(pointer.object, range.clone(), class).wait() {
            // Whoever reads holds a version in which the object is: it was lost, not deleted.
            Err(StoreError::NotFound(object)) => {
                let place = format!("value in object {} at byte {}", object.0, range.start);
                return Err(Error::corrupt(place, "the object is missing"));
            }
            read => read?,
        };
        if bytes.len() as u64 != cover.end - cover.start {
            let place = format!("value in object {} at byte {}", pointer.object.0, range.start);
            return Err(Error::corrupt(place, "the object ends inside it"));
        }
        pointer.verify(cover.start, &bytes)?;
        Ok(bytes)
    };
    let bytes = once().or_else(|error| if error.is_corruption() { once() } else { Err(error) })?;
    Ok(bytes.slice((part.start - cover.start) as usize..(part.end - cover.start) as usize))
}
