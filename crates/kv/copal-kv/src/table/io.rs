//! Source and sink of a table's bytes: an object, or memory for tests and tools.

use crate::format::error::TableError;
use bytes::Bytes;
use copal_device::{Completion, IoClass};
use copal_object::{ObjectId, ObjectWriter, Store, StoreError};
use std::ops::Range;

/// Sizes of reads that suit the source of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSizes {
    /// Bytes to read at once in a long scan.
    pub(crate) ahead: u64,
    /// Reads are rounded to multiples of this.
    pub(crate) unit: u64,
}

impl ReadSizes {
    /// The sizes that the object store gives.
    pub(crate) fn of(store: &Store) -> ReadSizes {
        ReadSizes { ahead: store.read_ahead_bytes(), unit: store.read_unit_bytes() }
    }
}

/// Bytes with random access.
pub(crate) trait ReadAt: Send + Sync {
    /// The bytes of `range`; fewer only at the end. Blocks.
    fn read_at(&self, range: Range<u64>, class: IoClass) -> Result<Bytes, StoreError>;
    /// Like [`ReadAt::read_at`], without waiting.
    fn read_soon(&self, range: Range<u64>, class: IoClass) -> Completion<Result<Bytes, StoreError>> {
        Completion::ready(self.read_at(range, class))
    }
    /// Number of bytes.
    fn len(&self) -> Result<u64, StoreError>;
    /// Sizes of its reads.
    fn sizes(&self) -> ReadSizes {
        ReadSizes { ahead: 256 << 10, unit: 4096 }
    }
}

/// A table in an object.
pub(crate) struct ObjectSource {
    pub(crate) store: Store,
    pub(crate) id: ObjectId,
}

impl ReadAt for ObjectSource {
    fn read_at(&self, range: Range<u64>, class: IoClass) -> Result<Bytes, StoreError> {
        self.read_soon(range, class).wait()
    }

    fn read_soon(&self, range: Range<u64>, class: IoClass) -> Completion<Result<Bytes, StoreError>> {
        self.store.read(self.id, range, class)
    }

    fn len(&self) -> Result<u64, StoreError> {
        self.store.stat(self.id).map(|stat| stat.len).ok_or(StoreError::NotFound(self.id))
    }

    fn sizes(&self) -> ReadSizes {
        ReadSizes::of(&self.store)
    }
}

impl ReadAt for Bytes {
    fn read_at(&self, range: Range<u64>, _: IoClass) -> Result<Bytes, StoreError> {
        let end = range.end.min(Bytes::len(self) as u64);
        Ok(self.slice(range.start.min(end) as usize..end as usize))
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(Bytes::len(self) as u64)
    }
}

/// Sink of a table's bytes, in order.
pub trait Sink {
    /// Appends bytes.
    ///
    /// # Errors
    /// The device failed or is full.
    fn append(&mut self, data: &[u8]) -> Result<(), StoreError>;
}

impl Sink for ObjectWriter {
    fn append(&mut self, data: &[u8]) -> Result<(), StoreError> {
        ObjectWriter::append(self, data)
    }
}

impl Sink for Vec<u8> {
    fn append(&mut self, data: &[u8]) -> Result<(), StoreError> {
        self.extend_from_slice(data);
        Ok(())
    }
}

/// Retries once if the bytes are damaged: a device that fails once is not damaged.
pub(super) fn again_if_damaged<T>(once: impl Fn() -> Result<T, TableError>) -> Result<T, TableError> {
    once().or_else(|error| if error.is_corruption() { once() } else { Err(error) })
}
