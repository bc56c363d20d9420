//! Common interface of cursors over sorted entries: of memtables, of tables, and of merges of them.
//!
//! Invariants
//! - Entries come in the internal order: key ascending, newest version first.
//! - After an error the cursor is not valid; seeking again is allowed.
//!
//! Not here: visibility (the version that a snapshot sees), range tombstones, value objects.

use crate::{Error, format::entry::Entry};
use bytes::Bytes;

/// Cursor over entries, in both directions. Moves may read and block.
pub trait Cursor {
    /// Moves to the first entry.
    fn first(&mut self) -> Result<(), Error>;

    /// Moves to the last entry.
    fn last(&mut self) -> Result<(), Error>;

    /// Moves to the first entry at or after `(key, seq)`: of the key itself only versions up to `seq`.
    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error>;

    /// Moves to the last entry at or before `(key, seq)`: of the key itself only versions from `seq` on.
    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error>;

    /// Moves one entry forward; after the last the cursor is not valid. Does nothing when not valid.
    fn next(&mut self) -> Result<(), Error>;

    /// Moves one entry back; before the first the cursor is not valid. Does nothing when not valid.
    fn prev(&mut self) -> Result<(), Error>;

    /// The current entry.
    fn entry(&self) -> Option<Entry<'_>>;

    /// Whether there is a current entry.
    fn valid(&self) -> bool {
        self.entry().is_some()
    }

    /// The current value, without a copy where the cursor can share it. Empty when not valid.
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
