//! The files of a database: a new one takes the place of an old one, whose logs go with it.
//!
//! SQLite applies a log that lies beside a database to that database, whichever one it was written for. So no database
//! is put beside the log of another.
//! Invariants
//! - At each step the name of the database leads to the old one with its logs, to nothing, or to the new one without any log.
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

/// How a file gets another name; a test lets it fail.
pub(super) type Rename<'a> = &'a mut dyn FnMut(&Path, &Path) -> io::Result<()>;

/// Gives the finished database `half` the name `to`. A database of that name and its logs, or logs alone, are moved to
/// `to.replaced` before, or to the first of `to.replaced-2`, `to.replaced-3` and so on that is free. Blocks on the disk.
/// # Errors
/// A file refused; then the old files have their names again, unless that failed too.
pub(super) fn exchange(half: &Path, to: &Path, rename: Rename<'_>) -> Result<(), FileError> {
    sync(half)?;
    let aside = free_name(to);
    let mut moved: Vec<(PathBuf, PathBuf)> = Vec::new();
    let done = move_all(half, to, &aside, rename, &mut moved);
    if done.is_err() {
        // The database comes last: it has no name without its logs.
        for (old, aside) in moved.iter().rev() {
            if let Err(error) = rename(aside, old) {
                tracing::warn!(%error, path = %old.display(), "the file stays at {}", aside.display());
                break;
            }
        }
    }
    done
}

fn move_all(
    half: &Path,
    to: &Path,
    aside: &Path,
    rename: Rename<'_>,
    moved: &mut Vec<(PathBuf, PathBuf)>,
) -> Result<(), FileError> {
    for end in ENDS {
        let (old, aside) = (beside(to, end), beside(aside, end));
        if is_there(&old) {
            rename(&old, &aside).map_err(failed(&old))?;
            moved.push((old, aside));
        }
    }
    // The logs are gone from here before the new database comes, also after a power cut.
    sync_directory(to)?;
    rename(half, to).map_err(failed(to))?;
    sync_directory(to)
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
    ENDS.iter()
        .map(|end| beside(database, end))
        .find(|path| is_there(path))
}

/// A new empty file for an unfinished copy, for its owner alone; the files of an earlier try are removed.
/// # Errors
/// A file refused.
pub(super) fn begin(half: &Path) -> Result<(), FileError> {
    remove(half)?;
    let new = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(half);
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

fn sync(path: &Path) -> Result<(), FileError> {
    let synced = File::open(path).and_then(|file| file.sync_all());
    synced.map_err(failed(path))
}

fn sync_directory(path: &Path) -> Result<(), FileError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync(directory.unwrap_or(Path::new(".")))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> FileError {
    move |source| FileError {
        path: path.to_owned(),
        source,
    }
}
