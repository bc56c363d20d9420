//! Pins: files beside a store that name the snapshots which exports of this machine show, so that these are
//! not forgotten.
//!
//! The exporting process locks its pin, so the pin of a dead process has no effect. Forgetting a pinned
//! snapshot by name is refused, retention skips it, and `--force` asks the export to close.
//! Invariants
//! - The name of a pin is random: containers and hosts that share a directory may have equal process ids.
//! - An export sets its pin while it has the store open for reading. So a process that has opened the store
//!   for writing sees the pins of all exports of it, and no export is added while it has the store.
//!
//! Not here: pins of a store on a device, which has no place for files: exports keep the device locked
//! instead. Pins of repositories in a cluster, which are in the catalog (`copal_backup::serve::CatalogPin`).

use crate::{
    failure::{Failure, Outcome},
    human,
    place::RepositoryPlace,
};
use copal_backup::{Repository, Snapshot, SnapshotId, serve::Shown};
use copal_node::StoreLocation;
use rustix::fs::{FlockOperation, flock};
use std::{
    fs::{DirBuilder, File},
    io::{Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Directory of the pins, below that of the repository.
const DIRECTORY: &str = "doors";
const SUFFIX: &str = "pin";
/// Suffix of the file that asks an export to close, beside its pin.
const CLOSE: &str = "close";
/// First line of a pin.
const TITLE: &str = "copal door 1";
/// Longest pin.
const MAX_PIN_BYTES: u64 = 64 << 10;
/// Longest wait for an export to close.
const TO_CLOSE: Duration = Duration::from_secs(20);
/// Suffix of a pin that is being written.
const UNFINISHED: &str = "new";
/// Longest time to write a pin.
const TO_SET: Duration = Duration::from_secs(600);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The line of a pin that names the exported snapshots.
fn line(shown: &Shown) -> String {
    match shown {
        Shown::Snapshot(id) => format!("snapshot {id}"),
        Shown::Vm(uuid) => format!("vm {}", uuid.simple()),
        Shown::All => "all".to_owned(),
    }
}

/// The pin of this process's export; removed when it is dropped.
pub(crate) struct ExportPin {
    path: PathBuf,
    file: File,
}

impl ExportPin {
    /// Sets a pin for the exported snapshots. `None`: there is no place for pins, and the lock of the store
    /// must suffice.
    pub(crate) fn set(place: &RepositoryPlace, export: &str, shown: &Shown) -> Option<ExportPin> {
        let directory = directory(place)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        let pinned = made.and_then(|()| set_in(&directory, export, shown));
        match pinned {
            Ok(pin) => Some(pin),
            Err(error) => {
                tracing::debug!(%error, path = %directory.display(), "no pin set");
                None
            }
        }
    }

    /// Whether the export is asked to close.
    pub(crate) fn is_to_close(&self) -> bool {
        self.path.with_extension(CLOSE).exists()
    }
}

impl Drop for ExportPin {
    fn drop(&mut self) {
        // A file that remains has no lock, so it has no effect.
        let _ = std::fs::remove_file(self.path.with_extension(CLOSE));
        let _ = std::fs::remove_file(&self.path);
        // A child process has a copy of the file between `fork` and `exec`.
        let _ = self.file.unlock();
    }
}

/// Writes a pin, which appears complete and locked.
fn set_in(directory: &Path, export: &str, shown: &Shown) -> std::io::Result<ExportPin> {
    let number =
        || copal_volume::random_incarnation().map_err(|error| std::io::Error::other(error.to_string()));
    let name = format!("{:016x}{:016x}", number()?, number()?);
    let path = directory.join(name).with_extension(SUFFIX);
    let unfinished = path.with_extension(UNFINISHED);
    let mut options = File::options();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&unfinished)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (pid, host) = (std::process::id(), rustix::system::uname());
    let host = host.nodename().to_string_lossy();
    let text = format!("{TITLE}\ncopal {export} (process {pid} on {host})\n{}\n", line(shown));
    file.write_all(text.as_bytes())?;
    std::fs::rename(&unfinished, &path)?;
    Ok(ExportPin { path, file })
}

/// An export and its pin.
#[derive(Clone, Debug)]
struct PinnedExport {
    path: PathBuf,
    /// `copal nbd (process 4711)`.
    holder: String,
    shown: Shown,
}

/// The exports of one repository on this machine, at the time of the search.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExportPins {
    exports: Vec<PinnedExport>,
    /// Exports were closed a moment ago, and may still hold the store.
    are_closed: bool,
}

