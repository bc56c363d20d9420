//! Keeps the cache below its limit: the entries that were used last stay.

use super::UNFINISHED;
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

/// Age at which the time of an entry is renewed by a use, and an unfinished entry is a leftover.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// File whose time is that of the last sweep.
const SWEPT: &str = "swept";
/// Bytes in which file systems count.
const UNIT: u64 = 4096;

/// Bytes that a file of this length takes.
pub(super) fn disk_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(UNIT).max(UNIT)
}

fn age(meta: &fs::Metadata) -> Duration {
    let modified = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    // A time ahead of the clock is as new as now.
    SystemTime::now().duration_since(modified).unwrap_or_default()
}

/// Whether no sweep was made for a day.
pub(super) fn is_due(directory: &Path) -> bool {
    directory.join(SWEPT).metadata().map_or(true, |meta| age(&meta) >= DAY)
}

/// Notes that an entry was used, once a day.
pub(super) fn note_use(entry: &File) {
    if entry.metadata().is_ok_and(|meta| age(&meta) >= DAY) {
        let _ = entry.set_modified(SystemTime::now());
    }
}

/// Removes leftovers, and the entries that were used longest ago, until the rest is a quarter below the limit, if it was
/// above. Files and directories of other names stay.
pub(super) fn sweep(directory: &Path, limit_bytes: u64) -> io::Result<()> {
    let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    let mut total = 0;
    for found in fs::read_dir(directory)? {
        let found = found?;
        let name = found.file_name();
        if is_hex(&name, 2) {
            // Other processes remove entries, too.
            for entry in fs::read_dir(found.path()).into_iter().flatten().flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_file() && is_hex(&entry.file_name(), 30) {
                    let bytes = disk_bytes(meta.len());
                    total += bytes;
                    entries.push((meta.modified().unwrap_or(SystemTime::UNIX_EPOCH), bytes, entry.path()));
                }
            }
        } else if name.as_encoded_bytes().ends_with(UNFINISHED.as_bytes())
            && found.metadata().is_ok_and(|meta| age(&meta) >= DAY)
        {
            let _ = fs::remove_file(found.path());
        }
    }
    if total > limit_bytes {
        entries.sort_unstable();
        for (_, bytes, path) in entries {
            if total <= limit_bytes / 4 * 3 {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= bytes;
            }
        }
    }
    File::create(directory.join(SWEPT)).map(drop)
}

fn is_hex(name: &OsStr, digits: usize) -> bool {
    let name = name.as_encoded_bytes();
    name.len() == digits && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}
