//! Changed extents as files: Copal's own form, and the form of `nbdinfo --json --map` for a dirty bitmap.
//! `copal backup --changed-extents` reads both.

use anyhow::{Context, Result};
use serde::Serialize;
use std::{fs, path::Path};

/// Kind of change of an extent since the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Has other data.
    Dirty,
    /// Reads as zeros.
    Zero,
}

/// One changed range of a disk, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
    /// Kind of change.
    #[serde(rename = "type")]
    pub change: Change,
}

/// Bytes that a backup must read again: dirty extents. Zeros need no reading.
pub fn dirty_bytes(extents: &[Extent]) -> u64 {
    extents.iter().filter(|extent| extent.change == Change::Dirty).map(|extent| extent.length).sum()
}

#[derive(Serialize)]
struct OwnForm<'a> {
    v: u32,
    size: u64,
    extents: &'a [Extent],
}

#[derive(Serialize)]
struct MapEntry {
    offset: u64,
    length: u64,
    #[serde(rename = "type")]
    kind: u32,
    description: &'static str,
}

/// Writes the extents in Copal's own form.
///
/// # Errors
/// The file cannot be written.
pub fn write_own_form(path: &Path, size: u64, extents: &[Extent]) -> Result<()> {
    let text = serde_json::to_string(&OwnForm { v: 1, size, extents })?;
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Writes the whole disk as alternating clean and dirty entries, as `nbdinfo` does.
///
/// # Errors
/// The file cannot be written.
pub fn write_nbdinfo_form(path: &Path, size: u64, extents: &[Extent]) -> Result<()> {
    let entries: Vec<String> =
        nbdinfo_map(size, extents).iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let text = format!("[\n{}\n]\n", entries.join(",\n"));
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn nbdinfo_map(size: u64, extents: &[Extent]) -> Vec<MapEntry> {
    let entry = |offset, length, dirty| MapEntry {
        offset,
        length,
        kind: u32::from(dirty),
        description: if dirty { "dirty" } else { "clean" },
    };
    let mut map: Vec<MapEntry> = Vec::new();
    let mut at = 0;
    for extent in extents {
        if extent.offset > at {
            map.push(entry(at, extent.offset - at, false));
        }
        match map.last_mut() {
            Some(last) if last.kind == 1 => last.length += extent.length,
            _ => map.push(entry(extent.offset, extent.length, true)),
        }
        at = extent.offset + extent.length;
    }
    if at < size {
        map.push(entry(at, size - at, false));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_covers_the_disk_and_joins_neighbours() {
        let extents = [
            Extent { offset: 4096, length: 4096, change: Change::Dirty },
            Extent { offset: 8192, length: 4096, change: Change::Zero },
            Extent { offset: 65536, length: 4096, change: Change::Dirty },
        ];
        let map: Vec<(u64, u64, u32)> =
            nbdinfo_map(100_000, &extents).iter().map(|e| (e.offset, e.length, e.kind)).collect();
        let expected =
            [(0, 4096, 0), (4096, 8192, 1), (12288, 53248, 0), (65536, 4096, 1), (69632, 30368, 0)];
        assert_eq!(map, expected);
        assert_eq!(dirty_bytes(&extents), 8192);
    }

    #[test]
    fn the_own_form_is_the_documented_one() {
        let scratch = tempfile::tempdir().expect("scratch");
        let path = scratch.path().join("changed.json");
        let extents = [Extent { offset: 0, length: 65536, change: Change::Zero }];
        write_own_form(&path, 1 << 20, &extents).expect("written");
        let text = fs::read_to_string(path).expect("readable");
        assert_eq!(text, r#"{"v":1,"size":1048576,"extents":[{"offset":0,"length":65536,"type":"zero"}]}"#);
    }
}
