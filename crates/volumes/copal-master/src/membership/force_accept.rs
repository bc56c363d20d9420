//! A group none of whose members is whole goes on from what one of them has, by an operator's order.
//!
//! A group waits for the last that were whole (VOL-16). Where these never come back, somebody has to say that
//! what is left is all there is. From then on everybody else of the group has missed what held before: a
//! member that comes back after all is not whole, and what only it has comes to the others as what a dead
//! client left does.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Not here: what the member does (`copal-server`).

use crate::master::{Master, MasterError, Mastered, Reign};
use crate::tables::meta_store::{Missed, ServerRow};
use copal_proto::administration::AwayMember;
use copal_volume::{
    VolumeError,
    group::{DiskId, Epoch, GroupId, View},
};

/// A member that a group may go on from.
#[derive(Clone, Debug)]
pub struct Remaining {
    /// Its server.
    pub server: ServerRow,
    /// The present view.
    pub epoch: Epoch,
    /// Members that are away: names, and since when.
    pub away: Vec<AwayMember>,
}

impl Master {
    /// Looks whether a group can go on from what one of its members has.
    /// # Errors
    /// `NotFound`: there is no such group. `Denied`: there is no such server, it is no member or away, one
    /// that is up is whole, or that is not known yet.
    pub fn remaining(&self, group: GroupId, name: &str) -> Mastered<Remaining> {
        self.reign.lock().remaining(group, name)
    }

    /// Takes what a member has for everything that a group has, as an event with `text`: in the next view,
    /// whose epoch is returned, nothing is known that it has missed, and all others have missed what held
    /// before.
    /// # Errors
    /// As [`Master::remaining`]; `Meta`.
    pub fn accept(&self, group: GroupId, name: &str, text: &str, now_ms: u64) -> Mastered<Epoch> {
        let mut reign = self.reign.lock();
        let remaining = reign.remaining(group, name)?;
        let row = reign.map.groups.get(&group).cloned();
        let members = row.ok_or(VolumeError::NotFound)?.members;
        let disk = remaining.server.disk;
        // Before anything is changed: an order that is not on record is not carried out.
        reign.note(now_ms, "force_accept", text)?;
        let others = members.iter().filter(|(other, _)| *other != disk);
        let others: Vec<Missed> = others.map(|(other, _)| (group, *other)).collect();
        let version = reign.meta.change_groups(&[(group, members.clone())], &others)?;
        reign.map.version = version;
        if let Some(row) = reign.map.groups.get_mut(&group) {
            row.version = version;
        }
        reign.map.note_missed(others, version);
        reign.meta.forget_missed(disk, &[group])?;
        reign.map.missed.remove(&(group, disk));
        // One view more: they take part in it, and have missed what was before it.
        reign.change_members(vec![(group, members)])?;
        let epoch = Epoch(reign.map.version);
        drop(reign);
        self.changed.notify_all();
        Ok(epoch)
    }
}

impl Reign {
    fn remaining(&self, group: GroupId, name: &str) -> Mastered<Remaining> {
        let row = self.map.groups.get(&group).ok_or(VolumeError::NotFound)?;
        let Some(server) = self.map.server_named(name).cloned() else {
            return Err(denied(format!("there is no server {name}; `copal node ls` lists them")));
        };
        let view = self.map.view(row);
        match view.role(DiskId(server.disk)) {
            Some(role) if role.is_up() => {}
            Some(_) => return Err(denied(format!("{name} is away: start it first"))),
            None => {
                let reason =
                    format!("{name} is no member of group {group}; `copal group show {group}` lists them");
                return Err(denied(reason));
            }
        }
        self.must_lack(&view)?;
        let away = view
            .members
            .iter()
            .filter(|(_, role)| !role.is_up())
            .filter_map(|(disk, _)| self.map.servers.get(&disk.0));
        let member =
            |server: &ServerRow| AwayMember { name: server.name.clone(), since_ms: server.failed_since_ms };
        Ok(Remaining { epoch: view.epoch, away: away.map(member).collect(), server })
    }

    /// Nobody is to be asked for what another has.
    fn must_lack(&self, view: &View) -> Mastered<()> {
        for disk in view.up() {
            let name = self.map.servers.get(&disk.0).map(|server| server.name.as_str()).unwrap_or_default();
            match self.told(view, disk.0) {
                Some(role) if role.is_in_sync() => {
                    let reason = format!(
                        "{name} has everything of group {}, and the others take it over from there",
                        view.group
                    );
                    return Err(denied(reason));
                }
                Some(_) => {}
                None => {
                    let reason = format!(
                        "{name} has not said yet what it has of group {}; try again in a moment",
                        view.group
                    );
                    return Err(denied(reason));
                }
            }
        }
        Ok(())
    }
}

fn denied(reason: String) -> MasterError {
    MasterError::Denied(reason)
}
