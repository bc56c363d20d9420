//! Estimate of the bytes that a backup will read from a disk: the total of its progress.
//!
//! Holes take no time, so they do not count. The estimate is the bytes of the changed extents, or else the
//! bytes that the source's map calls data. Walking the map costs the same queries that reading the disk makes
//! later. If the walk takes long, or fails, there is no estimate: a backup does not fail for its progress
//! bar.

use super::changes::{ChangedBlocks, zero_bytes};
use super::pipeline_end::{PipelineEnd, PipelineResult};
use crate::request::DiskSource;
use copal_disk::source::Extent;
use std::time::{Duration, Instant};

/// Time limit of the walk over the map.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

/// Bytes of a disk that will be read; 0 if unknown. `changes`: the changes since the base, if the disk is read
/// by them. `extent_at` asks the source for the extent at an offset; if that fails, there is no estimate.
/// # Errors
/// `Cancelled` and `Disconnected` of `extent_at`.
pub(super) fn bytes_ahead(
    disk: &DiskSource,
    changes: Option<&ChangedBlocks>,
    mut extent_at: impl FnMut(u64) -> PipelineResult<Extent>,
) -> PipelineResult<u64> {
    let Some(size) = disk.source.size_bytes() else {
        return Ok(0);
    };
    if let Some(changes) = changes {
        return Ok(changes.dirty_bytes());
    }
    let began = Instant::now();
    let (mut at, mut bytes) = (0, size);
    while at < size {
        let extent = match extent_at(at) {
            Ok(extent) if began.elapsed() < LONGEST_LOOK => extent,
            // If the failure lasts, reading meets it again and reports it.
            Ok(_) | Err(PipelineEnd::Failed(_)) => return Ok(0),
            Err(stop) => return Err(stop),
        };
        bytes -= zero_bytes(&extent, at..size);
        at = extent.end();
    }
    Ok(bytes)
}
