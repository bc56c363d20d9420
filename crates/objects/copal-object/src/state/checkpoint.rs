//! State of the live checkpoint, and progress of a new one.
//!
//! Not here: writing it (`checkpoint`).

use crate::{
    format::{
        checkpoint::HEAD_LEN,
        run::{PageRun, pages_of},
        superblock::Superblock,
    },
    tables::chain::ChainEncoder,
};

/// Progress of a new checkpoint.
#[derive(Debug, Default)]
pub(crate) enum CheckpointStep {
    #[default]
    Idle,
    /// Chain pages are encoded and written.
    Writing(NewCheckpoint, ChainProgress),
    /// The chain waits for a flush.
    Flushing(NewCheckpoint, u64),
    /// The superblock is in flight.
    Switching(NewCheckpoint),
    /// The superblock waits for a flush.
    Finishing(NewCheckpoint, u64),
}

/// Progress of a chain.
#[derive(Debug)]
pub(crate) struct ChainProgress {
    /// Chain pages in flight.
    in_flight: u32,
    rest: ChainRest,
}

/// Chain pages that are not submitted yet.
#[derive(Debug)]
enum ChainRest {
    Waiting(Box<ChainEncoder>),
    /// One is being encoded.
    Encoding,
    None,
}

/// A checkpoint being written; it counts once its superblock is durable.
#[derive(Debug)]
pub(crate) struct NewCheckpoint {
    /// It names the chain once the chain is encoded.
    pub(crate) superblock: Superblock,
    pub(crate) runs: Vec<PageRun>,
    /// The journal starts here, with the record of this number.
    pub(crate) tail: u64,
    pub(crate) next_seq: u64,
    /// All epochs up to here are durable then.
    pub(crate) epoch: u64,
    /// The last group in it, and the group whose record it replaces.
    pub(crate) last_group: u64,
    pub(crate) absorbed: Option<u64>,
}

/// The live checkpoint, and the one being written.
#[derive(Debug)]
pub(crate) struct CheckpointState {
    /// Newest superblock on the device.
    superblock: Superblock,
    /// Pages of the live checkpoint.
    runs: Vec<PageRun>,
    step: CheckpointStep,
    /// A checkpoint is requested now, also with a short journal.
    forced: bool,
    /// Nothing is written behind the next checkpoint before the next opening.
    last: bool,
    finished: u64,
    /// The mount is durable: pages may be allocated (OBJ-4).
    mounted: bool,
    /// Profile of the device, as text, in the next superblock.
    profile: String,
}

impl CheckpointState {
    pub(crate) fn new(superblock: Superblock, runs: Vec<PageRun>, mounted: bool) -> CheckpointState {
        let profile = superblock.profile.clone();
        let step = CheckpointStep::Idle;
        CheckpointState { superblock, runs, step, forced: false, last: false, finished: 0, mounted, profile }
    }

    /// Newest superblock on the device.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Profile of the device, as text, in the next superblock.
    pub(crate) fn profile(&self) -> &str {
        &self.profile
    }

    pub(crate) fn set_profile(&mut self, profile: String) {
        self.profile = profile;
    }

    /// Pages of the live checkpoint.
    pub(crate) fn runs(&self) -> &[PageRun] {
        &self.runs
    }

    /// Number of finished checkpoints.
    pub(crate) fn finished(&self) -> u64 {
        self.finished
    }

    /// Requests a checkpoint now, also with a short journal.
    pub(crate) fn force(&mut self) {
        self.forced = true;
    }

    /// Requests the last checkpoint before the store is closed: all is durable, and no record follows.
    pub(crate) fn force_last(&mut self) {
        self.forced = true;
        self.last = true;
    }

    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    pub(crate) fn is_forced(&self) -> bool {
        self.forced
    }

    pub(crate) fn is_mounted(&self) -> bool {
        self.mounted
    }

    pub(crate) fn set_mounted(&mut self) {
        self.mounted = true;
    }

    /// Begins a new checkpoint; its chain pages are written next.
    pub(crate) fn begin(&mut self, pending: NewCheckpoint, encoder: ChainEncoder) {
        self.forced = false;
        let rest = ChainRest::Waiting(Box::new(encoder));
        self.step = CheckpointStep::Writing(pending, ChainProgress { in_flight: 0, rest });
    }

