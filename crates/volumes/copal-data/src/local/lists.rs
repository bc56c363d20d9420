//! Walks over the heads of a volume: list, totals, and settling.

use super::LocalCore;
use crate::error::{corrupt, of_engine};
use crate::format::FileHead;
use crate::keys;
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, SettleOutcome, VolumeError, VolumeId, VolumeStats};

pub(super) fn list_files(
    core: &LocalCore,
    vid: VolumeId,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
    let mut files = Vec::new();
    let page = heads(core, vid, prefix, after, limit, &mut |name, head| {
        files.push((Bytes::copy_from_slice(name), head.info()));
        true
    });
    core.alive(vid)?;
    page?;
    Ok(files)
}

/// Counts the live files.
pub(super) fn count_files(core: &LocalCore, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
    let mut stats = VolumeStats::default();
    heads(core, vid, b"", None, usize::MAX, &mut |_, head| {
        stats.files += 1;
        stats.bytes += head.size;
        true
    })?;
    Ok(stats)
}

/// Whether the file is live. After a write with an unknown outcome the store accepts no writes. Only the
/// next run, after it has replayed the log, knows the outcome.
pub(super) fn settle(core: &LocalCore, vid: VolumeId, fid: FileId) -> Result<SettleOutcome, VolumeError> {
    core.writable()?;
    let mut outcome = SettleOutcome::Aborted;
    let walk = heads(core, vid, b"", None, usize::MAX, &mut |_, head| {
        if head.fid == fid {
            outcome = SettleOutcome::Committed;
        }
        outcome == SettleOutcome::Aborted
    });
    core.alive(vid)?;
    walk?;
    Ok(outcome)
}

/// Calls `visit` for up to `limit` heads in name order, until it returns `false`.
fn heads(
    core: &LocalCore,
    vid: VolumeId,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
    visit: &mut dyn FnMut(&[u8], &FileHead) -> bool,
) -> Result<(), VolumeError> {
    let after = after.map(|after| keys::named(vid, after));
    let range = keys::range(&keys::named(vid, prefix), after.as_deref());
    for row in core.spaces.files.iter(keys::borrowed(&range)).take(limit) {
        let (key, row) = row.map_err(|e| of_engine(&e))?;
        let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
        let head = FileHead::parse(&key, &row).map_err(|error| {
            corrupt(format!("the head of file \"{}\" in volume {vid}: {error}", name.escape_ascii()))
        })?;
        if !visit(name, &head) {
            break;
        }
    }
    Ok(())
}
