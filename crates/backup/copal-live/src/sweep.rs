//! Sweep: removal of session directories whose process and QEMU have both ended.
//!
//! Invariant: a directory is removed only if its lock is free and no QEMU has an image of it open. The nodes
//! of a killed backup in a running QEMU are taken down through that QEMU (`teardown`).

use crate::{fleece, names::SessionName};
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    io::Errno,
};
use std::{
    fs::{DirEntry, OpenOptions},
    path::Path,
    time::Duration,
};

/// A directory younger than this may belong to a backup that begins.
const YOUNG: Duration = Duration::from_secs(60);

/// Removes directories of killed backups. A failure is logged and does not end the backup.
pub(crate) fn sweep(base: &Path) {
    let Ok(entries) = base.read_dir() else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_session = name.to_str().is_some_and(|name| {
            // Before the rename, its lock may not exist yet.
            let unnamed = name.strip_suffix(".new").filter(|_| is_old(&entry));
            SessionName::is_directory(unnamed.unwrap_or(name))
        });
        if !is_session || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let directory = entry.path();
        if !fleece::has_ended(&directory) || !is_unused(&directory) {
            continue;
        }
        match fleece::remove_directory(&directory) {
            Ok(()) => {
                tracing::info!(directory = %directory.display(), "directory of a killed backup removed")
            }
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "directory of a killed backup not removed")
            }
        }
    }
}

/// Whether nothing was created in a directory for a minute.
fn is_old(entry: &DirEntry) -> bool {
    let changed = entry.metadata().and_then(|found| found.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|age| age >= YOUNG))
}

/// Whether no process has locked a file of the directory: QEMU locks every image that it opens. If a lock
/// cannot be tested, the directory counts as used.
fn is_unused(directory: &Path) -> bool {
    let Ok(entries) = directory.read_dir() else {
        return false;
    };
    for entry in entries {
        let Ok(entry) = entry else { return false };
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = OpenOptions::new().read(true).write(true).open(entry.path()) else {
            return false;
        };
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // On a file system without such locks, QEMU's locks are not visible.
            Err(error) => {
                if !matches!(error, Errno::AGAIN | Errno::ACCESS) {
                    tracing::debug!(%error, directory = %directory.display(), "cannot test the locks of a directory, kept");
                }
                return false;
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fleece::SessionDirectory, request::FleeceOptions};

    /// Symptom: if QEMU had ended as well, the fleecing image of a killed backup stayed for ever, a tenth of
    /// the disk each time.
    /// Cause: the next backup found remains only by the nodes of QEMU.
    /// Fix: it also searches the directory of fleecing images.
    #[test]
    fn only_unused_session_directories_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let fleece = FleeceOptions { directory: base.path().to_owned(), ..FleeceOptions::default() };
        let make = || {
            let session = SessionName::draw().unwrap();
            let directory = SessionDirectory::make(&fleece, &session, base.path()).unwrap();
            (base.path().join(session.directory()), directory)
        };
        let (alive, _held) = make();
        // Like the directories of killed backups, whose locks ended with the processes.
        let left = |name: &str| {
            let path = base.path().join(name);
            std::fs::create_dir(&path).unwrap();
            for file in ["lock", "0.image"] {
                std::fs::write(path.join(file), b"").unwrap();
            }
            path
        };
        let (killed, other) = (left("copal-0123abcd"), left("copal-mine"));
        let unlocked = left("copal-0123abce");
        std::fs::remove_file(unlocked.join("lock")).unwrap();
        let (begun, long_begun) = (left("copal-0123abcf.new"), left("copal-0123abd0.new"));
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        std::fs::File::open(&long_begun).unwrap().set_modified(hour_ago).unwrap();
        sweep(base.path());
        assert!(!killed.exists() && !unlocked.exists() && !long_begun.exists());
        assert!(alive.exists() && other.exists() && begun.exists());
        sweep(Path::new("/none"));
    }
}
