//! Becoming whole: a member takes over from a donor what it lacks, group by group.
//!
//! Paper:  beanfs §5.2 (volume synchronization)
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariants
//! - A member is whole when it has everything of a snapshot that a whole member took in the epoch that this member was in when
//!   it asked, and no operation could hold without it since.
//! - Live operations are taken meanwhile; no order of the two matters (VOL-10).

use crate::{
    answers::{blocking, of_volume_error},
    data_server::{DataServer, PIECE_BYTES, new_head},
    listener::{Refused, refused},
};
use bytes::Bytes;
use copal_client::{CallError, Connection, name_of_server};
use copal_codec::crc32c;
use copal_data::{Body, Membership, NotHeld, Operation, SnapshotEntry};
use copal_proto::{
    Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{DiskId, Epoch, GroupId, Role},
};
use futures_util::{StreamExt, stream};
use std::{sync::Arc, time::Duration};

/// Groups that become whole at a time.
const GROUPS: usize = 4;
/// Files on their way at a time, of one group.
const FILES: usize = 8;
/// Entries that are asked for at a time.
const ENTRIES: u32 = 500;
/// How long one answer of a donor may take.
const ANSWER: Duration = Duration::from_secs(30);
/// Between two looks at what is not whole.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a group is not whole yet.
#[derive(Debug, thiserror::Error)]
enum NotYet {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{}", .0.text)]
    Here(Refused),
    #[error("no whole member is there to copy from")]
    NoDonor,
    #[error("the view has changed")]
    Changed,
}

impl From<Refused> for NotYet {
    fn from(refused: Refused) -> NotYet {
        NotYet::Here(refused)
    }
}

impl DataServer {
    /// Brings groups that are not whole nearer to it, until the task is dropped.
    pub async fn become_whole(self: Arc<Self>) {
        loop {
            let _ = tokio::time::timeout(PAUSE, self.sync_now.notified()).await;
            let Ok(all) = self.store.memberships() else {
                continue;
            };
            let lacking = all
                .into_iter()
                .filter(|membership| membership.role != Role::Normal);
            let syncs = stream::iter(lacking).map(|membership| Arc::clone(&self).sync(membership));
            let mut syncs = syncs.buffer_unordered(GROUPS);
            while syncs.next().await.is_some() {}
        }
    }

    async fn sync(self: Arc<Self>, membership: Membership) {
        let group = membership.group;
        match self.take_over(membership).await {
            Ok(taken) => tracing::info!(%group, taken, "the group is whole"),
            Err(error) => tracing::debug!(%group, %error, "the group is not whole yet"),
        }
    }

