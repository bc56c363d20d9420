//! Reads of files.

use super::{LocalCore, body};
use crate::format::FileHead;
use crate::keys;
use bytes::Bytes;
use copal_volume::{FileInfo, ReadOptions, VolumeError, VolumeId, check_file_name};
use std::ops::Range;

impl LocalCore {
    pub(super) fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        check_file_name(name)?;
        let bytes = self.read(vid, name, options, u64::MAX, range);
        self.alive(vid)?;
        bytes
    }

    /// Reads `range` of the named file, at most `limit` bytes.
    pub(super) fn read(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &ReadOptions,
        limit: u64,
        range: Range<u64>,
    ) -> Result<Bytes, VolumeError> {
        let key = keys::named(vid, name);
        let mut head = self.wanted(&key, options)?;
        loop {
            let end = range.end.min(head.size);
            let start = range.start.min(end);
            if end - start > limit {
                return Err(VolumeError::TooLarge {
                    what: "the answer to the batch",
                    bytes: end - start,
                    limit,
                });
            }
            let read = body::read(&self.spaces, vid, &head, start..end);
            let Err(VolumeError::Corrupt { what }) = read else {
                return read;
            };
            // Head and pieces are read one after the other. If the name leads to another file now, this one
            // was deleted in between, and nothing is damaged.
            let now = self.wanted(&key, options)?;
            if now.fid == head.fid {
                return Err(VolumeError::Corrupt { what });
            }
            head = now;
        }
    }

    /// The head under `key`, if it is the requested file.
    fn wanted(&self, key: &[u8], options: &ReadOptions) -> Result<FileHead, VolumeError> {
        let head = self.head(key)?.ok_or(VolumeError::NotFound)?;
        match options.if_file {
            Some(wanted) if wanted != head.fid => Err(VolumeError::NotFound),
            _ => Ok(head),
        }
    }

    pub(super) fn stat(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &ReadOptions,
    ) -> Result<FileInfo, VolumeError> {
        check_file_name(name)?;
        let head = self.wanted(&keys::named(vid, name), options);
        self.alive(vid)?;
        Ok(head?.info())
    }
}
