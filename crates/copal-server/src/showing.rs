//! What a donor answers to members that want to become whole.

use crate::{
    answers::{blocking, encoded, of_volume_error},
    data_server::{DataServer, PIECE_BYTES},
    listener::{Refused, refused},
};
use bytes::Bytes;
use copal_data::{GroupSnapshot, Part, SnapshotEntry};
use copal_proto::{
    id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{Epoch, GroupId, Role},
};
use std::sync::Arc;

/// Entries in one answer.
const MOST_ENTRIES: u32 = 1000;

impl DataServer {
    /// Takes a snapshot of a group for a member.
    pub(crate) async fn open_snapshot(
        self: Arc<Self>,
        request: messages::SyncOpen,
    ) -> Result<Bytes, Refused> {
        let group = GroupId(request.group);
        // In the epoch of the other or a newer one: what held before is in the snapshot, what holds later takes the other's
        // own word.
        let membership = self.matched(group, Epoch(request.epoch)).await?;
        if membership.role != Role::Normal {
            return Err(refused(Code::NotAuthoritative, "this member is not whole itself"));
        }
        let this = Arc::clone(&self);
        let sync = blocking(move || {
            let snapshot = this
                .store
                .snapshot(group)
                .map_err(|error| of_volume_error(&error))?;
            this.snapshots.add(snapshot)
        });
        Ok(encoded(&messages::SyncOpened {
            sync: sync.await?,
            live: 0,
            buried: 0,
        }))
    }

    /// The next entries of a snapshot.
    pub(crate) async fn next_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncNext,
    ) -> Result<Bytes, Refused> {
        let snapshot = self.snapshots.get(request.sync)?;
        blocking(move || next_entries(&snapshot, &request)).await
    }

    /// A file of a snapshot.
    pub(crate) async fn fetch_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncFetch,
    ) -> Result<Bytes, Refused> {
        self.snapshots.get(request.sync)?;
        let this = Arc::clone(&self);
        let (fetched, bytes) = blocking(move || this.fetched(request)).await?;
        self.copying.gives(bytes).await;
        Ok(fetched)
    }

    /// The answer, and how many bytes of the file are in it.
    fn fetched(&self, request: messages::SyncFetch) -> Result<(Bytes, u64), Refused> {
        let entry = SnapshotEntry {
            key: Bytes::new(),
            vid: VolumeId(request.volume),
            name: request.name,
            fid: FileId(id(request.fid)),
            op: OpId(0),
        };
        let end = request.start.saturating_add(PIECE_BYTES as u64);
        let found = self.store.fetch(&entry, request.start..end);
        let found = found.map_err(|error| of_volume_error(&error))?;
        let gone = || refused(Code::NotFound, "the file was deleted meanwhile");
        let (info, op, bytes) = found.ok_or_else(gone)?;
        let here = bytes.len() as u64;
        let fetched = encoded(&messages::SyncFetched {
            head: Some(messages::FileHead {
                fid: Some(of_id(info.fid.0)),
                op: Some(of_id(op.0)),
                size: info.size,
                crc32c: info.crc32c,
                metadata: info.metadata,
            }),
            bytes,
        });
        Ok((fetched, here))
    }
}

fn next_entries(snapshot: &GroupSnapshot, request: &messages::SyncNext) -> Result<Bytes, Refused> {
    let part = match messages::Part::try_from(request.part) {
        Ok(messages::Part::Live) => Part::Live,
        Ok(messages::Part::Beside) => Part::Beside,
        Ok(messages::Part::Buried) => Part::Buried,
        Err(_) => return Err(refused(Code::Invalid, "no part of a snapshot")),
    };
    let limit = request.limit.clamp(1, MOST_ENTRIES) as usize;
    let after = Some(&*request.after).filter(|after| !after.is_empty());
    let entries = snapshot.entries(part, after, limit);
    let entries = entries.map_err(|error| of_volume_error(&error))?;
    let more = entries.len() == limit;
    let entry = |entry: SnapshotEntry| messages::SyncEntry {
        key: entry.key,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
        op: Some(of_id(entry.op.0)),
    };
    Ok(encoded(&messages::SyncEntries {
        entries: entries.into_iter().map(entry).collect(),
        more,
    }))
}
