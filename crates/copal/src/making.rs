//! A repository's store in the making: it grows under another name and gets its own when it is whole.
//!
//! Invariants
//! - An `init` that was killed leaves nothing that looks like a repository, and no obstacle for the next.
//! - One `init` at a time works in a directory, and none takes the place of a repository that is there.
//!
//! Not here: what is in the store (`repository`).

use crate::{
    arguments::{Backend, Common, Init},
    failure::{Failure, Outcome, exit},
    human,
    place::Access,
    place::{self, Opened, Place, STORE_FILE, STORE_FILES},
    waiting::Waiting,
};
use copal_device::{Device, FileOptions};
use copal_object::{MkfsOptions, OpenError, Store};
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};
use std::{
    fs::{DirBuilder, File, TryLockError},
    io::{ErrorKind, Read},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Behind the name of the store while `init` is at work.
const UNFINISHED: &str = ".unfinished";
/// Locked in the directory while `init` is at work.
const LOCK_FILE: &str = "init.lock";
/// Superblock copies, journal and room to work in take so much.
const LEAST_BYTES: u64 = 64 << 20;
/// A block device whose beginning is not all zeros up to here holds something.
const PROBED_BYTES: usize = 1 << 20;

/// A store in the making; dropped before [`Making::finish`], nothing of it is left.
pub(crate) struct Making {
    unfinished: Place,
    /// What it is in, locked from before its first byte: whoever opened it anew could find somebody else there.
    /// None for a store of files.
    device: Option<Arc<dyn Device>>,
    /// Its name when it is whole.
    store: PathBuf,
    finished: bool,
    /// Given back last. None for a block device.
    _directory: Option<Directory>,
}

impl Making {
    /// Makes an empty store.
    pub(crate) fn start(common: &Common, init: &Init) -> Outcome<Making> {
        let named = place::directory(common)?;
        if place::is_block_device(named) {
            return start_on_device(common, init, named);
        }
        if init.backend == Backend::Cow && init.size < LEAST_BYTES {
            return Err(Failure::usage(format!(
                "--size {} is too little for a store; give at least 64MiB",
                human::bytes(init.size)
            )));
        }
        let directory = Directory::take(named)?;
        // Whoever had the directory before may have made a repository while this one waited for its password.
        place::refuse_taken(common)?;
        let name = match init.backend {
            Backend::Cow => STORE_FILE,
            Backend::Hostfs => STORE_FILES,
        };
        let path = named.join(format!("{name}{UNFINISHED}"));
        let unfinished = match init.backend {
            Backend::Cow => Place::File(path),
            Backend::Hostfs => Place::Files(path),
        };
        let mut making = Making {
            unfinished,
            device: None,
            store: named.join(name),
            finished: false,
            _directory: Some(directory),
        };
        let path = making.unfinished.path();
        remove(&making.unfinished).map_err(cannot_create(path))?;
        let made = match &making.unfinished {
            Place::Files(dir) => Store::mkfs_dir(dir, &MkfsOptions::default()),
            Place::File(path) | Place::Device(path) => {
                let file = FileOptions {
                    create_size: Some(init.size.next_multiple_of(1 << 20)),
                    ..place::file_options(common)
                };
                copal_device::open_file(path, &file)
                    .map_err(OpenError::from)
                    .and_then(|device| {
                        let device = making.device.insert(device);
                        Store::mkfs(device, &MkfsOptions::default())
                    })
            }
        };
        made.map_err(|error| place::open_failure(making.path(), error))?;
        Ok(making)
    }

    /// The store, to be filled.
    pub(crate) fn open(&self, common: &Common, waiting: &Waiting) -> Outcome<Opened> {
        match &self.device {
            None => self.unfinished.open(common, Access::Write, waiting),
            Some(device) => {
                let opened = Store::open(Arc::clone(device), &place::open_options(common, Access::Write));
                opened.map_err(|error| place::open_failure(self.path(), error))
            }
        }
    }

    /// What it is called while it is not whole.
    pub(crate) fn path(&self) -> &Path {
        self.unfinished.path()
    }

    /// From now on it is a repository, durably.
    pub(crate) fn finish(mut self) -> Outcome<()> {
        if !matches!(self.unfinished, Place::Device(_)) {
            rename_new(self.unfinished.path(), &self.store)?;
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.finished {
            // What cannot be removed says by its name what it is; a device that is half made holds no repository.
            let _ = remove(&self.unfinished);
        }
    }
}

/// The directory of a repository in the making, which one `init` has at a time.
struct Directory {
    path: PathBuf,
    is_new: bool,
    lock: PathBuf,
    _locked: File,
}

impl Directory {
    fn take(path: &Path) -> Outcome<Directory> {
        let is_new = !path.exists();
        let mut directories = DirBuilder::new();
        let made = directories.recursive(true).mode(0o700).create(path);
        made.map_err(cannot_create(path))?;
        let lock = path.join(LOCK_FILE);
        loop {
            let open = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&lock);
            let file = open.map_err(cannot_create(&lock))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let sentence = format!(
                        "another `copal init` is at work in {}; wait for it to end, nothing was changed",
                        path.display()
                    );
                    return Err(Failure::new(exit::BUSY, "busy", sentence));
                }
                Err(TryLockError::Error(error)) => return Err(cannot_create(&lock)(error)),
            }
            // Whoever had it before removed it: a lock on a file without a name excludes nobody.
            if is_same(&file, &lock).map_err(cannot_create(&lock))? {
                return Ok(Directory {
                    path: path.to_owned(),
                    is_new,
                    lock,
                    _locked: file,
                });
            }
        }
    }
}

