//! Creates of files, the end of those without a known outcome, and deletes.
//!
//! Invariants
//! - A create is answered by an object: by its own, with a file id of one of its tries, or by another one.
//! - Each try of a create has a file id of its own. So a delete means the object of one try: if another try comes about
//!   after the file was deleted, a process that knew the file does not delete that object.

use super::{RemoteState, corrupt, of_service};
use crate::{
    format::{ObjectHead, ObjectKind, file_front, front_room, renamed, tombstone_object},
    keys,
    service::ServiceError,
};
use bytes::{Bytes, BytesMut};
use copal_codec::crc32c;
use copal_volume::{FileId, FileInfo, MAX_FILE_BYTES, PutOptions, SettleOutcome, VolumeError, VolumeId};

/// Longest object whose bytes are kept while its create is unknown.
const KEPT_BYTES: usize = (64 << 10) + HEAD_BYTES as usize;
/// Most creates without a known outcome that are kept with their bytes.
const MOST_KEPT: usize = 256;
/// Tries to delete a file that other hosts replace meanwhile.
const REPLACED_TRIES: usize = 8;
/// First read that holds any head.
const HEAD_BYTES: u64 = 2048;

/// A create without a known outcome.
#[derive(Clone, Debug)]
pub(super) struct PendingCreate {
    pub(super) key: String,
    /// The object, if it is short: sent until it is answered, so that a log gets no hole.
    pub(super) object: Option<Bytes>,
    /// File ids of the tries.
    pub(super) tries: Vec<FileId>,
}

/// Outcome of a create.
enum CreateOutcome {
    /// Its object has the key, with this id and time.
    Won(FileId, u64),
    /// Another object has the key.
    Lost(FileId),
}

impl RemoteState {
    /// Key of a file of an existing volume.
    /// # Errors
    /// `VolumeGone`, `InvalidName`.
    pub(super) fn key_of(&self, vid: VolumeId, name: &[u8]) -> Result<String, VolumeError> {
        let key = keys::file_key(vid, name)?;
        self.volumes.check_volume(vid)?;
        Ok(key)
    }

    /// Creates a file whose body is in memory.
    pub(super) fn put(
        &self,
        key: String,
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        let size = body.len() as u64;
        if size > MAX_FILE_BYTES {
            return Err(VolumeError::TooLarge { what: "the file", bytes: size, limit: MAX_FILE_BYTES });
        }
        let room = front_room(options.metadata.len(), size);
        let mut bytes = BytesMut::with_capacity(room + body.len());
        bytes.resize(room, 0);
        bytes.extend_from_slice(&body);
        drop(body);
        self.put_behind_room(key, bytes, room, options)
    }

    /// As [`RemoteState::put`], of a body behind `room` free bytes, which take the front of the object.
    pub(super) fn put_behind_room(
        &self,
        key: String,
        mut bytes: BytesMut,
        room: usize,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        let body = &bytes[room..];
        let info = FileInfo {
            fid: self.draw_file(),
            size: body.len() as u64,
            crc32c: crc32c(0, body),
            created_ms: self.objects.stamp_ms(),
            metadata: options.metadata.clone(),
        };
        let front = file_front(&key, &info, body);
        let start = room - front.len();
        bytes[start..room].copy_from_slice(&front);
        self.create(key, info, bytes.freeze().slice(start..))
    }

    fn create(&self, key: String, info: FileInfo, object: Bytes) -> Result<FileInfo, VolumeError> {
        let mut tries = vec![info.fid];
        match self.try_create(&key, &object, &mut tries) {
            Ok(CreateOutcome::Won(fid, created_ms)) => Ok(FileInfo { fid, created_ms, ..info }),
            Ok(CreateOutcome::Lost(fid)) => Err(VolumeError::Exists { fid }),
            Err(error) => {
                if error.is_unknown() {
                    self.keep_pending(info.fid, key, Some(object), tries);
                }
                Err(error)
            }
        }
    }

    /// Remembers a create whose outcome `settle` decides.
    pub(super) fn keep_pending(&self, fid: FileId, key: String, object: Option<Bytes>, tries: Vec<FileId>) {
        let mut pending = self.pending.lock();
        let has_room = pending.values().filter(|create| create.object.is_some()).count() < MOST_KEPT;
        let object = object.filter(|object| has_room && object.len() <= KEPT_BYTES);
        pending.insert(fid, PendingCreate { key, object, tries });
    }

    /// Sends a create until its outcome is known. `tries`: ids of all tries, the first of which the caller knows; the last
    /// one is that of `object`.
    /// # Errors
    /// `Unknown`: it may have taken effect; others: it has not.
    fn try_create(
        &self,
        key: &str,
        object: &Bytes,
        tries: &mut Vec<FileId>,
    ) -> Result<CreateOutcome, VolumeError> {
        let fid = tries[0];
        let _change = self.requests.held.change();
        let mut clock = self.requests.rules.start();
        let mut may_be_there = false;
        let mut object = object.clone();
        loop {
            let error = match self.requests.service.create(key, object.clone()) {
                Ok(tag) => {
                    self.objects.created(key, &object, tag);
                    let head = ObjectHead::decode(key, &object).ok().flatten();
                    let (fid, created_ms) =
                        head.map_or((fid, 0), |head| (head.info.fid, head.info.created_ms));
                    return Ok(CreateOutcome::Won(fid, created_ms));
                }
                Err(error) => error,
            };
            match error {
                ServiceError::Taken => match self.current_head(key) {
                    Ok(Some(head)) if tries.contains(&head.info.fid) => {
                        return Ok(CreateOutcome::Won(head.info.fid, head.info.created_ms));
                    }
                    Ok(Some(head)) => return Ok(CreateOutcome::Lost(head.info.fid)),
                    // It went meanwhile, so the key is free.
                    Ok(None) => {}
                    Err(_) if may_be_there => return Err(VolumeError::Unknown { fid }),
                    Err(error) => return Err(error),
                },
                error => {
                    if matches!(error, ServiceError::Unanswered { .. }) {
                        may_be_there = true;
                        object = self.another_try(key, object, tries);
                    }
                    let given_up = match error.may_pass() {
                        true => clock.wait(error).err(),
                        false => Some(error),
                    };
                    if let Some(error) = given_up {
                        return Err(match may_be_there {
                            true => VolumeError::Unknown { fid },
                            false => of_service(&error),
                        });
                    }
                }
            }
        }
    }

