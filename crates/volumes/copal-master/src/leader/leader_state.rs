//! The leader's state in memory, written through to the tables.
//!
//! Invariant: each change is in the database before it is in memory.

use crate::{
    error::{MasterError, MasterResult},
    leader::{cluster_clocks::ClusterClocks, server_activity::ServerActivity, shared_state::SharedState},
    names::{clients::RemovedClients, volumes::VolumeNames},
    recovery::recovery_state::RecoveryState,
    tables::{
        cluster_map::ClusterMap,
        meta_store::{ClusterRow, GroupRow, MemberKind, MemberList, MetaStore, ServerRow, setting},
    },
};
use copal_volume::{VolumeError, group::GroupId};
use std::{collections::BTreeMap, sync::Arc};

/// Times and counts of a cluster.
#[derive(Clone, Copy, Debug)]
pub struct MasterOptions {
    /// A server counts as failed after so long without a heartbeat.
    pub failed_after_ms: u64,
    /// The groups of a failed server are copied from other servers after so long.
    pub permanent_after_ms: u64,
    /// Number of groups that are copied at once, at least one; `None`: half the number of servers.
    pub copies_at_once: Option<usize>,
    /// The groups of a new cluster get their members when so many servers have joined; `None`: the number
    /// that an earlier start set, or as many as there are copies.
    pub first_servers: Option<usize>,
    /// Accepts tables that are a restored copy, or older than versions that data servers have seen
    /// ([`crate::Master::raise_counters`]).
    pub after_restore: bool,
}

impl Default for MasterOptions {
    fn default() -> MasterOptions {
        MasterOptions {
            failed_after_ms: 10_000,
            permanent_after_ms: 30 * 60_000,
            copies_at_once: None,
            first_servers: None,
            after_restore: false,
        }
    }
}

/// State of the leader of one term.
pub(crate) struct LeaderState {
    pub(crate) tables: Box<dyn MetaStore>,
    pub(crate) map: ClusterMap,
    pub(crate) term: u64,
    pub(crate) options: MasterOptions,
    pub(crate) volumes: VolumeNames,
    pub(crate) removed_clients: RemovedClients,
    /// Reports of the data servers, by disk.
    pub(crate) activity: BTreeMap<u32, ServerActivity>,
    pub(crate) clocks: ClusterClocks,
    /// Waiting and running copies.
    pub(crate) recovery: RecoveryState,
    /// Addresses of all masters.
    pub(crate) masters: Vec<String>,
    /// Number of servers that a new cluster waits for. A server that joins later holds nothing before groups
    /// are moved to it.
    pub(crate) first_servers: usize,
    pub(crate) shared: Arc<SharedState>,
}

impl LeaderState {
    /// Reads the tables at the begin of a term.
    pub(crate) fn load(
        mut tables: Box<dyn MetaStore>,
        cluster: ClusterRow,
        term: u64,
        options: MasterOptions,
    ) -> MasterResult<LeaderState> {
        let masters = tables.masters()?;
        let settings = tables.settings()?;
        let set = settings.get(setting::FIRST_SERVERS);
        let set: usize = set.and_then(|number| number.parse().ok()).unwrap_or_default();
        let first_servers = set.max(cluster.pool.replicas.into());
        let (servers, groups, missed) = (tables.servers()?, tables.groups()?, tables.missed_members()?);
        let map = ClusterMap::new(cluster.pool, cluster.map_version, servers, groups, missed);
        let volumes = VolumeNames::load(&mut *tables)?;
        let mut recovery =
            RecoveryState { copies_at_once: options.copies_at_once, ..RecoveryState::default() };
        recovery.load_tasks(&mut *tables)?;
        Ok(LeaderState {
            tables,
            map,
            term,
            options,
            volumes,
            removed_clients: RemovedClients::of_settings(&settings),
            activity: BTreeMap::new(),
            clocks: ClusterClocks::default(),
            recovery,
            masters,
            first_servers,
            shared: Arc::default(),
        })
    }

    /// Wakes the threads that wait for a new map.
    pub(crate) fn notify_watchers(&self) {
        self.shared.watchers.notify_all();
    }

    /// Adds an event to the log and to the tables.
    pub(crate) fn add_event(&mut self, now_ms: u64, kind: &str, text: &str) -> MasterResult<()> {
        tracing::info!(kind, "{text}");
        Ok(self.tables.add_event(now_ms, kind, text)?)
    }

    /// The server of a name.
    /// # Errors
    /// `NotFound`.
    pub(crate) fn server_named(&self, name: &str) -> MasterResult<ServerRow> {
        let found = self.map.server_named(name).cloned();
        found.ok_or(MasterError::Volume(VolumeError::NotFound))
    }

    /// Changes a server, in the database and then in the map. Members without which operations can complete
    /// from here on are recorded with it.
    pub(crate) fn change_server(&mut self, mut server: ServerRow) -> MasterResult<()> {
        let disk = server.disk;
        let present = self.map.servers.get(&disk).cloned();
        // The missed members follow from the map after the change. Its version is newer than all others.
        server.version = self.map.version + 1;
        self.map.servers.insert(disk, server.clone());
        let missed = self.map.newly_missed(self.map.groups_of(disk), None);
        match self.tables.change_server(&server, &missed) {
            Ok(version) => {
                server.version = version;
                self.map.version = version;
                self.map.servers.insert(disk, server);
                self.map.record_missed(missed, version);
                Ok(())
            }
            Err(error) => {
                match present {
                    Some(present) => self.map.servers.insert(disk, present),
                    None => self.map.servers.remove(&disk),
                };
                Err(error.into())
            }
        }
    }

    /// Changes the members of groups, in the database and then in the map.
    pub(crate) fn change_members(&mut self, groups: Vec<(GroupId, MemberList)>) -> MasterResult<()> {
        let rows = groups.iter().map(|(group, members)| GroupRow {
            group: *group,
            version: self.map.version + 1,
            members: members.clone(),
        });
        let rows: Vec<_> = rows.collect();
        let mut missed = self.map.newly_missed(rows.iter(), None);
        // A new member has missed everything so far.
        for row in &rows {
            let before = self.map.groups.get(&row.group);
            let was_member =
                |disk| before.is_some_and(|before| before.members.iter().any(|(old, _)| *old == disk));
            let new =
                row.members.iter().filter(|(disk, kind)| *kind == MemberKind::Joining && !was_member(*disk));
            missed.extend(new.map(|(disk, _)| (row.group, *disk)));
        }
        let version = self.tables.change_groups(&groups, &missed)?;
        self.map.version = version;
        for mut row in rows {
            row.version = version;
            let group = row.group;
            let members: Vec<u32> = row.members.iter().map(|(disk, _)| *disk).collect();
            self.map.missed.retain(|(of, disk), _| *of != group || members.contains(disk));
            self.map.groups.insert(group, row);
        }
        self.map.record_missed(missed, version);
        Ok(())
    }
}
