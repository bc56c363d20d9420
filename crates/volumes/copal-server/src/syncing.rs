//! Becoming whole: a member takes over from a donor what it lacks, group by group.
//!
//! Paper:  beanfs §5.2 (volume synchronization)
//! Design: docs/design/cluster.md#rules VOL-16
//! Invariants
//! - A member is whole when it has everything of a snapshot that a whole member took in the epoch that this
//!   member was in when it asked, and no operation could hold without it since. It asks in no epoch in which
//!   it is away: there they can.
//! - Live operations are taken meanwhile; no order of the two matters (VOL-10).

use crate::{
    answers::blocking,
    data_server::DataServer,
    fetching::{FetchError, Source},
    heard::closed_by_all,
    master_server::MOST_WHOLE,
    rolling::{entry_of, record, taken_delete},
    status::Status,
};
use bytes::Bytes;
use copal_client::{CallError, Connection, name_of_server};
use copal_data::{JournalEntry, Membership, NotHeld, Operation, SnapshotEntry, Taken, Told};
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{Bucket, Closing, DiskId, Epoch, GroupId, Role, View, settle_name},
};
use futures_util::{StreamExt, stream};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Groups that become whole at a time.
const GROUPS: usize = 4;
/// Files on their way at a time, of one group.
const FILES: usize = 8;
/// Groups that are compared in one call.
const COMPARED: usize = 1000;
/// Names with two files that are settled at a time.
const DISPUTED: usize = 1000;
/// How often, and how long, a delete that the donor has is waited for.
const BURIAL_LOOKS: u32 = 20;
const BURIAL_PAUSE: Duration = Duration::from_millis(100);
/// Entries that are asked for at a time.
const ENTRIES: u32 = 500;
/// How long one answer of a donor may take.
const ANSWER: Duration = Duration::from_secs(30);
/// Between two looks at what is not whole.
const PAUSE: Duration = Duration::from_secs(1);

/// Why a group is not whole yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotYet {
    #[error("{0}")]
    Call(#[from] CallError),
    #[error("{0}")]
    Here(#[from] Status),
    #[error("no whole member is there to copy from")]
    NoDonor,
    #[error("this member is away in its view: operations hold without it")]
    Away,
    #[error(
        "the view has changed, or the donor's files, or a name has two files and it is too early to say which stays"
    )]
    Changed,
}

impl From<FetchError> for NotYet {
    fn from(error: FetchError) -> NotYet {
        match error {
            FetchError::Call(error) => NotYet::Call(error),
            FetchError::Here(refused) => NotYet::Here(refused),
        }
    }
}

/// Whether a disk takes part in what holds in a view.
fn takes_part(view: &View, disk: DiskId) -> bool {
    view.role(disk).is_some_and(Role::takes_writes)
}

/// A group of which everything that a donor showed is here.
pub(crate) struct Ready {
    pub(crate) group: GroupId,
    /// Of the damage that was known before.
    pub(crate) generation: u64,
    pub(crate) asked_in: Epoch,
    pub(crate) closing: Closing,
}

/// A donor that has shown a snapshot.
struct Donor {
    group: GroupId,
    source: Source,
    closing: Closing,
    /// The view in which it was asked.
    asked_in: Epoch,
    /// What all members that take part had closed before the snapshot was taken.
    closed_before: Vec<Closing>,
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
                .filter(|membership| !membership.role.is_in_sync())
                .filter(|membership| !self.repairs.is_under_way(membership.group));
            let lacking = self.without_equal(lacking.collect()).await;
            let mut syncs = stream::iter(lacking)
                .map(|membership| Arc::clone(&self).sync(membership))
                .buffer_unordered(GROUPS);
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

    /// Groups of which a whole member has just what this one has become whole, many in one call; the others
    /// are returned.
    async fn without_equal(&self, lacking: Vec<Membership>) -> Vec<Membership> {
        let me = self.disk();
        let mut by_donor: BTreeMap<DiskId, Vec<Membership>> = BTreeMap::new();
        for membership in lacking.iter().filter(|membership| membership.is_covered) {
            let view = self
                .map
                .view(membership.group)
                .filter(|view| view.epoch == membership.epoch && takes_part(view, me));
            if let Some(donor) = view.and_then(|view| view.in_sync().find(|disk| *disk != me)) {
                by_donor.entry(donor).or_default().push(*membership);
            }
        }
        let mut done = BTreeSet::new();
        for (donor, memberships) in by_donor {
            for part in memberships.chunks(COMPARED) {
                match self.compared(donor, part).await {
                    Ok(groups) => done.extend(groups),
                    Err(error) => tracing::debug!(%donor, %error, "groups could not be compared"),
                }
            }
        }
        let mut rest = lacking;
        rest.retain(|membership| !done.contains(&membership.group));
        rest
    }

