//! Shared database of several masters: real tables in memory, and the lease as a database server keeps it.
//!
//! Invariant: each change checks the lease first; only its holder can change a table.
//!
//! Not here: the contents of the tables (`copal_master::SqliteStore`).

use super::world::World;
use copal_master::{
    ClientRow, ClusterRow, DirRow, EventRow, GroupRow, LEASE_MS, LeaseHolder, LeaseOutcome, MemberList,
    MetaError, MetaOutcome, MetaStore, MissedMember, PoolConfig, QuotaRow, ServerRow, SqliteStore, TaskKind,
    TaskRow, VolumePlace,
};
use copal_volume::{VolumeId, group::GroupId};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc};

struct Tables {
    sqlite: SqliteStore,
    /// Leader, term, and end of the lease by the database's clock.
    leader: Option<(LeaseHolder, u64, u64)>,
    is_away: bool,
}

/// Shared database of the masters. Cheap to clone.
#[derive(Clone)]
pub(super) struct Database {
    world: Arc<World>,
    tables: Arc<Mutex<Tables>>,
}

impl Database {
    /// A database with an empty cluster whose masters have joined.
    pub(super) fn new(
        world: &Arc<World>,
        uuid: [u8; 16],
        pool: PoolConfig,
        masters: &[String],
    ) -> Result<Database, MetaError> {
        let mut sqlite = SqliteStore::in_memory()?;
        sqlite.create_cluster(uuid, pool)?;
        // The master that founds a cluster leads it first.
        sqlite.lead(LeaseHolder([0; 24]))?;
        masters.iter().try_for_each(|address| sqlite.add_master(address))?;
        let tables = Tables { sqlite, leader: None, is_away: false };
        Ok(Database { world: Arc::clone(world), tables: Arc::new(Mutex::new(tables)) })
    }

    /// Makes the database answer no master, or answer again.
    pub(super) fn set_away(&self, is_away: bool) {
        self.tables.lock().is_away = is_away;
    }

    /// View of one master.
    pub(super) fn session(&self) -> Session {
        Session { database: self.clone(), fence: None }
    }
}

/// A master's connection to the database.
pub(super) struct Session {
    database: Database,
    fence: Option<(LeaseHolder, u64)>,
}

fn away() -> MetaError {
    MetaError::Failed("it does not answer".to_owned())
}

impl Session {
    fn look<T>(
        &mut self,
        run: impl FnOnce(&mut SqliteStore) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        let mut tables = self.database.tables.lock();
        match tables.is_away {
            true => Err(away()),
            false => run(&mut tables.sqlite),
        }
    }

    fn change<T>(
        &mut self,
        run: impl FnOnce(&mut SqliteStore) -> Result<T, MetaError>,
    ) -> Result<T, MetaError> {
        let mut tables = self.database.tables.lock();
        if tables.is_away {
            return Err(away());
        }
        // Fencing as in a database server: by holder and term. The lease had no other holder meanwhile.
        let leads = tables.leader.map(|(holder, term, _)| (holder, term));
        match self.fence.is_some() && leads == self.fence {
            true => run(&mut tables.sqlite),
            false => {
                self.database.world.sometimes("deposed master refused");
                Err(MetaError::Deposed)
            }
        }
    }
}

impl MetaStore for Session {
    fn lead(&mut self, holder: LeaseHolder) -> Result<LeaseOutcome, MetaError> {
        let now_ms = self.database.world.now_ms();
        let mut tables = self.database.tables.lock();
        if tables.is_away {
            return Err(away());
        }
        if let Some((of, _, ends_ms)) = tables.leader.filter(|(of, ..)| *of != holder)
            && ends_ms >= now_ms
        {
            self.fence = None;
            debug_assert!(of != holder);
            return Ok(LeaseOutcome::Theirs { left_ms: ends_ms - now_ms });
        }
        let term = match tables.sqlite.lead(holder)? {
            LeaseOutcome::Mine { term } => term,
            theirs => return Ok(theirs),
        };
        tables.leader = Some((holder, term, now_ms + LEASE_MS));
        self.fence = Some((holder, term));
        Ok(LeaseOutcome::Mine { term })
    }

    fn renew(&mut self) -> Result<bool, MetaError> {
        let now_ms = self.database.world.now_ms();
        let mut tables = self.database.tables.lock();
        if tables.is_away {
            return Err(away());
        }
        let leads = tables.leader.map(|(holder, term, _)| (holder, term));
        let Some((holder, term)) = self.fence.filter(|own| leads == Some(*own)) else {
            return Ok(false);
        };
        tables.leader = Some((holder, term, now_ms + LEASE_MS));
        Ok(true)
    }

    fn has_lease(&self) -> bool {
        true
    }

