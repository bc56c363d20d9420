//! Work queue: commands and answers that are processed with the mutex released.

use crate::{
    format::run::PageRun,
    state::cleaner::{BatchCopy, BatchRead, plan::PartSearch},
    tables::chain::ChainEncoder,
};
use copal_device::{Completer, Io};

/// Purpose of an I/O.
#[derive(Debug)]
pub(crate) enum IoPurpose {
    /// Data of a transaction.
    Data {
        group: u64,
        epoch: u64,
        runs: Vec<PageRun>,
        bytes: u64,
    },
    Record {
        group: u64,
        epoch: u64,
        /// First page.
        at: u64,
    },
    /// The header of a segment of records.
    SegmentHeader {
        epoch: u64,
    },
    /// Zeros where records will lie.
    Zeros {
        run: PageRun,
    },
    Frame {
        stream: u64,
        ticket: u64,
        epoch: u64,
        run: PageRun,
        bytes: u64,
    },
    Flush {
        epoch: u64,
    },
    /// Inline pages on the way to their places, under a pin.
    Placing {
        pin: u64,
    },
    /// Pages that the cleaner moves.
    MoveRead(Box<BatchRead>),
    MoveWrite {
        epoch: u64,
        copy: Box<BatchCopy>,
    },
    ChainPage,
    Superblock,
    /// A hint; no caller waits for it.
    Discard {
        run: PageRun,
    },
}

/// Commands of one purpose.
pub(crate) type IoBatch = (IoPurpose, Vec<Io>);

/// An answer to a caller.
pub(crate) type CallerAnswer = Box<dyn FnOnce() + Send>;

/// Commands to submit and answers to deliver.
#[derive(Default)]
pub(crate) struct WorkQueue {
    batches: Vec<IoBatch>,
    answers: Vec<CallerAnswer>,
    /// A chain page to encode.
    encoder: Option<Box<ChainEncoder>>,
    /// A search of the cleaner.
    search: Option<PartSearch>,
}

impl WorkQueue {
    pub(crate) fn submit(&mut self, purpose: IoPurpose, ios: Vec<Io>) {
        self.batches.push((purpose, ios));
    }

    /// Queues an answer to a caller.
    pub(crate) fn deliver<T: Send + 'static>(&mut self, completer: Completer<T>, value: T) {
        self.answers.push(Box::new(move || completer.complete(value)));
    }

    /// Queues the encoding of the next chain page.
    pub(crate) fn encode(&mut self, encoder: Box<ChainEncoder>) {
        self.encoder = Some(encoder);
    }

    /// Takes the encoder of the next chain page.
    pub(crate) fn take_encoder(&mut self) -> Option<Box<ChainEncoder>> {
        self.encoder.take()
    }

    /// Queues a search of the cleaner.
    pub(crate) fn search_parts(&mut self, search: PartSearch) {
        self.search = Some(search);
    }

    /// Takes the search of the cleaner.
    pub(crate) fn take_search(&mut self) -> Option<PartSearch> {
        self.search.take()
    }

    /// Takes all commands and answers.
    pub(crate) fn take(&mut self) -> (Vec<IoBatch>, Vec<CallerAnswer>) {
        (std::mem::take(&mut self.batches), std::mem::take(&mut self.answers))
    }

    /// Drops the commands that were not submitted yet.
    pub(crate) fn drop_ios(&mut self) {
        self.batches.clear();
        self.encoder = None;
        self.search = None;
    }

    pub(crate) fn has_ios(&self) -> bool {
        !self.batches.is_empty() || self.encoder.is_some() || self.search.is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.has_ios() && self.answers.is_empty()
    }
}
