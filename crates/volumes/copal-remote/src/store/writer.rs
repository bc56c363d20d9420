//! Files that are streamed: one request up to [`WHOLE_BYTES`], an upload in parts above.

use super::RemoteState;
use crate::{
    format::{BlockSums, front_room, stream_front, stream_tail},
    service::{ObjectUpload, ServiceError},
};
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_volume::{FileId, FileInfo, FileWriter, MAX_FILE_BYTES, PutOptions, VolumeError, VolumeId};
use std::sync::Arc;

/// Longest body that is held in memory and sent in one request.
pub(super) const WHOLE_BYTES: u64 = 8 << 20;

/// See the module.
pub(super) struct RemoteWriter {
    state: Arc<RemoteState>,
    vid: VolumeId,
    key: String,
    options: PutOptions,
    /// Room for the front of the object, and the body so far, while it is short. So a pack is in memory once.
    held: BytesMut,
    room: usize,
    size: u64,
    upload: Option<StreamedBody>,
    failed: Option<VolumeError>,
}

struct StreamedBody {
    upload: Box<dyn ObjectUpload>,
    fid: FileId,
    sums: BlockSums,
    crc: u32,
}

impl RemoteWriter {
    pub(super) fn new(
        state: Arc<RemoteState>,
        vid: VolumeId,
        key: String,
        options: &PutOptions,
    ) -> RemoteWriter {
        let room = front_room(options.metadata.len(), WHOLE_BYTES);
        RemoteWriter {
            state,
            vid,
            key,
            options: options.clone(),
            held: BytesMut::zeroed(room),
            room,
            size: 0,
            upload: None,
            failed: None,
        }
    }

    fn try_append(&mut self, data: &Bytes) -> Result<(), VolumeError> {
        let bytes = self.size + data.len() as u64;
        if bytes > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge { what: "the file", bytes, limit: MAX_FILE_BYTES });
        }
        self.size = bytes;
        if self.upload.is_none() && bytes <= WHOLE_BYTES {
            self.held.extend_from_slice(data);
            return Ok(());
        }
        if self.upload.is_none() {
            self.upload = Some(self.start()?);
            let held = std::mem::take(&mut self.held).freeze();
            self.send(held.slice(self.room..))?;
        }
        self.send(data.clone())
    }

    fn start(&self) -> Result<StreamedBody, VolumeError> {
        let fid = self.state.draw_file();
        let started = self.state.requests.rules.repeat(|| self.state.requests.service.upload(&self.key));
        let mut upload = started.map_err(|error| super::of_service(&error))?;
        let front = Bytes::from(stream_front(&self.key, fid, &self.options.metadata));
        upload.append(front).map_err(|error| super::of_service(&error))?;
        Ok(StreamedBody { upload, fid, sums: BlockSums::default(), crc: 0 })
    }

    fn send(&mut self, data: Bytes) -> Result<(), VolumeError> {
        let Some(body) = &mut self.upload else { return Ok(()) };
        body.sums.add(&data);
        body.crc = crc32c(body.crc, &data);
        // Parts of a lost upload take no effect, so nothing is unknown here.
        body.upload.append(data).map_err(|error| error.give_up().into())
    }

    fn finish(&mut self, mut body: StreamedBody) -> Result<FileInfo, VolumeError> {
        let fid = body.fid;
        let info = FileInfo {
            fid,
            size: self.size,
            crc32c: body.crc,
            created_ms: self.state.objects.stamp_ms(),
            metadata: self.options.metadata.clone(),
        };
        let state = self.state.clone();
        let _change = state.requests.held.change();
        let tail = Bytes::from(stream_tail(&info, body.sums));
        body.upload.append(tail).map_err(|error| VolumeError::from(error.give_up()))?;
        let outcome = body.upload.complete();
        let unknown = |writer: &mut RemoteWriter| {
            writer.state.keep_pending(fid, writer.key.clone(), None, vec![fid]);
            Err(VolumeError::Unknown { fid })
        };
        match outcome {
            Ok(_) => Ok(info),
            Err(ServiceError::Taken) => match self.state.holder(&self.key)? {
                Some(holder) if holder == fid => Ok(info),
                Some(holder) => {
                    body.upload.abort();
                    Err(VolumeError::Exists { fid: holder })
                }
                // The object that had the key is gone, and so is the upload: the caller begins again.
                None => unknown(self),
            },
            Err(ServiceError::Unanswered { .. } | ServiceError::Conflict | ServiceError::NotFound) => {
                match self.state.holder(&self.key) {
                    Ok(Some(holder)) if holder == fid => Ok(info),
                    Ok(Some(holder)) => Err(VolumeError::Exists { fid: holder }),
                    Ok(None) | Err(_) => unknown(self),
                }
            }
            Err(error) => {
                body.upload.abort();
                Err(super::of_service(&error))
            }
        }
    }
}

impl FileWriter for RemoteWriter {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let done = self.try_append(&data);
        if let Err(error) = &done {
            self.failed = Some(error.clone());
            self.upload = None;
        }
        done
    }

    fn commit(mut self: Box<Self>) -> Result<FileInfo, VolumeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        self.state.volumes.check_volume(self.vid)?;
        match self.upload.take() {
            Some(body) => self.finish(body),
            None => {
                let held = std::mem::take(&mut self.held);
                self.state.put_behind_room(self.key.clone(), held, self.room, &self.options)
            }
        }
    }
}
