//! What administrators want of groups, kept for the next reign: boosts, moves, that no moves begin.
//!
//! Paper: beanfs §5.3
//! Invariant: an order is answered when the database has it.

use crate::master::{Mastered, Reign};
use crate::recovery::recovery_state::{Move, Recovery};
use crate::tables::meta_store::{MetaStore, TaskKind, TaskRow, setting};
use copal_volume::group::GroupId;
use std::collections::BTreeMap;

impl Recovery {
    /// Takes up what the database has of it.
    pub(crate) fn take_up(&mut self, meta: &mut dyn MetaStore) -> Mastered<()> {
        self.is_paused = meta.settings()?.contains_key(setting::REBALANCE_PAUSED);
        for task in meta.tasks()? {
            match task {
                TaskRow::Boost { group, by } => {
                    self.boosts.insert(group, by);
                }
                TaskRow::Move { group, from, to } => {
                    let wanted = Move { from, to, is_ordered: true };
                    self.moves.insert(group, wanted);
                }
            }
            self.kept.insert((task.kind(), task.group()), task);
        }
        Ok(())
    }

    /// What is to be in the database now.
    fn wanted_tasks(&self) -> BTreeMap<(TaskKind, GroupId), TaskRow> {
        let boosts = self.boosts.iter().map(|(&group, &by)| TaskRow::Boost { group, by });
        let moves = self
            .moves
            .iter()
            .filter(|(_, wanted)| wanted.is_ordered)
            .map(|(&group, wanted)| TaskRow::Move { group, from: wanted.from, to: wanted.to });
        boosts.chain(moves).map(|task| ((task.kind(), task.group()), task)).collect()
    }
}

impl Reign {
    /// Keeps what has changed of it: nothing is written where nothing has.
    pub(crate) fn keep_tasks(&mut self) -> Mastered<()> {
        let wanted = self.recovery.wanted_tasks();
        let kept = &self.recovery.kept;
        if *kept == wanted {
            return Ok(());
        }
        let is_new = |(key, task): &(&(TaskKind, GroupId), &TaskRow)| kept.get(*key) != Some(*task);
        let keep: Vec<TaskRow> = wanted.iter().filter(is_new).map(|(_, task)| *task).collect();
        let forget = kept.keys().filter(|key| !wanted.contains_key(*key));
        let forget: Vec<(TaskKind, GroupId)> = forget.copied().collect();
        self.meta.change_tasks(&keep, &forget)?;
        self.recovery.kept = wanted;
        Ok(())
    }

    /// No moves begin, or they do again.
    pub(crate) fn pause_moves(&mut self, is_paused: bool) -> Mastered<()> {
        if self.recovery.is_paused != is_paused {
            self.meta.set(setting::REBALANCE_PAUSED, is_paused.then_some("1"))?;
            self.recovery.is_paused = is_paused;
        }
        Ok(())
    }
}
