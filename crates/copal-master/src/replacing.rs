//! Copies that are gone for good, and the members that take their place.
//!
//! A server that was away for longer than `permanent_after_ms`, or that an operator gave up, keeps its place in each of its
//! groups until another disk has everything: the new member joins (M), takes all operations at once and copies the rest from
//! a whole one; when it says that it is whole, it takes the place of the one that is gone. An old member that comes back
//! first ends the copying.
//!
//! Paper:  beanfs §4.3 (permanent failures), §5.3 (re-replication)
//! Invariant: a member leaves a group only in the change by which the full number of others is whole.

use crate::{
    layout,
    master::{Master, MasterError, Mastered, Reign},
    meta::{GroupRow, MemberKind, Members, ServerRow, ServerState},
};
use copal_volume::{
    VolumeError,
    group::{GroupId, Role},
};
use std::collections::BTreeMap;

/// Groups that one disk takes in, or gives out, at a time.
const SLOTS: u32 = 8;

impl Master {
    /// Gives a server up: its groups are copied from others at once, and it is not let back in. Says it again without harm.
    /// # Errors
    /// `NotFound`; `Denied`: it is there, so whoever means it stops it first.
    pub fn lose(&self, name: &str, now_ms: u64) -> Mastered<()> {
        let mut reign = self.reign.lock();
        let found = reign.map.servers.values().find(|server| server.name == name);
        let mut server = found.cloned().ok_or(VolumeError::NotFound)?;
        match server.state {
            ServerState::Lost => return Ok(()),
            ServerState::Failed => {}
            ServerState::Normal | ServerState::Recovering => {
                let reason = format!(
                    "{name} is not taken for failed: what is there is not given up; stop its process, and wait until \
                     `copal status` says that it is down"
                );
                return Err(MasterError::Denied(reason));
            }
        }
        server.state = ServerState::Lost;
        reign.change(server)?;
        reign.note(
            now_ms,
            "lost",
            &format!("{name} is given up: its groups are copied from others"),
        )?;
        reign.replace(self.options.permanent_after_ms, now_ms)?;
        self.changed.notify_all();
        Ok(())
    }
}

impl Reign {
    /// Brings groups nearer to their full number of copies: members that are whole take their place, new ones join where a
    /// copy is gone for good.
    pub(crate) fn replace(&mut self, permanent_after_ms: u64, now_ms: u64) -> Mastered<()> {
        let gone: Vec<u32> = self
            .map
            .servers
            .values()
            .filter(|server| is_gone(server, permanent_after_ms, now_ms))
            .map(|server| server.disk)
            .collect();
        let is_joining = |row: &GroupRow| row.members.iter().any(|(_, kind)| *kind == MemberKind::Joining);
        let concerned: Vec<GroupId> = self
            .map
            .groups
            .values()
            .filter(|row| is_joining(row) || row.members.iter().any(|(disk, _)| gone.contains(disk)))
            .map(|row| row.group)
            .collect();
        let mut slots = self.used_slots();
        let mut changes = Vec::new();
        for group in concerned {
            if let Some(members) = self.next_members(group, &gone, &mut slots) {
                changes.push((group, members));
            }
        }
        if !changes.is_empty() {
            self.change_members(changes)?;
        }
        self.drop_servers_without_groups(now_ms)
    }

    /// Members of a group that come next; `None`: as they are.
    fn next_members(&self, group: GroupId, gone: &[u32], slots: &mut BTreeMap<u32, u32>) -> Option<Members> {
        let row = self.map.groups.get(&group)?;
        let view = self.map.view(row);
        let replicas = usize::from(view.replicas);
        let is_present = |disk: u32| {
            self.map
                .servers
                .get(&disk)
                .is_some_and(|server| !server.is_away())
        };
        // By its own word, in this view: nothing less lets a copy go.
        let is_whole = |disk: u32| is_present(disk) && self.told(&view, disk) == Some(Role::Normal);
        let mut members = row.members.clone();
        // What has become whole is a member as any.
        for (disk, kind) in &mut members {
            if *kind == MemberKind::Joining && is_whole(*disk) {
                *kind = MemberKind::Full;
            }
        }
        let whole = members
            .iter()
            .filter(|(disk, kind)| *kind == MemberKind::Full && is_whole(*disk))
            .count();
        if whole >= replicas {
            members.retain(|(disk, kind)| match kind {
                MemberKind::Joining => false,
                MemberKind::Full | MemberKind::Leaving => is_whole(*disk) || !gone.contains(disk),
            });
        }
        // A joining member that went away makes room for one that is there.
        members.retain(|(disk, kind)| *kind != MemberKind::Joining || !gone.contains(disk));
        let staying = members.iter().filter(|(disk, kind)| match kind {
            MemberKind::Full => !gone.contains(disk),
            MemberKind::Joining => is_present(*disk),
            MemberKind::Leaving => false,
        });
        let lacking = replicas.saturating_sub(staying.count());
        // Nobody to copy from: a new member would be one more that waits.
        let donor = members
            .iter()
            .find(|(disk, _)| is_whole(*disk))
            .map(|(disk, _)| *disk);
        if let (1.., Some(donor)) = (lacking, donor)
            && let Some(new) = self.new_member(group, &members, slots)
        {
            *slots.entry(new).or_default() += 1;
            *slots.entry(donor).or_default() += 1;
            members.push((new, MemberKind::Joining));
            members.sort_unstable_by_key(|(disk, _)| *disk);
        }
        (members != row.members).then_some(members)
    }

    /// A disk for a group: the best by the layout among those that are there, are no member and have a slot.
    fn new_member(&self, group: GroupId, members: &Members, slots: &BTreeMap<u32, u32>) -> Option<u32> {
        let candidates: Vec<ServerRow> = self
            .map
            .servers
            .values()
            .filter(|server| server.state == ServerState::Normal && !server.is_draining)
            .filter(|server| members.iter().all(|(disk, _)| *disk != server.disk))
            .filter(|server| slots.get(&server.disk).is_none_or(|used| *used < SLOTS))
            .cloned()
            .collect();
        layout::ranked(group, &candidates).first().copied()
    }

    fn used_slots(&self) -> BTreeMap<u32, u32> {
        let mut used = BTreeMap::new();
        for row in self.map.groups.values() {
            for (disk, kind) in &row.members {
                if *kind == MemberKind::Joining {
                    *used.entry(*disk).or_default() += 1;
                }
            }
        }
        used
    }

    /// A server that was given up and holds no group any more is forgotten.
    fn drop_servers_without_groups(&mut self, now_ms: u64) -> Mastered<()> {
        let lost = self.map.servers.values();
        let lost: Vec<(u32, String)> = lost
            .filter(|server| server.state == ServerState::Lost)
            .filter(|server| self.map.groups_of(server.disk).next().is_none())
            .map(|server| (server.disk, server.name.clone()))
            .collect();
        for (disk, name) in lost {
            self.meta.remove_server(disk)?;
            self.map.servers.remove(&disk);
            self.watches.remove(&disk);
            self.note(
                now_ms,
                "replaced",
                &format!("{name} is gone: all its groups lie on others"),
            )?;
        }
        Ok(())
    }
}

fn is_gone(server: &ServerRow, permanent_after_ms: u64, now_ms: u64) -> bool {
    match server.state {
        ServerState::Lost => true,
        ServerState::Failed => now_ms.saturating_sub(server.failed_since_ms) >= permanent_after_ms,
        ServerState::Normal | ServerState::Recovering => false,
    }
}
