//! A raw image file, new or overwritten.
//!
//! Invariants
//! - An existing file is touched only when the caller said so.
//! - A new file carries its name only when it is whole: it grows as `NAME.copal-partial`, is made
//!   durable, and is renamed. A restore that fails removes it; one that was killed leaves it, and
//!   the next restore to the same name takes its place.
//! - Holes stay holes: a new file is born as one, in an old one they are punched.

use super::{Target, TargetError, punch};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, RenameFlags};
use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// A raw image file.
#[derive(Debug)]
pub struct FileTarget {
    path: PathBuf,
    file: File,
    /// Name while it grows, for a new file; taken away once it has its own.
    partial: Mutex<Option<PathBuf>>,
    /// The file held data before.
    is_old: bool,
}

impl FileTarget {
    /// A new file; refuses an existing one.
    ///
    /// # Errors
    /// It exists, its directory does not, or another restore is writing it.
    pub fn create(path: &Path) -> Result<FileTarget, TargetError> {
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let mut name = OsString::from(path.file_name().unwrap_or_default());
        name.push(".copal-partial");
        let partial = path.with_file_name(name);
        let open = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&partial);
        let file = open.map_err(failed("create", &partial))?;
        // A leftover of a restore that was killed is free to take, one under way is not.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(TargetError::Unusable {
                reason: format!(
                    "{} is being written by another restore; wait for it or name another file",
                    path.display()
                ),
            });
        }
        file.set_len(0).map_err(failed("empty", &partial))?;
        Ok(FileTarget {
            path: path.to_owned(),
            file,
            partial: Mutex::new(Some(partial)),
            is_old: false,
        })
    }

    /// An existing file, overwritten in place.
    ///
    /// # Errors
    /// It may not be written.
    pub fn overwrite(path: &Path) -> Result<FileTarget, TargetError> {
        let open = OpenOptions::new().read(true).write(true).open(path);
        let file = open.map_err(failed("open", path))?;
        Ok(FileTarget {
            path: path.to_owned(),
            file,
            partial: Mutex::new(None),
            is_old: true,
        })
    }
}

pub(super) fn exists(path: &Path) -> TargetError {
    TargetError::Unusable {
        reason: format!(
            "{} exists; name another file, or add --force to overwrite it",
            path.display()
        ),
    }
}

pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> TargetError + 'a {
    move |error| TargetError::Io {
        action,
        what: path.display().to_string(),
        error,
    }
}

impl Target for FileTarget {
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError> {
        self.file.set_len(size_bytes).map_err(failed("size", &self.path))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        self.file
            .write_all_at(data, offset)
            .map_err(failed("write", &self.path))
    }

    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError> {
        if !self.is_old {
            return Ok(());
        }
        punch::zero_range(&self.file, offset, length).map_err(failed("punch a hole in", &self.path))
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.file.sync_all().map_err(failed("flush", &self.path))?;
        let mut partial = self.partial.lock();
        if let Some(name) = partial.as_ref() {
            rename_new(name, &self.path)?;
            *partial = None;
        }
        Ok(())
    }
}

/// Gives a finished file its name, durably; a file that appeared there meanwhile is left alone.
fn rename_new(from: &Path, to: &Path) -> Result<(), TargetError> {
    use rustix::fs::CWD;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Err(exists(to)),
        // A file system that cannot refuse in the rename itself: refuse before it.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
            if to.symlink_metadata().is_ok() {
                return Err(exists(to));
            }
            std::fs::rename(from, to).map_err(failed("rename", from))?;
        }
        Err(error) => return Err(failed("rename", from)(error.into())),
    }
    let parent = to
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(failed("flush", parent))
}

impl Drop for FileTarget {
    fn drop(&mut self) {
        if let Some(partial) = self.partial.get_mut().take() {
            // An unfinished file is worth nothing; if it cannot be removed, its name says what it is.
            let _ = std::fs::remove_file(partial);
        }
    }
}