impl ExportPins {
    /// Finds the exports; pins of dead processes are removed.
    pub(crate) fn look(place: &RepositoryPlace) -> ExportPins {
        let entries = directory(place).and_then(|directory| std::fs::read_dir(directory).ok());
        let mut exports = Vec::new();
        for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.extension().and_then(|suffix| suffix.to_str()) {
                Some(SUFFIX) => exports.extend(read(&path)),
                Some(UNFINISHED | CLOSE) => remove_leftover(&path),
                _ => {}
            }
        }
        ExportPins { exports, are_closed: false }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exports.is_empty()
    }

    /// Whether a writer may meet an export that reads.
    pub(crate) fn may_be_reading(&self) -> bool {
        self.are_closed || !self.is_empty()
    }

    /// The same, with the exports of all hosts for a repository in a cluster. Those are not asked to close:
    /// they check themselves that their snapshots still exist.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn with_other_hosts(&self, repository: &Repository) -> Outcome<ExportPins> {
        let mut all = self.clone();
        let pinned = repository.pinned()?.into_iter();
        all.exports.extend(pinned.map(|shown| PinnedExport {
            path: PathBuf::new(),
            holder: "an export on some host (copal nbd or copal mount)".to_owned(),
            shown,
        }));
        Ok(all)
    }

    /// The refusal to free space if an export shows a forgotten snapshot: it began while the snapshot was
    /// being forgotten. The chunks are needed until the export ends.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn refusal_to_free(&self, repository: &Repository) -> Outcome<Option<String>> {
        for export in &self.exports {
            if let Shown::Snapshot(id) = export.shown
                && !repository.is_published(id)?
            {
                return Ok(Some(format!(
                    "snapshot {} is forgotten and still in use by {}; nothing was freed, end that first or wait ten minutes",
                    id.short(),
                    human::visible(&export.holder)
                )));
            }
        }
        Ok(None)
    }

    /// The refusal to remove a VM with exported snapshots.
    pub(crate) fn refusal_to_remove(&self, vm: uuid::Uuid, snapshots: &[Snapshot]) -> Option<String> {
        let shows = |export: &&PinnedExport| {
            let of_vm = export.shown == Shown::Vm(vm);
            of_vm || snapshots.iter().any(|snapshot| export.shown.has(snapshot))
        };
        let export = self.exports.iter().find(shows)?;
        Some(format!(
            "snapshots of this VM are in use by {}; end that first, nothing was changed",
            human::visible(&export.holder)
        ))
    }

    /// As if all exports were closed.
    pub(crate) fn disregarded() -> ExportPins {
        ExportPins { exports: Vec::new(), are_closed: true }
    }

    /// Description of the export that shows a snapshot.
    pub(crate) fn of(&self, snapshot: &Snapshot) -> Option<&str> {
        let export = self.exports.iter().find(|export| export.shown.has(snapshot));
        export.map(|export| &*export.holder)
    }

    /// The refusal to forget an exported snapshot.
    pub(crate) fn refusal(&self, snapshot: &Snapshot) -> Option<String> {
        let holder = self.of(snapshot)?;
        Some(format!(
            "snapshot {} is in use by {}; end that first, or add --force, which closes it, nothing was changed",
            snapshot.id.short(),
            human::visible(holder)
        ))
    }

    /// Asks the exports that show one of these snapshots to close, and waits for them. The remaining pins
    /// protect none of these.
    /// # Errors
    /// An export did not close in time.
    pub(crate) fn close<'a>(
        self,
        snapshots: impl Iterator<Item = &'a Snapshot> + Clone,
    ) -> Outcome<ExportPins> {
        let mut asked = Vec::new();
        for export in &self.exports {
            if snapshots.clone().any(|snapshot| export.shown.has(snapshot)) {
                let ask = File::create(export.path.with_extension(CLOSE));
                if let Err(error) = ask {
                    tracing::debug!(%error, "export not asked to close");
                }
                asked.push(export);
            }
        }
        let until = Instant::now() + TO_CLOSE;
        for export in asked {
            while read(&export.path).is_some() {
                if Instant::now() > until {
                    return Err(Failure::busy(&export.path));
                }
                std::thread::park_timeout(POLL_INTERVAL);
            }
        }
        Ok(ExportPins::disregarded())
    }
}

fn directory(place: &RepositoryPlace) -> Option<PathBuf> {
    store_directory(place).map(|directory| directory.join(DIRECTORY))
}

/// The directory of a store of this machine; `None` for a device or a cluster.
pub(crate) fn store_directory(place: &RepositoryPlace) -> Option<PathBuf> {
    match place {
        RepositoryPlace::Store(StoreLocation::File(path) | StoreLocation::Files(path)) => {
            Some(path.parent()?.to_owned())
        }
        RepositoryPlace::Store(StoreLocation::Device(_))
        | RepositoryPlace::Cluster(_)
        | RepositoryPlace::Remote(_) => None,
    }
}

