//! The files of a database: a new one takes the place of an old one, whose logs go with it.
//!
//! SQLite applies a log that lies beside a database to that database, whichever one it was written for. So no
//! database is put beside the log of another.
//! Invariants
//! - At each step, and after a power cut at any, the name of the database leads to the old one with its logs,
//!   to nothing, or to the new one without any log.
//! - No file is removed but those of an unfinished copy.
//!
//! Not here: the contents (`keeping`).

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Ends of the names of a database's files, the database itself first.
const ENDS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// A file that refused something.
pub(super) struct FileError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

/// The steps of an exchange; a test lets them fail, and cuts the power between them.
pub(super) trait Files {
    /// Gives a file another name of its directory.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Brings the bytes of a file, or the names of a directory, to the disk.
    fn sync(&mut self, path: &Path) -> io::Result<()>;
}

/// Those of the operating system.
pub(super) struct SystemFiles;

impl Files for SystemFiles {
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Gives the finished database `half` the name `to`. A database of that name and its logs, or logs alone, are
/// moved to `to.replaced` before, or to the first of `to.replaced-2`, `to.replaced-3` and so on that is free.
/// Blocks on the disk.
/// # Errors
/// A file refused; then the old files have their names again, unless that failed too.
pub(super) fn exchange(half: &Path, to: &Path, files: &mut dyn Files) -> Result<(), FileError> {
    files.sync(half).map_err(failed(half))?;
    let mut moves = Moves { to, files, done: Vec::new() };
    let done = moves.exchange(half);
    if done.is_err() {
        moves.undo();
    }
    done
}

/// Files that get other names, one after the other.
struct Moves<'a> {
    to: &'a Path,
    files: &'a mut dyn Files,
    /// Names before and after.
    done: Vec<(PathBuf, PathBuf)>,
}

impl Moves<'_> {
    fn exchange(&mut self, half: &Path) -> Result<(), FileError> {
        let aside = free_name(self.to);
        // The database goes first: it has no name without its logs.
        for end in ENDS {
            let (old, aside) = (beside(self.to, end), beside(&aside, end));
            if is_there(&old) {
                self.rename(old, aside)?;
            }
        }
        // The logs are gone from here before the new database comes.
        self.rename(half.to_owned(), self.to.to_owned())
    }

    /// Each name is on the disk before the next one changes: after a power cut they may have changed in any
    /// order.
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

    /// Takes everything back, the last first: the new database goes before logs come, the old one comes
    /// behind them.
    fn undo(&mut self) {
        while let Some((old, aside)) = self.done.pop() {
            let undone = self.files.rename(&aside, &old).map_err(failed(&old));
            if let Err(FileError { path, source }) = undone.and_then(|()| self.sync_names()) {
                tracing::warn!(%source, path = %path.display(), "what the file {} was stays in {}", old.display(), aside.display());
                break;
            }
        }
    }
}

/// The first free place for all files that are to be moved.
fn free_name(to: &Path) -> PathBuf {
    let is_free = |aside: &PathBuf| {
        let is_taken = |end: &str| is_there(&beside(to, end)) && is_there(&beside(aside, end));
        !ENDS.iter().any(|end| is_taken(end))
    };
    let numbered = (2_u64..).map(|number| beside(to, &format!(".replaced-{number}")));
    let mut names = std::iter::once(beside(to, ".replaced")).chain(numbered);
    // A directory has less files than there are numbers.
    names.find(is_free).unwrap_or_else(|| beside(to, ".replaced"))
}

/// A file of the database's name, or of one of its logs.
pub(super) fn found(database: &Path) -> Option<PathBuf> {
    ENDS.iter().map(|end| beside(database, end)).find(|path| is_there(path))
}

/// A new empty file for an unfinished copy, for its owner alone; the files of an earlier try are removed.
/// # Errors
/// A file refused.
pub(super) fn begin(half: &Path) -> Result<(), FileError> {
    remove(half)?;
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(half);
    new.map(drop).map_err(failed(half))
}

/// Removes an unfinished copy with its logs: the log of a try that was killed would change the next.
/// # Errors
/// A file refused.
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

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

fn failed(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError { path: path.to_owned(), source }
}

#[cfg(test)]
mod tests;
