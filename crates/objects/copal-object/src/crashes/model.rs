//! Model of a store: its expected content and its promises.

use std::{collections::BTreeMap, rc::Rc};

/// Expected state of an object or stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ModelEntry {
    Object { bytes: Vec<u8>, sealed: bool },
    Stream { trimmed: u64 },
}

/// All entries after one commit.
pub(super) type Snapshot = BTreeMap<u64, ModelEntry>;

pub(super) struct ModelCommit {
    pub(super) lsn: u64,
    pub(super) after: Rc<Snapshot>,
    pub(super) deps: Vec<(u64, u64)>,
}

pub(super) struct ModelFrame {
    pub(super) payload: Vec<u8>,
    pub(super) after: u64,
}

/// A promise, and the event of the device's history at which it was given.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckPromise {
    pub(super) step: usize,
    pub(super) what: PromisedCommit,
    pub(super) durable: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PromisedCommit {
    Commit { lsn: u64 },
    Frame { stream: u64, frame: u64 },
}

/// Commits, frames and promises since the outcome was last certain.
pub(super) struct StoreModel {
    pub(super) base: Rc<Snapshot>,
    pub(super) commits: Vec<ModelCommit>,
    /// By stream; ids of streams are never reused.
    pub(super) frames: BTreeMap<u64, Vec<ModelFrame>>,
    pub(super) promises: Vec<AckPromise>,
}

impl StoreModel {
    pub(super) fn new() -> StoreModel {
        StoreModel {
            base: Rc::new(Snapshot::new()),
            commits: Vec::new(),
            frames: BTreeMap::new(),
            promises: Vec::new(),
        }
    }

    /// The state after the last commit up to `lsn`.
    pub(super) fn at(&self, lsn: u64) -> &Rc<Snapshot> {
        self.commits.iter().rev().find(|commit| commit.lsn <= lsn).map_or(&self.base, |commit| &commit.after)
    }

    pub(super) fn now(&self) -> Snapshot {
        (**self.at(u64::MAX)).clone()
    }

    /// Recovery found `lsn` and these ends of streams; they are certain from now on.
    pub(super) fn recovered_to(&mut self, lsn: u64, ends: &BTreeMap<u64, u64>) {
        self.base = Rc::clone(self.at(lsn));
        self.commits.clear();
        self.promises = vec![AckPromise { step: 0, what: PromisedCommit::Commit { lsn }, durable: true }];
        for (&stream, frames) in &mut self.frames {
            let end = ends.get(&stream).copied().unwrap_or(0);
            frames.truncate(end as usize);
            if end > 0 {
                let what = PromisedCommit::Frame { stream, frame: end - 1 };
                self.promises.push(AckPromise { step: 0, what, durable: true });
            }
        }
    }
}
