//! Pins: files beside a store that say which snapshots the doors of this machine show, so that nobody forgets
//! those.
//!
//! A pin is locked by the process whose door it is, so a dead one holds nothing. Forgetting by name is
//! refused, retention passes over what is pinned, and `--force` asks the doors to close.
//! Invariants
//! - The name of a pin is drawn at random: containers and hosts that share a directory count their processes
//!   each for itself.
//! - A door sets its pin while it has the store open for reading. So a process that has opened the store for
//!   writing sees the pins of all doors to it, and no door is added while it has the store.
//!
//! Not here: a store that is a device, which has no place for pins: doors keep it locked instead. The pins of
//! repositories in a cluster, which lie in the catalog (`copal_backup::serve::CatalogPin`).

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

/// Directory of the pins, in that of the repository.
const DIRECTORY: &str = "doors";
const SUFFIX: &str = "pin";
/// What a door is asked to close by: the name of its pin and this.
const CLOSE: &str = "close";
/// First line of a pin.
const TITLE: &str = "copal door 1";
/// No pin is longer.
const MAX_PIN_BYTES: u64 = 64 << 10;
/// How long a door may take to close.
const TO_CLOSE: Duration = Duration::from_secs(20);
/// End of the name of a pin that is being set.
const UNFINISHED: &str = "new";
/// A pin takes no longer to be set.
const TO_SET: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(50);

/// What a door shows, as a line of its pin.
fn line(shown: &Shown) -> String {
    match shown {
        Shown::Snapshot(id) => format!("snapshot {id}"),
        Shown::Vm(uuid) => format!("vm {}", uuid.simple()),
        Shown::All => "all".to_owned(),
    }
}

/// The pin of this process's door; it goes when it is dropped.
pub(crate) struct ExportPin {
    path: PathBuf,
    _file: File,
}

impl ExportPin {
    /// Pins what a door shows; `None`: there is no place for pins, and the lock of the store has to do.
    pub(crate) fn set(place: &RepositoryPlace, door: &str, shown: &Shown) -> Option<ExportPin> {
        let directory = directory(place)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        let pinned = made.and_then(|()| set_in(&directory, door, shown));
        match pinned {
            Ok(pin) => Some(pin),
            Err(error) => {
                tracing::debug!(%error, path = %directory.display(), "no pin could be set");
                None
            }
        }
    }

    /// Whether the door is asked to close.
    pub(crate) fn is_to_close(&self) -> bool {
        self.path.with_extension(CLOSE).exists()
    }
}

impl Drop for ExportPin {
    fn drop(&mut self) {
        // What stays is nobody's, by its lock.
        let _ = std::fs::remove_file(self.path.with_extension(CLOSE));
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Sets a pin, which appears whole and locked.
fn set_in(directory: &Path, door: &str, shown: &Shown) -> std::io::Result<ExportPin> {
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
    let text = format!("{TITLE}\ncopal {door} (process {pid} on {host})\n{}\n", line(shown));
    file.write_all(text.as_bytes())?;
    std::fs::rename(&unfinished, &path)?;
    Ok(ExportPin { path, _file: file })
}

/// A door that somebody has.
#[derive(Clone, Debug)]
struct PinnedExport {
    path: PathBuf,
    /// `copal nbd (process 4711)`.
    who: String,
    shown: Shown,
}

/// The doors of this machine to one repository, as they were a moment ago.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExportPins {
    doors: Vec<PinnedExport>,
    /// There were some a moment ago, which may not have let go of the store yet.
    are_closed: bool,
}

impl ExportPins {
    /// Looks for doors; pins of dead ones are removed.
    pub(crate) fn look(place: &RepositoryPlace) -> ExportPins {
        let entries = directory(place).and_then(|directory| std::fs::read_dir(directory).ok());
        let mut doors = Vec::new();
        for path in entries.into_iter().flatten().flatten().map(|entry| entry.path()) {
            match path.extension().and_then(|suffix| suffix.to_str()) {
                Some(SUFFIX) => doors.extend(read(&path)),
                Some(UNFINISHED | CLOSE) => remove_leftover(&path),
                _ => {}
            }
        }
        ExportPins { doors, are_closed: false }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.doors.is_empty()
    }

