//! A file of another member: read piece by piece, checked against its head, and made an operation of this
//! member.

use crate::{
    answers::blocking,
    data_server::{DataServer, PIECE_BYTES, new_head},
    status::Status,
};
use bytes::Bytes;
use copal_client::{CallError, Connection};
use copal_codec::crc32c;
use copal_data::{Body, Operation};
use copal_proto::{
    Method,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{FileId, VolumeId};
use std::time::Duration;

/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Where a member takes over from.
pub(crate) struct Source {
    /// The other member.
    pub(crate) connection: Connection,
    /// A snapshot of its; 0: none.
    pub(crate) snapshot: u64,
}

/// Why a file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Here(#[from] Status),
}

impl DataServer {
    /// A file of another member, as an operation; `None`: it was deleted meanwhile.
    pub(crate) async fn fetch(
        &self,
        source: &Source,
        vid: VolumeId,
        name: &Bytes,
        fid: FileId,
        is_journalled: bool,
    ) -> Result<Option<Operation>, FetchError> {
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
            let fetched = connection.call::<messages::SyncFetched>(Method::SyncFetch, &fetch, ANSWER).await;
            let fetched = match fetched {
                Ok(fetched) => fetched,
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let head = new_head(fetched.head)?;
            let damaged = || Status::new(Code::Corrupt, "a file of the donor is not what its head says");
            if head.fid != fid {
                return Err(damaged().into());
            }
            let here = fetched.bytes;
            self.copying.took(here.len() as u64).await;
            sum = crc32c(sum, &here);
            let end = start + here.len() as u64;
            let is_last = end >= head.size;
            let is_right = match is_last {
                true => end == head.size && sum == head.crc32c,
                false => here.len() == PIECE_BYTES,
            };
            if !is_right {
                return Err(damaged().into());
            }
            let operation = |body| Operation::TakeOver {
                vid,
                name: name.clone(),
                head: head.clone(),
                body,
                is_journalled,
            };
            if is_last && start == 0 {
                return Ok(Some(operation(Body::Here(here))));
            }
            let store = self.store.clone();
            let index = (start / PIECE_BYTES as u64) as u32;
            blocking(move || Ok(store.stage(vid, fid, index, here)?)).await?;
            if is_last {
                return Ok(Some(operation(Body::Staged)));
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests;
