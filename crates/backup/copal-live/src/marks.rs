//! Marks in a new bitmap that no guest made, and a sentinel beside it that says which.
//!
//! A bitmap that is cleared, or is removed and made anew under its name, leaves out writes, and QEMU does not
//! tell. So a new bitmap begins with a few marks at places drawn at random. A second bitmap, made in the same
//! transaction, has the same marks and records nothing. As long as the first one is what it was, it has every
//! mark of the second.
//!
//! Nobody can set a bit of a bitmap. So a scratch node without content, as large as the disk, is written at
//! those places, and what its own bitmap recorded is merged into both.
//! Not here: that a bitmap was disabled for a while leaves no trace at all; spot checks look for that
//! (`copal-backup`).

use crate::qmp::{Client, QmpError};
use crate::{
    clear::{end_exports, take_down},
    names::{Part, SessionName},
};
use copal_disk::source::{BitmapState, ChangedExtents};
use copal_nbd::{Address, Client as Nbd, ConnectOptions, Uri};
use serde_json::json;
use std::{path::Path, time::Duration};

/// Marks of a bitmap, one in each part of the disk.
const MARKS: u64 = 4;
/// Least that a node is written.
const WRITE_BYTES: u64 = 512;
/// How long the scratch node may take to be written.
const PATIENCE: Duration = Duration::from_secs(10);

/// A bitmap to be made.
pub(crate) struct NewBitmap<'a> {
    pub(crate) node: &'a str,
    pub(crate) name: &'a str,
    pub(crate) granularity: u64,
}

/// Where marks are merged from, and how many bytes they stand for.
pub(crate) struct PlantedMarks {
    node: String,
    /// Of the disk, as a map of the bitmap has it.
    named_bytes: u64,
    /// As QEMU counts: whole units, also the last one of a disk that ends within it.
    counted_bytes: u64,
}

/// A sentinel as QEMU counts it, and the bytes of the disk that its bitmap names.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) sentinel: BitmapState,
    pub(crate) named_bytes: u64,
}

/// Writes the marks of one disk into a scratch node of its own. Blocks for some milliseconds.
/// # Errors
/// Why there are none, as a sentence; what was put up is taken down with [`uproot`].
pub(crate) fn plant(
    client: &mut Client,
    session: &SessionName,
    socket: &Path,
    (at, size_bytes): (usize, u64),
    bitmap: (&str, u64),
) -> Result<PlantedMarks, String> {
    let text = |error: QmpError| error.to_string();
    let ((name, granularity), node) = (bitmap, session.part(Part::Marks, at));
    let scratch = json!({ "driver": "null-co", "node-name": node, "size": size_bytes, "read-zeroes": true });
    client.execute("blockdev-add", scratch).map_err(text)?;
    let added = json!({ "node": node, "name": name, "granularity": granularity });
    client.execute("block-dirty-bitmap-add", added).map_err(text)?;
    let export = json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": true });
    client.execute("block-export-add", export).map_err(text)?;
    let uri = Uri { address: Address::Unix(socket.to_owned()), export: node.clone() };
    let options = ConnectOptions { timeout: PATIENCE, ..ConnectOptions::default() };
    let nbd = Nbd::connect(&uri, &options).map_err(|error| error.to_string())?;
    let (mut named_bytes, mut counted_bytes) = (0, 0);
    for place in places(size_bytes, granularity)? {
        let length = WRITE_BYTES.min(size_bytes - place) as usize;
        let written = nbd.start_write(place, &[0; WRITE_BYTES as usize][..length]);
        written.and_then(|change| change.wait()).map_err(|error| error.to_string())?;
        named_bytes += granularity.min(size_bytes - place);
        counted_bytes += granularity;
    }
    Ok(PlantedMarks { node, named_bytes, counted_bytes })
}

/// Takes down the scratch nodes of a session.
pub(crate) fn uproot(client: &mut Client, session: &SessionName) -> Result<(), QmpError> {
    end_exports(client, session)?;
    take_down(client, session, &[Part::Marks])
}

/// Ends the exports of the scratch nodes, whose bitmaps are merged from then on.
pub(crate) fn stop_writing(client: &mut Client, session: &SessionName) -> Result<(), QmpError> {
    end_exports(client, session)
}

