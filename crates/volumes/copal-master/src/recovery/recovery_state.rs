//! State of the recovery queue in one term: waiting and running copies, and the reason of each.
//!
//! The database has only the parts that outlive a term: members that join or leave, servers that are being
//! drained, and the orders of administrators. A new leader fills its queue from these (`saved_tasks`).
//!
//! Paper: beanfs §5.3
//! Not here: the replacement of members (`membership::replacement`), the report of tasks
//! (`status::recovery_tasks`), the rules of the queue (`copal_volume::group::recovery`).

use crate::{
    recovery::copy_progress::CopyProgress,
    tables::meta_store::{TaskKind, TaskRow},
};
use copal_volume::group::{GroupId, placement::NoPlace, recovery::RecoveryQueue};
use std::collections::{BTreeMap, BTreeSet};

/// Reason of a copy of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyReason {
    /// A member is lost for good.
    Replace,
    /// The disk of a member is being drained.
    Drain {
        /// The disk that the group leaves.
        from: u32,
    },
    /// A member moves to another disk.
    Move(GroupMove),
}

/// A member that moves from one disk to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupMove {
    /// The disk that the group leaves.
    pub(crate) from: u32,
    /// The disk that takes its place.
    pub(crate) to: u32,
    /// An administrator ordered it, alone or in a plan. Otherwise the master did, because the disk is too
    /// full.
    pub(crate) is_ordered: bool,
}

impl CopyReason {
    pub(crate) fn word(self) -> &'static str {
        match self {
            CopyReason::Replace => "copy",
            CopyReason::Drain { .. } => "drain",
            CopyReason::Move(_) => "move",
        }
    }

    /// The disk that leaves the group when the copy is in sync.
    pub(crate) fn leaving_disk(self) -> Option<u32> {
        match self {
            CopyReason::Replace => None,
            CopyReason::Drain { from } | CopyReason::Move(GroupMove { from, .. }) => Some(from),
        }
    }
}

/// State of the recovery queue in one term.
pub(crate) struct RecoveryState {
    pub(crate) queue: RecoveryQueue,
    /// Reason why a group is in the queue.
    pub(crate) reasons: BTreeMap<GroupId, CopyReason>,
    pub(crate) boosts: BTreeMap<GroupId, u32>,
    /// Time since when a group has lacked a copy, ms.
    pub(crate) lacking_since: BTreeMap<GroupId, u64>,
    /// Moves that have not ended.
    pub(crate) moves: BTreeMap<GroupId, GroupMove>,
    /// Groups that no disk can take.
    pub(crate) without_place: BTreeMap<GroupId, NoPlace>,
    pub(crate) progress: CopyProgress,
    /// Failed servers in the queue's last update.
    pub(crate) failed_servers: BTreeSet<u32>,
    /// Number of the rack of each server in the queue's last update.
    pub(crate) racks: BTreeMap<u32, u32>,
    /// Copies that run at once; `None`: a number that follows from the number of servers.
    pub(crate) copies_at_once: Option<usize>,
    pub(crate) was_held: bool,
    /// Drained servers for which an event says that they are empty.
    pub(crate) reported_empty: BTreeSet<u32>,
    /// No moves begin.
    pub(crate) are_moves_paused: bool,
    /// Orders of administrators, as the database has them.
    pub(crate) saved_tasks: BTreeMap<(TaskKind, GroupId), TaskRow>,
    /// Time of the last search for full disks, ms.
    pub(crate) last_relief_ms: u64,
    /// Disks that stay too full, a sentence each with the reason.
    pub(crate) full_disks: Vec<String>,
    /// Bytes that the target of a copy had taken in when it last progressed, and that time.
    pub(crate) last_progress: BTreeMap<GroupId, (u64, u64)>,
}

impl Default for RecoveryState {
    fn default() -> RecoveryState {
        RecoveryState {
            queue: RecoveryQueue::new(0),
            reasons: BTreeMap::new(),
            boosts: BTreeMap::new(),
            lacking_since: BTreeMap::new(),
            moves: BTreeMap::new(),
            without_place: BTreeMap::new(),
            progress: CopyProgress::default(),
            failed_servers: BTreeSet::new(),
            racks: BTreeMap::new(),
            copies_at_once: None,
            was_held: false,
            reported_empty: BTreeSet::new(),
            are_moves_paused: false,
            saved_tasks: BTreeMap::new(),
            last_relief_ms: 0,
            full_disks: Vec::new(),
            last_progress: BTreeMap::new(),
        }
    }
}

impl RecoveryState {
    /// Moves all times by a step of the reference, so that waits last as long as before. Rates are measured
    /// anew.
    pub(crate) fn move_times(&mut self, step_ms: i64) {
        self.queue.move_times(step_ms);
        self.progress.restart();
        self.last_relief_ms = 0;
        for since_ms in self.lacking_since.values_mut() {
            *since_ms = since_ms.saturating_add_signed(step_ms);
        }
        for (_, at_ms) in self.last_progress.values_mut() {
            *at_ms = at_ms.saturating_add_signed(step_ms);
        }
    }
}
