//! The live checkpoint, and the one in the making: how far it is.
//!
//! Not here: making it (`checkpoint`).

use crate::format::{
    checkpoint::HEAD_LEN,
    run::{Run, pages_of},
    superblock::Superblock,
};

/// Where one chain page goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChainPlace {
    pub(crate) run: Run,
    /// As long; `None` where there is no space for it.
    pub(crate) copy: Option<Run>,
}

impl ChainPlace {
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> + use<> {
        std::iter::once(self.run).chain(self.copy)
    }
}

/// Where a checkpoint in the making stands.
#[derive(Debug, Default)]
pub(crate) enum Step {
    #[default]
    Idle,
    /// Chain pages are on their way.
    Writing(NewCheckpoint),
    /// The chain has to be flushed first.
    Flushing(NewCheckpoint, u64),
    /// The superblock is on its way.
    Switching(NewCheckpoint),
    /// The superblock has to be flushed.
    Finishing(NewCheckpoint, u64),
}

/// What becomes true when the new superblock is durable.
#[derive(Debug)]
pub(crate) struct NewCheckpoint {
    pub(crate) superblock: Superblock,
    pub(crate) runs: Vec<Run>,
    /// The journal starts here, with the record of this number.
    pub(crate) tail: u64,
    pub(crate) next_seq: u64,
    /// Everything of epochs up to here is durable then.
    pub(crate) epoch: u64,
    /// The last group in it, and the one it stands for in the journal's place.
    pub(crate) last_group: u64,
    pub(crate) absorbed: Option<u64>,
}

/// The live checkpoint, and the one in the making.
#[derive(Debug)]
pub(crate) struct Checkpointer {
    /// Newest superblock on the device.
    pub(crate) superblock: Superblock,
    /// Pages of the live checkpoint.
    pub(crate) runs: Vec<Run>,
    pub(crate) step: Step,
    /// One is wanted now, whatever the journal looks like.
    pub(crate) forced: bool,
    pub(crate) finished: u64,
}

impl Checkpointer {
    pub(crate) fn new(superblock: Superblock, runs: Vec<Run>) -> Checkpointer {
        Checkpointer { superblock, runs, step: Step::Idle, forced: false, finished: 0 }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle)
    }

    pub(crate) fn pending(&self) -> Option<&NewCheckpoint> {
        match &self.step {
            Step::Idle => None,
            Step::Writing(pending)
            | Step::Flushing(pending, _)
            | Step::Switching(pending)
            | Step::Finishing(pending, _) => Some(pending),
        }
    }

    /// Pages of the one in the making.
    pub(crate) fn pending_pages(&self) -> u64 {
        self.pending().map_or(0, |pending| pages_of(&pending.runs))
    }

    /// Pages that are free again before the next one begins: those of the live one, while another is in the
    /// making.
    pub(crate) fn pages_to_come(&self) -> u64 {
        self.pending().map_or(0, |_| pages_of(&self.runs))
    }

    /// The group that the one in the making stands for in the journal's place.
    pub(crate) fn absorbed(&self) -> Option<u64> {
        self.pending().and_then(|pending| pending.absorbed)
    }
}

/// Pages that one copy of a checkpoint with a body of `body_bytes` takes where free space is in single pages.
pub(crate) fn pages_for(body_bytes: u64, page_bytes: usize) -> u64 {
    body_bytes.div_ceil((page_bytes - HEAD_LEN) as u64).max(1)
}
