//! Whole members compare their files with each other once an hour, though nothing has gone wrong that anybody
//! noticed.
//!
//! Journals say what is different between members for as long as they have them; what a disk forgets later,
//! without an error, nobody would miss before the last member that has it is gone. So a member compares
//! counts and digests of all files of a group with those of another whole member, another one each time.
//! Where they differ, it looks which files are there and not here; what is older than the group's horizon
//! should be on all, so it is damage, and comes back like after any damage. What is here and not there the
//! other finds when it compares itself.
//!
//! Design: docs/design/cluster.md#rules VOL-34
//! Not here: how what is lacking comes back (`repairing`, `syncing`).

use crate::{answers::blocking, data_server::DataServer, status::Status, syncing::NotYet};
use bytes::Bytes;
use copal_client::{CallError, Connection, machine, name_of_server};
use copal_data::{Membership, Span, Verified};
use copal_proto::{CallClass, Method, id, messages};
use copal_volume::group::{Bucket, DiskId, GroupId};
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// Between two comparisons of a group by one member.
const EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at which group is due.
const LOOK: Duration = Duration::from_secs(10);
/// Files that are compared at a time, and the pause between: reads and changes of clients come first.
const FILES: usize = 1000;
const PAUSE: Duration = Duration::from_millis(20);
/// How often files are looked at again before they are said to differ: they come and go meanwhile.
const TRIES: usize = 5;
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Files of the other member that are asked for at a time.
const ENTRIES: u32 = 500;
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Another whole member of a group.
struct Other {
    server: String,
    connection: Connection,
}

impl DataServer {
    /// Compares groups with other members until the task is dropped.
    pub async fn compare_groups(self: Arc<Self>) {
        let mut due: BTreeMap<GroupId, Instant> = BTreeMap::new();
        let mut turn = 0;
        loop {
            tokio::time::sleep(LOOK).await;
            let Ok(memberships) = self.store.memberships() else {
                continue;
            };
            due.retain(|group, _| memberships.iter().any(|own| own.group == *group));
            for own in memberships {
                let at = *due.entry(own.group).or_insert_with(|| machine::now() + somewhen());
                if machine::now() < at {
                    continue;
                }
                due.insert(own.group, machine::now() + EVERY);
                turn += 1;
                match self.compare_group(own, turn).await {
                    Ok(()) => {}
                    Err(error) => tracing::debug!(group = %own.group, %error, "a group was not compared"),
                }
            }
        }
    }

    async fn compare_group(&self, own: Membership, turn: usize) -> Result<(), NotYet> {
        if !own.role.is_in_sync() {
            return Ok(());
        }
        let Some(other) = self.other_whole(own, turn).await? else {
            return Ok(());
        };
        let is_equal = self.has_equal_files(own, &other).await?;
        self.repairs.compared.fetch_add(1, Ordering::Relaxed);
        if is_equal {
            return Ok(());
        }
        let lacking = self.lacks_of(own, &other).await?;
        let now = self.store.membership(own.group).ok().flatten();
        if !now.is_some_and(|now| now.epoch == own.epoch && now.role.is_in_sync()) {
            return Ok(());
        }
        if lacking == 0 {
            // Clients write all the time, or the other one lacks something: it finds that when it compares
            // itself.
            tracing::debug!(group = %own.group, from = other.server, "files differ, and none that is old is lacking here");
            return Ok(());
        }
        self.repairs.differing.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            group = %own.group,
            from = other.server,
            files = lacking,
            "files are lacking here without an error: they are taken over again"
        );
        self.repairs.met(own.group);
        Ok(())
    }

    /// A whole member besides this one, another each time.
    async fn other_whole(&self, own: Membership, turn: usize) -> Result<Option<Other>, NotYet> {
        let me = self.disk();
        let view = self.map.view(own.group).filter(|view| view.epoch == own.epoch);
        let whole = view.map(|view| view.in_sync().filter(|disk| *disk != me).collect());
        let whole: Vec<DiskId> = whole.unwrap_or_default();
        let Some(&disk) = whole.get(turn % whole.len().max(1)) else {
            return Ok(None);
        };
        let Some(place) = self.map.place(disk) else {
            return Ok(None);
        };
        let name = name_of_server(&place.server_uuid);
        let connection = self.connections.connect(&place.address, name, CallClass::Recovery).await?;
        Ok(Some(Other { server: place.server, connection }))
    }

    /// Whether both have the same files, or what differs is on its way.
    async fn has_equal_files(&self, own: Membership, other: &Other) -> Result<bool, NotYet> {
        let mut after = Bytes::new();
        loop {
            let mut tries = 0;
            let last = loop {
                let here = self.files_here(own.group, after.clone()).await?;
                let there = files_there(own, other, &after, &here).await?;
                if (here.files, here.digest) == (there.files, id(there.digest)) {
                    break here.more.then_some(here.last);
                }
                tries += 1;
                if tries == TRIES {
                    return Ok(false);
                }
                tokio::time::sleep(TRY_AGAIN).await;
            };
            match last {
                None => return Ok(true),
                Some(last) => after = last,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn files_here(&self, group: GroupId, after: Bytes) -> Result<Verified, Status> {
        let store = self.store.clone();
        blocking(move || {
            let span =
                Span { after: Some(&*after).filter(|after| !after.is_empty()), until: None, limit: FILES };
            Ok(store.verify(group, span, false)?)
        })
        .await
    }

    /// Files of the other member that are lacking here and should be on all members.
    async fn lacks_of(&self, own: Membership, other: &Other) -> Result<usize, NotYet> {
        let open = messages::SyncOpen { group: own.group.0, epoch: own.epoch.0, disk: self.disk().0 };
        let opened: messages::SyncOpened = other.connection.call(Method::SyncOpen, &open, ANSWER).await?;
        let counted = self.count_lacking(opened.sync, own.horizon.min(Bucket(opened.horizon)), other).await;
        let close = messages::SyncClose { sync: opened.sync };
        // A snapshot that is not closed goes by itself.
        let _: Result<messages::Done, CallError> =
            other.connection.call(Method::SyncClose, &close, ANSWER).await;
        counted
    }

    async fn count_lacking(&self, sync: u64, horizon: Bucket, other: &Other) -> Result<usize, NotYet> {
        let (mut lacking, mut after) = (0, Bytes::new());
        loop {
            let next = messages::SyncNext { sync, after: after.clone(), limit: ENTRIES };
            let page: messages::SyncEntries = other.connection.call(Method::SyncNext, &next, ANSWER).await?;
            let Some(last) = page.entries.last() else {
                return Ok(lacking);
            };
            after = last.key.clone();
            let here = self.lacking_files(page.entries).await?;
            lacking += here.iter().filter(|entry| Bucket::of(entry.op) < horizon).count();
            if !page.more {
                return Ok(lacking);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn files_there(
    own: Membership,
    other: &Other,
    after: &Bytes,
    here: &Verified,
) -> Result<messages::Verified, CallError> {
    let verify = messages::Verify {
        group: own.group.0,
        epoch: own.epoch.0,
        after: after.clone(),
        until: if here.more { here.last.clone() } else { Bytes::new() },
        limit: 10 * FILES as u32,
        deep: false,
    };
    other.connection.call(Method::Verify, &verify, ANSWER).await
}

/// The first comparisons after a start do not come all at once.
fn somewhen() -> Duration {
    let drawn = machine::draw().unwrap_or(0) as u32;
    EVERY.mul_f64(f64::from(drawn) / f64::from(u32::MAX))
}