/// Makes a bitmap, and with marks its sentinel, all at once. Returns the sentinel.
/// # Errors
/// Those of QEMU: neither is there then.
pub(crate) fn begin(
    client: &mut Client,
    new: &NewBitmap<'_>,
    marks: Option<&PlantedMarks>,
    is_persistent: bool,
) -> Result<Option<Begun>, QmpError> {
    let NewBitmap { node, name, granularity } = *new;
    let add = |name: &str, is_disabled: bool| {
        json!({ "type": "block-dirty-bitmap-add", "data": {
            "node": node, "name": name, "granularity": granularity, "persistent": is_persistent, "disabled": is_disabled,
        }})
    };
    let Some(marks) = marks else {
        client.execute("transaction", json!({ "actions": [add(name, false)] }))?;
        return Ok(None);
    };
    let sentinel = sentinel_of(name);
    let merge = |target: &str| {
        json!({ "type": "block-dirty-bitmap-merge", "data": {
            "node": node, "target": target, "bitmaps": [{ "node": marks.node, "name": name }],
        }})
    };
    let actions = json!([add(name, false), add(&sentinel, true), merge(name), merge(&sentinel)]);
    client.execute("transaction", json!({ "actions": actions }))?;
    Ok(Some(Begun {
        sentinel: BitmapState { name: sentinel, dirty_bytes: marks.counted_bytes },
        named_bytes: marks.named_bytes,
    }))
}

/// The name of the sentinel of a bitmap.
pub(crate) fn sentinel_of(bitmap: &str) -> String {
    format!("{bitmap}{SUFFIX}")
}

/// The bitmap that this one is the sentinel of, if it is one.
pub(crate) fn guarded_by(sentinel: &str) -> Option<&str> {
    sentinel.strip_suffix(SUFFIX)
}

const SUFFIX: &str = "-sentinel";

/// Whether a bitmap has all that its sentinel has.
pub(crate) fn has_all(bitmap: &ChangedExtents, sentinel: &ChangedExtents) -> bool {
    sentinel.extents.iter().all(|mark| {
        let mut at = mark.offset;
        let end = mark.offset + mark.length;
        // Both ascend, and neighbours may be told apart.
        for extent in &bitmap.extents {
            if extent.offset <= at && extent.offset + extent.length > at {
                at = extent.offset + extent.length;
            }
        }
        at >= end
    })
}

/// Beginnings of units of a bitmap, drawn one from each part of the disk.
fn places(size_bytes: u64, granularity: u64) -> Result<Vec<u64>, String> {
    let units = size_bytes.div_ceil(granularity);
    let count = MARKS.min(units);
    let mut places = Vec::new();
    for part in 0..count {
        let (first, end) = (units * part / count, units * (part + 1) / count);
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| error.to_string())?;
        places.push((first + u64::from_le_bytes(bytes) % (end - first)) * granularity);
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_disk::source::{ChangeKind, ChangedExtent};

    fn list(extents: &[(u64, u64)]) -> ChangedExtents {
        let extent =
            |&(offset, length): &(u64, u64)| ChangedExtent { offset, length, kind: ChangeKind::Dirty };
        ChangedExtents { extents: extents.iter().map(extent).collect(), ..ChangedExtents::default() }
    }

    #[test]
    fn every_part_of_a_disk_has_a_mark() {
        for (size, count) in [(0, 0), (512, 1), (200 << 10, 4), (1 << 40, 4)] {
            let places = places(size, 64 << 10).unwrap();
            assert_eq!(places.len(), count, "{size}");
            assert!(places.is_sorted_by(|one, other| one < other));
            assert!(places.iter().all(|place| place % (64 << 10) == 0 && *place < size));
        }
    }

    #[test]
    fn a_mark_that_is_missing_in_part_is_missing() {
        let sentinel = list(&[(0, 10), (30, 10)]);
        for (bitmap, has) in [
            (&[(0, 40)][..], true),
            (&[(0, 5), (5, 5), (25, 20)], true),
            (&[(0, 10)], false),
            (&[(0, 10), (31, 9)], false),
            (&[(0, 10), (30, 9)], false),
            (&[], false),
        ] {
            assert_eq!(has_all(&list(bitmap), &sentinel), has, "{bitmap:?}");
        }
        assert!(has_all(&list(&[]), &list(&[])));
        assert_eq!(guarded_by(&sentinel_of("copal-1")), Some("copal-1"));
    }
}
