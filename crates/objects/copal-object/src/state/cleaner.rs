//! Cleaner state: the round in progress, and segments that cannot be emptied.
//!
//! Not here: the steps (`cleaner`).

pub(crate) mod plan;

use crate::format::{moved_part::MovedPart, run::PageRun};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// When the cleaner runs although no caller waits. Tests change it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CleanerTrigger {
    /// Space is short.
    #[default]
    Shortage,
    /// A segment has a page without an owner.
    #[cfg(test)]
    Always,
    #[cfg(test)]
    Never,
}

impl CleanerTrigger {
    #[cfg(test)]
    pub(crate) fn is_always(self) -> bool {
        self == CleanerTrigger::Always
    }

    #[cfg(not(test))]
    pub(crate) fn is_always(self) -> bool {
        false
    }

    #[cfg(test)]
    pub(crate) fn is_never(self) -> bool {
        self == CleanerTrigger::Never
    }

    #[cfg(not(test))]
    pub(crate) fn is_never(self) -> bool {
        false
    }
}

/// Parts that are read, written and recorded together.
#[derive(Clone, Debug)]
pub(crate) struct MoveBatch {
    /// In the order of their new places.
    pub(crate) parts: Vec<MovedPart>,
    /// Pages of all parts, shared ones once.
    pub(crate) pages: u32,
}

/// A part that is not in a batch yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedPart {
    pub(crate) part: MovedPart,
    /// It can be cut into pieces of so many pages; 0: not at all.
    pub(crate) unit: u32,
}

/// A batch that is being read.
#[derive(Debug)]
pub(crate) struct BatchRead {
    pub(crate) batch: MoveBatch,
    pub(crate) to: PageRun,
    /// The pages of each read command.
    pub(crate) windows: Vec<PageRun>,
    /// Pin of the pages that are read.
    pub(crate) pin: u64,
}

/// A batch whose pages lie in both places.
#[derive(Debug)]
pub(crate) struct BatchCopy {
    pub(crate) parts: Vec<MovedPart>,
    pub(crate) to: PageRun,
    pub(crate) sum: u32,
    /// Epoch that was open when the write of the copy completed.
    pub(crate) epoch: u64,
    /// Pin of the old pages, until the move is entered: an owner that still has them has not changed them.
    pub(crate) pin: u64,
}

/// Progress of a round.
#[derive(Debug)]
pub(crate) enum RoundStep {
    /// The parts are being searched.
    Planning,
    /// The next batch can be read.
    Ready,
    /// A batch is being read or written.
    Copying,
    /// A copy waits for its record.
    Copied(BatchCopy),
    /// All moves are in groups, and the victims become free with the quarantine of this epoch; `None`: their group
    /// is open.
    Draining(Option<u64>),
}

/// A segment that a round did not empty.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StuckSegment {
    /// Owned pages at that time. Once there are fewer, another round is worth it.
    pub(crate) owned: u32,
    /// If the round was cut short: segments that pages could be moved to. Once there are more, another round is worth
    /// it.
    pub(crate) room: Option<u64>,
}

/// Segments that are being emptied.
#[derive(Debug)]
pub(crate) struct CleaningRound {
    pub(crate) victims: Vec<u32>,
    /// Parts to move, in the order of their present places.
    pub(crate) parts: VecDeque<PlannedPart>,
    pub(crate) step: RoundStep,
    /// Parts were left out for want of room.
    pub(crate) is_cut_short: bool,
    /// Segments of parts that an operation changed meanwhile: the rest of these parts was not moved.
    pub(crate) changed: BTreeSet<u32>,
}

/// The cleaner of one store.
#[derive(Debug, Default)]
pub(crate) struct CleanerState {
    pub(crate) round: Option<CleaningRound>,
    /// Segments that another round would not empty, or not fill better.
    pub(crate) stuck: BTreeMap<u32, StuckSegment>,
    /// Pages without an owner when no victim was found.
    pub(crate) searched_at: Option<u64>,
    /// Rounds that ended.
    pub(crate) rounds: u64,
    /// Pages written by moves.
    pub(crate) moved_pages: u64,
    /// Pages of the copy of the present batch: they have no owner until its move is entered.
    pub(crate) copy_pages: u64,
}

impl CleanerState {
    /// Sets the step of the round; returns `true`.
    pub(crate) fn set_step(&mut self, step: RoundStep) -> bool {
        if let Some(round) = &mut self.round {
            round.step = step;
        }
        true
    }

    /// Ends the round without its other batches; returns `true`.
    pub(crate) fn cut_short(&mut self) -> bool {
        if let Some(round) = &mut self.round {
            round.parts.clear();
            round.is_cut_short = true;
        }
        self.set_step(RoundStep::Draining(None))
    }

    /// Whether its pages are being searched, read or written.
    pub(crate) fn is_copying(&self) -> bool {
        let is_busy = |step: &RoundStep| matches!(step, RoundStep::Planning | RoundStep::Copying);
        self.round.as_ref().is_some_and(|round| is_busy(&round.step))
    }

    /// The parts of the round are known.
    pub(crate) fn planned(&mut self, parts: VecDeque<PlannedPart>) {
        if let Some(round) = &mut self.round
            && matches!(round.step, RoundStep::Planning)
        {
            (round.parts, round.step) = (parts, RoundStep::Ready);
        }
    }

    /// The copy of a batch is written while `epoch` is open.
    pub(crate) fn copied(&mut self, copy: BatchCopy) {
        if let Some(round) = &mut self.round {
            round.step = RoundStep::Copied(copy);
        }
    }

    /// The pages of a batch cannot be read: the round goes on without them.
    pub(crate) fn skip_batch(&mut self) {
        if let Some(round) = &mut self.round {
            round.step = RoundStep::Ready;
        }
    }
}
