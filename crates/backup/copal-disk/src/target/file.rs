//! A raw image file, new or in the place of an old one.
//!
//! Invariants
//! - An existing file is replaced only when the caller said so, and not while somebody has it locked.
//! - A file carries its name only when it is whole: it grows as `NAME.copal-partial`, is made
//!   durable, and is renamed. A restore that fails removes it; one that was killed leaves it, and
//!   the next restore to the same name takes its place.
//! - A new file is this user's alone (0600); one that is replaced keeps owner and mode. Nobody else makes it
//!   write through a link, or into a file that has another name, too.
//! - Holes stay holes: the file is born as one.

use super::lock;
use super::{Target, TargetError};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::{
    ffi::OsString,
    fs::{File, OpenOptions},
    io::ErrorKind,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown},
    path::{Path, PathBuf},
};

/// A raw image file.
#[derive(Debug)]
pub struct FileTarget {
    path: PathBuf,
    file: File,
    /// Name while it grows; taken away once it has its own.
    partial: Mutex<Option<PathBuf>>,
    /// The file whose place it takes, locked.
    old: Option<File>,
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
        FileTarget::start(path.to_owned(), None, &mut || {})
    }

    /// A file that takes the place of an existing one once it is whole, with its owner and mode. Until then
    /// the old one stays as it is and keeps its space.
    ///
    /// # Errors
    /// It may not be written, or somebody has it locked: an open store, another restore.
    pub fn replace(path: &Path) -> Result<FileTarget, TargetError> {
        let open = OpenOptions::new().read(true).write(true).open(path);
        let old = open.map_err(failed("open", path))?;
        if !lock::take(&old) {
            return Err(TargetError::Unusable {
                reason: format!(
                    "{} is in use (by the store of a repository, or another restore); name another file",
                    path.display()
                ),
            });
        }
        // Behind a link is the file that is meant.
        let path = path.canonicalize().map_err(failed("open", path))?;
        FileTarget::start(path, Some(old), &mut || {})
    }

    /// `opened` runs between the opening of the unfinished file and its lock, where a test puts another
    /// restore.
    pub(super) fn start(
        path: PathBuf,
        old: Option<File>,
        opened: &mut dyn FnMut(),
    ) -> Result<FileTarget, TargetError> {
        let mut name = OsString::from(path.file_name().unwrap_or_default());
        name.push(".copal-partial");
        let partial = path.with_file_name(name);
        let mut renewed = false;
        let file = loop {
            let file = open_unfinished(&partial)?;
            opened();
            // A leftover of a restore that was killed is free to take, one under way is not.
            if !lock::take(&file) {
                return Err(TargetError::Unusable {
                    reason: format!(
                        "{} is being written by another restore; wait for it or name another file",
                        path.display()
                    ),
                });
            }
            // Whoever had it before finished, and gave the file its name, or failed and removed it.
            if !has_name(&file, &partial).map_err(failed("look at", &partial))? {
                continue;
            }
            // Others may have it open already. Where a new one is no better, the file system knows no modes.
            if renewed || !is_open_to_others(&file).map_err(failed("look at", &partial))? {
                break file;
            }
            std::fs::remove_file(&partial).map_err(failed("replace", &partial))?;
            renewed = true;
        };
        let target = FileTarget { path, file, partial: Mutex::new(Some(partial)), old };
        target.file.set_len(0).map_err(failed("empty", &target.path))?;
        Ok(target)
    }

    /// Owner and mode of the old file. Behind the last byte: until then nobody else reads what is not whole,
    /// and what a killed restore leaves is its user's.
    fn take_over(&self) -> std::io::Result<()> {
        let Some(old) = &self.old else { return Ok(()) };
        let old = old.metadata()?;
        let new = self.file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            // Only root may give a file away. Whoever else may replace it gets it with the mode it had.
            match fchown(&self.file, Some(old.uid()), Some(old.gid())) {
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                changed => changed?,
            }
        }
        self.file.set_permissions(old.permissions())
    }
}

pub(super) fn exists(path: &Path) -> TargetError {
    TargetError::Exists {
        reason: format!("{} exists; name another file, or add --force to overwrite it", path.display()),
    }
}

