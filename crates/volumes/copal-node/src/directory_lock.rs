//! Lock that admits one process at a time to a directory, which may hold more than a store.

use crate::error::NodeError;
use std::{
    fs::{DirBuilder, File, Permissions, TryLockError},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest time until the kernel releases the lock of a killed process.
const TO_END: Duration = Duration::from_secs(5);
/// Interval of attempts.
const LOOK: Duration = Duration::from_millis(20);

/// Name of the lock file.
const LOCK_FILE: &str = "process.lock";

/// Exclusive use of a directory; released when it is dropped, or when the process ends.
#[derive(Debug)]
pub struct DirectoryLock {
    path: PathBuf,
    file: File,
}

impl DirectoryLock {
    /// Locks a directory, and creates it for its owner alone if it is missing.
    /// # Errors
    /// `InUse`, `System`.
    pub fn take(directory: &Path) -> Result<DirectoryLock, NodeError> {
        let system = |path: &Path, action| {
            let path = path.to_owned();
            move |source| NodeError::System { path, action, source }
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(system(directory, "create"))?;
        let path = directory.join(LOCK_FILE);
        let open = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path);
        let file = open.map_err(system(&path, "open"))?;
        close_to_others(&file).map_err(system(&path, "change the mode of"))?;
        let end = Instant::now() + TO_END;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(DirectoryLock { path, file }),
                // The kernel releases the lock of a killed process a moment after the kill.
                Err(TryLockError::WouldBlock) if Instant::now() < end && !has_living_holder(&path) => {
                    std::thread::park_timeout(LOOK);
                }
                Err(TryLockError::WouldBlock) => return Err(NodeError::InUse { path }),
                Err(TryLockError::Error(error)) => return Err(system(&path, "lock")(error)),
            }
        }
    }

    /// Path of the lock file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DirectoryLock {
    /// A child process has a copy of the file between `fork` and `exec`: closing it would not release the lock.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

/// Restricts the lock file to its owner: another user who can open it can also take the lock. An earlier
/// release made it with a wider mode.
fn close_to_others(lock: &File) -> std::io::Result<()> {
    let meta = lock.metadata()?;
    let is_ours = meta.uid() == rustix::process::geteuid().as_raw();
    match is_ours && meta.mode() & 0o077 != 0 {
        true => lock.set_permissions(Permissions::from_mode(0o600)),
        false => Ok(()),
    }
}

/// Whether the lock has a holder that is visibly running. A process that has ended has an empty command line.
fn has_living_holder(path: &Path) -> bool {
    crate::holders(path).iter().any(|holder| !holder.command.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_process() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("new/one");
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(LOCK_FILE);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        let lock = DirectoryLock::take(&directory).unwrap();
        assert!(matches!(DirectoryLock::take(&directory), Err(NodeError::InUse { .. })));
        assert_eq!(crate::holders(lock.path())[0].pid, std::process::id());
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600, "others could take it");
        // Symptom: in use, on a busy machine. Cause: a child has a copy of the file between its fork and its
        // exec. Fix: the holder unlocks the file before it closes it.
        let copy = lock.file.try_clone().unwrap();
        drop(lock);
        DirectoryLock::take(&directory).unwrap();
        drop(copy);
        // A new directory belongs to its owner alone, under any umask.
        let made = scratch.path().join("made");
        let lock = DirectoryLock::take(&made).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!((mode(&made), mode(lock.path())), (0o700, 0o600));
    }
}
