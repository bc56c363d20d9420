//! Power cuts during an exchange, at each of its steps and of the steps that undo it.
//!
//! After a power cut, a disk may have any subset of the renames since the last sync of the directory. It may
//! have no bytes of a file that was never synced.

use super::*;
use std::collections::{BTreeMap, BTreeSet};

/// Names, and for each the first name of its file.
type Names = BTreeMap<String, String>;

/// A directory, and all states that a power cut may leave.
struct Cut {
    fails_at: usize,
    steps: usize,
    /// Durable names.
    durable: Names,
    /// Renames that are not durable yet.
    pending: Vec<(String, String)>,
    /// The bytes of the new database are durable.
    is_synced: bool,
    /// Possible states after a power cut at any of the steps so far.
    left: BTreeSet<Names>,
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

impl Cut {
    fn record_states(&mut self) {
        for kept in 0..1_u32 << self.pending.len() {
            let mut names = self.durable.clone();
            for (at, (from, to)) in self.pending.iter().enumerate() {
                if kept >> at & 1 == 1
                    && let Some(file) = names.remove(from)
                {
                    names.insert(to.clone(), file);
                }
            }
            if !self.is_synced && names.get("db").is_some_and(|file| file == "db.part") {
                names.insert("db".to_owned(), "torn".to_owned());
            }
            self.left.insert(names);
        }
    }

    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match self.steps - 1 == self.fails_at {
            true => Err(io::Error::other("no more")),
            false => Ok(()),
        }
    }
}

impl FileOps for Cut {
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        std::fs::rename(from, to)?;
        self.pending.push((name(from), name(to)));
        self.record_states();
        Ok(())
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.step()?;
        match path.is_dir() {
            true => {
                for (from, to) in self.pending.drain(..) {
                    let file = self.durable.remove(&from).unwrap();
                    self.durable.insert(to, file);
                }
            }
            false => self.is_synced = true,
        }
        Ok(())
    }
}

/// Symptom: a power cut could leave an old database without its newest log, on a file system that writes names
/// in any order. After a failed last sync of a restore, the old log lay beside the new database. No test
/// noticed a new database that had its name before its bytes were durable, or before the logs were away.
/// Cause: names were synced once for all old files, and the last rename was not undone.
/// Fix: each name is durable before the next one changes, and the last rename is undone first.
#[test]
fn a_power_cut_leaves_the_old_database_with_its_logs_or_none_or_the_new_one_without() {
    let old = ["db", "db-wal", "db-shm"];
    for fails_at in 0..10 {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        let all = old.iter().chain(["db.part"].iter());
        for name in all.clone() {
            std::fs::write(path(name), name).unwrap();
        }
        let mut cut = Cut {
            fails_at,
            steps: 0,
            durable: all.map(|name| (name.to_string(), name.to_string())).collect(),
            pending: Vec::new(),
            is_synced: false,
            left: BTreeSet::new(),
        };
        let done = exchange(&path("db.part"), &path("db"), &mut cut);
        assert_eq!(done.is_ok(), fails_at >= 9, "an exchange has nine steps");
        let at_end = cut.durable.get("db").map_or("", |file| file);
        match done {
            Ok(()) => assert!(at_end == "db.part" && cut.pending.is_empty(), "{:?}", cut.durable),
            Err(_) => assert!(at_end == "db" && cut.pending.is_empty(), "{:?}", cut.durable),
        }
        for names in &cut.left {
            let logs: Vec<&String> =
                names.iter().filter(|(name, _)| name.starts_with("db-")).map(|(_, file)| file).collect();
            match names.get("db").map(|file| &**file) {
                Some("db") => assert_eq!(logs, ["db-shm", "db-wal"], "{names:?}"),
                Some("db.part") => assert!(logs.is_empty(), "{names:?}"),
                None => {}
                Some(other) => panic!("{other}: {names:?}"),
            }
            let kept: BTreeSet<&String> = names.values().collect();
            assert!(
                old.iter().all(|file| kept.contains(&file.to_string())),
                "an old file is lost: {names:?}"
            );
        }
    }
}
