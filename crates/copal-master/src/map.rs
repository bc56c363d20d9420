//! Who is a member of what, and where: the rows as views, with their epochs.

use crate::meta::{GroupRow, MemberKind, Pool, ServerRow, ServerState};
use copal_volume::group::{DiskId, Epoch, GroupId, Role, View};
use std::collections::BTreeMap;

/// The map in memory, as the database has it.
#[derive(Clone, Debug)]
pub struct ClusterMap {
    pub(crate) pool: Pool,
    pub(crate) version: u64,
    pub(crate) servers: BTreeMap<u32, ServerRow>,
    pub(crate) groups: BTreeMap<GroupId, GroupRow>,
}

impl ClusterMap {
    pub(crate) fn new(
        pool: Pool,
        version: u64,
        servers: Vec<ServerRow>,
        groups: Vec<GroupRow>,
    ) -> ClusterMap {
        ClusterMap {
            pool,
            version,
            servers: servers.into_iter().map(|server| (server.disk, server)).collect(),
            groups: groups.into_iter().map(|group| (group.group, group)).collect(),
        }
    }

    /// The view of a group: its members' states as their servers', and the newest version of any of them as its epoch.
    #[must_use]
    pub fn view(&self, group: &GroupRow) -> View {
        let mut epoch = group.version;
        let mut members = Vec::with_capacity(group.members.len());
        for &(disk, kind) in &group.members {
            let Some(server) = self.servers.get(&disk) else {
                continue;
            };
            epoch = epoch.max(server.version);
            members.push((DiskId(disk), role(server.state, kind)));
        }
        View {
            group: group.group,
            epoch: Epoch(epoch),
            members,
            replicas: self.pool.replicas,
            min_ack: self.pool.min_ack,
        }
    }

    /// Views that are newer than a version.
    pub fn views_since(&self, since: u64) -> impl Iterator<Item = View> + '_ {
        let views = self.groups.values().map(|group| self.view(group));
        views.filter(move |view| view.epoch.0 > since)
    }

    /// Groups that a disk is a member of.
    pub fn groups_of(&self, disk: u32) -> impl Iterator<Item = &GroupRow> {
        let is_member = move |group: &&GroupRow| group.members.iter().any(|(member, _)| *member == disk);
        self.groups.values().filter(is_member)
    }
}

fn role(state: ServerState, kind: MemberKind) -> Role {
    match (state, kind) {
        (ServerState::Failed, _) => Role::Failed,
        (_, MemberKind::Joining) => Role::Joining,
        (ServerState::Recovering, _) => Role::Recovering,
        (ServerState::Normal, _) => Role::Normal,
    }
}
