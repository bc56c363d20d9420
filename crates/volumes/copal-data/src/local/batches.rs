//! Several small files in one durable write, or in a few where the engine has no room for all of them at
//! once.

use super::create::NewFile;
use super::{CommitError, LocalCore};
use crate::format::FileHead;
use crate::keys;
use crate::name_locks::Inside;
use crate::times::Stamp;
use bytes::Bytes;
use copal_kv::Batch;
use copal_volume::{
    FileInfo, MAX_BATCH_BYTES, PutOptions, ReadOptions, VolumeError, VolumeId, check_file_name,
    check_metadata,
};
use std::collections::HashMap;

type Answer<T> = Result<T, VolumeError>;

/// Files that are committed together: as many as a batch has room for.
struct Part {
    batch: Batch,
    /// Places of their answers.
    answers: Vec<usize>,
    /// Keys and heads, where the volume wants second copies.
    spared: Vec<(Vec<u8>, FileHead)>,
    /// Of the volume's quota.
    taken_bytes: u64,
}

impl Part {
    fn new(inner: &LocalCore) -> Part {
        Part { batch: inner.kv.batch(), answers: Vec::new(), spared: Vec::new(), taken_bytes: 0 }
    }
}

impl LocalCore {
    pub(super) fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Answer<FileInfo>>, VolumeError> {
        let bytes: usize =
            files.iter().map(|(name, body, options)| name.len() + body.len() + options.metadata.len()).sum();
        if bytes > MAX_BATCH_BYTES {
            return Err(VolumeError::TooLarge {
                what: "the batch",
                bytes: bytes as u64,
                limit: MAX_BATCH_BYTES as u64,
            });
        }
        self.writable()?;
        let inside = self.name_locks.enter(vid, self)?;
        let names = files.iter().map(|(name, _, _)| keys::named(vid, name));
        let _reserved = self.name_locks.reserve(names.collect());
        let stamp = self.times.stamp();
        let is_spared = self.is_spared(vid);
        let mut part = Part::new(self);
        let mut mine = HashMap::new();
        let mut answers = Vec::with_capacity(files.len());
        for (name, body, options) in files {
            if part.batch.memory_bytes() > self.kv.batch_bytes() / 2 {
                let part = std::mem::replace(&mut part, Part::new(self));
                self.put_part(part, vid, &inside, &stamp, &mut answers)?;
            }
            let size = body.len() as u64;
            let accepted = check_file_name(&name)
                .and_then(|()| check_metadata(&options.metadata))
                .and_then(|()| match mine.get(&name) {
                    Some(&fid) => Err(VolumeError::Exists { fid }),
                    None => self.must_be_free(&keys::named(vid, &name)),
                })
                .and_then(|()| inside.take(size));
            if accepted.is_ok() {
                part.answers.push(answers.len());
            }
            answers.push(accepted.map(|()| {
                part.taken_bytes += size;
                let file = NewFile::small(self.times.file(), body, options.metadata);
                let key = keys::named(vid, &name);
                let head = file.put(self, &mut part.batch, vid, &key, stamp.op);
                mine.insert(name, file.fid);
                let info = head.info();
                if is_spared {
                    part.spared.push((key, head));
                }
                info
            }));
        }
        self.put_part(part, vid, &inside, &stamp, &mut answers)?;
        Ok(answers)
    }

    /// Makes the files of a part visible, or has their answers say why not.
    /// # Errors
    /// It was refused, and so far no file was accepted: nothing was written.
    fn put_part(
        &self,
        mut part: Part,
        vid: VolumeId,
        inside: &Inside<'_>,
        stamp: &Stamp,
        answers: &mut [Answer<FileInfo>],
    ) -> Result<(), VolumeError> {
        let Some(&first) = part.answers.first() else {
            return Ok(());
        };
        stamp.put(&self.spaces, &mut part.batch);
        let error = match self.commit(part.batch) {
            Ok(()) => {
                self.times.confirm(stamp);
                self.spare_files(vid, part.spared.iter().map(|(key, head)| (&key[..], head)));
                return Ok(());
            }
            Err(error) => error,
        };
        inside.give_back(part.taken_bytes);
        let refused = match error {
            CommitError::Refused(error) => Some(error),
            CommitError::Open { .. } => None,
        };
        if let Some(error) = &refused
            && answers[..first].iter().all(Result::is_err)
        {
            return Err(error.clone());
        }
        for at in part.answers {
            if let Ok(info) = &answers[at] {
                let unknown = VolumeError::Unknown { fid: info.fid };
                answers[at] = Err(refused.clone().unwrap_or(unknown));
            }
        }
        Ok(())
    }

    pub(super) fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Answer<Bytes>>, VolumeError> {
        let mut left = MAX_BATCH_BYTES as u64;
        let answers = names
            .iter()
            .map(|name| {
                check_file_name(name)?;
                let body = self.read(vid, name, options, left, 0..u64::MAX)?;
                left -= body.len() as u64;
                Ok(body)
            })
            .collect();
        self.alive(vid)?;
        Ok(answers)
    }
}
