//! Generation of a detector's index runs: the set of decisions on popular packs they were built under. Runs
//! of another generation may refer to removed packs.
//!
//! A file holds the generation in digits; without the file no decision was ever made. If the number differs,
//! all index runs are removed, and rebuilt from the log of popular packs when they are needed.

use super::error::{DetectError, Result};
use super::file_name::{self, FileName};
use super::format::RunKind;
use std::io::ErrorKind;
use std::path::Path;

const FILE: &str = "generation";

/// Removes index runs of another generation; returns whether there could be any.
/// # Errors
/// Errors of the disk.
pub(super) fn begin(dir: &Path, generation: u64) -> Result<bool> {
    let path = dir.join(FILE);
    let known = match std::fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => Some(0),
        Err(source) => return Err(DetectError::io("read", &path, source)),
    };
    if known == Some(generation) {
        return Ok(false);
    }
    let list_failed = |source| DetectError::io("list", dir, source);
    for entry in std::fs::read_dir(dir).map_err(list_failed)? {
        let entry = entry.map_err(list_failed)?;
        let name = entry.file_name();
        let found = name.to_str().and_then(FileName::parse);
        if found.is_some_and(|found| found.prefix == RunKind::Popular.file_prefix()) {
            file_name::remove(&entry.path())?;
        }
    }
    // Written last: after a crash before this, the removal is repeated.
    std::fs::write(&path, generation.to_string())
        .map_err(|source| DetectError::io("write", &path, source))?;
    Ok(true)
}