/// Reads a pin that is locked.
fn read(path: &Path) -> Option<PinnedExport> {
    let mut file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // The pin has no lock: its process has died.
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(path.with_extension(CLOSE));
        return None;
    }
    let mut text = String::new();
    let read = (&mut file).take(MAX_PIN_BYTES).read_to_string(&mut text);
    let words = read.ok().and_then(|_| parse(&text));
    // A pin in an unknown form protects all snapshots.
    let (holder, shown) = words.unwrap_or(("another program".to_owned(), Shown::All));
    Some(PinnedExport { path: path.to_owned(), holder, shown })
}

/// Removes files of a process that died while it set or removed a pin.
fn remove_leftover(path: &Path) {
    let age = path.metadata().and_then(|meta| meta.modified());
    let is_old = age.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > TO_SET));
    if is_old && !path.with_extension(SUFFIX).exists() {
        // The next search tries again.
        let _ = std::fs::remove_file(path);
    }
}

fn number(digits: &str) -> Option<[u8; 16]> {
    Some(u128::from_str_radix(digits, 16).ok()?.to_be_bytes())
}

fn parse(text: &str) -> Option<(String, Shown)> {
    let mut lines = text.lines();
    if lines.next() != Some(TITLE) {
        return None;
    }
    let holder = lines.next()?.to_owned();
    let shown = match lines.next()?.split_once(' ') {
        Some(("snapshot", id)) => Shown::Snapshot(SnapshotId(number(id)?)),
        Some(("vm", uuid)) => Shown::Vm(uuid::Uuid::from_bytes(number(uuid)?)),
        None | Some(_) => Shown::All,
    };
    Some((holder, shown))
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_backup::{IndexHome, InitOptions, Unlock};
    use copal_volume::MemoryStore;
    use std::sync::Arc;
    use zeroize::Zeroizing;

    /// Symptom: of two containers that served one repository on a shared directory, one had no pin.
    /// Cause: a pin was named by its process, and both processes had one number. Fix: the name is drawn at
    /// random.
    #[test]
    fn a_pin_holds_while_its_export_lives() {
        let scratch = tempfile::tempdir().unwrap();
        let place = RepositoryPlace::Store(StoreLocation::File(scratch.path().join("store.copal")));
        assert!(ExportPins::look(&place).is_empty());
        let shown = Shown::Snapshot(SnapshotId([0xab; 16]));
        let pin = ExportPin::set(&place, "nbd", &shown).unwrap();
        let pins = ExportPins::look(&place);
        assert_eq!(pins.exports[0].shown, shown);
        assert!(pins.exports[0].holder.starts_with("copal nbd (process "));
        assert!(!pin.is_to_close());
        File::create(pin.path.with_extension(CLOSE)).unwrap();
        assert!(pin.is_to_close());
        // A second export of this process, like one of another container with the same process id.
        let second = Shown::Snapshot(SnapshotId([0xcd; 16]));
        let other = ExportPin::set(&place, "nbd", &second).unwrap();
        let mut all: Vec<Shown> =
            ExportPins::look(&place).exports.iter().map(|export| export.shown).collect();
        all.sort_by_key(|shown| *shown == second);
        assert_eq!(all, [shown, second]);
        assert!(!other.is_to_close(), "the other one is asked to close");
        drop(other);
        // A dead process: the file exists, the lock does not.
        let path = pin.path.clone();
        drop(pin);
        std::fs::write(&path, "left over").unwrap();
        assert!(ExportPins::look(&place).is_empty());
        assert!(!path.exists());
        // A pin in progress, which its process has not locked yet, stays.
        let unfinished = path.with_extension(UNFINISHED);
        std::fs::write(&unfinished, "").unwrap();
        assert!(ExportPins::look(&place).is_empty() && unfinished.exists());
        assert_eq!(parse("copal door 1\nx\nall\n"), Some(("x".to_owned(), Shown::All)));
        assert_eq!(parse("copal door 2\nx\nall\n"), None);
    }

    /// Only tests with clusters of processes noticed when exports of other hosts protected no snapshot of a
    /// repository.
    #[test]
    fn an_export_of_another_host_protects_its_snapshots_until_it_ends() {
        let options = InitOptions {
            argon2_memory_kib: 64,
            ..InitOptions::new(Unlock::Password(Zeroizing::new("correct horse".to_owned())))
        };
        let store = Arc::new(MemoryStore::new());
        let repository = Repository::init(store, IndexHome::Memory, &options).unwrap();
        let [shown, other] = [1, 2].map(uuid::Uuid::from_u128);
        let refused = |vm| {
            let pins = ExportPins::default().with_other_hosts(&repository).unwrap();
            pins.refusal_to_remove(vm, &[])
        };
        assert_eq!(refused(shown), None);
        let pin = repository.pin(Shown::Vm(shown)).unwrap();
        assert!(refused(shown).unwrap().contains("an export on some host"));
        assert_eq!(refused(other), None);
        pin.end(&repository).unwrap();
        assert_eq!(refused(shown), None);
    }
}
