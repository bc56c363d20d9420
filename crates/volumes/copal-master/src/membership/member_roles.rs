//! Roles of members, by their own reports and by the map.

use crate::leader::leader_state::LeaderState;
use copal_volume::group::{Role, View};

/// The role of a member in a view. Its own report of this epoch counts while it is up, because only the
/// member knows when it is in sync.
pub(crate) fn effective_role(state: &LeaderState, view: &View, disk: u32, role: Role) -> Role {
    match reported_role(state, view, disk) {
        Some(own) if role.is_up() => own,
        _ => role,
    }
}

/// The role that a member has reported in exactly this view; `None`: not yet.
pub(crate) fn reported_role(state: &LeaderState, view: &View, disk: u32) -> Option<Role> {
    let activity = state.activity.get(&disk)?;
    let &(epoch, own) = activity.roles.get(&view.group)?;
    (epoch == view.epoch).then_some(own)
}

/// Members that are in sync, by their own report or, before they report, by the state of their server.
pub(crate) fn in_sync_members(state: &LeaderState, view: &View) -> Vec<u32> {
    let members = view.members.iter();
    let in_sync = members.filter(|&&(disk, role)| effective_role(state, view, disk.0, role).is_in_sync());
    in_sync.map(|(disk, _)| disk.0).collect()
}
