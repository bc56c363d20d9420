//! Files of a cluster's volumes: calls to the replicas of their groups, without the master.

use crate::{
    api::{
        cluster::Cluster,
        file_writer::ClusterWriter,
        ranges::{CALL_BYTES, RangeCall},
    },
    operation::{settle, upload::PIECE_BYTES},
    read::{available::ReadSource, file_read::file_info},
    strict::{
        self,
        list::{ListPage, ListRange},
    },
};
use bytes::Bytes;
use copal_codec::crc32c;
use copal_proto::{Method, UNKNOWN_CALL, messages};
use copal_volume::{
    Consistency, FileId, FileInfo, PutOptions, ReadOptions, SettleChoice, SettleOutcome, VolumeError,
    VolumeId, VolumeStats, check_file_name, check_metadata, group::View,
};
use std::{ops::Range, time::Instant};

/// Most heads that one call requests.
const PAGE_FILES: usize = 1000;

impl Cluster {
    /// Creates a file. It is durable on all replicas that are up, at least as many as the pool requires.
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
            let checksum = crc32c(0, &body);
            writer.set_body(body, checksum);
        }
        writer.commit(end).await
    }

    /// Starts a file whose bytes are appended.
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
        Ok(ClusterWriter::new(&self.operations, vid, name, &options.metadata))
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
            let info = file_info(Some(strict::stat(&self.operations, vid, &name, end).await?))?;
            return match options.if_file {
                Some(wanted) if wanted != info.fid => Err(VolumeError::NotFound),
                _ => Ok(info),
            };
        }
        self.reader.stat(vid, &name, options.if_file, ReadSource::AnyReplica, end).await
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
        let mut if_file = options.if_file;
        if options.consistency == Consistency::Strict {
            if_file = Some(self.stat(vid, name, options, end).await?.fid);
        }
        self.reader.get(vid, name, range, if_file, end).await
    }

    /// Up to `limit` files whose names begin with `prefix` and are above `after`. An available read lists one
    /// replica that is in sync; a strict read lists all replicas that are up (VOL-22).
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
        let mut range = ListRange {
            vid,
            prefix: Bytes::copy_from_slice(prefix),
            after: after.map(Bytes::copy_from_slice),
            limit: 0,
        };
        let mut files = Vec::new();
        loop {
            range.limit = (limit - files.len()).min(PAGE_FILES);
            let page = match options.consistency {
                Consistency::Strict => strict::list::list(&self.operations, &range, end).await?,
                Consistency::Available | Consistency::AnyCopy => {
                    let request = |view: &View| range.request(view);
                    let reply: messages::ListReply =
                        self.reader.read(vid, Method::List, ReadSource::InSync, end, request).await?;
                    ListPage::from(reply)
                }
            };
            for (name, head) in page.files {
                files.push((name, file_info(Some(head))?));
            }
            match page.next_after {
                Some(last) if files.len() < limit => range.after = Some(last),
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
        let totals: messages::Totals =
            self.reader.read(vid, Method::Totals, ReadSource::InSync, end, request).await?;
        Ok(VolumeStats { files: totals.files, bytes: totals.bytes })
    }

    /// Deletes a file if the name refers to it, or referred to it before an unfinished delete. May be repeated.
    /// # Errors
    /// `NotFound`: the name refers to no file or to another one, and no file of that id was deleted lately.
    /// Otherwise as [`VolumeStore::delete`](copal_volume::VolumeStore::delete).
    pub async fn delete(
        &self,
        vid: VolumeId,
        name: &[u8],
        fid: FileId,
        end: Instant,
    ) -> Result<(), VolumeError> {
        check_file_name(name)?;
        let named = Bytes::copy_from_slice(name);
        let is_named = match self.reader.stat(vid, &named, None, ReadSource::InSync, end).await {
            Ok(info) => info.fid == fid,
            Err(VolumeError::NotFound) => false,
            Err(error) => return Err(error),
        };
        // A file never changes its name. A tombstone under another name would hide the file under its own.
        if !is_named && !settle::is_deleted_anywhere(&self.router, vid, fid, end).await?.0 {
            return Err(VolumeError::NotFound);
        }
        self.operations.delete(vid, named, fid, end).await
    }

    /// Decides a create whose outcome is unknown. The decision is final when this returns.
    /// # Errors
    /// As [`VolumeStore::settle`](copal_volume::VolumeStore::settle). `NotFound`: no client can have drawn that
    /// id yet. `Denied`: this client may not read there, or not create. `Incomplete`, `Deadline`: try again.
    pub async fn settle(
        &self,
        vid: VolumeId,
        fid: FileId,
        want: SettleChoice,
        end: Instant,
    ) -> Result<SettleOutcome, VolumeError> {
        settle::settle(&self.operations, vid, fid, want, end).await
    }

    /// The ranges of one call, each with its own outcome. `one_by_one`: a server did not know the call.
    /// # Errors
    /// Those that concern all ranges.
    pub(super) async fn read_call(
        &self,
        vid: VolumeId,
        name: &Bytes,
        call: &RangeCall,
        fid: FileId,
        one_by_one: &mut bool,
        end: Instant,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        let is_long = call.ranges.iter().any(|range| range.end - range.start > CALL_BYTES);
        let mut found = vec![None; call.ranges.len()];
        if !*one_by_one && !is_long && call.ranges.len() > 1 {
            match self.reader.get_ranges(vid, name, &call.ranges, fid, end).await {
                Ok(ranges) => found = ranges,
                Err(VolumeError::InvalidName { reason }) if reason == UNKNOWN_CALL => *one_by_one = true,
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        let mut answers = Vec::with_capacity(found.len());
        for (range, found) in call.ranges.iter().zip(found) {
            let answer = match found {
                Some(bytes) => Ok(bytes),
                None => {
                    let read = self.reader.get(vid, name, range.clone(), Some(fid), end).await;
                    read.map(|(bytes, _)| bytes)
                }
            };
            match answer {
                Err(error) if !error.is_corruption() => return Err(error),
                answer => answers.push(answer),
            }
        }
        Ok(answers)
    }
}
