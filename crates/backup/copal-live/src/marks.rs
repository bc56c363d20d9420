//! Marks and sentinel of a new bitmap, which reveal that it was cleared later.
//!
//! If a bitmap is cleared, or removed and created again under its name, it misses writes, and QEMU does not
//! report that. So a new bitmap begins with a few marks at random places. A second bitmap, the sentinel, is
//! created in the same transaction with the same marks, and records nothing. While the first bitmap is
//! intact, it has every mark of the sentinel.
//!
//! No command sets a bit of a bitmap. So an empty scratch node of the disk's size is written at those places,
//! and its bitmap is merged into both.
//! Not here: detecting that a bitmap was disabled for a while, which leaves no trace; spot checks cover that
//! (`copal-backup`).

use crate::qmp::{QmpClient, QmpError};
use crate::{
    names::{SessionName, SessionPart},
    teardown::{end_exports, take_down},
};
use copal_disk::source::{BitmapState, ChangedExtents};
use copal_nbd::{Client as Nbd, ConnectOptions, ServerAddress, Uri};
use serde_json::json;
use std::{path::Path, time::Duration};

/// Marks of a bitmap, one in each part of the disk.
const MARKS: u64 = 4;
/// Length of one write to a scratch node.
const WRITE_BYTES: u64 = 512;
/// Timeout of writes to the scratch node.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A bitmap to be created.
pub(crate) struct NewBitmap<'a> {
    pub(crate) node: &'a str,
    pub(crate) name: &'a str,
    pub(crate) granularity: u64,
}

/// Scratch node with the marks of one disk, and the number of marked bytes.
pub(crate) struct ScratchMarks {
    node: String,
    /// Marked bytes of the disk, as a map of the bitmap reports them.
    marked_bytes: u64,
    /// Marked bytes as QEMU counts them: whole units, including a last unit that exceeds the disk.
    counted_bytes: u64,
}

/// A sentinel as QEMU counts it, and the bytes that the bitmap marks on the disk.
#[derive(Debug)]
pub(crate) struct NewSentinel {
    pub(crate) sentinel: BitmapState,
    pub(crate) marked_bytes: u64,
}

/// Writes the marks of one disk into a scratch node. Blocks for some milliseconds.
/// # Errors
/// The reason, as a sentence; [`remove_scratch_nodes`] takes the scratch nodes down.
pub(crate) fn write_marks(
    client: &mut QmpClient,
    session: &SessionName,
    socket: &Path,
    (at, size_bytes): (usize, u64),
    bitmap: (&str, u64),
) -> Result<ScratchMarks, String> {
    let text = |error: QmpError| error.to_string();
    let ((name, granularity), node) = (bitmap, session.part(SessionPart::Marks, at));
    let scratch = json!({ "driver": "null-co", "node-name": node, "size": size_bytes, "read-zeroes": true });
    client.execute("blockdev-add", scratch).map_err(text)?;
    let added = json!({ "node": node, "name": name, "granularity": granularity });
    client.execute("block-dirty-bitmap-add", added).map_err(text)?;
    let export = json!({ "type": "nbd", "id": node, "node-name": node, "name": node, "writable": true });
    client.execute("block-export-add", export).map_err(text)?;
    let uri = Uri { address: ServerAddress::Unix(socket.to_owned()), export: node.clone() };
    let options = ConnectOptions { timeout: WRITE_TIMEOUT, ..ConnectOptions::default() };
    let nbd = Nbd::connect(&uri, &options).map_err(|error| error.to_string())?;
    let (mut marked_bytes, mut counted_bytes) = (0, 0);
    for place in places(size_bytes, granularity)? {
        let length = WRITE_BYTES.min(size_bytes - place) as usize;
        let written = nbd.start_write(place, &[0; WRITE_BYTES as usize][..length]);
        written.and_then(|change| change.wait()).map_err(|error| error.to_string())?;
        marked_bytes += granularity.min(size_bytes - place);
        counted_bytes += granularity;
    }
    Ok(ScratchMarks { node, marked_bytes, counted_bytes })
}

/// Takes down the scratch nodes of a session.
pub(crate) fn remove_scratch_nodes(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    end_exports(client, session)?;
    take_down(client, session, &[SessionPart::Marks])
}

/// Removes the exports of the scratch nodes, so that their bitmaps can be merged.
pub(crate) fn end_scratch_exports(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    end_exports(client, session)
}

/// Creates a bitmap and, with marks, its sentinel, in one transaction. Returns the sentinel.
/// # Errors
/// Those of QEMU: then neither exists.
pub(crate) fn begin(
    client: &mut QmpClient,
    new: &NewBitmap<'_>,
    marks: Option<&ScratchMarks>,
    is_persistent: bool,
) -> Result<Option<NewSentinel>, QmpError> {
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
    Ok(Some(NewSentinel {
        sentinel: BitmapState { name: sentinel, dirty_bytes: marks.counted_bytes },
        marked_bytes: marks.marked_bytes,
    }))
}

/// The name of the sentinel of a bitmap.
pub(crate) fn sentinel_of(bitmap: &str) -> String {
    format!("{bitmap}{SUFFIX}")
}

/// The bitmap that belongs to this sentinel; `None` if the name is not that of a sentinel.
pub(crate) fn guarded_by(sentinel: &str) -> Option<&str> {
    sentinel.strip_suffix(SUFFIX)
}

const SUFFIX: &str = "-sentinel";

/// Whether a bitmap has all marks of its sentinel.
pub(crate) fn has_all(bitmap: &ChangedExtents, sentinel: &ChangedExtents) -> bool {
    sentinel.extents.iter().all(|mark| {
        let mut at = mark.offset;
        let end = mark.offset + mark.length;
        // Both lists ascend, and adjacent extents may be separate.
        for extent in &bitmap.extents {
            if extent.offset <= at && extent.offset + extent.length > at {
                at = extent.offset + extent.length;
            }
        }
        at >= end
    })
}

/// First bytes of bitmap units, one at random in each part of the disk.
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
