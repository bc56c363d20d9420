//! Where a disk's bytes come from: the seam between a backup and the thing it backs up.
//!
//! A source answers two questions, "what lies here?" and "which bytes?", and nothing else.
//!
//! Design: docs/design/backup.md#sources BAK-1, BAK-2
//! Invariants
//! - A source does not change while it is read (a point in time). The bytes that were hashed are the bytes
//!   that are stored, so the snapshot is what was read. One that was cut, grew or was replaced meanwhile is
//!   found out ([`Source::confirm`]) and makes no snapshot; one that was written in place is said.
//! - `Zero` is a promise: reading that range would give zero bytes. `Data` promises nothing.
//!
//! Not here: finding out what changed since the last backup (that is handed in as
//! [`ChangedExtents`]), and restore targets (`target`).

mod bitmaps;
mod chain;
mod changed;
pub mod file;
mod identity;
mod image_check;
mod image_header;
pub mod nbd;
pub mod open;
mod programs;
pub mod qcow2;
mod runs;
mod signature;
pub mod stream;
#[cfg(test)]
mod tests;

pub use signature::{END_BYTES, FormatKind, KnownFormat, recognise};

pub use changed::{MAX_EXTENTS, parse_changed_extents, read_changed_extents};
pub use identity::disk_identity;
pub use image_check::{ImageReport, check_running_image};

use std::ops::Range;

/// What a run of bytes of a disk is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// May hold anything; has to be read.
    Data,
    /// Reads as zero bytes: a hole, an unallocated cluster, a discarded range. Never read.
    Zero,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub length: u64,
    /// What it holds.
    pub kind: ExtentKind,
}

impl Extent {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Why a source could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The system refused to open, read or map the source.
    #[error("cannot {action} {what}: {error}; check the path, its permissions and the disk below")]
    Io {
        /// What was tried: "open", "read", "map".
        action: &'static str,
        /// The source, as the user named it.
        what: String,
        /// What the system said.
        #[source]
        error: std::io::Error,
    },
    /// The source ended before its announced size.
    #[error("{what} ended at byte {at}, {expected} were announced; was it truncated while being read?")]
    Short {
        /// The source, as the user named it.
        what: String,
        /// Where it ended.
        at: u64,
        /// The announced size.
        expected: u64,
    },
    /// The source is no longer what was opened: cut, grown, replaced.
    #[error(
        "{what} {how} while it was read, so no snapshot was made; back up a snapshot of the disk, or stop what \
         changes it"
    )]
    Changed {
        /// The source, as the user named it.
        what: String,
        /// What became of it, as the rest of a sentence.
        how: String,
    },
    /// A helper program or a format the source needs is missing or refused it.
    #[error("{reason}")]
    Unusable {
        /// A sentence that says what to do.
        reason: String,
    },
}

/// One disk, readable at any offset by several threads at once.
pub trait Source: Send + Sync {
    /// Size in bytes; `None` for a stream whose end is not known before it is reached.
    ///
    /// A stream is read once, in ascending order, by one thread, until `read_at` returns short.
    fn size_bytes(&self) -> Option<u64>;

    /// Alignment that reads like: offsets and lengths asked for are multiples of it, except at the end.
    fn block_bytes(&self) -> u32 {
        4096
    }

    /// The extent that holds byte `offset`, starting at or before it, as long as is known cheaply.
    ///
    /// `offset` is below the size. May block on metadata (`SEEK_DATA`, NBD block status).
    /// # Errors
    /// The source cannot be mapped. A source without a map answers one `Data` extent to its end.
    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError>;

    /// Fills `buf` from byte `offset`; short only at the end of the source. Blocks.
    /// # Errors
    /// The read failed. It is not retried: the backup of this VM ends and keeps what it stored.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError>;

    /// First bytes of the disk, as many as it has, before anything is read. Blocks.
    /// # Errors
    /// As [`Source::read_at`].
    fn head(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.size_bytes() {
            Some(_) => self.read_at(0, buf),
            None => Ok(0),
        }
    }

    /// Last bytes of the disk, as many as it has; of a stream when all of it was read. Blocks.
    /// # Errors
    /// As [`Source::read_at`].
    fn tail(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.size_bytes() {
            Some(size) => self.read_at(size.saturating_sub(buf.len() as u64), buf),
            None => Ok(0),
        }
    }

    /// Looks once more when all that a backup needs was read; nothing is read afterwards. Returns a sentence
    /// about a disk that was written meanwhile. Blocks.
    ///
    /// A source without a name or a size to look at says nothing.
    /// # Errors
    /// What was read is no disk: the source has another size now, or another one took its name.
    fn confirm(&self) -> Result<Option<String>, SourceError> {
        Ok(None)
    }
}

/// Walks the extents of `range` in ascending order, clipped to it, without gaps.
pub fn extents(source: &dyn Source, range: Range<u64>) -> Extents<'_> {
    Extents { source, next: range.start, end: range.end }
}

/// Iterator of [`extents`]; ends after the first error.
pub struct Extents<'a> {
    source: &'a dyn Source,
    next: u64,
    end: u64,
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent, SourceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let extent = match self.source.extent_at(self.next) {
            Ok(extent) => extent,
            Err(error) => {
                self.next = self.end;
                return Some(Err(error));
            }
        };
        // A source that answers an extent elsewhere is treated as having no map: read it.
        let covers = extent.offset <= self.next && extent.end() > self.next;
        let (kind, end) =
            if covers { (extent.kind, extent.end().min(self.end)) } else { (ExtentKind::Data, self.end) };
        let clipped = Extent { offset: self.next, length: end - self.next, kind };
        self.next = end;
        Some(Ok(clipped))
    }
}

/// How it is known that the bytes of a source are those of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Content {
    /// It is not: what looks like an image of another program, or like an archive, is refused.
    #[default]
    Guessed,
    /// A person said so: what looks otherwise is a doubt.
    Stated,
    /// They come out of the format that was looked for: the guest may have written anything there.
    Decoded,
}

/// What happened to a run of bytes since the base snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Written; has to be read again.
    Dirty,
    /// Discarded or zeroed; reads as zero bytes now.
    Zero,
}

/// A run of bytes that changed since the base snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// What happened to it.
    pub kind: ChangeKind,
}

/// A dirty bitmap of a disk at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitmap {
    /// Its name.
    pub name: String,
    /// Bytes it said were dirty then; 0 where it could not be read. It never has less later, unless somebody
    /// cleared it.
    pub dirty_bytes: u64,
}

/// Everything that changed in one disk since a base snapshot. What it does not name did not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedExtents {
    /// Size of the disk the list speaks of; a list of another size is refused.
    pub size_bytes: u64,
    /// Snapshot the list is relative to, an id or a unique prefix. A list that names neither a snapshot nor a
    /// bitmap is not used: nobody vouches for what it leaves out.
    pub base: Option<String>,
    /// The dirty bitmap it was read from. It is used only if the newest snapshot says that this bitmap
    /// recorded what was written after it.
    pub bitmap: Option<Bitmap>,
    /// In any order; overlaps are allowed and `Dirty` wins over `Zero`. May name more than what changed.
    pub extents: Vec<ChangedExtent>,
}
