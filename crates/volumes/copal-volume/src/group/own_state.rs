//! State of a member in a new view: in sync, or short of what it missed.
//!
//! An operation holds only when every member that is up has said so in the epoch of its view (VOL-12). So a
//! member that was whole once lacks nothing for as long as no view without it could let an operation hold: a
//! boot within seconds, a master that was away, even the loss of power everywhere leave it whole. The newest
//! epoch in which operations could hold without the member is what the master remembers of it, and tells it
//! with each view. It forgets that when the member says that it has everything again; the member writes down
//! before that it says so, since the answer may not come back.
//!
//! Paper:  beanfs §5.1 (replica states)
//! Design: docs/design/cluster.md#rules VOL-15
//! Not here: how what was missed is found and taken over (`copal-data`), who counts as up (`copal-master`).

use super::{role::Role, view::Epoch};

/// What a disk knows about itself in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnState {
    /// Its state.
    pub role: Role,
    /// The newest epoch in which it was whole, or had everything and was about to tell the master; 0: never,
    /// or not since it was damaged.
    pub last_normal: Epoch,
}

/// State of a member in a view that tells it `told`, when operations could hold without it in `missed` last;
/// 0: never, or not since it told the master that it has everything. `own` is none where the disk has never
/// taken part in the group.
pub fn own_role(own: Option<OwnState>, told: Role, missed: Epoch) -> Role {
    // Whatever it missed: only the master's word ends it, or operations would hold by this member's word
    // without the master's writing down who lacks them.
    let is_known = missed == Epoch(0);
    let is_whole = match own {
        Some(own) => is_known && own.last_normal > Epoch(0),
        // It was a member from the first, and nothing ever held without it: nothing can be missing.
        None => is_known && !told.is_joining(),
    };
    match told {
        _ if is_whole => Role::Normal,
        Role::Joining => Role::Joining,
        // Who is told to be away, and hears it, is back.
        Role::Normal | Role::Recovering | Role::Failed => Role::Recovering,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(role: Role, last_normal: u64) -> Option<OwnState> {
        Some(OwnState { role, last_normal: Epoch(last_normal) })
    }

    #[test]
    fn who_missed_nothing_stays_whole() {
        for told in [Role::Normal, Role::Recovering, Role::Failed, Role::Joining] {
            for role in [Role::Normal, Role::Recovering] {
                assert_eq!(own_role(own(role, 7), told, Epoch(0)), Role::Normal, "also after a boot");
            }
        }
    }

    /// Symptom: a group stood still for ever, none of its members whole. Cause: a member had told the master
    /// that it has everything, and the answer was lost; it did not take itself for whole, while the master
    /// counted others as having missed what could have held by its word. Fix: it writes down before that it
    /// tells the master, and is whole when it hears that nothing is known to be missing. Before that it is
    /// not, whatever it wrote down.
    #[test]
    fn who_told_the_master_is_whole_once_the_master_knows() {
        let said = own(Role::Recovering, 9);
        assert_eq!(own_role(said, Role::Recovering, Epoch(0)), Role::Normal);
        assert_eq!(own_role(said, Role::Recovering, Epoch(6)), Role::Recovering);
        assert_eq!(own_role(said, Role::Joining, Epoch(6)), Role::Joining);
    }

    /// Symptom: a member that was taken for away became whole without a file that was acknowledged meanwhile.
    /// Cause: it took a snapshot over in the very epoch in which nobody waited for it, and that epoch counted
    /// as one it had not missed.
    /// Fix: only a later one does.
    #[test]
    fn the_epoch_that_was_missed_is_not_enough() {
        for told in [Role::Normal, Role::Recovering, Role::Failed] {
            assert_eq!(own_role(own(Role::Normal, 8), told, Epoch(8)), Role::Recovering);
        }
    }

    #[test]
    fn who_missed_a_view_that_could_acknowledge_is_not() {
        for told in [Role::Normal, Role::Recovering, Role::Failed] {
            assert_eq!(own_role(own(Role::Normal, 7), told, Epoch(8)), Role::Recovering);
        }
        assert_eq!(own_role(own(Role::Joining, 0), Role::Joining, Epoch(8)), Role::Joining);
        assert_eq!(own_role(own(Role::Recovering, 0), Role::Normal, Epoch(0)), Role::Recovering);
    }

    #[test]
    fn a_new_group_is_whole_on_a_new_member_and_an_old_one_is_not() {
        assert_eq!(own_role(None, Role::Normal, Epoch(0)), Role::Normal);
        assert_eq!(own_role(None, Role::Normal, Epoch(3)), Role::Recovering);
        assert_eq!(own_role(None, Role::Joining, Epoch(0)), Role::Joining);
        // Symptom: a group whose servers were killed in the first second stood still for ever. Cause: those
        // that had not heard of the group yet came back as if they lacked something. Fix: nothing was ever
        // held without them.
        assert_eq!(own_role(None, Role::Recovering, Epoch(0)), Role::Normal);
    }
}
