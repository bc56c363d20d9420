//! Session directory, and fleecing images: qcow2 images that receive the data that a guest overwrites.
//!
//! The file of a fleecing image cannot grow: QEMU runs out of space at the bound and breaks the snapshot.
//! Copal writes the image itself, because QEMU 7.2 aborts if another QMP client lists the block nodes during
//! `blockdev-create`. A session is alive while the lock in its directory is held.

use crate::qmp::QmpClient;
use crate::{
    error::LiveError,
    names::{SessionName, SessionPart},
    request::FleeceOptions,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    time::Timespec,
};
use serde_json::json;
use std::{
    fs::{DirBuilder, DirEntry, File, OpenOptions, Permissions, TryLockError},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Cluster size of a fleecing image.
const CLUSTER_BYTES: u64 = 64 << 10;
/// Smallest capacity of a fleecing image, for a disk of any size.
const MIN_CAPACITY_BYTES: u64 = 1 << 20;
/// Longest path of a unix socket.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Writes one sector to the storage.
const PROBE: &str = r#"exec dd if=/dev/zero of="$1/probe" bs=512 count=1 conv=fsync"#;
/// Time limit of the probe. It is longer than most QEMU allow a copy to take, since the disk may be busy.
const PROBE_LIMIT: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
const LOCK: &str = "lock";
const SOCKET: &str = "nbd.sock";
/// The file that [`PROBE`] writes.
const PROBE_FILE: &str = "probe";
/// File name suffix, after the number of the disk.
const IMAGE: &str = ".image";
/// Largest disk of an image with clusters of 64 KiB: QEMU accepts 32 MiB of first-level tables.
const MAX_DISK_BYTES: u64 = 2 << 50;

/// Directory of one session. Dropping it removes it, unless QEMU may still use it.
#[derive(Debug)]
pub(crate) struct SessionDirectory {
    path: PathBuf,
    /// Owner of the files: the user that QEMU runs as, if it is another one.
    owner: Option<(u32, u32)>,
    is_in_use: bool,
    lock: File,
}

impl SessionDirectory {
    /// Creates the directory. It belongs to this user and to the owner of the QMP socket `qmp`.
    pub(crate) fn make(
        fleece: &FleeceOptions,
        session: &SessionName,
        qmp: &Path,
    ) -> Result<SessionDirectory, LiveError> {
        let failed = |error| LiveError::Fleece { path: fleece.directory.clone(), error };
        let base = std::path::absolute(&fleece.directory).map_err(failed)?;
        let path = base.join(session.directory());
        if path.join(SOCKET).as_os_str().len() > MAX_SOCKET_PATH_BYTES {
            return Err(LiveError::LongPath { path: path.join(SOCKET) });
        }
        // It is renamed once its lock is held, so a directory with the final name and a free lock is a
        // leftover.
        let unnamed = base.join(format!("{}.new", session.directory()));
        DirBuilder::new().mode(0o700).create(&unnamed).map_err(failed)?;
        let made = || {
            let lock = private().open(unnamed.join(LOCK))?;
            lock.lock()?;
            std::fs::rename(&unnamed, &path)?;
            let (own, theirs) = (path.metadata()?, std::fs::metadata(qmp)?);
            let owner = (own.uid() != theirs.uid()).then(|| (theirs.uid(), theirs.gid()));
            let directory = SessionDirectory { path: path.clone(), owner, is_in_use: false, lock };
            directory.hand_over(&directory.path)?;
            Ok(directory)
        };
        made().map_err(|error| {
            // The error above is the one to report. Only one of the two names exists.
            let _ = remove_directory(&unnamed);
            let _ = remove_directory(&path);
            failed(error)
        })
    }

    /// Only root can change the owner. For other users, QEMU reports the files that it cannot open.
    fn hand_over(&self, path: &Path) -> io::Result<()> {
        match self.owner {
            Some((user, group)) => match std::os::unix::fs::chown(path, Some(user), Some(group)) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
                done => done,
            },
            None => Ok(()),
        }
    }

    /// See [`is_hanging`].
    pub(crate) fn is_hanging(&self) -> bool {
        is_hanging(&self.path)
    }

    /// Path of the session's own NBD server.
    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Restricts the socket to its owner. Until then the mode of the directory protects it.
    pub(crate) fn close_socket(&self) -> io::Result<()> {
        std::fs::set_permissions(self.socket(), Permissions::from_mode(0o600))
    }

    /// Keeps the directory, since QEMU may still use it. The next backup finds the session by these files.
    pub(crate) fn leave(mut self) {
        self.is_in_use = true;
    }

    /// Creates a file with this content that QEMU may write.
    /// # Errors
    /// `Fleece`.
    pub(crate) fn add_scratch(&self, name: &str, content: &[u8]) -> Result<PathBuf, LiveError> {
        let path = self.path.join(name);
        let make = || {
            private().open(&path)?.write_all(content)?;
            self.hand_over(&path)
        };
        match make() {
            Ok(()) => Ok(path),
            Err(error) => Err(LiveError::Fleece { path, error }),
        }
    }

    /// Adds the anchor to QEMU: a node on a file of this directory. It is the first node of a session and the
    /// last one removed. Another backup finds the directory by it, and checks the lock there to see if the
    /// session is alive.
    /// # Errors
    /// `Fleece`; those of QEMU.
    pub(crate) fn add_anchor(
        &self,
        client: &mut QmpClient,
        session: &SessionName,
        has_server: bool,
    ) -> Result<(), LiveError> {
        let name = session.anchor(has_server);
        let path = self.add_scratch(&name, &[0; 512])?;
        let anchor = json!({ "driver": "file", "node-name": name, "filename": path, "read-only": true });
        client.execute("blockdev-add", anchor)?;
        Ok(())
    }

    pub(crate) fn image(&self, disk: usize) -> PathBuf {
        self.path.join(format!("{disk}{IMAGE}"))
    }

    /// Creates the fleecing image of a disk in QEMU and returns its node name. Blocks for some milliseconds.
    /// # Errors
    /// `Fleece`; those of QEMU.
    pub(crate) fn add_image(
        &self,
        client: &mut QmpClient,
        session: &SessionName,
        disk: usize,
        (size_bytes, bound_bytes): (u64, u64),
    ) -> Result<String, LiveError> {
        let path = self.image(disk);
        let make = || {
            let image = empty_image(size_bytes)?;
            let mut file = private().open(&path)?;
            file.write_all(&image)?;
            file.set_len(bound_bytes)?;
            self.hand_over(&path)
        };
        make().map_err(|error| LiveError::Fleece { path: path.clone(), error })?;
        let name = |part| session.part(part, disk);
        let (file, bound, image) =
            (name(SessionPart::File), name(SessionPart::Bound), name(SessionPart::Image));
        let add = |client: &mut QmpClient, node| client.execute("blockdev-add", node);
        add(client, json!({ "driver": "file", "node-name": file, "filename": path, "discard": "unmap" }))?;
        add(
            client,
            json!({ "driver": "raw", "node-name": bound, "file": file, "size": bound_bytes, "discard": "unmap" }),
        )?;
        add(client, json!({ "driver": "qcow2", "node-name": image, "file": bound, "discard": "unmap" }))?;
        Ok(image)
    }
}

