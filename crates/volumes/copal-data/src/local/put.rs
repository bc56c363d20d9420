//! Put of a file whose body is in memory.

use super::LocalCore;
use super::create::{NewFile, check_name_free, check_size, create};
use super::writer::LocalUpload;
use crate::format::PIECE_BYTES;
use crate::keys;
use bytes::Bytes;
use copal_volume::{FileInfo, PutOptions, VolumeError, VolumeId, check_file_name, check_metadata};
use std::sync::Arc;

pub(super) fn put(
    core: &Arc<LocalCore>,
    vid: VolumeId,
    name: &[u8],
    body: Bytes,
    options: &PutOptions,
) -> Result<FileInfo, VolumeError> {
    check_file_name(name)?;
    check_metadata(&options.metadata)?;
    check_size(body.len() as u64)?;
    core.writable()?;
    let key = keys::named(vid, name);
    if body.len() as u64 <= PIECE_BYTES {
        let inside = core.name_locks.enter(vid, &**core)?;
        let file = NewFile::small(core.times.file(), body, options.metadata.clone());
        return create(core, &inside, vid, key, &file);
    }
    // Above one piece: check the name before staging megabytes, and again under its reservation.
    drop(core.name_locks.enter(vid, &**core)?);
    check_name_free(core, &key)?;
    let mut upload = LocalUpload::start(core, vid);
    upload.append(body)?;
    upload.commit(key, options.metadata.clone())
}
