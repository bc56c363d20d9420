//! The one way to walk sorted entries: memtables, tables and merges of them.
//!
//! Invariants
//! - Entries come in the internal order: key ascending, newest version first.
//! - After an error the cursor is not valid; seeking again is allowed.
//!
//! Not here: visibility (which version a snapshot sees), range tombstones, value objects.

use crate::{Error, format::entry::Entry};
use bytes::Bytes;

/// Walks entries both ways. Moving may read and block.
pub trait Cursor {
    /// Goes to the first entry.
    fn first(&mut self) -> Result<(), Error>;

    /// Goes to the last entry.
    fn last(&mut self) -> Result<(), Error>;

    /// Goes to the first entry at or after `(key, seq)`: of the key itself only versions up to `seq`.
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error>;

    /// Goes to the last entry at or before `(key, seq)`: of the key itself only versions from `seq` on.
    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error>;

    /// Goes one entry on; past the last the cursor is not valid. Does nothing when not valid.
    fn next(&mut self) -> Result<(), Error>;

    /// Goes one entry back; before the first the cursor is not valid. Does nothing when not valid.
    fn prev(&mut self) -> Result<(), Error>;

    /// The entry the cursor stands on.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Whether the cursor stands on an entry.
    fn valid(&self) -> bool {
        self.entry().is_some()
    }

    /// The value the cursor stands on, without a copy where the cursor can share it. Empty when not valid.
    fn value(&self) -> Bytes {
        self.entry().map_or_else(Bytes::new, |entry| Bytes::copy_from_slice(entry.value))
    }
}

impl<C: Cursor + ?Sized> Cursor for Box<C> {
    fn first(&mut self) -> Result<(), Error> {
        (**self).first()
    }

    fn last(&mut self) -> Result<(), Error> {
        (**self).last()
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        (**self).seek(key, seq)
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        (**self).seek_for_prev(key, seq)
    }

    fn next(&mut self) -> Result<(), Error> {
        (**self).next()
    }

    fn prev(&mut self) -> Result<(), Error> {
        (**self).prev()
    }

    fn entry(&self) -> Option<Entry<'_>> {
        (**self).entry()
    }

    fn value(&self) -> Bytes {
        (**self).value()
    }
}