/// Makes the unfinished file, or opens the one a killed restore left. Whoever may write in the directory may
/// have put something else there.
fn open_unfinished(partial: &Path) -> Result<File, TargetError> {
    let refused = |what: &str| {
        Err(TargetError::Unusable {
            reason: format!(
                "{} is {what}, which no restore left there; look who made it and remove it, or name another file, \
                 nothing was written",
                partial.display()
            ),
        })
    };
    // A pipe is not waited for.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = loop {
        let new = flags | OFlags::CREATE | OFlags::EXCL;
        match rustix::fs::open(partial, new, Mode::RUSR | Mode::WUSR) {
            Ok(file) => return Ok(File::from(file)),
            Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("create", partial)(error.into())),
        }
        match rustix::fs::open(partial, flags, Mode::empty()) {
            Ok(file) => break File::from(file),
            Err(Errno::NOENT) => {}
            Err(Errno::LOOP) => return refused("a symbolic link"),
            Err(Errno::NXIO | Errno::ISDIR) => return refused("not a regular file"),
            Err(error) => return Err(failed("open", partial)(error.into())),
        }
    };
    let meta = file.metadata().map_err(failed("look at", partial))?;
    if !meta.is_file() {
        return refused("not a regular file");
    }
    if meta.nlink() > 1 {
        return refused("a file with several names");
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return refused("a file of another user");
    }
    Ok(file)
}

/// Whether others may open the file.
fn is_open_to_others(file: &File) -> std::io::Result<bool> {
    Ok(file.metadata()?.permissions().mode() & 0o077 != 0)
}

/// Whether the name leads to this file, and no other name does.
fn has_name(file: &File, path: &Path) -> std::io::Result<bool> {
    let here = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((here.dev(), here.ino(), 1) == (there.dev(), there.ino(), there.nlink())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn failed<'a>(
    action: &'static str,
    path: &'a Path,
) -> impl Fn(std::io::Error) -> TargetError + 'a {
    move |error| match error.kind() {
        ErrorKind::InvalidFilename => TargetError::Unusable {
            reason: format!(
                "the name {} is longer than its file system takes (255 bytes mostly, with `.copal-partial` behind a file \
                 that is not whole yet); choose a shorter one, nothing was written",
                path.display()
            ),
        },
        _ => TargetError::Io { action, what: path.display().to_string(), error },
    }
}

impl Target for FileTarget {
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError> {
        self.file.set_len(size_bytes).map_err(failed("size", &self.path))
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        self.file.write_all_at(data, offset).map_err(failed("write", &self.path))
    }

    /// It was born as one.
    fn hole(&self, _offset: u64, _length: u64) -> Result<(), TargetError> {
        Ok(())
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.take_over().map_err(failed("give owner and mode to", &self.path))?;
        self.file.sync_all().map_err(failed("flush", &self.path))?;
        let mut partial = self.partial.lock();
        if let Some(name) = partial.as_ref() {
            if self.old.is_some() {
                std::fs::rename(name, &self.path).map_err(failed("replace", &self.path))?;
            } else {
                rename_new(name, &self.path)?;
            }
            *partial = None;
            flush_directory(&self.path)?;
        }
        Ok(())
    }
}

/// Gives a finished file its name; a file that appeared there meanwhile is left alone.
fn rename_new(from: &Path, to: &Path) -> Result<(), TargetError> {
    use rustix::fs::CWD;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists(to)),
        // A file system that cannot refuse in the rename itself: refuse before it.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if to.symlink_metadata().is_ok() {
                return Err(exists(to));
            }
            std::fs::rename(from, to).map_err(failed("rename", from))?;
        }
        Err(error) => return Err(failed("rename", from)(error.into())),
    }
    Ok(())
}

fn flush_directory(of: &Path) -> Result<(), TargetError> {
    let parent = of.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(failed("flush", parent))
}

impl Drop for FileTarget {
    fn drop(&mut self) {
        if let Some(partial) = self.partial.get_mut().take() {
            // An unfinished file is worth nothing; if it cannot be removed, its name says what it is.
            let _ = std::fs::remove_file(partial);
        }
    }
}
