//! Which file or device a source is, and whether it still is that one, as large and as old, when all of it
//! was read.
//!
//! A hole is not read, so a file that was cut looks like one that ends in a hole. What tells them apart is
//! the size, looked at where a hole reaches the end and once more when everything was read.
//! Not here: what a changed image means for a backup (`backup`).

use super::SourceError;
use std::{
    fs::{File, Metadata},
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// An image file or a block device as it was when it was opened.
#[derive(Debug)]
pub(super) struct Identity {
    path: PathBuf,
    key: Key,
    /// Times of the last change of content and of the inode, in seconds and nanoseconds; devices have none.
    times: Option<[i64; 4]>,
}

/// What tells a file or a device from another one over restarts of the host; empty when nothing does.
///
/// Of a file: its inode, and when that was made, so that one which takes over a number is another one; where
/// nobody noted that, its file system instead.
/// Of a device: what the kernel knows of its hardware or of its volume.
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
        // Of a partition its place on the disk is a part of the answer.
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

/// What stays the same whatever the names are.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    /// A device number; the node that leads to it may be made anew.
    Device(u64),
    /// File system and inode.
    File(u64, u64),
}

impl Key {
    fn of(meta: &Metadata) -> Key {
        if meta.file_type().is_block_device() {
            Key::Device(meta.rdev())
        } else {
            Key::File(meta.dev(), meta.ino())
        }
    }
}

fn times(meta: &Metadata) -> Option<[i64; 4]> {
    let times = [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()];
    meta.is_file().then_some(times)
}

impl Identity {
    /// `meta` is that of the open file, not of the name.
    pub(super) fn new(path: &Path, meta: &Metadata) -> Identity {
        Identity { path: path.to_owned(), key: Key::of(meta), times: times(meta) }
    }

    /// Whether another handle, opened by the same name a little later, is of the same file.
    pub(super) fn is_of(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| Key::of(&meta) == self.key)
    }

    /// The source was changed in a way that no snapshot of it can be right.
    fn changed(&self, how: String) -> SourceError {
        SourceError::Changed { what: self.path.display().to_string(), how }
    }

    /// It could not be looked at once more.
    pub(super) fn failed(&self, error: std::io::Error) -> SourceError {
        SourceError::Io { action: "look again at", what: self.path.display().to_string(), error }
    }

    /// Fails when the size is another one than when the source was opened.
    pub(super) fn expect_size(&self, expected: u64, found: u64) -> Result<(), SourceError> {
        if expected == found {
            return Ok(());
        }
        Err(self.changed(format!("went from {expected} to {found} bytes")))
    }

    /// Looks once more, through the open file and by the name. Returns a sentence when the content changed,
    /// which may or may not have been while a part was read that had been read before.
    ///
    /// # Errors
    /// The name leads to another file now, or to none.
    pub(super) fn confirm(&self, file: &File) -> Result<Option<String>, SourceError> {
        match self.path.metadata() {
            Ok(meta) if Key::of(&meta) == self.key => {}
            Ok(_) => return Err(self.changed("was replaced by another one of that name".into())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(self.changed("was removed or renamed".into()));
            }
            Err(error) => return Err(self.failed(error)),
        }
        let now = times(&file.metadata().map_err(|error| self.failed(error))?);
        Ok((now != self.times).then(|| {
            format!(
                "{} was written while it was read: the snapshot mixes what was there before and after; back up a \
                 snapshot of the disk, or stop what writes to it",
                self.path.display()
            )
        }))
    }
}
