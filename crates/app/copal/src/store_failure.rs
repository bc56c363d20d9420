//! Maps errors of opening a store to failures of the command.
//!
//! Not here: the errors themselves (`copal_node::NodeError`).

use crate::{
    failure::{Failure, exit},
    human,
};
use copal_device::DeviceError;
use copal_node::{MissingStore, NodeError};
use copal_object::BackendKind;
use std::{io::ErrorKind, os::unix::fs::FileTypeExt, path::Path};

impl From<NodeError> for Failure {
    fn from(error: NodeError) -> Failure {
        match error {
            NodeError::Taken { .. } => copal_backup::Error::RepositoryExists.into(),
            NodeError::NotFound { directory, found } => not_found(&directory, found),
            NodeError::ReadOnly { path } if is_block_device(&path) => {
                Failure::read_only(read_only_device(&path))
            }
            NodeError::ReadOnly { path } => Failure::read_only(format!(
                "the store {} is read-only; give it write permission (chmod u+w), nothing was changed",
                path.display()
            )),
            NodeError::ReadOnlyDevice { path } => Failure::usage(read_only_device(&path)),
            NodeError::InUse { path } => Failure::busy(&path),
            NodeError::InTheMaking { directory } => Failure::new(
                exit::BUSY,
                "busy",
                format!(
                    "another `copal init` is at work in {}; wait for it to end, nothing was changed",
                    directory.display()
                ),
            ),
            NodeError::NotEmpty { path, found } => {
                let mut failure = Failure::new(
                    exit::DENIED,
                    "not_empty",
                    format!(
                        "{} holds {found}, which would be overwritten; nothing was written, give --force if nothing on it \
                         is needed",
                        path.display()
                    ),
                );
                failure.more.found = Some(found);
                failure
            }
            NodeError::Occupied { path, at, found } => occupied(&path, &at, found),
            NodeError::BlockDevice { path } => Failure::usage(format!(
                "{} is a block device; --backend hostfs takes a directory",
                path.display()
            )),
            NodeError::TooSmall { bytes, least, backend: BackendKind::Log } => Failure::usage(format!(
                "{} are too little for --backend log; give at least {}MiB, or use --backend cow",
                human::bytes(bytes),
                least >> 20
            )),
            NodeError::TooSmall { bytes, least, .. } => Failure::usage(format!(
                "{} are too little for a store; give at least {}MiB",
                human::bytes(bytes),
                least >> 20
            )),
            NodeError::TooLittleMemory { bytes, least } => Failure::usage(format!(
                "--memory {} is too little; give at least {}",
                human::bytes(bytes),
                human::bytes(least)
            )),
            NodeError::System { path, action, source } => of_system(&path, action, &source),
            NodeError::Objects { path, source } => of_objects(&path, source),
            NodeError::Engine { path, source } => of_engine(&path, &source),
            NodeError::Volumes(error) => error.into(),
            NodeError::Close(error) => Failure::plain("close", format!("closing the store: {error}")),
            other => Failure::plain("open", other.to_string()),
        }
    }
}

/// A new store at a place that can be no directory.
fn occupied(path: &Path, at: &Path, found: &str) -> Failure {
    let name = path.display();
    let reason = match at == path {
        true if found == "a regular file" => format!("{name} exists and is {found}, perhaps with data"),
        true => format!("{name} is {found}"),
        false => format!("{name} cannot be made, since {} is {found}", at.display()),
    };
    Failure::usage(format!(
        "{reason}; a store is made in a directory or on a block device: give another path, nothing was changed"
    ))
}

fn not_found(directory: &Path, found: MissingStore) -> Failure {
    let name = directory.display();
    let sentence = match found {
        MissingStore::Directory => format!("{name} holds a directory where a Copal store would have a file"),
        MissingStore::Nothing => format!(
            "there is no repository at {name}; check the path, or make one with `copal init --repo {name}`"
        ),
        MissingStore::NotADirectory => {
            format!("{name} is not a repository; a repository is a directory that `copal init` made")
        }
    };
    Failure::new(exit::NO_REPOSITORY, "no_repository", sentence)
}

