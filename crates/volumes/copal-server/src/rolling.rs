//! Rolling forward: what is closed everywhere and lies on some members only comes to all of them.
//!
//! A client that dies in mid-create leaves its file on some members. Once its bucket is closed on all that
//! take part, each that lacks the operation takes it over, deletes before creates. Where two whole members
//! have two files of one name, which nobody was ever told to hold, the higher is buried.
//!
//! Design: docs/design/cluster.md#rules VOL-20
//! Invariant: nothing is taken that is not closed on every member that takes part.

use crate::{
    answers::{blocking, encoded},
    data_server::DataServer,
    fetching::{FetchError, Source},
    heard::closed_by_all,
    status::Status,
};
use bytes::Bytes;
use copal_client::name_of_server;
use copal_data::{JournalEntry, NotHeld, Operation};
use copal_proto::{
    CallClass, Method, id,
    messages::{self, failure::Code},
    of_id,
};
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{Bucket, Claim, Closing, DiskId, Epoch, Forward, GroupId, OwnTold, Role, View, roll_forward},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// How long an answer of the other member may take.
const ANSWER: Duration = Duration::from_secs(30);
/// Operations that are asked for at a time.
const RECORDS: u32 = 500;

/// A group as this member has it while it takes over from another.
struct Rolling<'a> {
    group: GroupId,
    epoch: Epoch,
    roles: (Role, Role),
    closings: &'a [Closing],
    source: Source,
}

impl DataServer {
    /// Takes over from every other member what is closed everywhere and missing here.
    pub(crate) async fn roll(
        &self,
        group: GroupId,
        view: &View,
        own: &OwnTold,
        heard: &BTreeMap<DiskId, OwnTold>,
    ) -> Result<(), Status> {
        let closings = closed_by_all(view, (self.disk(), own.closing), heard);
        let Some(closed) = closings.iter().map(|closing| closing.below).min() else {
            return Ok(());
        };
        for (&disk, theirs) in heard {
            if !theirs.is_covered {
                continue;
            }
            let from = own.horizon.max(theirs.horizon);
            let buckets: BTreeSet<Bucket> =
                theirs.digests.range(from..closed.max(from)).map(|(at, _)| *at).collect();
            let unequal = |bucket: &Bucket| theirs.digests.get(bucket) != own.digests.get(bucket);
            let unequal: Vec<Bucket> = buckets.into_iter().filter(unequal).collect();
            let Some(place) = self.map.place(disk).filter(|_| !unequal.is_empty()) else {
                continue;
            };
            let name = name_of_server(&place.server_uuid);
            let Ok(connection) = self.connections.connect(&place.address, name, CallClass::Recovery).await
            else {
                continue;
            };
            let rolling = Rolling {
                group,
                epoch: own.epoch,
                roles: (own.role, theirs.role),
                closings: &closings,
                source: Source { connection, snapshot: 0 },
            };
            // Deletes of all buckets first: what is deleted is not copied.
            for creates in [false, true] {
                for &bucket in &unequal {
                    self.roll_bucket(&rolling, bucket, creates).await?;
                }
            }
        }
        Ok(())
    }