impl SessionDirectory {
    /// Allocates all space of an image now, so that it cannot run out later.
    /// # Errors
    /// `Fleece`: the file system has too little space.
    pub(crate) fn reserve(&self, disk: usize, bound_bytes: u64) -> Result<(), LiveError> {
        let path = self.image(disk);
        let reserve = || {
            let image = OpenOptions::new().write(true).open(&path)?;
            rustix::fs::fallocate(&image, rustix::fs::FallocateFlags::KEEP_SIZE, 0, bound_bytes)?;
            Ok(())
        };
        reserve().map_err(|error| LiveError::Fleece { path: path.clone(), error })
    }
}

impl Drop for SessionDirectory {
    fn drop(&mut self) {
        if !self.is_in_use
            && let Err(error) = remove_directory(&self.path)
        {
            tracing::warn!(%error, path = %self.path.display(), "session directory not removed");
        }
        // A child process has a copy of the file between `fork` and `exec`: closing it would not release the lock.
        let _ = self.lock.unlock();
    }
}

/// Whether every file of a directory without a lock has a name that a session uses. Another program's
/// directory may have the name of a session by chance.
fn holds_session_files_only(directory: &Path) -> bool {
    let is_own = |entry: io::Result<DirEntry>| {
        let Ok(entry) = entry else { return false };
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_image = name.strip_suffix(IMAGE).is_some_and(|number| number.parse::<usize>().is_ok());
        let is_file = entry.file_type().is_ok_and(|kind| !kind.is_dir());
        is_file && (is_image || [SOCKET, PROBE_FILE].contains(&name) || SessionName::of(name).is_some())
    };
    directory.read_dir().is_ok_and(|mut entries| entries.all(is_own))
}

