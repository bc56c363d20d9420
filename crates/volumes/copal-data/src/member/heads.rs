//! Look-ups of heads in a member's rows: by name, by id, and files beside another one of their name.

use super::disk_state::MemberCore;
use crate::{
    error::{corrupt, of_engine},
    format::FileHead,
    keys,
};
use bytes::Bytes;
use copal_kv::Keyspace;
use copal_volume::{FileId, VolumeError, VolumeId, group::GroupId};

pub(super) fn find_head(space: &Keyspace, key: &[u8]) -> Result<Option<FileHead>, VolumeError> {
    let row = space.get(key).map_err(|error| of_engine(&error))?;
    row.map(|row| parse_head(key, &row)).transpose()
}

/// Name and head of a file, live or beside another; reads the heads of its volume.
pub(super) fn find_by_id(
    core: &MemberCore,
    vid: VolumeId,
    fid: FileId,
) -> Result<Option<(Bytes, FileHead)>, VolumeError> {
    for (space, behind) in [(&core.spaces.files, 0), (&core.own.siblings, 16)] {
        for row in space.prefix(&keys::volume(vid)) {
            let (key, row) = row.map_err(|error| of_engine(&error))?;
            let head = parse_head(&key, &row)?;
            if head.fid == fid {
                let name = keys::split(&key).map_or(&[][..], |(_, name)| name);
                let end = name.len().saturating_sub(behind);
                return Ok(Some((Bytes::copy_from_slice(&name[..end]), head)));
            }
        }
    }
    Ok(None)
}

/// Files beside the live one of a name.
pub(super) fn find_siblings(
    core: &MemberCore,
    vid: VolumeId,
    name: &[u8],
) -> Result<Vec<FileHead>, VolumeError> {
    let prefix = keys::named(vid, name);
    let mut found = Vec::new();
    for row in core.own.siblings.prefix(&prefix) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        // A longer name with the same beginning is another name.
        if key.len() == prefix.len() + 16 {
            found.push(parse_head(&key, &row)?);
        }
    }
    Ok(found)
}

/// Bytes of a volume's live files; reads all of its heads.
pub(super) fn live_bytes(core: &MemberCore, vid: VolumeId) -> Result<u64, VolumeError> {
    let mut bytes = 0;
    for row in core.spaces.files.prefix(&keys::volume(vid)) {
        let (key, row) = row.map_err(|error| of_engine(&error))?;
        bytes += parse_head(&key, &row)?.size;
    }
    Ok(bytes)
}

pub(super) fn has_siblings(core: &MemberCore, group: GroupId) -> Result<bool, VolumeError> {
    let first = core.own.siblings.prefix(&keys::group(group)).next();
    Ok(first.transpose().map_err(|error| of_engine(&error))?.is_some())
}

pub(super) fn parse_head(key: &[u8], row: &Bytes) -> Result<FileHead, VolumeError> {
    FileHead::parse(key, row).map_err(|error| {
        let name = keys::split(key).map_or(&[][..], |(_, name)| name);
        corrupt(format!("the head of file \"{}\": {error}", name.escape_ascii()))
    })
}
