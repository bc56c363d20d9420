//! The end of a history: every kind of crash in its last life, and crashes inside the recovery from those.

use super::{
    check::{RecoveryOutcome, check, outcome},
    script::{HistoryRunner, TriedStates},
    stores::{fault_device, open},
};
use crate::Store;
use copal_device::{
    crash::{self, StateLimits},
    fault::FaultDevice,
};
use std::sync::Arc;

impl HistoryRunner<'_> {
    /// Every kind of crash in the last life.
    pub(super) fn enumerate(mut self) -> Result<TriedStates, String> {
        self.poll();
        let has_cleaned = self.store.inner.state.lock().cleaner.moved_pages > 0;
        let history = self.world.device().history();
        let cuts: Vec<_> = crash::cuts(&history).filter(|cut| cut.step() >= self.start).collect();
        let limits = StateLimits { exhaustive: 10, samples: 64, seed: self.plan.seed };
        let per_cut = (self.plan.states / cuts.len().max(1)).max(2);
        let mut tried = 0;
        for cut in cuts {
            let states = cut.states(&limits);
            let all = states.count_all();
            for draw in 0..per_cut as u64 {
                if draw >= all {
                    break;
                }
                // All states if they are few; otherwise nothing, everything, and random ones.
                let index = match draw {
                    _ if all <= per_cut as u64 => draw,
                    0 => 0,
                    1 => all - 1,
                    _ => self.random.below(all),
                };
                let Some(state) = states.get(index) else { break };
                tried += 1;
                self.state(&state).map_err(|violation| format!("{violation}; {}", state.describe()))?;
            }
        }
        Ok(TriedStates { all: tried, cleaned: if has_cleaned { tried } else { 0 } })
    }

    fn state(&mut self, state: &crash::CrashState) -> Result<(), String> {
        let step = state.step();
        let crash_again = self.random.one_in(12);
        let first: RecoveryOutcome = if crash_again {
            let device = fault_device(state.image().clone(), self.random.below(1 << 40), !self.discards);
            let tuning = self.checked_tuning();
            let store = open(device.clone(), tuning).map_err(|error| error.to_string())?;
            let first = outcome(&store);
            check(&store, &first, &self.model, step, true)?;
            drop(store);
            self.crash_in_recovery(&device, &first, step)?;
            first
        } else {
            let device = state.device();
            let tuning = self.checked_tuning();
            let store = open(Arc::clone(&device), tuning).map_err(|error| error.to_string())?;
            let first = outcome(&store);
            check(&store, &first, &self.model, step, true)?;
            drop(store);
            let tuning = self.checked_tuning();
            let store = open(device, tuning).map_err(|error| format!("OBJ-30: {error}"))?;
            let second = outcome(&store);
            if second != first {
                return Err(format!("OBJ-30: {first:?}, then {second:?}"));
            }
            check(&store, &second, &self.model, step, true)
                .map_err(|violation| format!("again: {violation}"))?;
            self.epochs_only_grow(state, &store)?;
            first
        };
        drop(first);
        Ok(())
    }

    /// OBJ-10: no epoch number of any record in the journal is used again.
    fn epochs_only_grow(&self, state: &crash::CrashState, store: &Store) -> Result<(), String> {
        let seen = crate::crashes::largest_epoch(state.device().as_ref());
        let open = store.inner.state.lock().commit.open_epoch();
        if open > seen {
            Ok(())
        } else {
            Err(format!("OBJ-10: epoch {open} is open, {seen} was used before"))
        }
    }

    /// Recovery itself crashes, at each of its own events.
    fn crash_in_recovery(
        &mut self,
        device: &FaultDevice,
        first: &RecoveryOutcome,
        step: usize,
    ) -> Result<(), String> {
        let history = device.history();
        let limits = StateLimits { exhaustive: 6, samples: 8, seed: 1 };
        for cut in crash::cuts(&history) {
            for state in cut.states(&limits).take(12) {
                let tuning = self.checked_tuning();
                let store = open(state.device(), tuning).map_err(|error| format!("OBJ-30: {error}"))?;
                let again = outcome(&store);
                if again != *first {
                    return Err(format!("OBJ-30: {first:?}, with a crash inside {again:?}"));
                }
                check(&store, &again, &self.model, step, true)?;
            }
        }
        Ok(())
    }
}
