//! Heads of objects and short objects on a disk of this machine, for the next command.
//!
//! One file per object, named by a hash of its key. An object never changes, so an entry is right as long as the store
//! shows the object under the same tag. Any number of processes use a directory at once.
//!
//! Invariants
//! - An entry is verified whenever it is read: by its own checksum, its key, and then by the object's head.
//! - A failure of the disk costs requests and nothing else.
//!
//! Not here: the chunk index, which is a store of its own.

pub(in crate::store) mod bundle;
pub(crate) mod entry;
mod sweep;

use crate::service::ObjectFront;
use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};
use xxhash_rust::xxh3::xxh3_128;

/// Longest object that is kept as a whole.
pub(crate) const MAX_OBJECT_BYTES: u64 = 64 << 10;
/// Entries of these ends are unfinished.
const UNFINISHED: &str = ".new";
/// File with the key of the bundle that was read last.
const BUNDLE: &str = "bundle";

/// A directory of entries.
#[derive(Debug)]
pub struct ObjectCache {
    directory: PathBuf,
    limit_bytes: u64,
    /// Bytes that this process wrote since the last sweep.
    written: AtomicU64,
    next: AtomicU64,
    /// A write has failed, and the reason was logged.
    has_failed: AtomicBool,
}

impl ObjectCache {
    /// Opens a directory; creates it for this user alone. Removes the least recently used entries if they are above
    /// the limit.
    /// # Errors
    /// Of the file system.
    pub fn open(directory: &Path, limit_bytes: u64) -> io::Result<ObjectCache> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let cache = ObjectCache {
            directory: directory.to_owned(),
            limit_bytes,
            written: AtomicU64::new(0),
            next: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
        };
        // Refuses a directory in which nothing can be written.
        let trial = cache.write_file(&cache.directory.join("trial"), b"")?;
        match fs::remove_file(trial) {
            // Another process has made the same trial at once.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if sweep::is_due(directory) {
            cache.sweep();
        }
        Ok(cache)
    }

    fn sweep(&self) {
        self.written.store(0, Relaxed);
        if let Err(error) = sweep::sweep(&self.directory, self.limit_bytes) {
            self.failed(&error);
        }
    }

    fn path_of(&self, key: &str) -> PathBuf {
        let name = format!("{:032x}", xxh3_128(key.as_bytes()));
        self.directory.join(&name[..2]).join(&name[2..])
    }

    /// The object under a key; with `tag` only in this version. A damaged entry is removed.
    pub(crate) fn read(&self, key: &str, tag: Option<&str>) -> Option<ObjectFront> {
        let path = self.path_of(key);
        let mut bytes = Vec::new();
        let file = File::open(&path).ok()?;
        let limit = MAX_OBJECT_BYTES + entry::ENTRY_BYTES;
        (&file).take(limit).read_to_end(&mut bytes).ok()?;
        let Some(front) = entry::decode(key, &bytes) else {
            self.remove(key);
            return None;
        };
        if tag.is_some_and(|tag| tag != front.tag) {
            return None;
        }
        sweep::note_use(&file);
        Some(front)
    }

    /// Keeps an object, instead of an older version of it.
    pub(crate) fn write(&self, key: &str, front: &ObjectFront) {
        if front.bytes.len() as u64 > MAX_OBJECT_BYTES {
            return;
        }
        let Some(bytes) = entry::encode(key, front) else { return };
        if let Err(error) = self.write_file(&self.path_of(key), &bytes) {
            return self.failed(&error);
        }
        let written = self.written.fetch_add(sweep::disk_bytes(bytes.len() as u64), Relaxed);
        if written > self.limit_bytes / 8 {
            self.sweep();
        }
    }

    /// Keeps an entry that another host has made, unless one of the key is there.
    fn add(&self, key: &str, entry: &[u8]) {
        let path = self.path_of(key);
        if entry::decode(key, entry).is_some()
            && !path.exists()
            && let Err(error) = self.write_file(&path, entry)
        {
            self.failed(&error);
        }
    }

    /// Whether a process has put the entries of this bundle here.
    fn has_bundle(&self, bundle: &str) -> bool {
        fs::read(self.directory.join(BUNDLE)).is_ok_and(|noted| noted == bundle.as_bytes())
    }

    fn note_bundle(&self, bundle: &str) {
        if let Err(error) = self.write_file(&self.directory.join(BUNDLE), bundle.as_bytes()) {
            self.failed(&error);
        }
    }

    /// Removes the object of a key.
    pub(crate) fn remove(&self, key: &str) {
        let _ = fs::remove_file(self.path_of(key));
    }

    /// Writes a file whole; a crash leaves it as it was, or cut, which its checksum shows.
    fn write_file(&self, path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
        let number = self.next.fetch_add(1, Relaxed);
        let unfinished = self.directory.join(format!("{}-{number}{UNFINISHED}", process::id()));
        let create = || {
            File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?.write_all(bytes)?;
            match fs::rename(&unfinished, path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let parent = path.parent().unwrap_or(path);
                    DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                    fs::rename(&unfinished, path)
                }
                renamed => renamed,
            }
        };
        match create() {
            Ok(()) => Ok(path.to_owned()),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(error)
            }
        }
    }

    fn failed(&self, error: &io::Error) {
        if !self.has_failed.swap(true, Relaxed) {
            tracing::debug!(%error, "objects are not kept on this machine");
        }
    }
}

#[cfg(test)]
mod tests;
