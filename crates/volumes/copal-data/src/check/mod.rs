//! Check of a volume store: a walk over every row that lists the damage.
//!
//! Names must lead to volumes and back. Every piece of every file must be present, and every checksum of a
//! row must match. With `read_data` every body is read and verified. Damage becomes a finding, and the walk
//! continues behind it.
//!
//! Invariants
//! - Memory is bounded: at most 10,000 findings are kept, the rest is counted, and the ids of at most 262,144
//!   files are in memory.
//! - The check writes nothing.
//!
//! Not here: repair (another copy, or deleting the damaged file); the object layer's own checks.

mod files;
mod tree;

use crate::error::of_engine;
use crate::keys::{self, KeyRange};
use crate::keyspaces::DataKeyspaces;
use bytes::Bytes;
use copal_kv::{Keyspace, Store, VerifyDepth};
use copal_volume::{FileId, VolumeError, VolumeId};
use std::collections::HashSet;
use std::fmt;
use std::ops::Bound;

/// Maximum number of findings in a report; further ones are only counted.
const KEPT_FINDINGS: usize = 10_000;

/// Depth of a check.
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// Read every body and verify its checksums, not only the rows.
    pub read_data: bool,
    /// Let the engine check its tables, values and accounts too; with `read_data` every byte of them,
    /// including deleted rows that no merge has dropped yet. The engine's flushes and merges wait meanwhile.
    pub engine: bool,
    /// Files whose bodies the caller has read and verified since the store was opened: with `read_data` all others
    /// are read. If it is set, the engine does not read separated values either. The bytes of deleted ones are then
    /// left to the check of the object layer.
    pub verified: Option<HashSet<FileId>>,
}

impl CheckOptions {
    /// Whether the body of a file is to be read.
    fn reads(&self, fid: FileId) -> bool {
        self.read_data && !self.verified.as_ref().is_some_and(|verified| verified.contains(&fid))
    }

    fn engine_depth(&self) -> VerifyDepth {
        match (self.read_data, &self.verified) {
            (false, _) => VerifyDepth::Accounts,
            (true, Some(_)) => VerifyDepth::Tables,
            (true, None) => VerifyDepth::Values,
        }
    }
}

/// One damaged or missing item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDamage {
    /// Its volume, if known.
    pub volume: Option<VolumeId>,
    /// Name of its file, if known.
    pub file: Option<Vec<u8>>,
    /// Description of the damage.
    pub what: String,
}

impl fmt::Display for VolumeDamage {
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

/// Progress and result of a check.
#[derive(Clone, Debug, Default)]
pub struct VolumeCheckReport {
    /// Number of volumes.
    pub volumes: u64,
    /// Files with readable heads.
    pub files: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
    /// Pieces of bodies that are not inline.
    pub pieces: u64,
    /// Bytes of bodies that were read and have the right checksum.
    pub verified_bytes: u64,
    /// Bytes of tables and values that the engine has read; 0 before it begins.
    pub engine_bytes: u64,
    /// Uploads under way; their pieces belong to no file yet.
    pub uploads: u64,
    /// Objects of the engine that a killed process left, and their bytes: no damage. The next opening that
    /// may write frees them. Counted only with `engine`.
    pub leftovers: u64,
    /// See `leftovers`.
    pub leftover_bytes: u64,
    /// The first findings, at most 10,000.
    pub damage: Vec<VolumeDamage>,
    /// Number of further findings.
    pub more_damage: u64,
}

impl VolumeCheckReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty()
    }

    fn found(&mut self, volume: Option<VolumeId>, file: Option<&[u8]>, what: impl Into<String>) {
        if self.damage.len() >= KEPT_FINDINGS {
            self.more_damage += 1;
            return;
        }
        self.damage.push(VolumeDamage { volume, file: file.map(<[u8]>::to_vec), what: what.into() });
    }
}

/// Runs the whole check.
pub(crate) fn run(
    kv: &Store,
    spaces: &DataKeyspaces,
    options: &CheckOptions,
    progress: &mut dyn FnMut(&VolumeCheckReport),
) -> Result<VolumeCheckReport, VolumeError> {
    let mut report = VolumeCheckReport::default();
    tree::check_node(spaces, &mut report);
    let volumes = tree::check(spaces, &mut report);
    for &vid in &volumes {
        files::check_volume(spaces, vid, options, &mut report, progress);
        progress(&report);
    }
    files::check_strays(spaces, &volumes, &mut report);
    if options.engine {
        let engine = kv.verify_telling(options.engine_depth(), &mut |so_far| {
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

/// Calls `visit` for the rows of a range, in any order. An unreadable row becomes a finding, and the walk
/// continues from the other end. Rows between the first and the last unreadable place are not visited.
fn walk(
    space: &Keyspace,
    what: &str,
    range: &KeyRange,
    keys_only: bool,
    report: &mut VolumeCheckReport,
    visit: &mut dyn FnMut(&[u8], Bytes, &mut VolumeCheckReport),
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
