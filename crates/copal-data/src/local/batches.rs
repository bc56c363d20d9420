//! Several small files in one durable write.

use super::Inner;
use super::create::NewFile;
use crate::keys;
use bytes::Bytes;
use copal_volume::{
    FileInfo, MAX_BATCH_BYTES, PutOptions, ReadOptions, VolumeError, VolumeId, check_file_name,
    check_metadata,
};
use std::collections::HashMap;

type Answer<T> = Result<T, VolumeError>;

impl Inner {
    pub(super) fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Answer<FileInfo>>, VolumeError> {
        let bytes: usize = files
            .iter()
            .map(|(name, body, options)| name.len() + body.len() + options.metadata.len())
            .sum();
        if bytes > MAX_BATCH_BYTES {
            return Err(VolumeError::TooLarge {
                what: "the batch",
                bytes: bytes as u64,
                limit: MAX_BATCH_BYTES as u64,
            });
        }
        self.writable()?;
        let inside = self.gate.enter(vid, self)?;
        let names = files.iter().map(|(name, _, _)| keys::named(vid, name));
        let _reserved = self.gate.reserve(names.collect());
        let stamp = self.times.stamp();
        let mut batch = self.kv.batch();
        let mut taken_bytes = 0;
        let mut mine = HashMap::new();
        let mut answers = Vec::with_capacity(files.len());
        for (name, body, options) in files {
            let size = body.len() as u64;
            let accepted = check_file_name(&name)
                .and_then(|()| check_metadata(&options.metadata))
                .and_then(|()| match mine.get(&name) {
                    Some(&fid) => Err(VolumeError::Exists { fid }),
                    None => self.must_be_free(&keys::named(vid, &name)),
                })
                .and_then(|()| inside.take(size));
            answers.push(accepted.map(|()| {
                taken_bytes += size;
                let file = NewFile::small(self.times.file(), body, options.metadata);
                let key = keys::named(vid, &name);
                let head = file.put(self, &mut batch, vid, &key, stamp.op);
                mine.insert(name, file.fid);
                head.info()
            }));
        }
        if mine.is_empty() {
            return Ok(answers);
        }
        stamp.put(&self.spaces, &mut batch);
        match self.commit(batch) {
            Ok(()) => self.times.confirm(&stamp),
            Err(super::CommitError::Refused(error)) => {
                inside.give_back(taken_bytes);
                return Err(error);
            }
            Err(super::CommitError::Open { .. }) => {
                inside.give_back(taken_bytes);
                for answer in &mut answers {
                    if let Ok(info) = answer {
                        *answer = Err(VolumeError::Unknown { fid: info.fid });
                    }
                }
            }
        }
        Ok(answers)
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
