//! Files of a cluster's volumes: created, read and deleted at the members of their groups, with no master in
//! the way.

use crate::api::cluster::Cluster;
use crate::operation::delivery::HandedOver;
use crate::operation::run::{Body, Wanted, What};
use crate::operation::upload::{PIECE_BYTES, Upload};
use crate::read::available::Counts;
use crate::read::strict::{ListedBelow, Page};
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_proto::{Method, id, messages, of_id};
use copal_volume::{
    Consistency, FileId, FileInfo, MAX_FILE_BYTES, OpId, PutOptions, ReadOptions, VolumeError, VolumeId,
    VolumeStats, check_file_name, check_metadata, group::View,
};
use std::{ops::Range, sync::Arc, time::Instant};

/// Heads that one call asks for.
const LISTED: usize = 1000;

impl Cluster {
    /// Creates a file; durable on as many members as the pool asks for, on all that are up.
    /// # Errors
    /// As [`VolumeStore::put`](copal_volume::VolumeStore::put).
    pub async fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
        end: Instant,
    ) -> Result<FileInfo, VolumeError> {
        let mut writer = self.writer(vid, name, options)?;
        if body.len() > PIECE_BYTES {
            writer.append(body, end).await?;
        } else {
            (writer.size, writer.crc32c) = (body.len() as u64, crc32c(0, &body));
            writer.filling = body.into();
        }
        writer.commit(end).await
    }

    /// Starts a file that is streamed.
    /// # Errors
    /// `InvalidName`, `TooLarge`.
    pub fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<ClusterWriter, VolumeError> {
        check_file_name(name)?;
        check_metadata(&options.metadata)?;
        let fid = self.draw_file();
        Ok(ClusterWriter {
            cluster: self.clone(),
            vid,
            name: Bytes::copy_from_slice(name),
            metadata: options.metadata.clone(),
            fid,
            size: 0,
            crc32c: 0,
            filling: BytesMut::new(),
            upload: Arc::new(Upload::new(vid, fid)),
            is_staged: false,
            failed: None,
        })
    }

    /// The head of a file.
    /// # Errors
    /// As [`VolumeStore::stat`](copal_volume::VolumeStore::stat).
    pub async fn stat(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &ReadOptions,
        end: Instant,
    ) -> Result<FileInfo, VolumeError> {
        check_file_name(name)?;
        let name = Bytes::copy_from_slice(name);
        if options.consistency == Consistency::Strict {
            let info = info(Some(self.stat_strictly(vid, &name, end).await?))?;
            return match options.if_file {
                Some(wanted) if wanted != info.fid => Err(VolumeError::NotFound),
                _ => Ok(info),
            };
        }
        self.stat_of_one(vid, &name, options.if_file, Counts::All, end).await
    }

    /// The head of a file, as one member has it.
    async fn stat_of_one(
        &self,
        vid: VolumeId,
        name: &Bytes,
        if_file: Option<FileId>,
        counts: Counts,
        end: Instant,
    ) -> Result<FileInfo, VolumeError> {
        let request = |view: &View| messages::Stat {
            group: view.group.0,
            epoch: view.epoch.0,
            volume: vid.0,
            name: name.clone(),
            if_file: if_file.map(|fid| of_id(fid.0)),
        };
        let reply: messages::StatReply = self.read(vid, Method::Stat, counts, end, request).await?;
        info(reply.head)
    }

    /// The part of `range` that lies inside the file, and the file's head.
    /// # Errors
    /// As [`VolumeStore::get`](copal_volume::VolumeStore::get).
    pub async fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
        end: Instant,
    ) -> Result<(Bytes, FileInfo), VolumeError> {
        check_file_name(name)?;
        let (mut at, mut if_file) = (range.start, options.if_file);
        if options.consistency == Consistency::Strict {
            if_file = Some(self.stat(vid, name, options, end).await?.fid);
        }
        let mut read: Vec<Bytes> = Vec::new();
        loop {
            let until = range.end.min(at.saturating_add(PIECE_BYTES as u64)).max(at);
            let (bytes, info) = self.get_part(vid, name, at..until, if_file, end).await?;
            // The rest is to be of the same file.
            if_file = Some(info.fid);
            at += bytes.len() as u64;
            let is_all = bytes.is_empty() || at >= range.end.min(info.size);
            read.push(bytes);
            if is_all {
                let bytes = match read.len() {
                    1 => read.remove(0),
                    _ => read.concat().into(),
                };
                return Ok((bytes, info));
            }
        }
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
        let got: messages::GetReply = self.read(vid, Method::Get, Counts::All, end, request).await?;
        Ok((got.bytes, info(got.head)?))
    }

    /// Up to `limit` files whose names begin with `prefix` and are above `after`: as a whole member has them,
    /// or strictly, by the word of all members that are up (VOL-22).
    /// # Errors
    /// As [`VolumeStore::list`](copal_volume::VolumeStore::list).
    pub async fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
        end: Instant,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        let mut wanted = ListedBelow {
            vid,
            prefix: Bytes::copy_from_slice(prefix),
            after: after.map(Bytes::copy_from_slice),
            limit: 0,
        };
        let mut files = Vec::new();
        loop {
            wanted.limit = (limit - files.len()).min(LISTED);
            let page = match options.consistency {
                Consistency::Strict => self.list_strictly(&wanted, end).await?,
                Consistency::Available => {
                    let request = |view: &View| wanted.request(view);
                    let listed: messages::ListReply =
                        self.read(vid, Method::List, Counts::Whole, end, request).await?;
                    Page::from(listed)
                }
            };
            for (name, head) in page.files {
                files.push((name, info(Some(head))?));
            }
            match page.goes_on_after {
                Some(last) if files.len() < limit => wanted.after = Some(last),
                _ => return Ok(files),
            }
        }
    }

    /// Files and bytes of a volume.
    /// # Errors
    /// As [`VolumeStore::volume_stats`](copal_volume::VolumeStore::volume_stats).
    pub async fn totals(&self, vid: VolumeId, end: Instant) -> Result<VolumeStats, VolumeError> {
        let request =
            |view: &View| messages::VolumeTotals { group: view.group.0, epoch: view.epoch.0, volume: vid.0 };
        let totals: messages::Totals = self.read(vid, Method::Totals, Counts::Whole, end, request).await?;
        Ok(VolumeStats { files: totals.files, bytes: totals.bytes })
    }

    /// Deletes a file if the name still means it, or meant it until a delete that was cut short; may be
    /// repeated.
    /// # Errors
    /// `NotFound`: the name means no file or another one, and none of that id was deleted lately. Else as
    /// [`VolumeStore::delete`](copal_volume::VolumeStore::delete).
    pub async fn delete(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
        end: Instant,
    ) -> Result<(), VolumeError> {
        check_file_name(name)?;
        let named = Bytes::copy_from_slice(name);
        let is_meant = match self.stat_of_one(vid, &named, None, Counts::Whole, end).await {
            Ok(info) => info.fid == fid,
            Err(VolumeError::NotFound) => false,
            Err(error) => return Err(error),
        };
        // A file has one name for ever: burying it under another would hide it where it lies.
        if !is_meant && !self.is_buried_somewhere(vid, fid, end).await?.0 {
            return Err(VolumeError::NotFound);
        }
        self.run(self.delete_of(vid, named, fid), end).await
    }

    /// Deletes a file by its id, whatever the name means now.
    /// # Errors
    /// `Deadline`: some member may have it, and then it spreads. `NotFound`: the file has another name.
    pub(crate) async fn bury(
        &self,
        vid: VolumeId,
        name: Bytes,
        fid: FileId,
        end: Instant,
    ) -> Result<(), VolumeError> {
        match self.run(self.delete_of(vid, name, fid), end).await {
            // It spreads from whoever has it, and may be asked for again.
            Err(VolumeError::Unknown { .. }) => Err(VolumeError::Deadline {
                reason: "the delete has not reached every member yet; it may be repeated".to_owned(),
            }),
            other => other,
        }
    }

    fn delete_of(&self, vid: VolumeId, name: Bytes, fid: FileId) -> Wanted {
        let op = self.draw_op_above(OpId(fid.0));
        Wanted {
            vid,
            name,
            head: messages::FileHead::default(),
            fid,
            op,
            what: What::Delete,
            burial: op,
            handed: HandedOver::default(),
        }
    }
}

