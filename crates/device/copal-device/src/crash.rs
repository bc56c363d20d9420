//! Enumeration of every state that a crash may leave behind, from a recorded history.
//!
//! At any step a device holds its durable image plus any subset of the changes that no completed flush
//! covers, each torn at logical blocks (C1-C4). [`HistoryCut`] holds both for one step. [`CrashStates`]
//! enumerates the states: all of them while there are few open blocks, beyond that a fixed choice of subsets
//! and seeded samples.
//!
//! ```
//! use copal_device::{crash, fault::FaultDevice, AlignedBuf, Device};
//! let dev = FaultDevice::new(1 << 20, 7);
//! dev.write_through(0, AlignedBuf::zeroed(4096))?;
//! for cut in crash::cuts(&dev.history()) {
//!     for state in cut.states(&crash::StateLimits::default()) {
//!         let survivor = state.device(); // open the store on it, check what it says
//!         assert_eq!(survivor.geometry().size, 1 << 20);
//!     }
//! }
//! # Ok::<(), copal_device::DeviceError>(())
//! ```
//!
//! Paper: Draconis §4.2 asks for atomicity and ordering; these states test both.

mod cut;
mod states;

pub use cut::HistoryCut;
pub use states::{CrashState, CrashStates, StateLimits};

use crate::record::DeviceHistory;
use cut::HistoryReplay;

/// The states at one step of `history`, replayed from its start. For many steps use [`cuts`].
///
/// # Panics
/// When the history has fewer than `step` events.
#[must_use]
pub fn states(history: &DeviceHistory, step: usize, limits: &StateLimits) -> CrashStates {
    assert!(step <= history.len(), "step {step} of a history of {}", history.len());
    let mut replay = HistoryReplay::new(history);
    history.events[..step].iter().for_each(|event| replay.event(event));
    replay.cut(step).states(limits)
}

/// The cut at each of [`DeviceHistory::cut_points`], in one pass.
pub fn cuts(history: &DeviceHistory) -> impl Iterator<Item = HistoryCut> {
    cuts_at(history, history.cut_points())
}

/// The cut at every step, in one pass: complete and slow.
pub fn all_cuts(history: &DeviceHistory) -> impl Iterator<Item = HistoryCut> {
    cuts_at(history, (0..=history.len()).collect())
}

fn cuts_at(history: &DeviceHistory, steps: Vec<usize>) -> impl Iterator<Item = HistoryCut> {
    let mut replay = HistoryReplay::new(history);
    let mut at = 0;
    steps.into_iter().map(move |step| {
        history.events[at..step].iter().for_each(|event| replay.event(event));
        at = step;
        replay.cut(step)
    })
}

#[cfg(test)]
mod tests;