    /// Those of the groups that are whole after they were compared with a donor's.
    async fn compared(&self, donor: DiskId, memberships: &[Membership]) -> Result<Vec<GroupId>, NotYet> {
        let connection = self.connection_to(donor).await.ok_or(NotYet::NoDonor)?;
        let (store, seed) = (self.store.clone(), self.digest_seed());
        let asked = memberships.to_vec();
        let generations = memberships.iter().map(|membership| self.repairs.generation(membership.group));
        let generations: Vec<u64> = generations.collect();
        let groups = blocking(move || {
            let mut groups = Vec::new();
            for membership in asked {
                // Damage may have been met since the caller looked.
                let now = store.membership(membership.group)?;
                if now.is_none_or(|now| !now.is_covered) {
                    continue;
                }
                let digest = store.digest_from(membership.group, membership.horizon, seed)?;
                groups.push(messages::ComparedGroup {
                    group: membership.group.0,
                    epoch: membership.epoch.0,
                    horizon: membership.horizon.0,
                    count: digest.count,
                    sum: Some(of_id(digest.sum)),
                });
            }
            Ok(groups)
        });
        let compare = messages::Compare { disk: self.disk().0, groups: groups.await? };
        let reply: messages::CompareReply = connection.call(Method::Compare, &compare, ANSWER).await?;
        let mut ready = Vec::new();
        for equal in reply.equal {
            let group = GroupId(equal.group);
            let mut known = memberships.iter().zip(&generations);
            let Some((membership, generation)) = known.find(|(membership, _)| membership.group == group)
            else {
                continue;
            };
            let closing = Closing { below: Bucket(equal.closed_below) };
            if self.store.is_seal_in_future(closing) {
                continue;
            }
            ready.push(Ready { group, generation: *generation, asked_in: membership.epoch, closing });
        }
        self.be_whole(&ready).await
    }

    async fn connection_to(&self, disk: DiskId) -> Option<Connection> {
        let place = self.map.place(disk)?;
        let name = name_of_server(&place.server_uuid);
        self.connections.connect(&place.address, name, CallClass::Recovery).await.ok()
    }

    /// Takes over what a donor has and this member lacks; how many operations that were.
    async fn take_over(&self, membership: Membership) -> Result<u64, NotYet> {
        let group = membership.group;
        let generation = self.repairs.generation(group);
        if self.repairs.is_under_way(group) {
            return Err(NotYet::Changed);
        }
        let cached = self.map.cached(group).ok_or(NotYet::NoDonor)?;
        if cached.view.epoch != membership.epoch {
            self.refresh().await;
            return Err(NotYet::Changed);
        }
        let me = self.disk();
        if !takes_part(&cached.view, me) {
            return Err(NotYet::Away);
        }
        let heard = self.heard.of(group, membership.epoch);
        let closed_before = closed_by_all(&cached.view, (me, membership.closing), &heard);
        let mut donors: Vec<(DiskId, Role)> = cached.view.members.clone();
        donors.retain(|(disk, role)| *disk != me && role.is_up());
        // By the master's word; the member's own decides.
        let source = cached.source_of(me);
        donors.sort_by_key(|(disk, role)| (Some(*disk) != source, !role.is_in_sync()));
        for (donor, _) in donors {
            let Some(connection) = self.connection_to(donor).await else {
                continue;
            };
            let open = messages::SyncOpen { group: group.0, epoch: membership.epoch.0, disk: me.0 };
            let opened: Result<messages::SyncOpened, _> =
                connection.call(Method::SyncOpen, &open, ANSWER).await;
            let opened = match opened {
                Ok(opened) => opened,
                Err(CallError::Failed(failure)) if failure.code == i32::from(Code::Stale) => {
                    self.refresh().await;
                    return Err(NotYet::Changed);
                }
                Err(_) => continue,
            };
            let gone = opened.gone_volumes.iter().map(|vid| VolumeId(*vid));
            self.learn_gone(group, gone.collect()).await?;
            let closing = Closing { below: Bucket(opened.closed_below) };
            if self.store.is_seal_in_future(closing) {
                // Closed here as well it would outlive the clock that was wrong.
                tracing::warn!(%group, %donor, "a donor has closed what lies in the future; it is not copied from");
                self.close_snapshot(&connection, opened.sync).await;
                continue;
            }
            let donor = Donor {
                group,
                source: Source { connection, snapshot: opened.sync },
                closing,
                asked_in: membership.epoch,
                closed_before,
            };
            let taken = self.take_all(&donor, Bucket(opened.horizon)).await;
            self.close_snapshot(&donor.source.connection, opened.sync).await;
            let taken = taken?;
            let ready = Ready { group, generation, asked_in: membership.epoch, closing: donor.closing };
            return match self.be_whole(&[ready]).await?.is_empty() {
                false => Ok(taken),
                true => Err(NotYet::Changed),
            };
        }
        Err(NotYet::NoDonor)
    }

