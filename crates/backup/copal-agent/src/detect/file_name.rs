//! Names of a detector's files: kind, number of partitions, and partition.

use super::error::{DetectError, Result};
use super::format::{FilePartition, RunKind};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// First part of the name of a spool that grows.
pub(crate) const SPOOL: &str = "spool";
/// First part of the name of a spool in comparison.
pub(crate) const COMPARED: &str = "compared";

/// Last part of the name of a file that is being written.
pub(crate) const UNFINISHED: &str = "tmp";

/// Path of a file of this kind.
pub(crate) fn path(dir: &Path, prefix: &str, belongs: FilePartition) -> PathBuf {
    dir.join(format!("{prefix}.{}.{:04x}", belongs.bits, belongs.partition))
}

/// Removes a file that may be missing.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(DetectError::io("remove", path, source))
        }
        _ => Ok(()),
    }
}

/// Parts of the name of a detector's file.
pub(crate) struct FileName<'a> {
    pub(crate) prefix: &'a str,
    pub(crate) bits: u8,
    pub(crate) partition: u32,
    pub(crate) is_unfinished: bool,
}

impl FileName<'_> {
    pub(crate) fn parse(name: &str) -> Option<FileName<'_>> {
        let (prefix, rest) = name.split_once('.')?;
        let known = [RunKind::Popular.file_prefix(), RunKind::Candidates.file_prefix(), SPOOL, COMPARED];
        let (bits, rest) = rest.split_once('.')?;
        let (partition, is_unfinished) = match rest.split_once('.') {
            Some((partition, UNFINISHED)) => (partition, true),
            Some(_) => return None,
            None => (rest, false),
        };
        known.contains(&prefix).then_some(FileName {
            prefix,
            bits: bits.parse().ok()?,
            partition: u32::from_str_radix(partition, 16).ok()?,
            is_unfinished,
        })
    }
}
