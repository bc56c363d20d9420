//! The store that caches the index of a repository on other machines.
//!
//! The cache holds no other copy of data, so a damaged one is created again. A mark file shows that Copal
//! created the directory.
//!
//! Invariants
//! - Without the mark, nothing in a directory is written or removed, unless the directory is empty or new.
//! - With the mark, only the files of a store are removed.
//!
//! Not here: the index itself (`copal_backup::IndexHome`).

pub(crate) mod place;

use crate::{
    arguments::CommonArgs,
    failure::{Failure, Outcome, exit},
};
use copal_backup::Repository;
use copal_node::{
    Access, MemoryShares, NewStore, Patience, Stack, StoreLocation, StoreOptions, UnfinishedStore,
};
use std::{
    fs::{DirBuilder, File},
    io::{ErrorKind, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

/// Name of the mark file.
const MARK: &str = "copal-cache";
/// Text of the mark file, for people.
const TEXT: &str = "The cache of a repository on other machines. Copal may remove the store beside this file and make it anew.\n";
/// Files of a store, complete or unfinished; a store of files is a directory.
const STORE: [&str; 5] =
    ["store.copal", "store.copal.unfinished", "store.files", "store.files.unfinished", "init.lock"];

/// Opens the cache in a directory; creates it again, as `plan` decides, if it is missing or damaged. Blocks on
/// the disk.
/// # Errors
/// `denied`: the directory holds other files, which stay. Errors of a store.
pub(crate) fn open(
    common: &CommonArgs,
    directory: &Path,
    plan: &dyn Fn(&Path) -> Outcome<NewStore>,
    patience: &Patience,
) -> Outcome<Stack> {
    let options = StoreOptions { accept_tail_loss: true, ..common.store_options() };
    let engine_bytes = MemoryShares::of(common.memory_bytes())?.engine;
    let open_as = |access| {
        let location = StoreLocation::find(directory)?;
        let opened = location.open(access, &options, patience)?;
        Stack::open(location.path(), opened, access, engine_bytes)
    };
    if !is_marked(directory)? {
        if !is_empty(directory)? && !is_old_cache(open_as(Access::Read).map_err(Failure::from))? {
            return Err(not_ours(directory));
        }
        mark(directory)?;
    }
    match open_as(Access::Write).map_err(Failure::from) {
        Ok(stack) => return Ok(stack),
        // A new directory, or its first start was killed.
        Err(failure) if failure.code == "no_repository" => remove_store(directory)?,
        Err(failure) if is_useless(&failure) => {
            tracing::warn!(why = failure.sentence, "the cache is made anew");
            remove_store(directory)?;
        }
        Err(failure) => return Err(failure),
    }
    let unfinished = UnfinishedStore::start(directory, &options, &plan(directory)?)?;
    let opened = unfinished.open(&options, patience)?;
    let stack = Stack::open(unfinished.path(), opened, Access::Write, engine_bytes)?;
    unfinished.finish()?;
    Ok(stack)
}

/// Whether a store without the mark is a cache of a release that set no mark: it holds an index and no
/// repository.
fn is_old_cache(opened: Outcome<Stack>) -> Outcome<bool> {
    match opened {
        Ok(stack) => {
            let is_cache = matches!(Repository::find(stack.volumes().clone()), Ok(None));
            stack.close(|_| ())?;
            Ok(is_cache)
        }
        Err(failure) if failure.exit_code == exit::BUSY => Err(failure),
        Err(_) => Ok(false),
    }
}

/// Whether a store that failed to open will fail at every later opening.
fn is_useless(failure: &Failure) -> bool {
    matches!(failure.exit_code, exit::DAMAGED | exit::NO_REPOSITORY) || failure.code == "version"
}

fn is_marked(directory: &Path) -> Outcome<bool> {
    match directory.join(MARK).symlink_metadata() {
        Ok(meta) => Ok(meta.is_file()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(failed("look at", directory, &error)),
    }
}

/// Whether the directory is empty or missing.
fn is_empty(directory: &Path) -> Outcome<bool> {
    match std::fs::read_dir(directory) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(directory.symlink_metadata().is_err()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(false),
        Err(error) => Err(failed("look at", directory, &error)),
    }
}

fn mark(directory: &Path) -> Outcome<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
    let path = directory.join(MARK);
    let marked = made.and_then(|()| {
        let mut options = File::options();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(TEXT.as_bytes())?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    });
    marked.map_err(|error| failed("mark", directory, &error))
}

fn remove_store(directory: &Path) -> Outcome<()> {
    for name in STORE {
        let path = directory.join(name);
        let removed = match path.symlink_metadata() {
            Ok(meta) if meta.is_dir() => std::fs::remove_dir_all(&path),
            Ok(_) => std::fs::remove_file(&path),
            Err(error) => Err(error),
        };
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("remove", &path, &error)),
            _ => {}
        }
    }
    Ok(())
}