/// Removes the directory of a session. The lock is removed last, so that the next backup finds a directory
/// whose removal was interrupted.
pub(crate) fn remove_directory(path: &Path) -> io::Result<()> {
    for entry in path.read_dir()? {
        let entry = entry?;
        if entry.file_name() != LOCK {
            std::fs::remove_file(entry.path())?;
        }
    }
    match std::fs::remove_file(path.join(LOCK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::fs::remove_dir(path)
}

/// First part of an empty qcow2 image: header, reference count table with its first block, and first-level
/// table. All offsets are multiples of a cluster, numbers are big-endian (docs/interop/qcow2 of QEMU).
/// # Errors
/// The disk is larger than QEMU accepts.
fn empty_image(size_bytes: u64) -> io::Result<Vec<u8>> {
    const CLUSTER_BITS: u32 = CLUSTER_BYTES.ilog2();
    const HEADER_BYTES: u32 = 104;
    // 16 bits per reference count.
    const REFCOUNT_ORDER: u32 = 4;
    const COUNTS_AT: u64 = CLUSTER_BYTES;
    const BLOCK_AT: u64 = 2 * CLUSTER_BYTES;
    const TABLES_AT: u64 = 3 * CLUSTER_BYTES;
    if size_bytes > MAX_DISK_BYTES {
        return Err(io::Error::other(format!(
            "the disk has {size_bytes} bytes, and an image takes {MAX_DISK_BYTES} at most"
        )));
    }
    // A second-level table has 8 bytes per cluster and fills one cluster.
    let tables = size_bytes.div_ceil(CLUSTER_BYTES * (CLUSTER_BYTES / 8));
    let end = TABLES_AT + (tables * 8).next_multiple_of(CLUSTER_BYTES).max(CLUSTER_BYTES);
    let mut image = vec![0; end as usize];
    let mut header = Vec::from(*b"QFI\xfb");
    let word = |header: &mut Vec<u8>, word: u32| header.extend(word.to_be_bytes());
    let long = |header: &mut Vec<u8>, long: u64| header.extend(long.to_be_bytes());
    word(&mut header, 3);
    // No backing file.
    long(&mut header, 0);
    word(&mut header, 0);
    word(&mut header, CLUSTER_BITS);
    long(&mut header, size_bytes);
    // Not encrypted.
    word(&mut header, 0);
    word(&mut header, tables as u32);
    long(&mut header, TABLES_AT);
    long(&mut header, COUNTS_AT);
    word(&mut header, 1);
    // No internal snapshots, and no features.
    word(&mut header, 0);
    [0; 4].iter().for_each(|none| long(&mut header, *none));
    word(&mut header, REFCOUNT_ORDER);
    word(&mut header, HEADER_BYTES);
    image[..header.len()].copy_from_slice(&header);
    image[COUNTS_AT as usize..][..8].copy_from_slice(&BLOCK_AT.to_be_bytes());
    let counts = image[BLOCK_AT as usize..TABLES_AT as usize].chunks_exact_mut(2);
    counts.take((end / CLUSTER_BYTES) as usize).for_each(|count| count.copy_from_slice(&[0, 1]));
    Ok(image)
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options
}

/// Size of the fleecing file for a disk of this size.
pub(crate) fn bound_bytes(size_bytes: u64, limit_millionths: u32) -> u64 {
    let share = (u128::from(size_bytes) * u128::from(limit_millionths) / 1_000_000) as u64;
    // Header and tables: 8 bytes per cluster of the disk and 2 per cluster of the file, rounded up to
    // clusters.
    let tables = size_bytes / CLUSTER_BYTES * 16;
    (share.max(MIN_CAPACITY_BYTES) + tables).next_multiple_of(CLUSTER_BYTES) + 16 * CLUSTER_BYTES
}

/// Whether an image is almost full.
pub(crate) fn is_full(image: &Path, bound_bytes: u64) -> bool {
    let allocated = std::fs::metadata(image).map(|found| found.blocks() * 512);
    allocated
        .is_ok_and(|allocated| allocated + bound_bytes / 8 >= bound_bytes.saturating_sub(12 * CLUSTER_BYTES))
}

/// Whether the process that created the directory is alive.
pub(crate) fn is_locked(directory: &Path) -> bool {
    matches!(try_lock(directory), Some(Err(TryLockError::WouldBlock)))
}

/// Whether the process that created the directory has ended: its lock is free, or was removed already.
pub(crate) fn has_ended(directory: &Path) -> bool {
    match File::open(directory.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(error) => error.kind() == io::ErrorKind::NotFound && holds_session_files_only(directory),
    }
}

/// Tries the lock; `None` if this user cannot open it.
fn try_lock(directory: &Path) -> Option<Result<(), TryLockError>> {
    Some(File::open(directory.join(LOCK)).ok()?.try_lock())
}

/// Whether the storage of a directory does not answer a write. Before it changes the graph, QEMU waits for
/// every running copy, and the guest waits with it. Another process writes, so only that process hangs with
/// the storage.
pub(crate) fn is_hanging(directory: &Path) -> bool {
    let probe = Command::new("/bin/sh")
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .args(["-c", PROBE, "copal-probe"])
        .arg(directory)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut probe) = probe else { return false };
    let Some(output) = &probe.stdout else { return false };
    // The process prints nothing, so the pipe ends when the process ends. A refused write is an answer too.
    let mut ended = [PollFd::new(output, PollFlags::IN)];
    if poll(&mut ended, Some(&PROBE_LIMIT)) == Ok(0) {
        let _ = probe.kill();
        return true;
    }
    let _ = probe.wait();
    false
}

/// Whether the session has started an NBD server.
pub(crate) fn has_socket(directory: &Path) -> bool {
    directory.join(SOCKET).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_a_session_is_private_locked_and_removed_on_drop() {
        let base = tempfile::tempdir().unwrap();
        let fleece = FleeceOptions { directory: base.path().to_owned(), ..FleeceOptions::default() };
        let session = SessionName::draw().unwrap();
        let directory = SessionDirectory::make(&fleece, &session, base.path()).unwrap();
        let path = directory.path.clone();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert!(is_locked(&path) && !has_socket(&path));
        drop(directory);
        assert!(!path.exists() && !is_locked(&path));
        let nowhere = FleeceOptions { directory: "/none".into(), ..fleece };
        let error = SessionDirectory::make(&nowhere, &session, base.path()).unwrap_err().to_string();
        assert!(error.contains("--fleece-dir"), "{error}");
    }

    /// Symptom: QEMU 7.2 aborted, and the guest with it, when another program listed the block nodes while a
    /// backup began. Cause: `blockdev-create`. Fix: Copal writes the image, and `qemu-img check` verifies it
    /// here.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test has to say so")]
    fn an_empty_image_is_valid_for_qemu() {
        let has_tool = Command::new("qemu-img").arg("--version").output().is_ok();
        if !has_tool {
            assert!(
                std::env::var_os("COPAL_TEST_REQUIRE_QEMU").is_none(),
                "qemu-img is missing: apt install qemu-utils"
            );
            eprintln!("SKIPPED: qemu-img is missing; apt install qemu-utils");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        for size_bytes in
            [512, 1 << 20, (64 << 20) + 512, 512 << 20, (512 << 20) + 512, 3 << 40, MAX_DISK_BYTES]
        {
            let image = empty_image(size_bytes).unwrap();
            assert!(image.len() as u64 <= bound_bytes(size_bytes, 0), "{size_bytes}");
            std::fs::write(&path, &image).unwrap();
            if !has_tool {
                continue;
            }
            let qemu_img = |words: &[&str]| {
                let output = Command::new("qemu-img").args(words).arg(&path).output().unwrap();
                assert!(output.status.success(), "{size_bytes}: {output:?}");
                String::from_utf8(output.stdout).unwrap()
            };
            assert!(qemu_img(&["check"]).contains("No errors were found"), "{size_bytes}");
            let info: serde_json::Value =
                serde_json::from_str(&qemu_img(&["info", "--output", "json"])).unwrap();
            assert_eq!((&info["virtual-size"], &info["cluster-size"]), (&size_bytes.into(), &65536.into()));
            assert_eq!(info["format"], "qcow2");
        }
        // The size comes from QEMU: it must not size an allocation beyond QEMU's own limit.
        for size_bytes in [MAX_DISK_BYTES + 512, u64::MAX] {
            assert!(empty_image(size_bytes).is_err());
        }
    }

    /// Symptom: a backup that was killed while it removed its directory left the directory for ever, with an
    /// image of a tenth of the disk. Cause: the lock, by which a dead session is recognised, could be removed
    /// first. Fix: the lock is removed last, and a directory without a lock counts as dead too.
    #[test]
    fn a_lock_is_removed_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("copal-0123abcd");
        std::fs::create_dir(&path).unwrap();
        for name in ["0.image", SOCKET, PROBE_FILE, "copal-0123abcd-anchor1"] {
            std::fs::write(path.join(name), b"").unwrap();
        }
        assert!(has_ended(&path));
        // A directory of another program with such a name.
        for name in ["letter.txt", ".image", "copal-0123abcd"] {
            std::fs::write(path.join(name), b"").unwrap();
            assert!(!has_ended(&path), "{name}");
            std::fs::remove_file(path.join(name)).unwrap();
        }
        std::fs::write(path.join(LOCK), b"").unwrap();
        assert!(has_ended(&path));
        // A file that cannot be removed ends the removal, and the lock is still there.
        std::fs::create_dir(path.join("stays")).unwrap();
        assert!(remove_directory(&path).is_err() && path.join(LOCK).exists());
        std::fs::remove_dir(path.join("stays")).unwrap();
        remove_directory(&path).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_bound_leaves_room_for_the_tables_of_an_image() {
        for size in [0, 1 << 20, 64 << 20, 2 << 40] {
            let bound = bound_bytes(size, 100_000);
            assert!(bound >= size / 10 + size / CLUSTER_BYTES * 10 + MIN_CAPACITY_BYTES.min(size), "{size}");
            assert!(bound <= size / 10 + size / 2000 + (3 << 20), "{size}: {bound}");
            assert_eq!(bound % CLUSTER_BYTES, 0);
        }
    }
}
