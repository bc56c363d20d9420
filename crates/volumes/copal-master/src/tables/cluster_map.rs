//! The map in memory: servers and groups as rows, and the views of groups with their epochs.

use crate::tables::meta_store::{GroupRow, MemberKind, MissedMember, PoolConfig, ServerRow};
use copal_volume::group::{DiskId, Epoch, GroupId, View};
use std::collections::BTreeMap;

/// The map in memory, equal to the database.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    pub(crate) pool: PoolConfig,
    pub(crate) version: u64,
    pub(crate) servers: BTreeMap<u32, ServerRow>,
    pub(crate) groups: BTreeMap<GroupId, GroupRow>,
    /// Members that may lack operations, each with the newest version from which on operations could complete
    /// without it.
    pub(crate) missed: BTreeMap<MissedMember, u64>,
}

impl ClusterMap {
    pub(crate) fn new(
        pool: PoolConfig,
        version: u64,
        servers: Vec<ServerRow>,
        groups: Vec<GroupRow>,
        missed: Vec<(MissedMember, u64)>,
    ) -> ClusterMap {
        ClusterMap {
            pool,
            version,
            servers: servers.into_iter().map(|server| (server.disk, server)).collect(),
            groups: groups.into_iter().map(|group| (group.group, group)).collect(),
            missed: missed.into_iter().collect(),
        }
    }

    /// The view of a group. A member's role follows from the state of its server. The epoch is the newest
    /// version of the group and of its members' servers.
    #[must_use]
    pub fn view(&self, group: &GroupRow) -> View {
        let mut epoch = group.version;
        let mut members = Vec::with_capacity(group.members.len());
        for &(disk, kind) in &group.members {
            let Some(server) = self.servers.get(&disk) else {
                continue;
            };
            epoch = epoch.max(server.version);
            members.push((DiskId(disk), server.state.role(kind)));
        }
        View {
            group: group.group,
            epoch: Epoch(epoch),
            members,
            replicas: self.pool.replicas,
            min_ack: self.pool.min_ack,
        }
    }

    /// The server of a disk.
    pub fn server(&self, disk: u32) -> Option<&ServerRow> {
        self.servers.get(&disk)
    }

    /// All servers.
    pub fn servers(&self) -> impl Iterator<Item = &ServerRow> {
        self.servers.values()
    }

    /// The server with a name.
    pub fn server_named(&self, name: &str) -> Option<&ServerRow> {
        self.servers.values().find(|server| server.name == name)
    }

    /// Servers of the members of a group that are up.
    pub fn members_up(&self, group: GroupId) -> Vec<ServerRow> {
        let members = self.groups.get(&group).map(|row| row.members.as_slice());
        let servers = members.unwrap_or_default().iter().filter_map(|(disk, _)| self.servers.get(disk));
        servers.filter(|server| !server.is_away()).cloned().collect()
    }

    /// Views that are newer than a version.
    pub fn views_since(&self, since: u64) -> impl Iterator<Item = View> + '_ {
        let views = self.groups.values().map(|group| self.view(group));
        views.filter(move |view| view.epoch.0 > since)
    }

    /// Records members without which operations can complete from `version` on. For a member that joins in
    /// `version`, they could until the version before.
    pub(crate) fn record_missed(&mut self, missed: Vec<MissedMember>, version: u64) {
        for (group, disk) in missed {
            let members = self.groups.get(&group).map(|row| row.members.as_slice());
            let is_joining = members.unwrap_or_default().contains(&(disk, MemberKind::Joining));
            self.missed.insert((group, disk), version - u64::from(is_joining));
        }
    }

    /// Members of the groups that are down while operations can complete without them, and for which that is
    /// not recorded since their failure. `resynced`: disk that is about to count as in sync in these groups.
    pub(crate) fn newly_missed<'a>(
        &self,
        groups: impl Iterator<Item = &'a GroupRow>,
        resynced: Option<u32>,
    ) -> Vec<MissedMember> {
        let mut found = Vec::new();
        for group in groups {
            let view = self.view(group);
            // Operations complete only if a member that is up is in sync. A member that has missed operations
            // is recorded until it has resynced.
            let can_complete = view
                .up()
                .any(|disk| resynced == Some(disk.0) || !self.missed.contains_key(&(group.group, disk.0)));
            if view.up().count() < view.needed() || !can_complete {
                continue;
            }
            for &(disk, role) in &view.members {
                let key = (group.group, disk.0);
                // While a server is down, its version is that of its failure.
                let since = self.servers.get(&disk.0).map_or(0, |server| server.version);
                let known = self.missed.get(&key).is_some_and(|&version| version >= since);
                if !role.is_up() && !known {
                    found.push(key);
                }
            }
        }
        found
    }

    /// Groups that a disk is a member of.
    pub fn groups_of(&self, disk: u32) -> impl Iterator<Item = &GroupRow> {
        let is_member = move |group: &&GroupRow| group.members.iter().any(|(member, _)| *member == disk);
        self.groups.values().filter(is_member)
    }
}
