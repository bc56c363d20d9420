//! File target: a raw image file, new or in place of an old one.
//!
//! Invariants
//! - An existing file is replaced only on request, and not while another process has locked it.
//! - A file gets its name only when it is complete. It is written as `NAME.copal-partial`, made durable, and
//!   renamed. A failed restore removes it. A killed restore leaves it, and the next restore to the same name
//!   reuses it.
//! - A new file has mode 0600; a replaced one keeps its owner and mode. No other user can make the restore
//!   write through a link, or into a file that has a second name.
//! - Holes stay holes: the file is created as one hole.

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
    /// Temporary name; `None` once the file has its final name.
    partial: Mutex<Option<PathBuf>>,
    /// The file that is replaced, locked.
    old: Option<File>,
}

impl FileTarget {
    /// Creates a new file; refuses an existing one.
    ///
    /// # Errors
    /// The file exists, its directory does not, or another restore is writing it.
    pub fn create(path: &Path) -> Result<FileTarget, TargetError> {
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        FileTarget::start(path.to_owned(), None, &mut || {})
    }

    /// Creates a file that replaces an existing one when it is complete, with the old owner and mode. Until
    /// then the old one stays unchanged and keeps its space.
    ///
    /// # Errors
    /// The file may not be written, or is locked by an open store or another restore.
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
        // Behind a symbolic link, the file it leads to is replaced.
        let path = path.canonicalize().map_err(failed("open", path))?;
        FileTarget::start(path, Some(old), &mut || {})
    }

    /// Opens and locks the partial file. `opened` runs between the two, where a test inserts another restore.
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
            let file = open_partial(&partial)?;
            opened();
            // The file of a killed restore is free; that of a running one is locked.
            if !lock::take(&file) {
                return Err(TargetError::Unusable {
                    reason: format!(
                        "{} is being written by another restore; wait for it or name another file",
                        path.display()
                    ),
                });
            }
            // The previous holder of the lock has renamed the file, or has failed and removed it.
            if !has_name(&file, &partial).map_err(failed("look at", &partial))? {
                continue;
            }
            // Others may have the file open already. If a new file is open to others too, the file system has
            // no modes.
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

    /// Copies owner and mode of the old file. Called after the last write: until then no other user can read
    /// the incomplete file, and the file of a killed restore belongs to its user.
    fn copy_owner(&self) -> std::io::Result<()> {
        let Some(old) = &self.old else { return Ok(()) };
        let old = old.metadata()?;
        let new = self.file.metadata()?;
        if (old.uid(), old.gid()) != (new.uid(), new.gid()) {
            // Only root may change the owner. For other users the new file keeps their own user and gets the
            // old mode.
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

/// Creates the partial file, or opens the one that a killed restore left. A user with write access to the
/// directory may have placed another file there.
fn open_partial(partial: &Path) -> Result<File, TargetError> {
    let refused = |what: &str| {
        Err(TargetError::Unusable {
            reason: format!(
                "{} is {what}, which no restore left there; check its origin and remove it, or name another file, \
                 nothing was written",
                partial.display()
            ),
        })
    };
    // `NONBLOCK`: opening a pipe must not wait.
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

/// Whether the path leads to this file, and the file has no second name.
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
                "the name {} is longer than its file system takes (255 bytes mostly, with `.copal-partial` appended \
                 until it is complete); choose a shorter one, nothing was written",
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

    /// Nothing to do: the file was created as one hole.
    fn hole(&self, _offset: u64, _length: u64) -> Result<(), TargetError> {
        Ok(())
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.copy_owner().map_err(failed("give owner and mode to", &self.path))?;
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

/// Renames a finished file, unless the final name exists by now.
fn rename_new(from: &Path, to: &Path) -> Result<(), TargetError> {
    use rustix::fs::CWD;
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists(to)),
        // The file system has no exclusive rename: check before the rename.
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
            // If the incomplete file cannot be removed, its name still marks it.
            let _ = std::fs::remove_file(partial);
        }
    }
}
