//! Writer of one file: stages pieces on the replicas, and creates the file when it is committed.

use crate::{
    operation::{
        create_race,
        delivery::DeliveryRecord,
        run::{FileBody, FileOperation, OperationKind, OperationRunner},
        upload::{PIECE_BYTES, StagedUpload},
    },
    read::file_read::file_info,
};
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_proto::{messages, of_id};
use copal_volume::{FileId, FileInfo, MAX_FILE_BYTES, VolumeError, VolumeId};
use std::{sync::Arc, time::Instant};

/// A file that is being written. Nothing of it is visible before [`ClusterWriter::commit`]. Buffers at most one
/// piece.
pub struct ClusterWriter {
    operations: OperationRunner,
    vid: VolumeId,
    name: Bytes,
    metadata: Bytes,
    fid: FileId,
    size: u64,
    crc32c: u32,
    /// Bytes that are not staged yet.
    buffer: BytesMut,
    upload: Arc<StagedUpload>,
    is_staged: bool,
    failure: Option<VolumeError>,
}

impl ClusterWriter {
    pub(crate) fn new(
        operations: &OperationRunner,
        vid: VolumeId,
        name: &[u8],
        metadata: &Bytes,
    ) -> ClusterWriter {
        let fid = operations.draw_file();
        ClusterWriter {
            operations: operations.clone(),
            vid,
            name: Bytes::copy_from_slice(name),
            metadata: metadata.clone(),
            fid,
            size: 0,
            crc32c: 0,
            buffer: BytesMut::new(),
            upload: Arc::new(StagedUpload::new(vid, fid)),
            is_staged: false,
            failure: None,
        }
    }

    /// Sets the whole body of a file of at most one piece, without a copy where that is possible.
    pub(crate) fn set_body(&mut self, body: Bytes, checksum: u32) {
        (self.size, self.crc32c) = (body.len() as u64, checksum);
        self.buffer = body.into();
    }

    /// Appends bytes.
    /// # Errors
    /// `TooLarge`, `NoSpace`, `VolumeGone`, `Degraded`. After an error each further call fails with the same
    /// error.
    pub async fn append(&mut self, data: Bytes, end: Instant) -> Result<(), VolumeError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let appended = self.try_append(data, end).await;
        if let Err(error) = &appended {
            self.failure = Some(error.clone());
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
            if self.buffer.len() == PIECE_BYTES {
                let piece = self.buffer.split().freeze();
                self.stage(piece, end).await?;
            } else if self.buffer.is_empty() && data.len() > PIECE_BYTES {
                // Full pieces are slices of the caller's bytes, without a copy.
                let piece = data.split_to(PIECE_BYTES);
                self.stage(piece, end).await?;
            } else {
                let take = data.len().min(PIECE_BYTES - self.buffer.len());
                self.buffer.extend_from_slice(&data.split_to(take));
            }
        }
        Ok(())
    }

    async fn stage(&mut self, piece: Bytes, end: Instant) -> Result<(), VolumeError> {
        self.is_staged = true;
        self.upload.stage(self.operations.chains(), piece, end).await
    }

    /// Makes the file visible.
    /// # Errors
    /// As [`Cluster::put`](crate::Cluster::put); the error of an append that failed.
    pub async fn commit(mut self, end: Instant) -> Result<FileInfo, VolumeError> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let rest = self.buffer.split().freeze();
        let body = if self.is_staged {
            if !rest.is_empty() {
                self.upload.stage(self.operations.chains(), rest, end).await?;
            }
            FileBody::Staged(Arc::clone(&self.upload))
        } else {
            FileBody::Inline(rest)
        };
        let mut is_first_try = true;
        loop {
            let create = self.create_operation(body.clone());
            let info = file_info(Some(create.head.clone()))?;
            let created = match is_first_try && !self.is_staged {
                true => self.operations.run(create, end).await,
                // One replica decides between concurrent creates.
                false => match create_race::create_first(&self.operations, &create, end).await {
                    Ok(()) => self.operations.run(create, end).await,
                    Err(error) => Err(error),
                },
            };
            let seen = match created {
                Ok(()) => return Ok(info),
                Err(VolumeError::Exists { fid }) => fid,
                Err(error) => return Err(error),
            };
            let router = self.operations.router();
            match create_race::owner(router, self.vid, &self.name, seen, end).await? {
                Some(fid) => return Err(VolumeError::Exists { fid }),
                // The staged pieces were dropped with the create that was taken back.
                None if self.is_staged => return Err(VolumeError::Exists { fid: seen }),
                None => {}
            }
            is_first_try = false;
            self.fid = self.operations.draw_file();
        }
    }

    /// The create of the file in its present state.
    fn create_operation(&self, body: FileBody) -> FileOperation {
        let op = self.operations.draw_op();
        let head = messages::FileHead {
            fid: Some(of_id(self.fid.0)),
            op: Some(of_id(op.0)),
            size: self.size,
            crc32c: self.crc32c,
            metadata: self.metadata.clone(),
        };
        FileOperation {
            vid: self.vid,
            name: self.name.clone(),
            head,
            fid: self.fid,
            op,
            kind: OperationKind::Create(body),
            undo_op: self.operations.draw_op_above(op),
            delivery: DeliveryRecord::default(),
        }
    }
}
