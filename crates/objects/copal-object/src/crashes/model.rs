//! Model of a store: its expected content and its promises.

use std::{collections::BTreeMap, rc::Rc};

/// Expected state of an object or stream.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ModelEntry {
    Object {
        bytes: Vec<u8>,
        sealed: bool,
    },
    /// `line`: its frames, in [`StoreModel::lines`].
    Stream {
        trimmed: u64,
        line: usize,
    },
}

/// All entries after one commit.
pub(super) type Snapshot = BTreeMap<u64, ModelEntry>;

pub(super) struct ModelCommit {
    pub(super) lsn: u64,
    pub(super) after: Rc<Snapshot>,
    pub(super) deps: Vec<LineFrame>,
}

/// Frames of a stream. A cut of the stream begins another line, with copies of the frames that stay.
#[derive(Default)]
pub(super) struct FrameLine {
    /// The line that was cut, and the first frame that went.
    pub(super) cut_of: Option<(usize, u64)>,
    pub(super) frames: Vec<ModelFrame>,
}

/// A frame of one line of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineFrame {
    pub(super) stream: u64,
    pub(super) line: usize,
    pub(super) frame: u64,
}

#[derive(Clone)]
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
    Frame(LineFrame),
}

/// Commits, frames and promises since the outcome was last certain.
pub(super) struct StoreModel {
    pub(super) base: Rc<Snapshot>,
    pub(super) commits: Vec<ModelCommit>,
    /// By stream; ids of streams are never reused.
    pub(super) lines: BTreeMap<u64, Vec<FrameLine>>,
    pub(super) promises: Vec<AckPromise>,
}

impl StoreModel {
    pub(super) fn new() -> StoreModel {
        StoreModel {
            base: Rc::new(Snapshot::new()),
            commits: Vec::new(),
            lines: BTreeMap::new(),
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
        for (&stream, entry) in self.base.iter() {
            let &ModelEntry::Stream { line, .. } = entry else { continue };
            let end = ends.get(&stream).copied().unwrap_or(0);
            let frames = &mut self.lines.get_mut(&stream).expect("every stream has lines")[line].frames;
            frames.truncate(end as usize);
            if end > 0 {
                let what = PromisedCommit::Frame(LineFrame { stream, line, frame: end - 1 });
                self.promises.push(AckPromise { step: 0, what, durable: true });
            }
        }
    }

    /// Present line of `stream`.
    pub(super) fn line_of(&self, stream: u64) -> usize {
        match self.at(u64::MAX).get(&stream) {
            Some(&ModelEntry::Stream { line, .. }) => line,
            _ => 0,
        }
    }

    /// Frames of the present line of `stream`, and the line.
    pub(super) fn frames(&self, stream: u64) -> (usize, u64) {
        let line = self.line_of(stream);
        (line, self.lines[&stream][line].frames.len() as u64)
    }

    /// Ends the frames of `line` before `from`, as a new line; returns it.
    pub(super) fn cut(&mut self, stream: u64, line: usize, from: u64) -> usize {
        let lines = self.lines.get_mut(&stream).expect("every stream has lines");
        let frames = lines[line].frames[..from as usize].to_vec();
        lines.push(FrameLine { cut_of: Some((line, from)), frames });
        lines.len() - 1
    }

    /// Whether no cut between the line of `frame` and line `now` took it. `None`: `now` does not come from its
    /// line, so a cut was taken back.
    pub(super) fn is_kept(&self, frame: LineFrame, now: usize) -> Option<bool> {
        let lines = &self.lines[&frame.stream];
        let (mut line, mut kept) = (now, true);
        while line != frame.line {
            let (before, from) = lines[line].cut_of?;
            kept &= frame.frame < from;
            line = before;
        }
        Some(kept)
    }
}
