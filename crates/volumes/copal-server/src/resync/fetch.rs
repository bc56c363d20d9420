//! Fetching of a file from another member.
//!
//! This member fetches the pieces one after another. It stages the pieces of a file that has more than one.
//! With the last piece it compares length and checksum of the whole file with the head. Then it makes one
//! operation of the file, which the caller applies.

use crate::net::messages::blocking;
use crate::net::status::Status;
use crate::replica::file_head::{PIECE_BYTES, new_head};
use crate::replica::host::ReplicaHost;
use bytes::Bytes;
use copal_client::{CallError, Connection};
use copal_codec::crc32c;
use copal_data::{BodySource, GroupOperation};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{FileId, VolumeId};
use std::time::Duration;

/// Time limit of one reply of another member or the leader.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The member that files are fetched from.
pub(crate) struct FetchSource {
    /// Connection to the other member.
    pub(crate) connection: Connection,
    /// Number of the snapshot that the other member has opened for this one; 0: none.
    pub(crate) snapshot: u64,
}

/// Why a file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Local(#[from] Status),
}

/// Fetches a file and returns the operation that creates it here. `None`: the other member does not have the
/// file any more. `is_journalled`: whether this member journals the operation.
pub(crate) async fn fetch_file(
    host: &ReplicaHost,
    source: &FetchSource,
    vid: VolumeId,
    name: &Bytes,
    fid: FileId,
    is_journalled: bool,
) -> Result<Option<GroupOperation>, FetchError> {
    let (mut start, mut sum) = (0, 0);
    loop {
        let fetch = messages::SyncFetch {
            sync: source.snapshot,
            volume: vid.0,
            name: name.clone(),
            fid: Some(of_id(fid.0)),
            start,
        };
        let connection = &source.connection;
        let fetched =
            connection.call::<messages::SyncFetched>(Method::SyncFetch, &fetch, REPLY_TIMEOUT).await;
        let fetched = match fetched {
            Ok(fetched) => fetched,
            Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => {
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let head = new_head(fetched.head)?;
        let damaged = || Status::new(Code::Corrupt, "a file of the donor does not match its head");
        if head.fid != fid {
            return Err(damaged().into());
        }
        let bytes = fetched.bytes;
        host.throttle.received(bytes.len() as u64).await;
        sum = crc32c(sum, &bytes);
        let end = start + bytes.len() as u64;
        let is_last = end >= head.size;
        let is_right = match is_last {
            true => end == head.size && sum == head.crc32c,
            false => bytes.len() == PIECE_BYTES,
        };
        if !is_right {
            return Err(damaged().into());
        }
        let operation = |body| GroupOperation::CopyCreate {
            vid,
            name: name.clone(),
            head: head.clone(),
            body,
            is_journalled,
        };
        if is_last && start == 0 {
            return Ok(Some(operation(BodySource::Attached(bytes))));
        }
        let store = host.store.clone();
        let index = (start / PIECE_BYTES as u64) as u32;
        blocking(move || Ok(store.stage(vid, fid, index, bytes)?)).await?;
        if is_last {
            return Ok(Some(operation(BodySource::Staged)));
        }
        start = end;
    }
}

#[cfg(test)]
mod tests;