    /// Takes the encoder of the next chain page, unless `most` pages are in flight.
    pub(crate) fn take_encoder(&mut self, most: u32) -> Option<Box<ChainEncoder>> {
        let CheckpointStep::Writing(_, progress) = &mut self.step else {
            return None;
        };
        if progress.in_flight >= most || !matches!(progress.rest, ChainRest::Waiting(_)) {
            return None;
        }
        match std::mem::replace(&mut progress.rest, ChainRest::Encoding) {
            ChainRest::Waiting(encoder) => Some(encoder),
            ChainRest::Encoding | ChainRest::None => None,
        }
    }

    /// A chain page is encoded and about to be submitted.
    pub(crate) fn return_encoder(&mut self, encoder: Box<ChainEncoder>) {
        let CheckpointStep::Writing(pending, progress) = &mut self.step else {
            return;
        };
        progress.in_flight += 1;
        if !encoder.is_finished() {
            progress.rest = ChainRest::Waiting(encoder);
            return;
        }
        let head = encoder.link();
        pending.superblock.checkpoint_at = head.at;
        pending.superblock.checkpoint_bytes = head.bytes.into();
        pending.superblock.checkpoint_hash = head.hash;
        pending.superblock.checkpoint_copy_at = head.copy_at;
        progress.rest = ChainRest::None;
    }

    /// A chain page is written while epoch `open` is open. If it was the last one, returns the epoch to flush.
    pub(crate) fn chain_page_written(&mut self, open: u64) -> Option<u64> {
        if let CheckpointStep::Writing(_, progress) = &mut self.step {
            progress.in_flight -= 1;
            if progress.in_flight > 0 || !matches!(progress.rest, ChainRest::None) {
                return None;
            }
        }
        match std::mem::take(&mut self.step) {
            CheckpointStep::Writing(pending, _) => {
                let epoch = open.max(pending.epoch);
                self.step = CheckpointStep::Flushing(pending, epoch);
                Some(epoch)
            }
            step => self.stay(step),
        }
    }

    /// The chain is flushed; returns the superblock to write next.
    pub(crate) fn switch(&mut self) -> Option<&Superblock> {
        match std::mem::take(&mut self.step) {
            CheckpointStep::Flushing(pending, _) => {
                self.step = CheckpointStep::Switching(pending);
                self.pending().map(|pending| &pending.superblock)
            }
            step => self.stay(step),
        }
    }

    /// The superblock is written but not durable, while epoch `open` is open.
    pub(crate) fn superblock_written(&mut self, open: u64) -> Option<&NewCheckpoint> {
        match std::mem::take(&mut self.step) {
            CheckpointStep::Switching(pending) => {
                self.step = CheckpointStep::Finishing(pending, open);
                self.pending()
            }
            step => self.stay(step),
        }
    }

    /// The superblock is durable: the new checkpoint is live. Returns it, with the pages of the previous one.
    pub(crate) fn finish(&mut self) -> Option<NewCheckpoint> {
        match std::mem::take(&mut self.step) {
            CheckpointStep::Finishing(mut pending, _) => {
                std::mem::swap(&mut self.runs, &mut pending.runs);
                self.superblock = pending.superblock.clone();
                self.finished += 1;
                Some(pending)
            }
            step => self.stay(step),
        }
    }

    /// Keeps `step`, which is not the one that ends now.
    fn stay<T>(&mut self, step: CheckpointStep) -> Option<T> {
        self.step = step;
        None
    }

    /// Progress of the one being written.
    pub(crate) fn step(&self) -> &CheckpointStep {
        &self.step
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.step, CheckpointStep::Idle)
    }

    pub(crate) fn pending(&self) -> Option<&NewCheckpoint> {
        match &self.step {
            CheckpointStep::Idle => None,
            CheckpointStep::Writing(pending, _)
            | CheckpointStep::Flushing(pending, _)
            | CheckpointStep::Switching(pending)
            | CheckpointStep::Finishing(pending, _) => Some(pending),
        }
    }

    /// Pages of the one being written.
    pub(crate) fn pending_pages(&self) -> u64 {
        self.pending().map_or(0, |pending| pages_of(&pending.runs))
    }

    /// Pages that become free before the next checkpoint begins: those of the live one, while another is
    /// being written.
    pub(crate) fn pages_becoming_free(&self) -> u64 {
        self.pending().map_or(0, |_| pages_of(&self.runs))
    }

    /// The group whose record the checkpoint in progress replaces.
    pub(crate) fn absorbed(&self) -> Option<u64> {
        self.pending().and_then(|pending| pending.absorbed)
    }
}

/// Pages of one copy of a checkpoint with a body of `body_bytes`, if free space consists of single pages.
pub(crate) fn pages_for(body_bytes: u64, page_bytes: usize) -> u64 {
    body_bytes.div_ceil((page_bytes - HEAD_LEN) as u64).max(1)
}