    /// The object for another try of a create.
    fn another_try(&self, key: &str, object: Bytes, tries: &mut Vec<FileId>) -> Bytes {
        let fid = self.draw_file();
        match renamed(key, &object, fid, self.objects.stamp_ms()) {
            Some(renamed) => {
                tries.push(fid);
                Bytes::from(renamed)
            }
            None => object,
        }
    }

    /// File id of the object under a key, tombstone objects included; `None`: the key is free.
    pub(super) fn holder(&self, key: &str) -> Result<Option<FileId>, VolumeError> {
        Ok(self.current_head(key)?.map(|head| head.info.fid))
    }

    fn current_head(&self, key: &str) -> Result<Option<ObjectHead>, VolumeError> {
        let front = match self.requests.rules.repeat(|| self.requests.service.front(key, HEAD_BYTES)) {
            Err(ServiceError::NotFound) => return Ok(None),
            front => front.map_err(|error| of_service(&error))?,
        };
        let head = ObjectHead::decode(key, &front.bytes).map_err(|why| corrupt(key, why))?;
        head.map(Some).ok_or_else(|| corrupt(key, "its head is cut"))
    }

    /// See [`copal_volume::VolumeStore::settle`].
    pub(super) fn settle(&self, vid: VolumeId, fid: FileId) -> Result<SettleOutcome, VolumeError> {
        let pending = self.pending.lock().get(&fid).cloned();
        let outcome = match pending {
            Some(PendingCreate { key, object: Some(object), mut tries }) => {
                let object = self.another_try(&key, object, &mut tries);
                match self.try_create(&key, &object, &mut tries) {
                    Ok(CreateOutcome::Won(known_as, _)) => Some(known_as),
                    Ok(CreateOutcome::Lost(_)) => None,
                    Err(error) => {
                        // Each of these tries may still come about.
                        if let Some(pending) = self.pending.lock().get_mut(&fid) {
                            pending.tries = tries;
                        }
                        return Err(error);
                    }
                }
            }
            Some(PendingCreate { key, object: None, tries }) => {
                self.settle_by_tombstone(&key, fid, &tries)?
            }
            None => {
                let fid = self.known_as(fid);
                self.find(vid, fid)?.then_some(fid)
            }
        };
        self.pending.lock().remove(&fid);
        Ok(match outcome {
            Some(known_as) => {
                self.remember_as(fid, known_as);
                SettleOutcome::Committed
            }
            None => SettleOutcome::Aborted,
        })
    }

    /// Id of the file that a settled create has made.
    fn known_as(&self, fid: FileId) -> FileId {
        self.settled.lock().get(&fid).copied().unwrap_or(fid)
    }

    fn remember_as(&self, fid: FileId, known_as: FileId) {
        if fid != known_as {
            let mut settled = self.settled.lock();
            if settled.len() >= MOST_KEPT {
                settled.clear();
            }
            settled.insert(fid, known_as);
        }
    }

    /// Takes the key of a create, unless the create has it: the first object under the key stands.
    fn settle_by_tombstone(
        &self,
        key: &str,
        fid: FileId,
        tries: &[FileId],
    ) -> Result<Option<FileId>, VolumeError> {
        let _change = self.requests.held.change();
        let tombstone = Bytes::from(tombstone_object(key, fid, self.objects.stamp_ms()));
        loop {
            let sent = self.requests.rules.repeat(|| self.requests.service.create(key, tombstone.clone()));
            match sent {
                Ok(_) => return Ok(None),
                Err(ServiceError::Taken) => {
                    if let Some(head) = self.current_head(key)? {
                        let is_there = head.kind == ObjectKind::File && tries.contains(&head.info.fid);
                        return Ok(is_there.then_some(head.info.fid));
                    }
                    // It went meanwhile, so the key is free.
                }
                Err(error) => return Err(of_service(&error)),
            }
        }
    }

    /// Deletes the file of that id under a key, if it is there.
    /// # Errors
    /// `Unknown`: the delete may take effect later.
    pub(super) fn delete(&self, key: &str, fid: FileId) -> Result<(), VolumeError> {
        let _change = self.requests.held.change();
        let fid = self.known_as(fid);
        for _ in 0..REPLACED_TRIES {
            // Asked from the store: the object may be another than the one remembered.
            let object = match self.objects.fetch(key, 0) {
                Err(VolumeError::NotFound) => return Ok(()),
                object => object?,
            };
            if object.info.fid != fid {
                return Ok(());
            }
            self.objects.forget(key);
            match self.requests.rules.repeat(|| self.requests.service.delete(key, Some(&object.tag))) {
                Ok(()) | Err(ServiceError::NotFound) => return Ok(()),
                Err(ServiceError::Taken) => {}
                Err(ServiceError::Unanswered { .. }) => return Err(VolumeError::Unknown { fid }),
                Err(error) => return Err(of_service(&error)),
            }
        }
        Err(VolumeError::Unavailable { reason: format!("the object {key} is replaced again and again") })
    }
}