    async fn roll_bucket(&self, rolling: &Rolling<'_>, bucket: Bucket, creates: bool) -> Result<(), Status> {
        let mut after = Bytes::new();
        loop {
            let request = messages::JournalOf {
                group: rolling.group.0,
                epoch: rolling.epoch.0,
                bucket: bucket.0,
                after: after.clone(),
                limit: RECORDS,
            };
            let connection = &rolling.source.connection;
            let page: Result<messages::JournalRecords, _> =
                connection.call(Method::JournalOf, &request, ANSWER).await;
            let page = page.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            let Some(last) = page.records.last() else {
                return Ok(());
            };
            after = last.key.clone();
            let entries = page.records.into_iter().map(entry_of);
            let wanted = entries.filter(|entry| entry.is_create == creates && Bucket::of(entry.op) == bucket);
            for entry in self.lacking_operations(rolling.group, wanted.collect()).await? {
                self.roll_operation(rolling, entry).await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn roll_operation(&self, rolling: &Rolling<'_>, entry: JournalEntry) -> Result<(), Status> {
        if entry.vid.birth_group() != rolling.group {
            return Err(Status::new(Code::Invalid, "a member shows another group"));
        }
        if !entry.is_create {
            return self.roll_one(rolling, taken_delete(&entry, entry.fid, entry.op)).await;
        }
        let theirs = Claim { fid: entry.fid, op: entry.op };
        let store = self.store.clone();
        let (vid, name, fid) = (entry.vid, entry.name.clone(), entry.fid);
        let known = blocking(move || {
            let is_over = store.is_over_by_name(vid, &name, fid)?;
            Ok((is_over, store.claim(vid, &name)?))
        });
        let (is_over, bound) = known.await?;
        if is_over {
            return self.roll_one(rolling, record(&entry)).await;
        }
        match roll_forward(rolling.roles, &theirs, bound.as_ref(), rolling.closings) {
            Forward::Wait => Ok(()),
            Forward::Take => self.roll_create(rolling, &entry).await,
            Forward::Bury { loser } if loser == entry.fid => {
                self.bury(rolling, &entry, loser, bound.as_ref()).await?;
                self.roll_one(rolling, record(&entry)).await
            }
            // Only what the other still has takes the place of what is here: the other may have buried it
            // when it became whole, since what is here was acknowledged.
            Forward::Bury { loser } => match self.fetch_created(rolling, &entry).await? {
                Some(operation) => {
                    self.bury(rolling, &entry, loser, bound.as_ref()).await?;
                    self.roll_one(rolling, operation).await
                }
                None => Ok(()),
            },
        }
    }

    /// Buries one of two files of a name.
    async fn bury(
        &self,
        rolling: &Rolling<'_>,
        entry: &JournalEntry,
        loser: FileId,
        bound: Option<&Claim>,
    ) -> Result<(), Status> {
        let after = bound.map_or(entry.op, |own| own.op).max(entry.op);
        let op = self.ids.lock().draw_op_above(self.map.now_ms(), after);
        tracing::info!(group = %rolling.group, %loser, "of two files of a name that nobody was told to hold, one goes");
        self.roll_one(rolling, taken_delete(entry, loser, op)).await
    }

    async fn roll_create(&self, rolling: &Rolling<'_>, entry: &JournalEntry) -> Result<(), Status> {
        match self.fetch_created(rolling, entry).await? {
            Some(operation) => self.roll_one(rolling, operation).await,
            None => Ok(()),
        }
    }

    /// The file of a create as the other has it; `None`: deleted there, by what is not closed yet and comes
    /// later.
    async fn fetch_created(
        &self,
        rolling: &Rolling<'_>,
        entry: &JournalEntry,
    ) -> Result<Option<Operation>, Status> {
        let fetched = self.fetch(&rolling.source, entry.vid, &entry.name, entry.fid, true);
        fetched.await.map_err(|error| match error {
            FetchError::Here(error) => error,
            FetchError::Call(error) => Status::new(Code::Unavailable, error.to_string()),
        })
    }

    async fn roll_one(&self, rolling: &Rolling<'_>, operation: Operation) -> Result<(), Status> {
        match self.apply(rolling.group, rolling.epoch, operation).await? {
            Ok(_) => Ok(()),
            Err(NotHeld::Failed(error)) => Err(error.into()),
            // Another view, or the name was taken meanwhile: the next round decides anew.
            Err(
                NotHeld::Refused(_)
                | NotHeld::OtherEpoch { .. }
                | NotHeld::NoMember
                | NotHeld::Unwanted
                | NotHeld::Denied { .. },
            ) => Ok(()),
        }
    }

    /// Those of another member's operations that are missing in the journal here.
    pub(crate) async fn lacking_operations(
        &self,
        group: GroupId,
        entries: Vec<JournalEntry>,
    ) -> Result<Vec<JournalEntry>, Status> {
        let store = self.store.clone();
        blocking(move || {
            let mut lacking = Vec::new();
            for entry in entries {
                if store.lacks_operation(group, &entry)? {
                    lacking.push(entry);
                }
            }
            Ok(lacking)
        })
        .await
    }

    /// Operations of a closed bucket, for a member that lacks some.
    pub(crate) async fn show_journal(self: Arc<Self>, request: messages::JournalOf) -> Result<Bytes, Status> {
        let group = GroupId(request.group);
        self.matched(group, Epoch(request.epoch)).await?;
        blocking(move || {
            let limit = request.limit.clamp(1, RECORDS) as usize;
            let after = Some(&*request.after).filter(|after| !after.is_empty());
            let entries = self.store.journal_of(group, Bucket(request.bucket), after, limit)?;
            Ok(encoded(&of_entries(entries, limit)))
        })
        .await
    }
}

/// A delete that another member has, or that ends a name with two files.
pub(crate) fn taken_delete(entry: &JournalEntry, fid: FileId, op: OpId) -> Operation {
    Operation::TakeOverDelete { vid: entry.vid, name: entry.name.clone(), fid, op }
}

/// A create whose file is deleted.
pub(crate) fn record(entry: &JournalEntry) -> Operation {
    Operation::Record { vid: entry.vid, name: entry.name.clone(), fid: entry.fid, op: entry.op }
}

pub(crate) fn of_entries(entries: Vec<JournalEntry>, limit: usize) -> messages::JournalRecords {
    let more = entries.len() == limit;
    let record = |entry: JournalEntry| messages::JournalRecord {
        key: entry.key,
        op: Some(of_id(entry.op.0)),
        create: entry.is_create,
        volume: entry.vid.0,
        name: entry.name,
        fid: Some(of_id(entry.fid.0)),
    };
    messages::JournalRecords { records: entries.into_iter().map(record).collect(), more }
}

pub(crate) fn entry_of(record: messages::JournalRecord) -> JournalEntry {
    JournalEntry {
        key: record.key,
        op: OpId(id(record.op)),
        is_create: record.create,
        vid: VolumeId(record.volume),
        name: record.name,
        fid: FileId(id(record.fid)),
    }
}

#[cfg(test)]
mod tests;