    async fn close_snapshot(&self, connection: &Connection, sync: u64) {
        let close = messages::SyncClose { sync };
        let closed: Result<messages::Done, _> = connection.call(Method::SyncClose, &close, ANSWER).await;
        // It goes by itself, later.
        let _ = closed;
    }

    /// Goes by what a donor knows of volumes that are gone: the master may have forgotten them by now.
    async fn learn_gone(&self, group: GroupId, gone: Vec<VolumeId>) -> Result<(), NotYet> {
        let store = self.store.clone();
        let learned = blocking(move || {
            for vid in gone.into_iter().filter(|vid| vid.birth_group() == group) {
                store.tell_volume(vid, Told::Gone)?;
            }
            Ok(())
        });
        Ok(learned.await?)
    }

    async fn take_all(&self, donor: &Donor, horizon: Bucket) -> Result<u64, NotYet> {
        let (store, group, closed) = (self.store.clone(), donor.group, donor.closing);
        let is_covered = blocking(move || {
            store.begin_taking(group, horizon, closed)?;
            Ok(store.membership(group)?.is_some_and(|own| own.is_covered))
        });
        let is_covered = is_covered.await?;
        // What was deleted first: files that are gone are not copied.
        let mut taken = 0;
        for creates in [false, true] {
            taken += self.take_journal(donor, creates).await?;
        }
        if !is_covered {
            taken += self.take_files(donor).await?;
        }
        self.settle_names(donor).await?;
        Ok(taken)
    }

    /// Takes over the deletes of a donor's journal, or the creates.
    async fn take_journal(&self, donor: &Donor, creates: bool) -> Result<u64, NotYet> {
        let (mut taken, mut after) = (0, Bytes::new());
        loop {
            let next =
                messages::SyncJournal { sync: donor.source.snapshot, after: after.clone(), limit: ENTRIES };
            let connection = &donor.source.connection;
            let page: messages::JournalRecords = connection.call(Method::SyncJournal, &next, ANSWER).await?;
            let Some(last) = page.records.last() else { break };
            after = last.key.clone();
            let entries = page.records.into_iter().map(entry_of).filter(|entry| entry.is_create == creates);
            let lacking = self.lacking_operations(donor.group, entries.collect()).await?;
            taken += lacking.len() as u64;
            let takes = lacking.into_iter().map(|entry| self.take_operation(donor, entry));
            let mut takes = stream::iter(takes).buffer_unordered(FILES);
            while let Some(outcome) = takes.next().await {
                outcome?;
            }
            if !page.more {
                break;
            }
        }
        Ok(taken)
    }

    async fn take_operation(&self, donor: &Donor, entry: JournalEntry) -> Result<(), NotYet> {
        let is_create = entry.is_create;
        let operation = match is_create {
            false => taken_delete(&entry, entry.fid, entry.op),
            true => {
                let fetched = self.fetch(&donor.source, entry.vid, &entry.name, entry.fid, true);
                match fetched.await? {
                    Some(operation) => operation,
                    None => {
                        self.wait_for_burial(entry.vid, entry.name.clone(), entry.fid).await?;
                        record(&entry)
                    }
                }
            }
        };
        self.take(donor.group, entry.vid, operation).await
    }

