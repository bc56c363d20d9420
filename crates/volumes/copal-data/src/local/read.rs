//! Reads of files.

use super::create;
use super::{LocalCore, body, ranges};
use crate::format::FileHead;
use crate::keys;
use bytes::Bytes;
use copal_volume::{FileInfo, RangeSink, ReadOptions, VolumeError, VolumeId, check_file_name};
use std::ops::{ControlFlow, Range};

/// Most bytes in flight for the ranges of one call. While half of them are used, a disk that turns reads the others.
const IN_FLIGHT_BYTES: u64 = 8 << 20;

pub(super) fn get(
    core: &LocalCore,
    vid: VolumeId,
    name: &[u8],
    range: Range<u64>,
    options: &ReadOptions,
) -> Result<Bytes, VolumeError> {
    check_file_name(name)?;
    let bytes = read(core, vid, name, options, u64::MAX, range);
    core.alive(vid)?;
    bytes
}

pub(super) fn read_ranges(
    core: &LocalCore,
    vid: VolumeId,
    name: &[u8],
    wanted_ranges: &[Range<u64>],
    options: &ReadOptions,
    sink: &mut RangeSink<'_>,
) -> Result<(), VolumeError> {
    check_file_name(name)?;
    let done = wanted(core, &keys::named(vid, name), options).and_then(|head| {
        let mut failed = Ok(());
        let mut answered = |index: usize, answer: Result<Bytes, VolumeError>| {
            let answer = match answer {
                // The file may have been deleted in the meantime.
                Err(error) if error.is_corruption() => {
                    read(core, vid, name, options, u64::MAX, wanted_ranges[index].clone())
                }
                answer => answer,
            };
            match answer {
                Err(error) if !error.is_corruption() => {
                    failed = Err(error);
                    ControlFlow::Break(())
                }
                answer => sink(index, answer),
            }
        };
        let (spaces, in_flight) = (&core.spaces, IN_FLIGHT_BYTES);
        let read = ranges::read_ranges(spaces, vid, &head, wanted_ranges, in_flight, &mut answered);
        read.and(failed)
    });
    core.alive(vid)?;
    done
}

/// Reads `range` of the named file, at most `limit` bytes.
pub(super) fn read(
    core: &LocalCore,
    vid: VolumeId,
    name: &[u8],
    options: &ReadOptions,
    limit: u64,
    range: Range<u64>,
) -> Result<Bytes, VolumeError> {
    let key = keys::named(vid, name);
    let mut head = wanted(core, &key, options)?;
    loop {
        let end = range.end.min(head.size);
        let start = range.start.min(end);
        if end - start > limit {
            return Err(VolumeError::TooLarge { what: "the answer to the batch", bytes: end - start, limit });
        }
        let read = body::read(&core.spaces, vid, &head, start..end);
        let Err(VolumeError::Corrupt { what }) = read else {
            return read;
        };
        // Head and pieces are read one after the other. If the name leads to another file now, this one
        // was deleted in between, and nothing is damaged.
        let now = wanted(core, &key, options)?;
        if now.fid == head.fid {
            return Err(VolumeError::Corrupt { what });
        }
        head = now;
    }
}

/// The head under `key`, if it is the requested file.
fn wanted(core: &LocalCore, key: &[u8], options: &ReadOptions) -> Result<FileHead, VolumeError> {
    let head = create::find_head(core, key)?.ok_or(VolumeError::NotFound)?;
    match options.if_file {
        Some(wanted) if wanted != head.fid => Err(VolumeError::NotFound),
        _ => Ok(head),
    }
}

pub(super) fn stat(
    core: &LocalCore,
    vid: VolumeId,
    name: &[u8],
    options: &ReadOptions,
) -> Result<FileInfo, VolumeError> {
    check_file_name(name)?;
    let head = wanted(core, &keys::named(vid, name), options);
    core.alive(vid)?;
    Ok(head?.info())
}
