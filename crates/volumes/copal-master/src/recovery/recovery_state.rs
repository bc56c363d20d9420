//! Copies that wait and copies that run, as the master goes by them in its reign: the queue's rules over the
//! rows of the map.
//!
//! In the database is what has begun: a member that is joining, one that is leaving, a server that is being
//! emptied; and what administrators want: boosts, moves, that no moves begin. A new reign fills its queue
//! from these (`tasks_kept`).
//!
//! Paper: beanfs §5.3
//! Not here: when a member may take another's place (`replacing`), what `status` tells of it (`tasks`), the
//! rules of the queue (`copal_volume::group::recovery`).

use crate::recovery::progress::Progress;
use crate::tables::meta_store::{TaskKind, TaskRow};
use copal_volume::group::{GroupId, placement::NoPlace, recovery::RecoveryQueue};
use std::collections::{BTreeMap, BTreeSet};

/// Why a copy of a group is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// One is gone for good.
    Replace,
    /// The disk of a member is being emptied.
    Drain {
        /// It leaves.
        from: u32,
    },
    /// One is to lie elsewhere.
    Move(Move),
}

/// A copy that goes from one disk to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Move {
    /// It leaves.
    pub(crate) from: u32,
    /// It takes the place.
    pub(crate) to: u32,
    /// An administrator wants it, by itself or in a plan; else the master does, since the disk is too full.
    pub(crate) is_ordered: bool,
}

impl Need {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Need::Replace => "copy",
            Need::Drain { .. } => "drain",
            Need::Move(_) => "move",
        }
    }

    /// Who leaves when the copy is whole.
    pub(crate) fn leaves(self) -> Option<u32> {
        match self {
            Need::Replace => None,
            Need::Drain { from } | Need::Move(Move { from, .. }) => Some(from),
        }
    }
}

/// See the module.
pub(crate) struct Recovery {
    pub(crate) queue: RecoveryQueue,
    /// Why a group is in the queue.
    pub(crate) needs: BTreeMap<GroupId, Need>,
    pub(crate) boosts: BTreeMap<GroupId, u32>,
    /// Since when a group has lacked a copy.
    pub(crate) since: BTreeMap<GroupId, u64>,
    /// Moves that are wanted and have not ended.
    pub(crate) moves: BTreeMap<GroupId, Move>,
    /// Groups that no disk can take.
    pub(crate) without_place: BTreeMap<GroupId, NoPlace>,
    pub(crate) progress: Progress,
    /// Servers that are away, as the queue was told.
    pub(crate) away: BTreeSet<u32>,
    /// The number of the rack of each server, as the queue was told.
    pub(crate) racks: BTreeMap<u32, u32>,
    /// Copies that run at once; none: as many as the number of servers says.
    pub(crate) copies_at_once: Option<usize>,
    pub(crate) was_held: bool,
    /// Servers that were emptied, and are told to be empty.
    pub(crate) empty: BTreeSet<u32>,
    /// No moves begin.
    pub(crate) is_paused: bool,
    /// What administrators want, as the database has it.
    pub(crate) kept: BTreeMap<(TaskKind, GroupId), TaskRow>,
    /// When full disks were looked for last.
    pub(crate) relieved_ms: u64,
    /// Disks that are too full and cannot be brought down, and why.
    pub(crate) stay_full: Vec<String>,
    /// Bytes that the target of a copy had taken in when it got on last, and when that was.
    pub(crate) got_on: BTreeMap<GroupId, (u64, u64)>,
}

impl Default for Recovery {
    fn default() -> Recovery {
        Recovery {
            queue: RecoveryQueue::new(0),
            needs: BTreeMap::new(),
            boosts: BTreeMap::new(),
            since: BTreeMap::new(),
            moves: BTreeMap::new(),
            without_place: BTreeMap::new(),
            progress: Progress::default(),
            away: BTreeSet::new(),
            racks: BTreeMap::new(),
            copies_at_once: None,
            was_held: false,
            empty: BTreeSet::new(),
            is_paused: false,
            kept: BTreeMap::new(),
            relieved_ms: 0,
            stay_full: Vec::new(),
            got_on: BTreeMap::new(),
        }
    }
}

impl Recovery {
    /// The reference has moved: waits last as long as before, rates are measured anew.
    pub(crate) fn move_times(&mut self, step_ms: i64) {
        self.queue.move_times(step_ms);
        self.progress.restart();
        self.relieved_ms = 0;
        for since_ms in self.since.values_mut() {
            *since_ms = since_ms.saturating_add_signed(step_ms);
        }
        for (_, at_ms) in self.got_on.values_mut() {
            *at_ms = at_ms.saturating_add_signed(step_ms);
        }
    }
}
