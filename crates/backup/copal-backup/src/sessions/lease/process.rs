//! Detects that a holder's process on this host has died: each holder locks a file for as long as its process
//! lives.
//!
//! The file is in a directory that only this user can access, below the system's directory for locks. If its
//! lock can be taken, the process has died. A missing file proves nothing: the holder may be on another host,
//! in another container or of another user. The kernel releases a lock with its process, so neither process
//! numbers nor clocks matter.
//!
//! Not here: the end of the sessions of a dead holder (`lease`).

use crate::request::open_session::HolderId;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Age after which the file of a dead process is removed; others have ended its sessions by then.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The locked file of a live holder. The lock ends when this is dropped or the process ends.
pub(crate) struct HolderLock {
    path: PathBuf,
    file: File,
}

impl Drop for HolderLock {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        // A child process has a copy of the file between `fork` and `exec`.
        let _ = self.file.unlock();
    }
}

/// Creates and locks the file of this holder; `None`: no directory is usable, and others must wait for the
/// lease.
pub(crate) fn lock(holder: HolderId) -> Option<HolderLock> {
    let directory = directory()?;
    clear(&directory);
    let path = directory.join(holder.to_string());
    let unnamed = path.with_extension("new");
    let made = open(&unnamed, OFlags::CREATE | OFlags::EXCL).and_then(|file| {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        // The file gets its name only once it is locked.
        std::fs::rename(&unnamed, &path)?;
        Ok(file)
    });
    let made =
        made.inspect_err(|error| tracing::debug!(%error, path = %path.display(), "the lock file of this process could not be created"));
    made.ok().map(|file| HolderLock { path, file })
}

/// Whether the process of this holder was on this host and has died.
pub(crate) fn has_died(holder: HolderId) -> bool {
    let Some(directory) = directory() else {
        return false;
    };
    let path = directory.join(holder.to_string());
    let Ok(file) = open(&path, OFlags::empty()) else {
        return false;
    };
    // The file stays: the holder may have sessions of other VMs too.
    flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Removes files of processes that died long ago.
fn clear(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let modified = entry.metadata().and_then(|found| found.modified());
        let is_old = modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > KEPT));
        let is_free = || {
            let file = open(&entry.path(), OFlags::empty());
            file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_old && is_free() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn open(path: &Path, how: OFlags) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | how;
    Ok(File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?))
}

/// A directory that only this user can access; created if it is missing.
fn directory() -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    let bases = [PathBuf::from("/run/lock"), PathBuf::from("/dev/shm"), std::env::temp_dir()];
    bases.into_iter().find_map(|base| {
        let directory = base.join(format!("copal-holders-{}", user.as_raw()));
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return None,
            _ => {}
        }
        let found = std::fs::symlink_metadata(&directory).ok()?;
        let is_own = found.is_dir() && found.uid() == user.as_raw();
        (is_own && found.permissions().mode() & 0o077 == 0).then_some(directory)
    })
}

/// A holder whose process has died on this host, and its file, which the caller removes.
#[cfg(test)]
pub(crate) fn dead_holder() -> (HolderId, PathBuf) {
    let holder = HolderId(crate::keys::random().unwrap());
    let path = directory().expect("there is a directory").join(holder.to_string());
    open(&path, OFlags::CREATE | OFlags::EXCL).unwrap();
    (holder, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::random;

    #[test]
    fn a_holder_has_died_when_its_lock_can_be_taken() {
        let holder = HolderId(random().unwrap());
        assert!(!has_died(holder), "nothing is known of it");
        let held = lock(holder).expect("there is a directory");
        assert!(!has_died(holder));
        // Like the kernel at the end of a process: the file stays, unlocked.
        let HolderLock { path, .. } = &held;
        let path = path.clone();
        flock(&held.file, FlockOperation::Unlock).unwrap();
        assert!(has_died(holder) && has_died(holder), "for each of its sessions");
        drop(held);
        assert!(!path.exists() && !has_died(holder));
    }
}
