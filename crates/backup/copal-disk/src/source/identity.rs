//! Identity check: detects that a file or device was replaced, resized or written while it was read.
//!
//! Holes are not read, so a truncated file looks like a file that ends in a hole. The size tells them apart.
//! It is checked when a hole reaches the end of the file, and again after the last read.
//! Not here: the effect of a changed image on a backup (`copal-backup`).

use super::SourceError;
use std::{
    fs::{File, Metadata},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// State of an image file or a block device at the time it was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    key: FileKey,
    /// Modification and change times, in seconds and nanoseconds; `None` for devices.
    times: Option<[i64; 4]>,
}

/// Identity of a file or device that survives a restart of the host; empty if there is none.
///
/// - File: inode number and creation time, so that a reused inode number is detected. On a file system
///   without creation times, inode number and file system id.
/// - Device: the identifier of its hardware or volume as the kernel reports it.
pub fn disk_identity(path: &Path) -> String {
    let Ok(meta) = path.metadata() else {
        return String::new();
    };
    if meta.file_type().is_block_device() {
        let device =
            format!("/sys/dev/block/{}:{}", rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
        let words = ["dm/uuid", "wwid", "device/wwid", "serial", "device/serial"];
        let mut known = words.iter().filter_map(|word| {
            let text = std::fs::read_to_string(format!("{device}/{word}")).ok()?;
            let text = text.trim().to_owned();
            (!text.is_empty()).then(|| format!("device {word} {text}"))
        });
        // A partition is identified by the disk and its start sector.
        let start = std::fs::read_to_string(format!("{device}/start")).unwrap_or_default();
        return known.next().map_or_else(String::new, |known| match start.trim() {
            "" => known,
            start => format!("{known} from sector {start}"),
        });
    }
    let made = meta.created().ok().and_then(|made| made.duration_since(std::time::UNIX_EPOCH).ok());
    match made {
        Some(made) => format!("file {}, made {}", meta.ino(), made.as_nanos()),
        None => {
            let file_system = rustix::fs::statvfs(path).map_or(0, |found| found.f_fsid);
            format!("file {} of {file_system:x}", meta.ino())
        }
    }
}

/// Identity that does not depend on names.
#[derive(Debug, PartialEq, Eq)]
enum FileKey {
    /// Device number; the device node may be created anew.
    Device(u64),
    /// File system and inode.
    File(u64, u64),
}

impl FileKey {
    fn of(meta: &Metadata) -> FileKey {
        if meta.file_type().is_block_device() {
            FileKey::Device(meta.rdev())
        } else {
            FileKey::File(meta.dev(), meta.ino())
        }
    }
}

fn times(meta: &Metadata) -> Option<[i64; 4]> {
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    meta.is_file().then_some(times)
}

impl FileIdentity {
    /// `meta` belongs to the open file, not to the path.
    pub(super) fn new(path: &Path, meta: &Metadata) -> FileIdentity {
        FileIdentity { path: path.to_owned(), key: FileKey::of(meta), times: times(meta) }
    }

    /// Whether another descriptor, opened by the same path a little later, is of the same file.
    pub(super) fn is_of(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| FileKey::of(&meta) == self.key)
    }

    /// The source changed such that no snapshot of it is correct.
    fn changed(&self, how: String) -> SourceError {
        SourceError::Changed { what: self.path.display().to_string(), how }
    }

    /// The second check itself failed.
    pub(super) fn failed(&self, error: std::io::Error) -> SourceError {
        SourceError::Io { action: "look again at", what: self.path.display().to_string(), error }
    }

    /// Fails if the size has changed since the source was opened.
    pub(super) fn expect_size(&self, expected: u64, found: u64) -> Result<(), SourceError> {
        if expected == found {
            return Ok(());
        }
        Err(self.changed(format!("went from {expected} to {found} bytes")))
    }

    /// Checks the open file and the path again. Returns a warning if the content changed, whether or not the
    /// backup read both states.
    ///
    /// # Errors
    /// The path leads to another file, or to none.
    pub(super) fn confirm(&self, file: &File) -> Result<Option<String>, SourceError> {
        match self.path.metadata() {
            Ok(meta) if FileKey::of(&meta) == self.key => {}
            Ok(_) => return Err(self.changed("was replaced by another one of that name".into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(self.changed("was removed or renamed".into()));
            }
            Err(error) => return Err(self.failed(error)),
        }
        let now = times(&file.metadata().map_err(|error| self.failed(error))?);
        Ok((now != self.times).then(|| {
            format!(
                "{} was written while it was read: the snapshot mixes old and new content; back up a \
                 snapshot of the disk, or stop the program that writes to it",
                self.path.display()
            )
        }))
    }
}