    /// Takes over what lies below the donor's horizon: files, of which nobody has the operations any more.
    async fn take_files(&self, donor: &Donor) -> Result<u64, NotYet> {
        let (mut taken, mut after) = (0, Bytes::new());
        loop {
            let next =
                messages::SyncNext { sync: donor.source.snapshot, after: after.clone(), limit: ENTRIES };
            let connection = &donor.source.connection;
            let page: messages::SyncEntries = connection.call(Method::SyncNext, &next, ANSWER).await?;
            let Some(last) = page.entries.last() else { break };
            after = last.key.clone();
            let lacking = self.lacking_files(page.entries).await?;
            taken += lacking.len() as u64;
            let takes = lacking.into_iter().map(|entry| self.take_file(donor, entry));
            let mut takes = stream::iter(takes).buffer_unordered(FILES);
            while let Some(outcome) = takes.next().await {
                outcome?;
            }
            if !page.more {
                break;
            }
        }
        Ok(taken)
    }

    async fn take_file(&self, donor: &Donor, entry: SnapshotEntry) -> Result<(), NotYet> {
        let fetched = self.fetch(&donor.source, entry.vid, &entry.name, entry.fid, false);
        match fetched.await? {
            Some(operation) => self.take(donor.group, entry.vid, operation).await,
            None => self.wait_for_burial(entry.vid, entry.name, entry.fid).await,
        }
    }

    /// A file of the snapshot that the donor has no more was deleted since. That delete is sent to this
    /// member, too; one whose client died before is in the next snapshot's journal. Without either this
    /// member would lack a file that others keep.
    async fn wait_for_burial(&self, vid: VolumeId, name: Bytes, fid: FileId) -> Result<(), NotYet> {
        for _ in 0..BURIAL_LOOKS {
            let (store, name) = (self.store.clone(), name.clone());
            let is_over = blocking(move || Ok(store.is_over_by_name(vid, &name, fid)?));
            if is_over.await? {
                return Ok(());
            }
            tokio::time::sleep(BURIAL_PAUSE).await;
        }
        Err(NotYet::Changed)
    }

