//! Who is a member of what, and where: the rows as views, with their epochs.

use crate::tables::meta_store::{GroupRow, MemberKind, Missed, Pool, ServerRow};
use copal_volume::group::{DiskId, Epoch, GroupId, View};
use std::collections::BTreeMap;

/// The map in memory, as the database has it.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    pub(crate) pool: Pool,
    pub(crate) version: u64,
    pub(crate) servers: BTreeMap<u32, ServerRow>,
    pub(crate) groups: BTreeMap<GroupId, GroupRow>,
    /// Newest version from which on operations could hold without a member.
    pub(crate) missed: BTreeMap<Missed, u64>,
}

impl ClusterMap {
    pub(crate) fn new(
        pool: Pool,
        version: u64,
        servers: Vec<ServerRow>,
        groups: Vec<GroupRow>,
        missed: Vec<(Missed, u64)>,
    ) -> ClusterMap {
        ClusterMap {
            pool,
            version,
            servers: servers.into_iter().map(|server| (server.disk, server)).collect(),
            groups: groups.into_iter().map(|group| (group.group, group)).collect(),
            missed: missed.into_iter().collect(),
        }
    }

    /// The view of a group: its members' states as their servers', and the newest version of any of them as
    /// its epoch.
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

    /// The server of a name.
    pub fn server_named(&self, name: &str) -> Option<&ServerRow> {
        self.servers.values().find(|server| server.name == name)
    }

    /// Servers of a group's members that take part in operations.
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

    /// Remembers members without which operations can hold from `version` on; for who joins with it, they
    /// could until then.
    pub(crate) fn note_missed(&mut self, missed: Vec<Missed>, version: u64) {
        for (group, disk) in missed {
            let members = self.groups.get(&group).map(|row| row.members.as_slice());
            let is_joining = members.unwrap_or_default().contains(&(disk, MemberKind::Joining));
            self.missed.insert((group, disk), version - u64::from(is_joining));
        }
    }

    /// Members of some groups that are away while operations can hold without them, and that are not known to
    /// have missed anything since they went.
    pub(crate) fn newly_missed<'a>(&self, groups: impl Iterator<Item = &'a GroupRow>) -> Vec<Missed> {
        let mut found = Vec::new();
        for group in groups {
            let view = self.view(group);
            // Somebody of those that are up has everything: who missed something says so before it is whole
            // again.
            let may_hold = view.up().any(|disk| !self.missed.contains_key(&(group.group, disk.0)));
            if view.up().count() < view.needed() || !may_hold {
                continue;
            }
            for &(disk, role) in &view.members {
                let key = (group.group, disk.0);
                // The server's version is that of its failure, as long as it is away.
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