/// Maps an error of opening a file or device.
fn of_device(path: &Path, error: copal_device::DeviceOpenError) -> Failure {
    use copal_device::DeviceOpenError;
    let name = path.display();
    match error {
        DeviceOpenError::Locked { .. } => Failure::busy(path),
        DeviceOpenError::Claimed { .. } => {
            Failure::new(exit::BUSY, "busy", format!("{error}, nothing was written"))
        }
        DeviceOpenError::Permission { access, .. } => Failure::read_only(format!(
            "{name} may not be {access} by this user; change its permissions or run as its owner, nothing was changed"
        )),
        DeviceOpenError::ReadOnlyStorage { .. } => read_only_storage(path),
        DeviceOpenError::NoSpace { bytes, .. } => no_space(path, bytes),
        DeviceOpenError::CopyOnWrite { file_system, .. } => Failure::plain(
            "copy_on_write",
            format!(
                "{name} is on {file_system}, which writes elsewhere each time, so that preallocation promises nothing; \
                 use `copal init --backend hostfs`, or --allow-cow to accept it"
            ),
        ),
        DeviceOpenError::HostManaged { .. } => Failure::usage(format!(
            "{name} is a host-managed zoned device, which takes writes in order only; make XFS with zones on it (Linux \
             6.15) and use `copal init --backend hostfs` in a directory there, nothing was written"
        )),
        DeviceOpenError::Volatile { file_system, .. } => Failure::plain(
            "volatile",
            format!(
                "{name} is on {file_system}, which loses everything at a reboot; use a disk, or --allow-volatile to \
                 accept it"
            ),
        ),
        other => Failure::plain("open", format!("cannot open the store: {other}")),
    }
}

/// Maps a system error without a case of its own.
fn of_system(path: &Path, action: &str, error: &std::io::Error) -> Failure {
    let name = path.display();
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => read_only_storage(path),
        ErrorKind::PermissionDenied => Failure::read_only(format!(
            "{name} may not be read or written by this user; change its permissions or run as its owner, nothing was changed"
        )),
        ErrorKind::InvalidFilename => name_too_long(path),
        _ => Failure::plain("open", format!("cannot {action} {name}: {error}")),
    }
}

fn name_too_long(path: &Path) -> Failure {
    Failure::plain(
        "name",
        format!(
            "the name {} is longer than its file system takes, mostly 255 bytes between two slashes and 4095 in all; \
             choose a shorter one, nothing was changed",
            path.display()
        ),
    )
}

fn read_only_device(path: &Path) -> String {
    format!(
        "{} is a read-only block device; make it writable (`blockdev --setrw`, or attach a loop device without \
         --read-only), nothing was changed",
        path.display()
    )
}

fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

fn read_only_storage(path: &Path) -> Failure {
    Failure::read_only(format!(
        "{} is on read-only storage; remount it writable and try again, nothing was changed",
        path.display()
    ))
}

fn no_space(path: &Path, bytes: u64) -> Failure {
    Failure::new(
        exit::FULL,
        "no_space",
        format!(
            "there is no room for {} at {}; free some or give a smaller --size",
            human::bytes(bytes),
            path.display()
        ),
    )
}

/// Maps an error of opening the object store.
fn of_objects(path: &Path, error: copal_object::StoreOpenError) -> Failure {
    use copal_object::StoreOpenError;
    let name = path.display();
    match error {
        StoreOpenError::NotAStore => Failure::new(
            exit::NO_REPOSITORY,
            "not_a_store",
            format!("{name} is not a Copal store; check the path, nothing was changed"),
        ),
        StoreOpenError::Open(copal_device::DeviceOpenError::NotFound { .. }) if path.is_dir() => {
            Failure::new(
                exit::NO_REPOSITORY,
                "not_a_store",
                format!(
                    "{name} is a directory, but not a Copal store of files, or parts of one are missing; check the path, \
                 nothing was changed"
                ),
            )
        }
        StoreOpenError::Open(error) => of_device(path, error),
        StoreOpenError::Device(DeviceError::Io { source, .. })
            if matches!(source.kind(), ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) =>
        {
            of_system(path, "open", &source)
        }
        StoreOpenError::Device(error) if error.is_host_full() => Failure::from(copal_backup::Error::NoSpace),
        StoreOpenError::Version { .. } => {
            Failure::plain("version", format!("{name}: {error}; use a newer copal"))
        }
        StoreOpenError::TailLoss { what } => Failure::new(
            exit::DAMAGED,
            "tail_loss",
            format!(
                "{name}: the last acknowledged writes are damaged ({what}); put back a good copy of the file, or drop \
                 them with --accept-tail-loss"
            ),
        ),
        StoreOpenError::Truncated { store_bytes, device_bytes } => Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name} is cut off: it should have {} and has {}; nothing was changed, put back an undamaged copy of the store, or save the undamaged snapshots with `copal repair store`",
                human::bytes(store_bytes),
                human::bytes(device_bytes)
            ),
        ),
        StoreOpenError::Damaged { .. } => Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name}: {error}; nothing was changed, put back a good copy of the store, or save the undamaged snapshots with `copal repair store`"
            ),
        ),
        other => Failure::plain("open", format!("{name}: {other}")),
    }
}