fn is_same(file: &File, path: &Path) -> std::io::Result<bool> {
    let here = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A lock file that stays is nobody's; a directory that holds something stays.
        let _ = std::fs::remove_file(&self.lock);
        if self.is_new {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Gives a finished store its name, durably; a store that appeared there meanwhile is left alone.
fn rename_new(from: &Path, to: &Path) -> Outcome<()> {
    let exists = || Failure::from(copal_backup::Error::RepositoryExists);
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists()),
        // A file system that cannot refuse in the rename itself: refuse before it.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if to.symlink_metadata().is_ok() {
                return Err(exists());
            }
            std::fs::rename(from, to).map_err(cannot_create(to))?;
        }
        Err(error) => return Err(cannot_create(to)(error.into())),
    }
    let dir = to.parent().unwrap_or(Path::new("."));
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(cannot_create(to))
}

fn cannot_create(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |error| place::system_failure(path, "create", &error)
}

fn start_on_device(common: &Common, init: &Init, path: &Path) -> Outcome<Making> {
    if init.backend == Backend::Hostfs {
        return Err(Failure::usage(format!(
            "{} is a block device; --backend hostfs takes a directory",
            path.display()
        )));
    }
    let device = copal_device::open_file(path, &place::file_options(common))
        .map_err(|error| place::device_failure(path, error))?;
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PROBED_BYTES as u64).read_to_end(&mut beginning));
    read.map_err(|error| Failure::plain("open", format!("cannot read {}: {error}", path.display())))?;
    if beginning.iter().any(|&byte| byte != 0) && !init.force {
        return Err(Failure::new(
            exit::DENIED,
            "not_empty",
            format!(
                "{} is not empty and would be overwritten; give --force if nothing on it is needed",
                path.display()
            ),
        ));
    }
    Store::mkfs(&device, &MkfsOptions::default()).map_err(|error| place::open_failure(path, error))?;
    Ok(Making {
        unfinished: Place::Device(path.to_owned()),
        device: Some(device),
        store: path.to_owned(),
        finished: false,
        _directory: None,
    })
}

fn remove(place: &Place) -> std::io::Result<()> {
    let removed = match place {
        Place::File(path) => std::fs::remove_file(path),
        Place::Files(path) => std::fs::remove_dir_all(path),
        Place::Device(_) => Ok(()),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    fn typed(repository: &Path) -> Arguments {
        let words = [
            "copal",
            "init",
            "--force",
            "--no-io-uring",
            "--allow-cow",
            "--allow-volatile",
        ];
        let words = words.iter().map(|word| (*word).to_owned());
        let named = ["--repo".to_owned(), repository.display().to_string()];
        Arguments::try_parse_from(words.chain(named)).unwrap()
    }

    fn start(arguments: &Arguments) -> Outcome<Making> {
        let Command::Init(init) = &arguments.command else {
            panic!("not an init")
        };
        Making::start(&arguments.common, init)
    }

    /// One begins, another begins, the first goes on.
    fn two_at_once(repository: &Path) {
        let arguments = typed(repository);
        let quiet = crate::output::Output::new(false, true);
        let waiting = Waiting::new(std::time::Duration::ZERO, &copal_backup::CancelFlag::new(), quiet);
        let first = start(&arguments).unwrap();
        let second = start(&arguments).err().expect("one at a time");
        assert_eq!(second.exit_code, exit::BUSY, "{second:?}");
        assert!(second.sentence.contains("wait for it to end"), "{second:?}");
        let (store, _) = first.open(&arguments.common, &waiting).unwrap();
        first.finish().unwrap();
        store.close().unwrap();
    }

    #[test]
    fn of_two_in_a_directory_one_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        two_at_once(&scratch.path().join("repository"));
    }

    /// Symptom: of two `copal init --force` at once on one block device each wrote over what the other was making.
    /// Cause: the device was locked while the empty store was written and again when it was opened, not in between.
    /// Fix: it is opened once, and the lock of before the first byte is that of the store.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn of_two_on_a_block_device_one_is_refused() {
        use std::process::Command;
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        File::create(&file).unwrap().set_len(LEAST_BYTES).unwrap();
        let made = Command::new("losetup")
            .args(["--find", "--show"])
            .arg(&file)
            .output();
        let Ok(made) = made.map(|made| String::from_utf8(made.stdout).unwrap()) else {
            eprintln!("skipped: no losetup here");
            return;
        };
        if made.trim().is_empty() {
            let required = std::env::var_os("COPAL_TEST_REQUIRE_LOOP").is_some();
            assert!(!required, "no loop device to be had");
            eprintln!("skipped: no loop device to be had here (root and losetup make one)");
            return;
        }
        let device = Path::new(made.trim());
        let outcome = std::panic::catch_unwind(|| two_at_once(device));
        let detached = Command::new("losetup").arg("--detach").arg(device).status();
        assert!(detached.unwrap().success());
        outcome.unwrap();
    }
}
