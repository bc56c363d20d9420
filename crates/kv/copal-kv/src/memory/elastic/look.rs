//! State of the adjuster for reports.

use super::{adjust::ElasticFilters, filtered::FilteredTable, state::SeenProbes};
use copal_filter::rules::{PartitionId, RuleKind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Present state of one partition.
#[derive(Default)]
pub(crate) struct PartitionLook {
    /// Number of loaded units.
    pub(crate) units: u8,
    pub(crate) unit_bytes: u32,
    pub(crate) heat: f64,
    pub(crate) seen: SeenProbes,
}

/// Units of all stores that share the memory, and the moves since it was made.
pub(crate) struct UnitTotals {
    pub(crate) rule: RuleKind,
    /// Limit of all units, bytes.
    pub(crate) budget_bytes: u64,
    /// Charged units, bytes.
    pub(crate) loaded_bytes: u64,
    pub(crate) gets: u64,
    pub(crate) loads: u64,
    pub(crate) cold_starts: u64,
    pub(crate) predicted: u64,
    pub(crate) drops: u64,
    pub(crate) retired: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) dropped_probes: u64,
}

impl ElasticFilters {
    pub(crate) fn totals(&self) -> UnitTotals {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (budget_bytes, loaded_bytes) = {
            let state = self.state.lock();
            (self.budget(&state), state.charged)
        };
        let moves = &self.moves;
        UnitTotals {
            rule: self.options.rule,
            budget_bytes,
            loaded_bytes,
            gets: self.now(),
            loads: load(&moves.loads),
            cold_starts: load(&moves.cold),
            predicted: load(&moves.predicted),
            drops: load(&moves.drops),
            retired: load(&moves.retired),
            refused: load(&moves.refused),
            failed: load(&moves.failed),
            dropped_probes: self.sampler.dropped(),
        }
    }

    /// State of partition `index` of `table`; `None`: it is not registered. Takes the adjuster's lock.
    pub(crate) fn look(&self, table: &dyn FilteredTable, index: u32) -> Option<PartitionLook> {
        let number = table.slot(index).number()?;
        let now = self.now();
        let mut state = self.state.lock();
        let heat = state.rule.heat(PartitionId(number.0), now).0;
        let part = state.same(number, table, index)?;
        Some(PartitionLook { units: part.units, unit_bytes: part.shape.unit_bytes, heat, seen: part.seen })
    }
}