    fn create_cluster(&mut self, uuid: [u8; 16], pool: PoolConfig) -> Result<(), MetaError> {
        self.look(|tables| tables.create_cluster(uuid, pool))
    }

    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError> {
        self.look(|tables| tables.cluster())
    }

    fn raise_counters(&mut self, version: u64, term: u64) -> Result<u64, MetaError> {
        let raised = self.change(|tables| tables.raise_counters(version, term))?;
        let mut tables = self.database.tables.lock();
        tables.leader = tables.leader.map(|(holder, _, ends_ms)| (holder, raised, ends_ms));
        self.fence = self.fence.map(|(holder, _)| (holder, raised));
        Ok(raised)
    }

    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError> {
        self.look(|tables| tables.settings())
    }

    fn set_setting(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError> {
        self.change(|tables| tables.set_setting(name, value))
    }

    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError> {
        self.look(|tables| tables.tasks())
    }

    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError> {
        self.change(|tables| tables.change_tasks(keep, forget))
    }

    fn masters(&mut self) -> Result<Vec<String>, MetaError> {
        self.look(|tables| tables.masters())
    }

    fn add_master(&mut self, address: &str) -> Result<(), MetaError> {
        self.change(|tables| tables.add_master(address))
    }

    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError> {
        self.look(|tables| tables.servers())
    }

    fn add_server(&mut self, server: &ServerRow) -> Result<(u32, u64), MetaError> {
        self.change(|tables| tables.add_server(server))
    }

    fn change_server(&mut self, server: &ServerRow, missed: &[MissedMember]) -> Result<u64, MetaError> {
        self.change(|tables| tables.change_server(server, missed))
    }

    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError> {
        self.change(|tables| tables.remove_server(disk))
    }

    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError> {
        self.look(|tables| tables.groups())
    }

    fn change_groups(
        &mut self,
        groups: &[(GroupId, MemberList)],
        missed: &[MissedMember],
    ) -> Result<u64, MetaError> {
        self.change(|tables| tables.change_groups(groups, missed))
    }

    fn forget_missed(
        &mut self,
        disk: u32,
        groups: &[GroupId],
        missed: &[MissedMember],
        version: u64,
    ) -> Result<(), MetaError> {
        self.change(|tables| tables.forget_missed(disk, groups, missed, version))
    }

    fn missed_members(&mut self) -> Result<Vec<(MissedMember, u64)>, MetaError> {
        self.look(|tables| tables.missed_members())
    }

    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError> {
        self.look(|tables| tables.resolve(path))
    }

    fn mkdir(
        &mut self,
        parent: VolumeId,
        name: &str,
        group: GroupId,
        quota: Option<u64>,
    ) -> MetaOutcome<VolumeId> {
        self.change(|tables| tables.mkdir(parent, name, group, quota))
    }

    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError> {
        self.look(|tables| tables.quotas(since))
    }

    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError> {
        self.look(|tables| tables.find(vid))
    }

    fn list(
        &mut self,
        parent: VolumeId,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<DirRow>, MetaError> {
        self.look(|tables| tables.list(parent, after, limit))
    }

    fn mark_removing(&mut self, at: VolumePlace<'_>, is_removing: bool) -> MetaOutcome<()> {
        self.change(|tables| tables.mark_removing(at, is_removing))
    }

    fn unmark_all(&mut self) -> Result<u64, MetaError> {
        self.change(SqliteStore::unmark_all)
    }

    fn remove(&mut self, at: VolumePlace<'_>) -> MetaOutcome<u64> {
        self.change(|tables| tables.remove(at))
    }

    fn removed_volumes(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError> {
        self.look(|tables| tables.removed_volumes(since))
    }

    fn forget_removed_volume(&mut self, vid: VolumeId) -> Result<(), MetaError> {
        self.change(|tables| tables.forget_removed_volume(vid))
    }

    fn rename(&mut self, from: VolumePlace<'_>, parent: VolumeId, name: &str) -> MetaOutcome<()> {
        self.change(|tables| tables.rename(from, parent, name))
    }

    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError> {
        self.look(|tables| tables.volumes_by_group())
    }

    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError> {
        self.change(|tables| tables.add_token(hash, ends_ms))
    }

    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError> {
        self.change(|tables| tables.take_token(hash, now_ms))
    }

    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError> {
        self.look(|tables| tables.clients())
    }

    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError> {
        self.change(|tables| tables.add_client(client))
    }

    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError> {
        self.change(|tables| tables.remove_client(name))
    }

    fn add_event(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError> {
        self.change(|tables| tables.add_event(now_ms, kind, text))
    }

    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError> {
        self.look(|tables| tables.events(after, limit))
    }
}