    /// Whether a writer may meet a door that reads.
    pub(crate) fn may_be_reading(&self) -> bool {
        self.are_closed || !self.is_empty()
    }

    /// The same, with the doors of all hosts to a repository in a cluster. Those are not asked to close: they
    /// look themselves whether what they show is still there.
    /// # Errors
    /// Those of the store.
    pub(crate) fn with_other_hosts(&self, repository: &Repository) -> Outcome<ExportPins> {
        let mut all = self.clone();
        let pinned = repository.pinned()?.into_iter();
        all.doors.extend(pinned.map(|shown| PinnedExport {
            path: PathBuf::new(),
            who: "a door on some host (copal nbd or copal mount)".to_owned(),
            shown,
        }));
        Ok(all)
    }

    /// Why nothing is freed: a snapshot that is forgotten already is shown by a door, which began to show it
    /// when the snapshot was being forgotten. Its chunks are needed until the door ends.
    /// # Errors
    /// Those of the store.
    pub(crate) fn refusal_to_free(&self, repository: &Repository) -> Outcome<Option<String>> {
        for door in &self.doors {
            if let Shown::Snapshot(id) = door.shown
                && !repository.is_published(id)?
            {
                return Ok(Some(format!(
                    "snapshot {} is forgotten and still in use by {}; nothing was freed, end that first or wait ten minutes",
                    id.short(),
                    human::visible(&door.who)
                )));
            }
        }
        Ok(None)
    }

    /// Why a VM is not removed with its snapshots.
    pub(crate) fn refusal_to_remove(&self, vm: uuid::Uuid, snapshots: &[Snapshot]) -> Option<String> {
        let shows = |door: &&PinnedExport| {
            let of_vm = door.shown == Shown::Vm(vm);
            of_vm || snapshots.iter().any(|snapshot| door.shown.has(snapshot))
        };
        let door = self.doors.iter().find(shows)?;
        Some(format!(
            "snapshots of this VM are in use by {}; end that first, nothing was changed",
            human::visible(&door.who)
        ))
    }

    /// As if all doors were closed.
    pub(crate) fn disregarded() -> ExportPins {
        ExportPins { doors: Vec::new(), are_closed: true }
    }

    /// Who shows a snapshot, in words.
    pub(crate) fn of(&self, snapshot: &Snapshot) -> Option<&str> {
        let door = self.doors.iter().find(|door| door.shown.has(snapshot));
        door.map(|door| &*door.who)
    }

    /// Why a snapshot is not forgotten.
    pub(crate) fn refusal(&self, snapshot: &Snapshot) -> Option<String> {
        let who = self.of(snapshot)?;
        Some(format!(
            "snapshot {} is in use by {}; end that first, or add --force, which closes it, nothing was changed",
            snapshot.id.short(),
            human::visible(who)
        ))
    }

    /// Asks the doors that show one of these to close, and waits until they have. What is left pins nothing
    /// that is asked for.
    /// # Errors
    /// One has not.
    pub(crate) fn close<'a>(
        self,
        snapshots: impl Iterator<Item = &'a Snapshot> + Clone,
    ) -> Outcome<ExportPins> {
        let mut asked = Vec::new();
        for door in &self.doors {
            if snapshots.clone().any(|snapshot| door.shown.has(snapshot)) {
                let ask = File::create(door.path.with_extension(CLOSE));
                if let Err(error) = ask {
                    tracing::debug!(%error, "a door cannot be asked to close");
                }
                asked.push(door);
            }
        }
        let until = Instant::now() + TO_CLOSE;
        for door in asked {
            while read(&door.path).is_some() {
                if Instant::now() > until {
                    return Err(Failure::busy(&door.path));
                }
                std::thread::park_timeout(LOOK);
            }
        }
        Ok(ExportPins::disregarded())
    }
}

fn directory(place: &RepositoryPlace) -> Option<PathBuf> {
    store_directory(place).map(|directory| directory.join(DIRECTORY))
}

