//! Force-accept: a group without an in-sync member continues from the operations that one member has.
//!
//! A group without an in-sync member waits for one of its last in-sync members (VOL-16). If none of these
//! returns, an operator can accept the state of a remaining member as complete. From then on all other members
//! have missed the earlier operations. A member that returns later is not in sync; operations that it alone
//! has reach the others as those of a dead client do.
//!
//! Paper:  beanfs §6 (dead volumes are repaired by hand)
//! Design: docs/design/cluster.md#rules VOL-35
//! Not here: the part of the member (`copal-server`).

use crate::{
    error::{MasterError, MasterResult},
    leader::leader_state::LeaderState,
    membership::member_roles::reported_role,
    tables::meta_store::{MissedMember, ServerRow},
};
use copal_proto::administration::AwayMember;
use copal_volume::{
    VolumeError,
    group::{DiskId, Epoch, GroupId, View},
};

/// A member that a group may continue from.
#[derive(Clone, Debug)]
pub struct RemainingMember {
    /// Its server.
    pub server: ServerRow,
    /// The present view.
    pub epoch: Epoch,
    /// Members that are down: names, and the times of their failures.
    pub away: Vec<AwayMember>,
}

/// Accepts the state of a member as complete; see [`crate::Master::force_accept`].
pub(crate) fn force_accept(
    state: &mut LeaderState,
    group: GroupId,
    name: &str,
    text: &str,
    now_ms: u64,
) -> MasterResult<Epoch> {
    let remaining = remaining_member(state, group, name)?;
    let row = state.map.groups.get(&group).cloned();
    let members = row.ok_or(VolumeError::NotFound)?.members;
    let disk = remaining.server.disk;
    // Before any change: an order that is not recorded is not carried out.
    state.add_event(now_ms, "force_accept", text)?;
    let others = members.iter().filter(|(other, _)| *other != disk);
    let others: Vec<MissedMember> = others.map(|(other, _)| (group, *other)).collect();
    let version = state.tables.change_groups(&[(group, members.clone())], &others)?;
    state.map.version = version;
    if let Some(row) = state.map.groups.get_mut(&group) {
        row.version = version;
    }
    state.map.record_missed(others, version);
    state.tables.forget_missed(disk, &[group], &[], version)?;
    state.map.missed.remove(&(group, disk));
    // One more view: the others take part in it, and have missed the operations of earlier views.
    state.change_members(vec![(group, members)])?;
    Ok(Epoch(state.map.version))
}

/// Checks whether a group can continue from one of its members; see [`crate::Master::remaining_member`].
pub(crate) fn remaining_member(
    state: &LeaderState,
    group: GroupId,
    name: &str,
) -> MasterResult<RemainingMember> {
    let row = state.map.groups.get(&group).ok_or(VolumeError::NotFound)?;
    let Some(server) = state.map.server_named(name).cloned() else {
        return Err(denied(format!("there is no server {name}; `copal node ls` lists them")));
    };
    let view = state.map.view(row);
    match view.role(DiskId(server.disk)) {
        Some(role) if role.is_up() => {}
        Some(_) => return Err(denied(format!("{name} is away: start it first"))),
        None => {
            let reason =
                format!("{name} is no member of group {group}; `copal group show {group}` lists them");
            return Err(denied(reason));
        }
    }
    check_none_in_sync(state, &view)?;
    let away = view
        .members
        .iter()
        .filter(|(_, role)| !role.is_up())
        .filter_map(|(disk, _)| state.map.servers.get(&disk.0));
    let member =
        |server: &ServerRow| AwayMember { name: server.name.clone(), since_ms: server.failed_since_ms };
    Ok(RemainingMember { epoch: view.epoch, away: away.map(member).collect(), server })
}

/// Refuses if a member that is up is in sync, or has not reported yet.
fn check_none_in_sync(state: &LeaderState, view: &View) -> MasterResult<()> {
    for disk in view.up() {
        let name = state.map.servers.get(&disk.0).map(|server| server.name.as_str()).unwrap_or_default();
        match reported_role(state, view, disk.0) {
            Some(role) if role.is_in_sync() => {
                let reason =
                    format!("{name} is in sync in group {}, and the others resync from it", view.group);
                return Err(denied(reason));
            }
            Some(_) => {}
            None => {
                let reason = format!(
                    "{name} has not yet reported its state of group {}; try again in a moment",
                    view.group
                );
                return Err(denied(reason));
            }
        }
    }
    Ok(())
}

fn denied(reason: String) -> MasterError {
    MasterError::Denied(reason)
}
