//! Exchange of database files: a new database takes the name of an old one, whose logs are moved away with it.
//!
//! SQLite applies a log beside a database to that database, even if it was written for another one. Therefore
//! no database may lie beside the log of another.
//!
//! Invariants
//! - At each step, and after a power cut at any step, the name of the database belongs to the old one with its
//!   logs, to no file, or to the new one without any log.
//! - Only the files of an unfinished copy are removed.
//!
//! Not here: the contents (`metadata_backup`).

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Suffixes of the names of a database's files, the database itself first.
const ENDS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// A failed file operation.
pub(super) struct FileError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

/// File operations of an exchange; tests let them fail, and cut the power between them.
pub(super) trait FileOps {
    /// Renames a file within its directory.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the bytes of a file, or the names of a directory, durable.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

/// File operations of the operating system.
pub(super) struct SystemFileOps;

impl FileOps for SystemFileOps {
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Renames the finished database `half` to `to`. Before that, a database of that name and its logs, or logs
/// alone, are renamed to `to.replaced`, or to the first free one of `to.replaced-2`, `to.replaced-3` and so on.
/// Blocks on the disk.
/// # Errors
/// A file operation failed; then the old files have their names again, unless that failed too.
pub(super) fn exchange(half: &Path, to: &Path, files: &mut dyn FileOps) -> Result<(), FileError> {
    files.sync(half).map_err(failed(half))?;
    let mut moves = RenameLog { to, files, done: Vec::new() };
    let done = moves.exchange(half);
    if done.is_err() {
        moves.undo();
    }
    done
}

/// Renamed files, in order.
struct RenameLog<'a> {
    to: &'a Path,
    files: &'a mut dyn FileOps,
    /// Old and new names.
    done: Vec<(PathBuf, PathBuf)>,
}

impl RenameLog<'_> {
    fn exchange(&mut self, half: &Path) -> Result<(), FileError> {
        let aside = free_name(self.to);
        // The database first, so that it is never at its name without its logs.
        for end in ENDS {
            let (old, aside) = (beside(self.to, end), beside(&aside, end));
            if exists(&old) {
                self.rename(old, aside)?;
            }
        }
        // All old logs are away before the new database gets the name.
        self.rename(half.to_owned(), self.to.to_owned())
    }

    /// Makes each name durable before the next one changes. Otherwise a power cut could leave any subset of the
    /// changes.
    fn rename(&mut self, from: PathBuf, to: PathBuf) -> Result<(), FileError> {
        self.files.rename(&from, &to).map_err(failed(&from))?;
        self.done.push((from, to));
        self.sync_names()
    }

    fn sync_names(&mut self) -> Result<(), FileError> {
        let directory =
            self.to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.files.sync(directory).map_err(failed(directory))
    }

    /// Undoes all renames, the last first: the new database leaves before the logs return, and the old one
    /// returns after them.
    fn undo(&mut self) {
        while let Some((old, aside)) = self.done.pop() {
            let undone = self.files.rename(&aside, &old).map_err(failed(&old));
            if let Err(FileError { path, source }) = undone.and_then(|()| self.sync_names()) {
                tracing::warn!(%source, path = %path.display(), "the former file {} stays at {}", old.display(), aside.display());
                break;
            }
        }
    }
}

/// The first name that is free for all files that have to be renamed.
fn free_name(to: &Path) -> PathBuf {
    let is_free = |aside: &PathBuf| {
        let is_taken = |end: &str| exists(&beside(to, end)) && exists(&beside(aside, end));
        !ENDS.iter().any(|end| is_taken(end))
    };
    let numbered = (2_u64..).map(|number| beside(to, &format!(".replaced-{number}")));
    let mut names = std::iter::once(beside(to, ".replaced")).chain(numbered);
    // Always found: a directory has fewer files than there are numbers.
    names.find(is_free).unwrap_or_else(|| beside(to, ".replaced"))
}

/// An existing file with the name of the database or of one of its logs.
pub(super) fn existing_file(database: &Path) -> Option<PathBuf> {
    ENDS.iter().map(|end| beside(database, end)).find(|path| exists(path))
}

/// Makes an empty file for an unfinished copy, for its owner alone. Removes the files of an earlier attempt.
/// # Errors
/// A file operation failed.
pub(super) fn begin(half: &Path) -> Result<(), FileError> {
    remove(half)?;
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(half);
    new.map(drop).map_err(failed(half))
}

/// Removes an unfinished copy and its logs: the log of a killed attempt would change the next copy.
/// # Errors
/// A file operation failed.
pub(super) fn remove(half: &Path) -> Result<(), FileError> {
    for end in ENDS {
        let path = beside(half, end);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&path)(error)),
            _ => {}
        }
    }
    Ok(())
}

pub(super) fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn failed(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