/// The directory of a store of this machine; `None`: it is a device, or in a cluster.
pub(crate) fn store_directory(place: &RepositoryPlace) -> Option<PathBuf> {
    match place {
        RepositoryPlace::Store(StoreLocation::File(path) | StoreLocation::Files(path)) => {
            Some(path.parent()?.to_owned())
        }
        RepositoryPlace::Store(StoreLocation::Device(_)) | RepositoryPlace::Cluster(_) => None,
    }
}

/// A pin that somebody holds.
fn read(path: &Path) -> Option<PinnedExport> {
    let mut file = File::open(path).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        // Nobody holds it: its process has died.
        let _ = std::fs::remove_file(path);
        let _ = std::fs::remove_file(path.with_extension(CLOSE));
        return None;
    }
    let mut text = String::new();
    let read = (&mut file).take(MAX_PIN_BYTES).read_to_string(&mut text);
    let words = read.ok().and_then(|_| parse(&text));
    // One that says nothing this program understands holds everything.
    let (who, shown) = words.unwrap_or(("another program".to_owned(), Shown::All));
    Some(PinnedExport { path: path.to_owned(), who, shown })
}

/// Removes what a process left that died while it set or removed a pin.
fn remove_leftover(path: &Path) {
    let age = path.metadata().and_then(|meta| meta.modified());
    let is_old = age.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age > TO_SET));
    if is_old && !path.with_extension(SUFFIX).exists() {
        // The next look tries again.
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
    let who = lines.next()?.to_owned();
    let shown = match lines.next()?.split_once(' ') {
        Some(("snapshot", id)) => Shown::Snapshot(SnapshotId(number(id)?)),
        Some(("vm", uuid)) => Shown::Vm(uuid::Uuid::from_bytes(number(uuid)?)),
        None | Some(_) => Shown::All,
    };
    Some((who, shown))
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
    fn a_pin_holds_while_its_door_lives() {
        let scratch = tempfile::tempdir().unwrap();
        let place = RepositoryPlace::Store(StoreLocation::File(scratch.path().join("store.copal")));
        assert!(ExportPins::look(&place).is_empty());
        let shown = Shown::Snapshot(SnapshotId([0xab; 16]));
        let pin = ExportPin::set(&place, "nbd", &shown).unwrap();
        let pins = ExportPins::look(&place);
        assert_eq!(pins.doors[0].shown, shown);
        assert!(pins.doors[0].who.starts_with("copal nbd (process "));
        assert!(!pin.is_to_close());
        File::create(pin.path.with_extension(CLOSE)).unwrap();
        assert!(pin.is_to_close());
        // A second door of this process, as one of another container with the same number.
        let second = Shown::Snapshot(SnapshotId([0xcd; 16]));
        let other = ExportPin::set(&place, "nbd", &second).unwrap();
        let mut all: Vec<Shown> = ExportPins::look(&place).doors.iter().map(|door| door.shown).collect();
        all.sort_by_key(|shown| *shown == second);
        assert_eq!(all, [shown, second]);
        assert!(!other.is_to_close(), "the other one is asked to close");
        drop(other);
        // Dead: the file is there, the lock is not.
        let path = pin.path.clone();
        drop(pin);
        std::fs::write(&path, "left over").unwrap();
        assert!(ExportPins::look(&place).is_empty());
        assert!(!path.exists());
        // One that is being set, by a process that has not locked it yet, stays.
        let unfinished = path.with_extension(UNFINISHED);
        std::fs::write(&unfinished, "").unwrap();
        assert!(ExportPins::look(&place).is_empty() && unfinished.exists());
        assert_eq!(parse("copal door 1\nx\nall\n"), Some(("x".to_owned(), Shown::All)));
        assert_eq!(parse("copal door 2\nx\nall\n"), None);
    }

    /// No test but those with clusters of processes noticed when doors of other hosts held no snapshot of a
    /// repository.
    #[test]
    fn a_door_of_another_host_holds_what_it_shows_until_it_ends() {
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
        assert!(refused(shown).unwrap().contains("a door on some host"));
        assert_eq!(refused(other), None);
        pin.end(&repository).unwrap();
        assert_eq!(refused(shown), None);
    }
}
