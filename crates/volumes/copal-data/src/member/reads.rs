//! Reads of a member: its own rows, in any role. The caller evaluates the answer by that role.

use super::{
    disk_state::MemberCore,
    file_ids::{self, FileAddress},
    heads::{self, parse_head},
    volumes,
};
use crate::{
    error::of_engine,
    format::FileHead,
    keys,
    local::{read_body, read_body_ranges},
};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, VolumeStats};
use std::ops::{ControlFlow, Range};

/// Most bytes in flight for the ranges of one call, of which a server has many.
const IN_FLIGHT_BYTES: u64 = 4 << 20;

/// State of a file id on a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It is live under this name.
    Live {
        /// Its name.
        name: Bytes,
        /// Its head.
        info: FileInfo,
        /// Its create.
        op: OpId,
    },
    /// It has a tombstone.
    Deleted,
    /// It is unknown.
    Unknown,
}

/// See `MemberStore::get_ranges`.
pub(super) fn get_ranges(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
    ranges: &[Range<u64>],
    if_file: Option<FileId>,
) -> Result<(Vec<Option<Bytes>>, FileInfo), VolumeError> {
    let mut head = wanted(core, vid, name, if_file)?;
    loop {
        let mut answers = vec![None; ranges.len()];
        read_body_ranges(&core.spaces, vid, &head, ranges, IN_FLIGHT_BYTES, &mut |index, answer| {
            answers[index] = answer.ok();
            ControlFlow::Continue(())
        })?;
        if answers.iter().all(Option::is_some) {
            return Ok((answers, head.info()));
        }
        // Deleted between the reads of head and pieces: nothing is damaged.
        let now = wanted(core, vid, name, if_file)?;
        if now.fid == head.fid {
            return Ok((answers, head.info()));
        }
        head = now;
    }
}

/// See `MemberStore::stat`.
pub(super) fn stat(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
    if_file: Option<FileId>,
) -> Result<FileInfo, VolumeError> {
    Ok(wanted(core, vid, name, if_file)?.info())
}

/// See `MemberStore::get`.
pub(super) fn get(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
    range: Range<u64>,
    if_file: Option<FileId>,
) -> Result<(Bytes, FileInfo), VolumeError> {
    let mut head = wanted(core, vid, name, if_file)?;
    loop {
        let end = range.end.min(head.size);
        let start = range.start.min(end);
        let read = read_body(&core.spaces, vid, &head, start..end);
        let Err(VolumeError::Corrupt { what }) = read else {
            return Ok((read?, head.info()));
        };
        // Deleted between the reads of head and pieces: nothing is damaged.
        let now = wanted(core, vid, name, if_file)?;
        if now.fid == head.fid {
            return Err(VolumeError::Corrupt { what });
        }
        head = now;
    }
}

/// See `MemberStore::list`.
pub(super) fn list(
    core: &MemberCore,
    vid: VolumeId,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
    let after = after.map(|after| keys::named(vid, after));
    let range = keys::range(&keys::named(vid, prefix), after.as_deref());
    let mut files = Vec::new();
    for row in core.spaces.files.iter(keys::borrowed(&range)).take(limit) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        let head = parse_head(&key, &row)?;
        let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
        files.push((Bytes::copy_from_slice(name), head.info()));
    }
    volumes::check_exists(core, vid)?;
    Ok(files)
}

/// See `MemberStore::totals`.
pub(super) fn totals(core: &MemberCore, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
    let mut totals = VolumeStats::default();
    for row in core.spaces.files.prefix(&keys::volume(vid)) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        totals.files += 1;
        totals.bytes += parse_head(&key, &row)?.size;
    }
    volumes::check_exists(core, vid)?;
    Ok(totals)
}

/// See `MemberStore::is_deleted`.
pub(super) fn is_deleted(core: &MemberCore, vid: VolumeId, fid: FileId) -> Result<bool, VolumeError> {
    let address = FileAddress { vid, name: None };
    let is_buried = file_ids::has_tombstone(core, vid.birth_group(), address, fid)?;
    volumes::check_exists(core, vid)?;
    Ok(is_buried)
}

/// See `MemberStore::find`.
pub(super) fn find(core: &MemberCore, vid: VolumeId, fid: FileId) -> Result<FileState, VolumeError> {
    if is_deleted(core, vid, fid)? {
        return Ok(FileState::Deleted);
    }
    if let Some((name, head)) = heads::find_by_id(core, vid, fid)? {
        return Ok(FileState::Live { name, info: head.info(), op: head.op });
    }
    volumes::check_exists(core, vid)?;
    Ok(FileState::Unknown)
}

fn wanted(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
    if_file: Option<FileId>,
) -> Result<FileHead, VolumeError> {
    let head = heads::find_head(&core.spaces.files, &keys::named(vid, name))?;
    volumes::check_exists(core, vid)?;
    let head = head.ok_or(VolumeError::NotFound)?;
    match if_file {
        Some(wanted) if wanted != head.fid => Err(VolumeError::NotFound),
        _ => Ok(head),
    }
}