/// Maps an error of opening the engine.
fn of_engine(path: &Path, error: &copal_kv::Error) -> Failure {
    let name = path.display();
    if error.is_corruption() {
        return Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name} does not open: {error}; no data was changed, put back a good copy of the store, or save the undamaged snapshots with `copal repair store` (`copal kv dump` shows the readable parts)"
            ),
        );
    }
    if error.is_no_space() || error.is_host_full() {
        return Failure::from(copal_backup::Error::NoSpace);
    }
    Failure::plain("open", format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::FileOptions;
    use copal_node::{Access, NewStore, Patience, Stack, StoreOptions, UnfinishedStore};
    use copal_testkit::FailingReads;
    use copal_volume::{PutOptions, ReadOptions, VolumeOptions, VolumeStore};

    const ENGINE_BYTES: u64 = 32 << 20;

    fn options() -> StoreOptions {
        StoreOptions { force_pread: true, allow_cow: true, allow_volatile: true, ..StoreOptions::default() }
    }

    /// Opens the store on a device, reads a file, and returns the failure.
    fn read_one(path: &Path, device: std::sync::Arc<FailingReads>) -> Result<(), Failure> {
        let of_objects =
            copal_object::OpenOptions { read_only: true, ..copal_object::OpenOptions::default() };
        let opened = copal_object::Store::open(device, &of_objects)
            .map_err(|source| NodeError::Objects { path: path.to_owned(), source })?;
        let stack = Stack::open(path, opened, Access::Read, ENGINE_BYTES)?;
        let volumes = stack.volumes();
        let vid = volumes.open_volume("v")?;
        for number in 0..3 {
            let name = format!("file {number}");
            volumes.get(vid, name.as_bytes(), 0..u64::MAX, &ReadOptions::default())?;
        }
        Ok(())
    }

    #[test]
    fn a_host_managed_device_is_refused_and_the_way_that_exists_is_named() {
        let path = Path::new("/dev/sdz");
        let source = copal_device::DeviceOpenError::HostManaged { path: path.display().to_string() };
        let failure = Failure::from(NodeError::Objects { path: path.to_owned(), source: source.into() });
        assert_eq!(failure.exit_code, exit::USAGE);
        let sentence = failure.sentence;
        assert!(sentence.contains("XFS") && sentence.contains("--backend hostfs"), "{sentence}");
    }

    /// Symptom: layers above the device reported a transient system error as damage (20), or as no repository
    /// (10).
    /// Cause: a failed read was taken for wrong bytes. Fix: all layers distinguish the two; the exit code is
    /// 1.
    #[test]
    fn a_read_that_fails_anywhere_in_an_opening_is_no_damage() {
        let scratch = tempfile::tempdir().unwrap();
        let new = NewStore::default();
        let unfinished = UnfinishedStore::start(scratch.path(), &options(), &new).unwrap();
        let opened = unfinished.open(&options(), &Patience::none()).unwrap();
        let stack = Stack::open(unfinished.path(), opened, Access::Write, ENGINE_BYTES).unwrap();
        let volumes = stack.volumes();
        let vid = volumes.create_volume("", "v", &VolumeOptions::default()).unwrap();
        for number in 0..3 {
            let body = vec![number; 40_000 * usize::from(number) + 10].into();
            let name = format!("file {number}");
            volumes.put(vid, name.as_bytes(), body, &PutOptions::default()).unwrap();
        }
        stack.close(|_| ()).unwrap();
        unfinished.finish().unwrap();
        let path = scratch.path().join("store.copal");
        let file = FileOptions {
            read_only: true,
            force_pread: true,
            allow_cow: true,
            unsafe_volatile: true,
            ..FileOptions::default()
        };
        let (eio, emfile) = (5, 24);
        for (errno, times) in [(eio, 1), (eio, 3), (emfile, 3)] {
            let mut refused = 0;
            let mut first = 0_u64;
            loop {
                let device = copal_device::open_file(&path, &file).unwrap();
                let device = FailingReads::over(device, first..first + times, errno);
                let read = read_one(&path, device.clone());
                if device.reads() <= first {
                    assert!(read.is_ok(), "{read:?}");
                    break;
                }
                if let Err(failure) = read {
                    assert_eq!(failure.exit_code, exit::FAILURE, "{errno} at {first}: {failure:?}");
                    refused += 1;
                }
                // Each of the first reads, then ever fewer: the engine reads its tables in many small pieces.
                first += 1 + first / 8;
            }
            assert!(refused > 0 || times == 1);
        }
    }
}
