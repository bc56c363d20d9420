//! What a donor answers to members that want to become whole.

use crate::{
    answers::{blocking, encoded},
    data_server::{DataServer, PIECE_BYTES},
    rolling::of_entries,
    status::Status,
};
use bytes::Bytes;
use copal_data::{GroupSnapshot, SnapshotEntry};
use copal_proto::{
    id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, VolumeId,
    group::{Bucket, Epoch, GroupId},
};
use std::sync::Arc;

/// Entries in one answer.
const MOST_ENTRIES: u32 = 1000;

impl DataServer {
    /// Takes a snapshot of a group for a member.
    pub(crate) async fn open_snapshot(self: Arc<Self>, request: messages::SyncOpen) -> Result<Bytes, Status> {
        let group = GroupId(request.group);
        // In the epoch of the other or a newer one: what held before is in the snapshot, what holds later
        // takes the other's own word.
        let membership = self.matched(group, Epoch(request.epoch)).await?;
        if !membership.role.is_in_sync() {
            return Err(Status::new(Code::NotAuthoritative, "this member is not whole itself"));
        }
        let this = Arc::clone(&self);
        blocking(move || {
            // What is cut while the snapshot is taken is on every member.
            let snapshot = this.store.snapshot(group)?;
            let now = this.store.membership(group)?.unwrap_or(membership);
            let gone = this.store.gone_volumes(group)?;
            Ok(encoded(&messages::SyncOpened {
                sync: this.snapshots.add(snapshot)?,
                closed_below: now.closing.below.0,
                horizon: membership.horizon.0,
                gone_volumes: gone.into_iter().map(|vid| vid.0).collect(),
            }))
        })
        .await
    }

    /// Which of many groups the asking member has everything of: those whose operations from the horizon on
    /// are the same.
    pub(crate) async fn compare(self: Arc<Self>, request: messages::Compare) -> Result<Bytes, Status> {
        if request.groups.len() > MOST_ENTRIES as usize {
            return Err(Status::new(Code::TooLarge, "1,000 groups are compared at a time"));
        }
        let mut equal = Vec::new();
        for compared in request.groups {
            let group = GroupId(compared.group);
            // As for a snapshot: in the epoch of the other or a newer one.
            let Ok(membership) = self.matched(group, Epoch(compared.epoch)).await else {
                continue;
            };
            if !membership.role.is_in_sync() || membership.horizon != Bucket(compared.horizon) {
                continue;
            }
            let (store, seed) = (self.store.clone(), self.digest_seed());
            let digest = blocking(move || Ok(store.digest_from(group, membership.horizon, seed)?));
            let digest = digest.await?;
            if digest.count == compared.count && digest.sum == id(compared.sum) {
                equal.push(messages::EqualGroup { group: group.0, closed_below: membership.closing.below.0 });
            }
        }
        Ok(encoded(&messages::CompareReply { equal }))
    }

    /// The next operations of a snapshot's journal.
    pub(crate) async fn journal_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncJournal,
    ) -> Result<Bytes, Status> {
        let snapshot = self.snapshots.get(request.sync)?;
        blocking(move || {
            let limit = request.limit.clamp(1, MOST_ENTRIES) as usize;
            let after = Some(&*request.after).filter(|after| !after.is_empty());
            let entries = snapshot.journal(after, limit)?;
            Ok(encoded(&of_entries(entries, limit)))
        })
        .await
    }

    /// The live file of a name in a snapshot.
    pub(crate) async fn name_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncName,
    ) -> Result<Bytes, Status> {
        let snapshot = self.snapshots.get(request.sync)?;
        blocking(move || {
            let fid = snapshot.named(VolumeId(request.volume), &request.name)?;
            Ok(encoded(&messages::SyncNamed { fid: fid.map(|fid| of_id(fid.0)) }))
        })
        .await
    }

    /// The next entries of a snapshot.
    pub(crate) async fn next_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncNext,
    ) -> Result<Bytes, Status> {
        let snapshot = self.snapshots.get(request.sync)?;
        blocking(move || next_entries(&snapshot, &request)).await
    }

    /// A file of a snapshot.
    pub(crate) async fn fetch_of_snapshot(
        self: Arc<Self>,
        request: messages::SyncFetch,
    ) -> Result<Bytes, Status> {
        if request.sync != 0 {
            self.snapshots.get(request.sync)?;
        }
        let this = Arc::clone(&self);
        let (fetched, bytes) = blocking(move || this.fetched(request)).await?;
        self.copying.gives(bytes).await;
        Ok(fetched)
    }

    /// The answer, and how many bytes of the file are in it.
    fn fetched(&self, request: messages::SyncFetch) -> Result<(Bytes, u64), Status> {
        let file = (VolumeId(request.volume), &*request.name, FileId(id(request.fid)));
        let end = request.start.saturating_add(PIECE_BYTES as u64);
        let found = self.store.fetch(file, request.start..end);
        let found = found.inspect_err(|error| self.note_if_damaged(file.0.birth_group(), error))?;
        let gone = || Status::new(Code::NotFound, "the file was deleted meanwhile");
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

fn next_entries(snapshot: &GroupSnapshot, request: &messages::SyncNext) -> Result<Bytes, Status> {
    let limit = request.limit.clamp(1, MOST_ENTRIES) as usize;
    let after = Some(&*request.after).filter(|after| !after.is_empty());
    let entries = snapshot.live(after, limit)?;
    let more = entries.len() == limit;
    let entry = |entry: SnapshotEntry| messages::SyncEntry {
        key: entry.key,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
        op: Some(of_id(entry.op.0)),
    };
    Ok(encoded(&messages::SyncEntries { entries: entries.into_iter().map(entry).collect(), more }))
}
