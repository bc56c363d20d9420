//! The answer to one range, put together from the commands that read its parts.
//!
//! Invariants
//! - Bytes whose sums do not match are not delivered.
//! - An answer keeps at most [`KEPT_RATIO`] times its bytes in memory.

use super::command::ReadPart;
use crate::{ObjectId, StoreError, format::sum_rule::SumRule};
use bytes::Bytes;
use copal_device::AlignedBuf;
use std::ops::Range;

/// An answer that is a smaller part of its command is copied, since a slice keeps the whole command in memory.
const KEPT_RATIO: usize = 8;

/// A range on its way.
pub(super) struct RangeAnswer {
    pub(super) id: ObjectId,
    /// Offset of the answer inside the object, and its bytes.
    start: u64,
    /// Rule of the sums of its parts.
    rule: SumRule,
    pub(super) len: usize,
    /// Wanted bytes that have not arrived.
    missing: usize,
    state: AnswerState,
}

enum AnswerState {
    /// Nothing has arrived. `holes`: some of the bytes come from no part, and read as zeros.
    Empty {
        holes: bool,
    },
    /// All from one command.
    Whole(Bytes),
    /// Several parts; those that arrived are in place.
    Parts(AlignedBuf),
    Failed(StoreError),
}

impl RangeAnswer {
    /// The answer to `bytes` of an object, which arrives as `parts`.
    pub(super) fn new(id: ObjectId, bytes: Range<u64>, rule: SumRule, parts: &[ReadPart]) -> RangeAnswer {
        let len = (bytes.end - bytes.start) as usize;
        let missing = parts.iter().map(|part| part.wanted.len()).sum();
        let state = AnswerState::Empty { holes: missing < len };
        RangeAnswer { id, start: bytes.start, rule, len, missing, state }
    }

    /// Whether all parts have arrived.
    pub(super) fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Adds the part, which is `bytes[at..]` of its command.
    pub(super) fn add(&mut self, part: &ReadPart, command: &Bytes, at: usize, page_bytes: usize) {
        self.missing -= part.wanted.len();
        let read = &command[at..at + part.len];
        let bad = read
            .chunks(page_bytes)
            .zip(&part.sums)
            .position(|(page, &sum)| self.rule.sum(0, page, page_bytes) != sum);
        if let Some(index) = bad {
            let from = part.object_at + (index * page_bytes) as u64;
            let range = from..from + page_bytes as u64;
            return self.note(StoreError::Corrupt { id: self.id, range });
        }
        let wanted = &read[part.wanted.clone()];
        match &mut self.state {
            AnswerState::Empty { .. } if wanted.len() == self.len => {
                let kept = wanted.len().saturating_mul(KEPT_RATIO) >= command.len();
                let whole = if kept { command.slice_ref(wanted) } else { Bytes::copy_from_slice(wanted) };
                self.state = AnswerState::Whole(whole);
            }
            AnswerState::Empty { holes } => {
                let mut out = AlignedBuf::stale(self.len);
                if *holes {
                    out.fill(0);
                }
                out[part.target..part.target + wanted.len()].copy_from_slice(wanted);
                self.state = AnswerState::Parts(out);
            }
            AnswerState::Parts(out) => {
                out[part.target..part.target + wanted.len()].copy_from_slice(wanted);
            }
            AnswerState::Whole(_) | AnswerState::Failed(_) => {}
        }
    }

    /// The part was not read.
    pub(super) fn fail(&mut self, part: &ReadPart, error: StoreError) {
        self.missing -= part.wanted.len();
        self.note(error);
    }

    fn note(&mut self, error: StoreError) {
        if !matches!(self.state, AnswerState::Failed(_)) {
            self.state = AnswerState::Failed(error);
        }
    }

    /// The error of an answer whose sums are damaged.
    pub(super) fn corrupt(&self) -> StoreError {
        StoreError::Corrupt { id: self.id, range: self.start..self.start + self.len as u64 }
    }

    pub(super) fn finish(self) -> Result<Bytes, StoreError> {
        match self.state {
            AnswerState::Empty { .. } if self.len == 0 => Ok(Bytes::new()),
            AnswerState::Empty { .. } => Ok(Bytes::from_owner(AlignedBuf::zeroed(self.len))),
            AnswerState::Whole(whole) => Ok(whole),
            AnswerState::Parts(out) => Ok(Bytes::from_owner(out)),
            AnswerState::Failed(error) => Err(error),
        }
    }
}
