//! Sources: the interface between a backup and the disk it reads.
//!
//! A source answers two questions only: where is data, and which bytes are at an offset?
//!
//! Design: docs/design/backup.md#sources BAK-1, BAK-2
//! Invariants
//! - A source does not change while it is read (a point in time). The bytes that were hashed are the bytes
//!   that are stored, so the snapshot equals the bytes that were read. [`Source::confirm`] detects a source
//!   that was cut, grew or was replaced meanwhile; it makes no snapshot. A source that was written in place
//!   gets a warning.
//! - `Zero` is a promise: reading that range would give zero bytes. `Data` promises nothing.
//!
//! Not here: detecting changes since the last backup (callers pass them as [`ChangedExtents`]), restore
//! targets (`target`).

mod bitmaps;
mod chain;
mod change_list;
mod dirty_runs;
pub mod file;
mod identity;
mod image_check;
mod image_header;
pub mod nbd;
pub mod open;
mod programs;
pub mod qcow2;
mod signature;
pub mod stream;
#[cfg(test)]
mod tests;

pub use signature::{END_BYTES, FormatKind, KnownFormat, recognise};

pub use change_list::{MAX_EXTENTS, parse_changed_extents, read_changed_extents};
pub use identity::disk_identity;
pub use image_check::{ImageReport, check_running_image};

use std::ops::Range;

/// Known content of a run of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Unknown content; must be read.
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
    /// Known content.
    pub kind: ExtentKind,
}

impl Extent {
    /// One past the last byte.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

/// Error of a source.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The system refused to open, read or map the source.
    #[error("cannot {action} {what}: {error}; check the path, its permissions and the disk below")]
    Io {
        /// The failed action: "open", "read", "map".
        action: &'static str,
        /// The source, as the user named it.
        what: String,
        /// The error of the system.
        #[source]
        error: std::io::Error,
    },
    /// The source ended before its announced size.
    #[error("{what} ended at byte {at}, {expected} were announced; was it truncated while being read?")]
    Short {
        /// The source, as the user named it.
        what: String,
        /// Offset of the end.
        at: u64,
        /// The announced size.
        expected: u64,
    },
    /// The source changed while it was read: cut, grown, replaced.
    #[error(
        "{what} {how} while it was read, so no snapshot was made; back up a snapshot of the disk, or stop the \
         program that changes it"
    )]
    Changed {
        /// The source, as the user named it.
        what: String,
        /// The change, as the rest of a sentence.
        how: String,
    },
    /// A helper program is missing, or the source is refused.
    #[error("{reason}")]
    Unusable {
        /// A sentence with advice.
        reason: String,
    },
}

/// One disk, readable at any offset by several threads at once.
pub trait Source: Send + Sync {
    /// Size in bytes; `None` for a stream whose end is not known before it is reached.
    ///
    /// A stream is read once, in ascending order, by one thread, until `read_at` returns short.
    fn size_bytes(&self) -> Option<u64>;

    /// Preferred alignment: offsets and lengths of reads are multiples of it, except at the end.
    fn block_bytes(&self) -> u32 {
        4096
    }

    /// The extent that holds byte `offset`. It starts at or before `offset`, and is as long as is cheap to
    /// determine.
    ///
    /// `offset` is below the size. May block on metadata (`SEEK_DATA`, NBD block status).
    /// # Errors
    /// The map cannot be read. A source without a map returns one `Data` extent to its end.
    fn extent_at(&self, offset: u64) -> Result<Extent, SourceError>;

    /// Fills `buf` from byte `offset`; short only at the end of the source. Blocks.
    /// # Errors
    /// The read failed. It is not retried: the backup of this VM ends, and the chunks that it stored stay.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, SourceError>;

    /// First bytes of the disk, up to the length of `buf`, before the first read. Blocks.
    /// # Errors
    /// As [`Source::read_at`].
    fn head(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.size_bytes() {
            Some(_) => self.read_at(0, buf),
            None => Ok(0),
        }
    }

    /// Last bytes of the disk, up to the length of `buf`; of a stream, after the last read. Blocks.
    /// # Errors
    /// As [`Source::read_at`].
    fn tail(&self, buf: &mut [u8]) -> Result<usize, SourceError> {
        match self.size_bytes() {
            Some(size) => self.read_at(size.saturating_sub(buf.len() as u64), buf),
            None => Ok(0),
        }
    }

    /// Checks the source again after the last read of a backup. Returns a warning about a disk that was
    /// written meanwhile. Blocks.
    ///
    /// A source without a name or a size returns `None`.
    /// # Errors
    /// The bytes that were read are no consistent disk: the source was resized or replaced.
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
        // An extent elsewhere is treated like a missing map: read the range.
        let covers = extent.offset <= self.next && extent.end() > self.next;
        let (kind, end) =
            if covers { (extent.kind, extent.end().min(self.end)) } else { (ExtentKind::Data, self.end) };
        let clipped = Extent { offset: self.next, length: end - self.next, kind };
        self.next = end;
        Some(Ok(clipped))
    }
}

/// Evidence that the bytes of a source are those of a raw disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ContentEvidence {
    /// None: a source that looks like an image of another program, or like an archive, is refused.
    #[default]
    Guessed,
    /// The user stated it: a source that looks like another format gets a doubt.
    Stated,
    /// The bytes were decoded from the expected format; the guest may have written anything.
    Decoded,
}

/// Change of a run of bytes since the base snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Written; must be read again.
    Dirty,
    /// Discarded or zeroed; now reads as zero bytes.
    Zero,
}

/// A run of bytes that changed since the base snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangedExtent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Kind of the change.
    pub kind: ChangeKind,
}

/// State of a dirty bitmap at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitmapState {
    /// Name of the bitmap.
    pub name: String,
    /// Dirty bytes at that moment; 0 if the bitmap could not be read. Later it has at least as many, unless
    /// it was cleared.
    pub dirty_bytes: u64,
}

/// All changes of one disk since a base snapshot. A range that the list does not name did not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedExtents {
    /// Size of the listed disk; a list with another size is refused.
    pub size_bytes: u64,
    /// Base snapshot of the list, an id or a unique prefix. A list with neither a snapshot nor a bitmap is
    /// not used: nothing proves that it is complete.
    pub base: Option<String>,
    /// The dirty bitmap that the list was read from. It is used only if the newest snapshot states that this
    /// bitmap recorded all later writes.
    pub bitmap: Option<BitmapState>,
    /// In any order. Extents may overlap; `Dirty` wins over `Zero`. They may cover more than the changed
    /// bytes.
    pub extents: Vec<ChangedExtent>,
}
