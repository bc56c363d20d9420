//! Several small files in one durable write, or in a few if the engine has no memory for all of them at once.

use super::create;
use super::create::NewFile;
use super::read;
use super::{CommitError, LocalCore};
use crate::format::FileHead;
use crate::keys;
use crate::name_locks::VolumeAccess;
use crate::operation_clock::OperationStamp;
use bytes::Bytes;
use copal_kv::Batch;
use copal_volume::{
    FileInfo, MAX_BATCH_BYTES, PutOptions, ReadOptions, VolumeError, VolumeId, check_file_name,
    check_metadata,
};
use std::collections::HashMap;

type Answer<T> = Result<T, VolumeError>;

/// Files that are committed in one batch.
struct BatchPart {
    batch: Batch,
    /// Indices of their answers.
    answers: Vec<usize>,
    /// Keys and heads, if the volume has second copies.
    copied: Vec<(Vec<u8>, FileHead)>,
    /// Bytes taken from the volume's quota.
    taken_bytes: u64,
}

impl BatchPart {
    fn new(inner: &LocalCore) -> BatchPart {
        BatchPart { batch: inner.kv.batch(), answers: Vec::new(), copied: Vec::new(), taken_bytes: 0 }
    }
}

pub(super) fn put_batch(
    core: &LocalCore,
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
    core.writable()?;
    let inside = core.name_locks.enter(vid, core)?;
    let names = files.iter().map(|(name, _, _)| keys::named(vid, name));
    let _reserved = core.name_locks.reserve(names.collect());
    let stamp = core.times.stamp();
    let has_second_copies = core.has_second_copies(vid);
    let mut part = BatchPart::new(core);
    let mut own = HashMap::new();
    let mut answers = Vec::with_capacity(files.len());
    for (name, body, options) in files {
        if part.batch.memory_bytes() > core.kv.batch_bytes() / 2 {
            let part = std::mem::replace(&mut part, BatchPart::new(core));
            put_part(core, part, vid, &inside, &stamp, &mut answers)?;
        }
        let size = body.len() as u64;
        let accepted = check_file_name(&name)
            .and_then(|()| check_metadata(&options.metadata))
            .and_then(|()| match own.get(&name) {
                Some(&fid) => Err(VolumeError::Exists { fid }),
                None => create::check_name_free(core, &keys::named(vid, &name)),
            })
            .and_then(|()| inside.take(size));
        if accepted.is_ok() {
            part.answers.push(answers.len());
        }
        answers.push(accepted.map(|()| {
            part.taken_bytes += size;
            let file = NewFile::small(core.times.file(), body, options.metadata);
            let key = keys::named(vid, &name);
            let head = file.put(core, &mut part.batch, vid, &key, stamp.op);
            own.insert(name, file.fid);
            let info = head.info();
            if has_second_copies {
                part.copied.push((key, head));
            }
            info
        }));
    }
    put_part(core, part, vid, &inside, &stamp, &mut answers)?;
    Ok(answers)
}

/// Makes the files of a part visible, or sets the errors of their answers.
/// # Errors
/// The batch was refused, and no file was accepted so far: nothing was written.
fn put_part(
    core: &LocalCore,
    mut part: BatchPart,
    vid: VolumeId,
    inside: &VolumeAccess<'_>,
    stamp: &OperationStamp,
    answers: &mut [Answer<FileInfo>],
) -> Result<(), VolumeError> {
    let Some(&first) = part.answers.first() else {
        return Ok(());
    };
    stamp.put(&core.spaces, &mut part.batch);
    let error = match core.commit(part.batch) {
        Ok(()) => {
            core.times.confirm(stamp);
            create::copy_files(core, vid, part.copied.iter().map(|(key, head)| (&key[..], head)));
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
    core: &LocalCore,
    vid: VolumeId,
    names: &[Bytes],
    options: &ReadOptions,
) -> Result<Vec<Answer<Bytes>>, VolumeError> {
    let mut left = MAX_BATCH_BYTES as u64;
    let answers = names
        .iter()
        .map(|name| {
            check_file_name(name)?;
            let body = read::read(core, vid, name, options, left, 0..u64::MAX)?;
            left -= body.len() as u64;
            Ok(body)
        })
        .collect();
    core.alive(vid)?;
    Ok(answers)
}