    /// Takes over what a donor has and this member lacks; how many operations that were.
    async fn take_over(&self, membership: Membership) -> Result<u64, NotYet> {
        let group = membership.group;
        let cached = self.map.cached(group).ok_or(NotYet::NoDonor)?;
        if cached.view.epoch != membership.epoch {
            self.refresh().await;
            return Err(NotYet::Changed);
        }
        let me = self.disk();
        let mut donors: Vec<(DiskId, Role)> = cached.view.members.clone();
        donors.retain(|(disk, role)| *disk != me && role.is_up());
        // By the master's word; the member's own decides.
        let source = cached.source_of(me);
        donors.sort_by_key(|(disk, role)| (Some(*disk) != source, *role != Role::Normal));
        for (donor, _) in donors {
            let Some(place) = self.map.place(donor) else {
                continue;
            };
            let connection = match self
                .connections
                .to(&place.address, name_of_server(&place.server_uuid))
                .await
            {
                Ok(connection) => connection,
                Err(_) => continue,
            };
            let open = messages::SyncOpen {
                group: group.0,
                epoch: membership.epoch.0,
                disk: me.0,
            };
            let opened: Result<messages::SyncOpened, _> =
                connection.call(Method::SyncOpen, &open, ANSWER).await;
            let sync = match opened {
                Ok(opened) => opened.sync,
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Stale) => {
                    self.refresh().await;
                    return Err(NotYet::Changed);
                }
                Err(_) => continue,
            };
            let taken = self.take_all(group, &connection, sync).await;
            let close = messages::SyncClose { sync };
            // It goes by itself, later.
            let _: Result<messages::Done, _> = connection.call(Method::SyncClose, &close, ANSWER).await;
            let taken = taken?;
            self.be_normal(group, membership.epoch).await?;
            return Ok(taken);
        }
        Err(NotYet::NoDonor)
    }

    async fn take_all(&self, group: GroupId, donor: &Connection, sync: u64) -> Result<u64, NotYet> {
        let mut taken = 0;
        // What was deleted first: files that are gone are not copied.
        for part in [
            messages::Part::Buried,
            messages::Part::Live,
            messages::Part::Beside,
        ] {
            let mut after = Bytes::new();
            loop {
                let next = messages::SyncNext {
                    sync,
                    after: after.clone(),
                    part: part.into(),
                    limit: ENTRIES,
                };
                let page: messages::SyncEntries = donor.call(Method::SyncNext, &next, ANSWER).await?;
                let Some(last) = page.entries.last() else { break };
                after = last.key.clone();
                let lacking = self.lacking(part, page.entries).await?;
                taken += lacking.len() as u64;
                let takes = lacking
                    .into_iter()
                    .map(|entry| self.take(group, donor, sync, part, entry));
                let mut takes = stream::iter(takes).buffer_unordered(FILES);
                while let Some(outcome) = takes.next().await {
                    outcome?;
                }
                if !page.more {
                    break;
                }
            }
        }
        Ok(taken)
    }

    /// Those of a page that this member has not got.
    async fn lacking(
        &self,
        part: messages::Part,
        entries: Vec<messages::SyncEntry>,
    ) -> Result<Vec<SnapshotEntry>, NotYet> {
        let store = self.store.clone();
        let lacking = blocking(move || {
            let mut lacking = Vec::new();
            for entry in entries {
                let entry = SnapshotEntry {
                    key: entry.key,
                    vid: VolumeId(entry.volume),
                    name: entry.name,
                    fid: FileId(id(entry.fid)),
                    op: OpId(id(entry.op)),
                };
                let lacks = match part {
                    messages::Part::Buried => store.lacks_burial(&entry),
                    messages::Part::Live | messages::Part::Beside => store.lacks_file(&entry),
                };
                if lacks.map_err(|error| of_volume_error(&error))? {
                    lacking.push(entry);
                }
            }
            Ok(lacking)
        });
        Ok(lacking.await?)
    }

    async fn take(
        &self,
        group: GroupId,
        donor: &Connection,
        sync: u64,
        part: messages::Part,
        entry: SnapshotEntry,
    ) -> Result<(), NotYet> {
        if entry.vid.birth_group() != group {
            return Err(NotYet::Here(refused(
                Code::Invalid,
                "a donor shows another group",
            )));
        }
        let operation = match part {
            messages::Part::Buried => Operation::TakeOverDelete {
                vid: entry.vid,
                name: entry.name,
                fid: entry.fid,
                op: entry.op,
            },
            messages::Part::Live | messages::Part::Beside => match self.fetch(donor, sync, &entry).await? {
                Some(operation) => operation,
                // Deleted since: that operation was this member's, too.
                None => return Ok(()),
            },
        };
        loop {
            let epoch = self.own_epoch(group)?;
            match self.apply(group, epoch, operation.clone()).await? {
                Ok(_) => return Ok(()),
                Err(NotHeld::OtherEpoch { .. }) => {}
                Err(NotHeld::NoMember) => return Err(NotYet::Changed),
                Err(NotHeld::Refused(answer)) => {
                    return Err(NotYet::Here(refused(Code::Internal, format!("{answer:?}"))));
                }
                Err(NotHeld::Failed(error)) => return Err(NotYet::Here(of_volume_error(&error))),
            }
        }
    }

    /// A file of the donor, as an operation; `None`: it was deleted meanwhile.
    async fn fetch(
        &self,
        donor: &Connection,
        sync: u64,
        entry: &SnapshotEntry,
    ) -> Result<Option<Operation>, NotYet> {
        let (mut start, mut sum) = (0, 0);
        loop {
            let fetch = messages::SyncFetch {
                sync,
                volume: entry.vid.0,
                name: entry.name.clone(),
                fid: Some(of_id(entry.fid.0)),
                start,
            };
            let fetched = donor
                .call::<messages::SyncFetched>(Method::SyncFetch, &fetch, ANSWER)
                .await;
            let fetched = match fetched {
                Ok(fetched) => fetched,
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::NotFound) => {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            };
            let head = new_head(fetched.head)?;
            let damaged = || refused(Code::Corrupt, "a file of the donor is not what its head says");
            if head.fid != entry.fid {
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
                vid: entry.vid,
                name: entry.name.clone(),
                head: head.clone(),
                body,
            };
            if is_last && start == 0 {
                return Ok(Some(operation(Body::Here(here))));
            }
            let (store, vid, fid) = (self.store.clone(), entry.vid, entry.fid);
            let index = (start / PIECE_BYTES as u64) as u32;
            blocking(move || {
                let staged = store.stage(vid, fid, index, here);
                staged.map_err(|error| of_volume_error(&error))
            })
            .await?;
            if is_last {
                return Ok(Some(operation(Body::Staged)));
            }
            start = end;
        }
    }

    fn own_epoch(&self, group: GroupId) -> Result<Epoch, NotYet> {
        let membership = self
            .store
            .membership(group)
            .map_err(|error| of_volume_error(&error))?;
        membership
            .map(|membership| membership.epoch)
            .ok_or(NotYet::Changed)
    }

    /// Becomes whole in the present epoch, if no operation could hold without this member since before the one in which the
    /// donor was asked. The master knows it first: from then on operations may hold by this member's word.
    async fn be_normal(&self, group: GroupId, asked_in: Epoch) -> Result<(), NotYet> {
        let _turn = self.entering.lock().await;
        let epoch = self.own_epoch(group)?;
        let cached = self.map.cached(group).filter(|cached| cached.view.epoch == epoch);
        let cached = cached.ok_or(NotYet::Changed)?;
        let members = cached.view.members.iter().zip(&cached.missed);
        let mut own = members.filter(|((disk, _), _)| *disk == self.disk());
        let ((_, role), missed) = own.next().ok_or(NotYet::Changed)?;
        if *missed >= asked_in || !role.is_up() {
            return Err(NotYet::Changed);
        }
        let whole = messages::BecomeWhole {
            group: group.0,
            epoch: epoch.0,
            disk: self.disk().0,
        };
        let messages::Done {} = self.masters.call(Method::BecomeWhole, &whole, ANSWER).await?;
        let store = self.store.clone();
        let entered = blocking(move || {
            let entered = store.enter_view(group, epoch, Role::Normal);
            entered.map_err(|error| of_volume_error(&error))
        });
        let membership = entered.await?;
        self.tell(vec![membership]);
        match membership.role {
            Role::Normal => Ok(()),
            // Of some name there are two files.
            _ => Err(NotYet::Changed),
        }
    }
}
