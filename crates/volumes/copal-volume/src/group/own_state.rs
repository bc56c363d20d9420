//! Role of a disk in a group when it enters a new view: in sync, or recovering.
//!
//! An operation completes only when every member that is up has acknowledged it in the epoch of its view
//! (VOL-12). So a member that was in sync lacks nothing until a view without it could let an operation
//! complete. A restart within seconds, an absent master, even a power loss of all servers leave it in sync.
//!
//! The master stores, for each member, the newest epoch in which operations could complete without it, and
//! sends it with each view. It deletes that epoch when the member reports that it is in sync. The member
//! persists this before it reports, since the reply may be lost.
//!
//! Paper:  beanfs §5.1 (replica states)
//! Design: docs/design/cluster.md#rules VOL-15
//! Not here: finding and copying of missing operations (`copal-data`), which servers are up (`copal-master`).

use super::{role::Role, view::Epoch};

/// Persistent knowledge of a disk about itself in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnState {
    /// Its role.
    pub role: Role,
    /// The newest epoch in which it was in sync, or had everything and was about to report that; 0: never, or
    /// not since it was damaged.
    pub last_in_sync: Epoch,
}

/// Role of a member in a view that gives it the role `assigned`. `missed`: the newest epoch in which operations
/// could complete without it; 0: none, or none since it reported that it is in sync. `own` is none for a disk
/// that has never been a member of the group.
pub fn own_role(own: Option<OwnState>, assigned: Role, missed: Epoch) -> Role {
    // Only the master's record ends a missed epoch. Otherwise operations would complete by this member's
    // word, and the master would not store which members lack them.
    let is_recorded = missed == Epoch(0);
    let is_in_sync = match own {
        Some(own) => is_recorded && own.last_in_sync > Epoch(0),
        // It was a member from the beginning, and no operation ever completed without it: nothing can be
        // missing.
        None => is_recorded && !assigned.is_joining(),
    };
    match assigned {
        _ if is_in_sync => Role::Normal,
        Role::Joining => Role::Joining,
        // A member that reads in a view that it is down is up again.
        Role::Normal | Role::Recovering | Role::Failed => Role::Recovering,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(role: Role, last_in_sync: u64) -> Option<OwnState> {
        Some(OwnState { role, last_in_sync: Epoch(last_in_sync) })
    }

    #[test]
    fn a_member_that_missed_nothing_stays_in_sync() {
        for assigned in [Role::Normal, Role::Recovering, Role::Failed, Role::Joining] {
            for role in [Role::Normal, Role::Recovering] {
                assert_eq!(own_role(own(role, 7), assigned, Epoch(0)), Role::Normal, "also after a boot");
            }
        }
    }

    /// Symptom: a group stood still for ever, none of its members in sync. Cause: a member had reported to
    /// the master that it is in sync, and the reply was lost. It did not take itself for in sync, while the
    /// master counted others as having missed operations that could complete by its word. Fix: it persists
    /// this before it reports, and is in sync when a view lists no missed epoch for it. Before that view it
    /// is not in sync.
    #[test]
    fn a_member_that_reported_is_in_sync_once_the_leader_knows() {
        let persisted = own(Role::Recovering, 9);
        assert_eq!(own_role(persisted, Role::Recovering, Epoch(0)), Role::Normal);
        assert_eq!(own_role(persisted, Role::Recovering, Epoch(6)), Role::Recovering);
        assert_eq!(own_role(persisted, Role::Joining, Epoch(6)), Role::Joining);
    }

    /// Symptom: a member that was taken for down became in sync without a file that was acknowledged
    /// meanwhile.
    /// Cause: it copied a snapshot in the very epoch in which operations completed without it, and that epoch
    /// did not count as missed.
    /// Fix: only a snapshot of a later epoch suffices.
    #[test]
    fn the_epoch_that_was_missed_is_not_enough() {
        for assigned in [Role::Normal, Role::Recovering, Role::Failed] {
            assert_eq!(own_role(own(Role::Normal, 8), assigned, Epoch(8)), Role::Recovering);
        }
    }

    #[test]
    fn a_member_that_missed_an_acknowledging_view_is_not_in_sync() {
        for assigned in [Role::Normal, Role::Recovering, Role::Failed] {
            assert_eq!(own_role(own(Role::Normal, 7), assigned, Epoch(8)), Role::Recovering);
        }
        assert_eq!(own_role(own(Role::Joining, 0), Role::Joining, Epoch(8)), Role::Joining);
        assert_eq!(own_role(own(Role::Recovering, 0), Role::Normal, Epoch(0)), Role::Recovering);
    }

    #[test]
    fn a_new_group_is_in_sync_on_a_new_member_and_an_old_one_is_not() {
        assert_eq!(own_role(None, Role::Normal, Epoch(0)), Role::Normal);
        assert_eq!(own_role(None, Role::Normal, Epoch(3)), Role::Recovering);
        assert_eq!(own_role(None, Role::Joining, Epoch(0)), Role::Joining);
        // Symptom: a group whose servers were killed in the first second stood still for ever. Cause: members
        // that had not heard of the group yet returned as recovering. Fix: no operation ever completed
        // without them, so they are in sync.
        assert_eq!(own_role(None, Role::Recovering, Epoch(0)), Role::Normal);
    }
}
