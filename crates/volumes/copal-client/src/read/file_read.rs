//! Heads and bytes of files, as one replica returns them.

use crate::read::available::{ReadSource, ReplicaReader};
use bytes::Bytes;
use copal_proto::{CHAIN_BYTES, Method, id, messages, of_id};
use copal_volume::{FileId, FileInfo, OpId, VolumeError, VolumeId, group::View};
use std::{ops::Range, time::Instant};

/// Most bytes of a file that one call requests: one piece.
const PART_BYTES: u64 = CHAIN_BYTES as u64;

impl ReplicaReader {
    /// The head of a file.
    /// # Errors
    /// As [`ReplicaReader::read`].
    pub(crate) async fn stat(
        &self,
        vid: VolumeId,
        name: &Bytes,
        if_file: Option<FileId>,
        source: ReadSource,
        end: Instant,
    ) -> Result<FileInfo, VolumeError> {
        let request = |view: &View| messages::Stat {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            if_file: if_file.map(|fid| of_id(fid.0)),
        };
        let reply: messages::StatReply = self.read(vid, Method::Stat, source, end, request).await?;
        file_info(reply.head)
    }

    /// The part of `range` that lies inside the file, and the file's head. All parts are of one file.
    /// # Errors
    /// As [`ReplicaReader::read`].
    pub(crate) async fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        if_file: Option<FileId>,
        end: Instant,
    ) -> Result<(Bytes, FileInfo), VolumeError> {
        let (mut at, mut if_file) = (range.start, if_file);
        let mut parts: Vec<Bytes> = Vec::new();
        loop {
            let until = range.end.min(at.saturating_add(PART_BYTES)).max(at);
            let (bytes, info) = self.get_part(vid, name, at..until, if_file, end).await?;
            // The next parts must be of the same file.
            if_file = Some(info.fid);
            at += bytes.len() as u64;
            let is_all = bytes.is_empty() || at >= range.end.min(info.size);
            parts.push(bytes);
            if is_all {
                let bytes = match parts.len() {
                    1 => parts.remove(0),
                    _ => parts.concat().into(),
                };
                return Ok((bytes, info));
            }
        }
    }

    /// Ranges of one file, within the limits of one call; `None` for ranges that are damaged on the replica.
    /// # Errors
    /// As [`ReplicaReader::read`].
    pub(crate) async fn get_ranges(
        &self,
        vid: VolumeId,
        name: &Bytes,
        ranges: &[Range<u64>],
        fid: FileId,
        end: Instant,
    ) -> Result<Vec<Option<Bytes>>, VolumeError> {
        let request = |view: &View| messages::GetRanges {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            if_file: Some(of_id(fid.0)),
            starts: ranges.iter().map(|range| range.start).collect(),
            lengths: ranges.iter().map(|range| (range.end - range.start) as u32).collect(),
        };
        let reply: messages::GetRangesReply =
            self.read(vid, Method::GetRanges, ReadSource::AnyReplica, end, request).await?;
        let is_whole =
            reply.ranges.len() == ranges.len()
                && reply.ranges.iter().zip(ranges).all(|(found, range)| {
                    found.corrupt || found.bytes.len() as u64 == range.end - range.start
                });
        if !is_whole {
            let reason = "a server's answer lacks bytes of a file".to_owned();
            return Err(VolumeError::Unavailable { reason });
        }
        Ok(reply.ranges.into_iter().map(|found| (!found.corrupt).then_some(found.bytes)).collect())
    }

    async fn get_part(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        if_file: Option<FileId>,
        end: Instant,
    ) -> Result<(Bytes, FileInfo), VolumeError> {
        let name = Bytes::copy_from_slice(name);
        let request = |view: &View| messages::Get {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            start: range.start,
            end: range.end,
            if_file: if_file.map(|fid| of_id(fid.0)),
        };
        let reply: messages::GetReply =
            self.read(vid, Method::Get, ReadSource::AnyReplica, end, request).await?;
        Ok((reply.bytes, file_info(reply.head)?))
    }
}

/// The head of a reply in the form of the volume layer.
/// # Errors
/// `Unavailable`: the reply has no head.
pub(crate) fn file_info(head: Option<messages::FileHead>) -> Result<FileInfo, VolumeError> {
    let head = head.ok_or_else(|| VolumeError::Unavailable {
        reason: "a server's answer has no head of a file".to_owned(),
    })?;
    Ok(FileInfo {
        fid: FileId(id(head.fid)),
        size: head.size,
        crc32c: head.crc32c,
        created_ms: OpId(id(head.op)).ms(),
        metadata: head.metadata,
    })
}