/// A file on its way into a volume; nothing of it is visible before [`ClusterWriter::commit`]. At most one piece is
/// in memory.
pub struct ClusterWriter {
    cluster: Cluster,
    vid: VolumeId,
    name: Bytes,
    metadata: Bytes,
    fid: FileId,
    size: u64,
    crc32c: u32,
    filling: BytesMut,
    upload: Arc<Upload>,
    is_staged: bool,
    failed: Option<VolumeError>,
}

impl ClusterWriter {
    /// Adds bytes at the end.
    /// # Errors
    /// `TooLarge`, `NoSpace`, `VolumeGone`, `Degraded`; the writer is then only good for dropping.
    pub async fn append(&mut self, data: Bytes, end: Instant) -> Result<(), VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let appended = self.try_append(data, end).await;
        if let Err(error) = &appended {
            self.failed = Some(error.clone());
        }
        appended
    }

    async fn try_append(&mut self, mut data: Bytes, end: Instant) -> Result<(), VolumeError> {
        let size = self.size + data.len() as u64;
        if size > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge { what: "the file", bytes: size, limit: MAX_FILE_BYTES });
        }
        self.crc32c = crc32c(self.crc32c, &data);
        self.size = size;
        while !data.is_empty() {
            if self.filling.len() == PIECE_BYTES {
                let piece = self.filling.split().freeze();
                self.stage(piece, end).await?;
            } else if self.filling.is_empty() && data.len() > PIECE_BYTES {
                // Whole pieces go as slices of the caller's bytes.
                let piece = data.split_to(PIECE_BYTES);
                self.stage(piece, end).await?;
            } else {
                let take = data.len().min(PIECE_BYTES - self.filling.len());
                self.filling.extend_from_slice(&data.split_to(take));
            }
        }
        Ok(())
    }

    async fn stage(&mut self, piece: Bytes, end: Instant) -> Result<(), VolumeError> {
        self.is_staged = true;
        self.upload.stage(&self.cluster, piece, end).await
    }

    /// Makes the file visible.
    /// # Errors
    /// As [`Cluster::put`]; also after an append that failed.
    pub async fn commit(mut self, end: Instant) -> Result<FileInfo, VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let rest = self.filling.split().freeze();
        let body = if self.is_staged {
            if !rest.is_empty() {
                self.upload.stage(&self.cluster, rest, end).await?;
            }
            Body::Staged(Arc::clone(&self.upload))
        } else {
            Body::Here(rest)
        };
        let mut is_first_try = true;
        loop {
            let wanted = self.wanted(body.clone());
            let info = info(Some(wanted.head.clone()))?;
            let created = match is_first_try && !self.is_staged {
                true => self.cluster.run(wanted, end).await,
                // One member decides among those who race.
                false => match self.cluster.create_first(&wanted, end).await {
                    Ok(()) => self.cluster.run(wanted, end).await,
                    Err(error) => Err(error),
                },
            };
            let seen = match created {
                Ok(()) => return Ok(info),
                Err(VolumeError::Exists { fid }) => fid,
                Err(error) => return Err(error),
            };
            match self.cluster.owner(self.vid, &self.name, seen, end).await? {
                Some(fid) => return Err(VolumeError::Exists { fid }),
                // What was staged went with the file that was buried.
                None if self.is_staged => return Err(VolumeError::Exists { fid: seen }),
                None => {}
            }
            is_first_try = false;
            self.fid = self.cluster.draw_file();
        }
    }

    /// The create of the file as it is now.
    fn wanted(&self, body: Body) -> Wanted {
        let op = self.cluster.draw_op();
        let head = messages::FileHead {
            fid: Some(of_id(self.fid.0)),
            op: Some(of_id(op.0)),
            size: self.size,
            crc32c: self.crc32c,
            metadata: self.metadata.clone(),
        };
        Wanted {
            vid: self.vid,
            name: self.name.clone(),
            head,
            fid: self.fid,
            op,
            what: What::Create(body),
            burial: self.cluster.draw_op_above(op),
            handed: HandedOver::default(),
        }
    }
}

/// A head as callers know it.
pub(crate) fn info(head: Option<messages::FileHead>) -> Result<FileInfo, VolumeError> {
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