fn not_ours(directory: &Path) -> Failure {
    Failure::new(
        exit::DENIED,
        "denied",
        format!(
            "{} is no cache (it holds other files, and no file {MARK}); move it away, or name another directory with --cache \
             or --state; nothing was changed",
            directory.display()
        ),
    )
}

fn failed(action: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::plain("state", format!("cannot {action} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::CopalArgs;
    use clap::Parser;
    use copal_backup::{IndexHome, InitOptions, Unlock};
    use std::path::PathBuf;

    fn common() -> CommonArgs {
        let words = ["copal", "--allow-cow", "--allow-volatile", "--no-io-uring", "snapshots"];
        CopalArgs::parse_from(words).common
    }

    fn usual(_: &Path) -> Outcome<NewStore> {
        Ok(NewStore::default())
    }

    fn opens(directory: &Path) -> Outcome<()> {
        let stack = open(&common(), directory, &usual, &Patience::none())?;
        stack.close(|_| ())?;
        Ok(())
    }

    fn entries(directory: &Path) -> Vec<PathBuf> {
        let mut found: Vec<PathBuf> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into()).collect();
        found.sort();
        found
    }

    /// Symptom: `copal agent --state DIR` removed DIR/cache with photographs in it.
    /// Cause: a directory that holds no store was taken for a damaged cache. Fix: a cache has a mark, and
    /// only its store is removed.
    #[test]
    fn only_the_store_of_a_marked_cache_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = scratch.path().join("cache");
        std::fs::create_dir_all(cache.join("photos")).unwrap();
        std::fs::write(cache.join("photos/a.jpg"), "precious").unwrap();
        for store in [None, Some("store.copal")] {
            if let Some(name) = store {
                std::fs::write(cache.join(name), "no store").unwrap();
            }
            let before = entries(&cache);
            assert_eq!(opens(&cache).unwrap_err().exit_code, exit::DENIED);
            assert_eq!(entries(&cache), before);
        }
        // A file and a link that leads elsewhere are no caches.
        let (file, link) = (scratch.path().join("file"), scratch.path().join("link"));
        std::fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(&cache, &link).unwrap();
        for path in [&file, &link] {
            assert_eq!(opens(path).unwrap_err().exit_code, exit::DENIED);
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"precious");
        assert_eq!(std::fs::read(cache.join("photos/a.jpg")).unwrap(), b"precious");
    }

    /// A store without the mark may be a cache of a release that set none; a store that holds a repository is
    /// no cache.
    #[test]
    fn a_repository_is_no_cache() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = scratch.path().join("cache");
        let stack = open(&common(), &cache, &usual, &Patience::none()).unwrap();
        let options = InitOptions {
            argon2_memory_kib: 64,
            ..InitOptions::new(Unlock::Password("correct horse".to_owned().into()))
        };
        let volumes = std::sync::Arc::clone(stack.volumes());
        drop(Repository::init(volumes as _, IndexHome::Memory, &options).unwrap());
        stack.close(|_| ()).unwrap();
        std::fs::remove_file(cache.join(MARK)).unwrap();
        let before = std::fs::read(cache.join("store.copal")).unwrap();
        assert_eq!(opens(&cache).unwrap_err().exit_code, exit::DENIED);
        assert!(!cache.join(MARK).exists());
        assert!(std::fs::read(cache.join("store.copal")).unwrap() == before);
    }

    #[test]
    fn a_damaged_cache_is_made_anew_and_other_files_in_it_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = scratch.path().join("state/cache");
        opens(&cache).unwrap();
        assert_eq!(entries(&cache), [PathBuf::from(MARK), PathBuf::from("store.copal")]);
        opens(&cache).unwrap();
        std::fs::write(cache.join("store.copal"), "damaged").unwrap();
        std::fs::write(cache.join("mine"), "precious").unwrap();
        opens(&cache).unwrap();
        assert!(
            cache.join("store.copal").metadata().unwrap().len()
                >= NewStore::least_bytes(copal_object::BackendKind::Cow)
        );
        assert_eq!(std::fs::read(cache.join("mine")).unwrap(), b"precious");
        // A cache of a release that set no mark gets one.
        std::fs::remove_file(cache.join(MARK)).unwrap();
        opens(&cache).unwrap();
        assert!(cache.join(MARK).exists());
    }
}
