//! Walks every row of a volume store and lists what is damaged.
//!
//! Names must lead to volumes and back, every piece of every file must be there and every
//! checksum of a row must hold; with `read_data` every body is read and verified. Damage is a
//! finding, not a stop: the walk goes on behind it.
//!
//! Invariants
//! - Memory is bounded: at most 10,000 findings are kept (the rest is counted), and file ids are
//!   held for 262,144 files at a time.
//! - The check writes nothing.
//!
//! Not here: repair (another copy, or deleting the damaged file); the object layer's own checks.

mod files;
mod tree;

use crate::error::of_engine;
use crate::keys::{self, KeyRange};
use crate::spaces::Spaces;
use bytes::Bytes;
use copal_kv::{Keyspace, Store};
use copal_volume::{VolumeError, VolumeId};
use std::fmt;
use std::ops::Bound;

/// Findings kept in a report; more are only counted.
const KEPT_FINDINGS: usize = 10_000;

/// How deep to look.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Read every body and verify its checksums, not only the rows.
    pub read_data: bool,
    /// Have the engine check itself too: its tables, values and accounts; with `read_data` every
    /// byte of them, rows that are deleted but not yet merged away included. Keeps the engine's
    /// flushes and merges waiting meanwhile.
    pub engine: bool,
}

/// One thing that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The volume it belongs to, if that is known.
    pub volume: Option<VolumeId>,
    /// The file it belongs to, if that is known.
    pub file: Option<Vec<u8>>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(vid) = self.volume {
            write!(f, "volume {vid}, ")?;
        }
        if let Some(name) = &self.file {
            write!(f, "file \"{}\": ", name.escape_ascii())?;
        }
        f.write_str(&self.what)
    }
}

/// What a check has seen so far.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Volumes that are there.
    pub volumes: u64,
    /// Files whose heads could be read.
    pub files: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
    /// Pieces found of bodies that are not inline.
    pub pieces: u64,
    /// Bytes of bodies that were read and are whole.
    pub verified_bytes: u64,
    /// Bytes of tables and values that the engine has read; 0: it has not begun.
    pub engine_bytes: u64,
    /// Uploads under way; their pieces belong to no file yet.
    pub uploads: u64,
    /// Objects of the engine that a kill left behind, and their bytes: no damage, freed at the next opening
    /// that may write. Counted with `engine` only.
    pub leftovers: u64,
    /// See `leftovers`.
    pub leftover_bytes: u64,
    /// The first findings.
    pub damage: Vec<Damage>,
    /// Findings beyond those kept.
    pub more_damage: u64,
}

impl CheckReport {
    /// Nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }

    fn found(&mut self, volume: Option<VolumeId>, file: Option<&[u8]>, what: impl Into<String>) {
        if self.damage.len() >= KEPT_FINDINGS {
            self.more_damage += 1;
            return;
        }
        self.damage.push(Damage { volume, file: file.map(<[u8]>::to_vec), what: what.into() });
    }
}

/// Runs the whole check.
pub(crate) fn run(
    kv: &Store,
    spaces: &Spaces,
    options: &CheckOptions,
    progress: &mut dyn FnMut(&CheckReport),
) -> Result<CheckReport, VolumeError> {
    let mut report = CheckReport::default();
    tree::check_node(spaces, &mut report);
    let volumes = tree::check(spaces, &mut report);
    for &vid in &volumes {
        files::check_volume(spaces, vid, options, &mut report, progress);
        progress(&report);
    }
    files::check_strays(spaces, &volumes, &mut report);
    if options.engine {
        let engine = kv.verify_telling(options.read_data, &mut |so_far| {
            report.engine_bytes = so_far.table_bytes + so_far.value_bytes;
            progress(&report);
        });
        match engine {
            Ok(engine) => {
                (report.leftovers, report.leftover_bytes) = (engine.leftovers, engine.leftover_bytes);
                for problem in engine.problems {
                    report.found(None, None, format!("the engine: {problem}"));
                }
            }
            Err(error) if error.is_corruption() => {
                report.found(None, None, format!("the engine: {error}"));
            }
            Err(error) => return Err(of_engine(&error)),
        }
    }
    Ok(report)
}

/// Shows the rows of a range to `visit`, in either order. Where rows cannot be read, that is a
/// finding, and the walk goes on from the other end: what lies between the first and the last
/// unreadable place is not seen.
fn walk(
    space: &Keyspace,
    what: &str,
    range: &KeyRange,
    keys_only: bool,
    report: &mut CheckReport,
    visit: &mut dyn FnMut(&[u8], Bytes, &mut CheckReport),
) {
    let rows = |range: &KeyRange| {
        let rows = space.iter(keys::borrowed(range));
        if keys_only { rows.keys_only() } else { rows }
    };
    let mut last = None;
    let mut failure = None;
    for row in rows(range) {
        match row {
            Ok((key, row)) => {
                visit(&key, row, report);
                last = Some(key);
            }
            Err(error) => failure = Some(error),
        }
    }
    let Some(error) = failure else { return };
    report.found(None, None, format!("{what} could not all be read: {error}"));
    let start = last.map_or_else(|| range.0.clone(), |key| Bound::Excluded(key.to_vec()));
    for row in rows(&(start, range.1.clone())).rev() {
        match row {
            Ok((key, row)) => visit(&key, row, report),
            Err(_) => return,
        }
    }
}