    /// Those files of a page that this member has not got.
    pub(crate) async fn lacking_files(
        &self,
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
                if store.lacks_file(&entry)? {
                    lacking.push(entry);
                }
            }
            Ok(lacking)
        });
        Ok(lacking.await?)
    }

    /// Ends names with two files, by what the donor's snapshot has under them (VOL-19).
    async fn settle_names(&self, donor: &Donor) -> Result<(), NotYet> {
        let (store, group) = (self.store.clone(), donor.group);
        let disputed = blocking(move || Ok(store.disputed(group, DISPUTED)?));
        for disputed in disputed.await? {
            let ask = messages::SyncName {
                sync: donor.source.snapshot,
                volume: disputed.vid.0,
                name: disputed.name.clone(),
            };
            let connection = &donor.source.connection;
            let named: messages::SyncNamed = connection.call(Method::SyncName, &ask, ANSWER).await?;
            let theirs = named.fid.map(|fid| FileId(id(Some(fid))));
            let Some(stays) = settle_name(&disputed.claims, &donor.closed_before, theirs) else {
                continue;
            };
            for loser in disputed.claims.iter().filter(|claim| claim.fid != stays) {
                let op = self.ids.lock().draw_op_above(self.map.now_ms(), loser.op);
                let bury = Operation::TakeOverDelete {
                    vid: disputed.vid,
                    name: disputed.name.clone(),
                    fid: loser.fid,
                    op,
                };
                tracing::info!(%group, loser = %loser.fid, "of two files of a name one goes");
                self.settle_one(donor, bury).await?;
            }
        }
        Ok(())
    }

    /// Buries a file that loses its name, in the view in which the donor was asked only: what members had
    /// closed there says nothing in a later one, in which they may have taken back a seal from the future
    /// (VOL-43).
    async fn settle_one(&self, donor: &Donor, bury: Operation) -> Result<(), NotYet> {
        match self.apply(donor.group, donor.asked_in, bury).await? {
            Ok(_) => Ok(()),
            Err(NotHeld::Failed(error)) => Err(NotYet::Here(error.into())),
            Err(_) => Err(NotYet::Changed),
        }
    }

    pub(crate) async fn take(
        &self,
        group: GroupId,
        vid: VolumeId,
        operation: Operation,
    ) -> Result<(), NotYet> {
        if vid.birth_group() != group {
            return Err(NotYet::Here(Status::new(Code::Invalid, "a donor shows another group")));
        }
        loop {
            let epoch = self.own_epoch(group)?;
            match self.apply(group, epoch, operation.clone()).await? {
                Ok(_) => return Ok(()),
                Err(NotHeld::OtherEpoch { .. } | NotHeld::Unwanted) => {}
                Err(NotHeld::NoMember) => return Err(NotYet::Changed),
                Err(NotHeld::Refused(answer)) => {
                    return Err(NotYet::Here(Status::new(Code::Internal, format!("{answer:?}"))));
                }
                Err(NotHeld::Denied { reason }) => {
                    return Err(NotYet::Here(Status::new(Code::Denied, reason)));
                }
                Err(NotHeld::Failed(error)) => return Err(NotYet::Here(error.into())),
            }
        }
    }

    fn own_epoch(&self, group: GroupId) -> Result<Epoch, NotYet> {
        let membership = self.store.membership(group).map_err(Status::from)?;
        membership.map(|membership| membership.epoch).ok_or(NotYet::Changed)
    }

    /// Becomes whole in the present epochs, in those groups in which no operation could hold without this
    /// member since before the epoch in which the donor was asked; these are returned. What is to be told is
    /// written down, then the master knows it, in one call: from then on operations may hold by this member's
    /// word.
    pub(crate) async fn be_whole(&self, ready: &[Ready]) -> Result<Vec<GroupId>, NotYet> {
        let _turn = self.entering.lock().await;
        let mut taken = Vec::new();
        for ready in ready {
            taken.extend(self.taken(ready)?);
        }
        if taken.is_empty() {
            return Ok(Vec::new());
        }
        let (store, all) = (self.store.clone(), taken.clone());
        let begun = blocking(move || Ok(store.begin_whole(&all)?));
        let begun: BTreeSet<GroupId> = begun.await?.into_iter().collect();
        let mut whole_now = Vec::new();
        let mut told: Vec<(GroupId, Epoch)> =
            taken.into_iter().map(|taken| (taken.group, taken.epoch)).collect();
        told.retain(|(group, _)| begun.contains(group));
        for part in told.chunks(MOST_WHOLE) {
            let groups =
                part.iter().map(|(group, epoch)| messages::GroupIn { group: group.0, epoch: epoch.0 });
            let whole = messages::BecomeWhole { disk: self.disk().0, groups: groups.collect() };
            let became: messages::BecameWhole =
                self.masters.call(Method::BecomeWhole, &whole, ANSWER).await?;
            let part: Vec<(GroupId, Epoch)> =
                part.iter().copied().filter(|(group, _)| !became.refused.contains(&group.0)).collect();
            let store = self.store.clone();
            let ended = blocking(move || Ok(store.end_whole(&part)?));
            let ended = ended.await?;
            let whole = ended.iter().filter(|own| own.role.is_in_sync());
            whole_now.extend(whole.map(|own| own.group));
            self.tell(ended);
        }
        Ok(whole_now)
    }

    /// What is to be written down of a group; none: the view has changed, or damage was met.
    fn taken(&self, ready: &Ready) -> Result<Option<Taken>, NotYet> {
        let group = ready.group;
        // What was given up since was not among what was compared.
        if self.repairs.is_under_way(group) || self.repairs.generation(group) != ready.generation {
            return Ok(None);
        }
        let epoch = self.own_epoch(group)?;
        let cached = self.map.cached(group).filter(|cached| cached.view.epoch == epoch);
        let Some(cached) = cached else {
            return Ok(None);
        };
        let members = cached.view.members.iter().zip(&cached.missed);
        let mut own = members.filter(|((disk, _), _)| *disk == self.disk());
        let may_be = own.next().is_some_and(|((_, role), missed)| *missed < ready.asked_in && role.is_up());
        Ok(may_be.then_some(Taken { group, epoch, closing: ready.closing }))
    }
}

#[cfg(test)]
mod tests;
