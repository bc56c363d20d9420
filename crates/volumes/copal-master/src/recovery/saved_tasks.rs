//! Orders of administrators that outlive a term: boosts, moves, and the pause of all moves.
//!
//! Paper: beanfs §5.3
//! Invariant: an order is answered after the database has it.

use crate::{
    error::MasterResult,
    recovery::recovery_state::{GroupMove, RecoveryState},
    tables::meta_store::{MetaStore, TaskKind, TaskRow, setting},
};
use copal_volume::group::GroupId;
use std::collections::BTreeMap;

impl RecoveryState {
    /// Reads the orders from the database.
    pub(crate) fn load_tasks(&mut self, tables: &mut dyn MetaStore) -> MasterResult<()> {
        self.are_moves_paused = tables.settings()?.contains_key(setting::REBALANCE_PAUSED);
        for task in tables.tasks()? {
            match task {
                TaskRow::Boost { group, by } => {
                    self.boosts.insert(group, by);
                }
                TaskRow::Move { group, from, to } => {
                    self.moves.insert(group, GroupMove { from, to, is_ordered: true });
                }
            }
            self.saved_tasks.insert((task.kind(), task.group()), task);
        }
        Ok(())
    }

    /// The orders that the database is to have now.
    fn present_tasks(&self) -> BTreeMap<(TaskKind, GroupId), TaskRow> {
        let boosts = self.boosts.iter().map(|(&group, &by)| TaskRow::Boost { group, by });
        let moves = self
            .moves
            .iter()
            .filter(|(_, ordered)| ordered.is_ordered)
            .map(|(&group, ordered)| TaskRow::Move { group, from: ordered.from, to: ordered.to });
        boosts.chain(moves).map(|task| ((task.kind(), task.group()), task)).collect()
    }

    /// Writes changed orders to the database.
    pub(crate) fn save_tasks(&mut self, tables: &mut dyn MetaStore) -> MasterResult<()> {
        let present = self.present_tasks();
        let saved = &self.saved_tasks;
        if *saved == present {
            return Ok(());
        }
        let is_new = |(key, task): &(&(TaskKind, GroupId), &TaskRow)| saved.get(*key) != Some(*task);
        let keep: Vec<TaskRow> = present.iter().filter(is_new).map(|(_, task)| *task).collect();
        let forget = saved.keys().filter(|key| !present.contains_key(*key));
        let forget: Vec<(TaskKind, GroupId)> = forget.copied().collect();
        tables.change_tasks(&keep, &forget)?;
        self.saved_tasks = present;
        Ok(())
    }

    /// Pauses the begin of all moves, or ends the pause.
    pub(crate) fn pause_moves(&mut self, tables: &mut dyn MetaStore, is_paused: bool) -> MasterResult<()> {
        if self.are_moves_paused != is_paused {
            tables.set_setting(setting::REBALANCE_PAUSED, is_paused.then_some("1"))?;
            self.are_moves_paused = is_paused;
        }
        Ok(())
    }
}
