//! What a transaction consists of.
//!
//! Not here: what its steps do (`transaction`).

use crate::{CreateOptions, FramePos, ObjectId, Staged};
use bytes::Bytes;
use std::ops::Range;

/// One step of a transaction; steps see the effects of earlier ones.
pub enum Op {
    /// A new, empty object.
    Create {
        /// Its name.
        id: ObjectId,
        /// What it is.
        opts: CreateOptions,
    },
    /// Names what an `ObjectWriter` produced.
    Publish(Staged),
    /// Overwrites; beyond the end it extends, and what lies between reads as zeros.
    Write {
        /// A plain object.
        id: ObjectId,
        /// Offset in bytes.
        at: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Appends; `at` must equal the length, so two appenders cannot interleave unnoticed.
    Append {
        /// A plain object.
        id: ObjectId,
        /// The length the caller expects.
        at: u64,
        /// The bytes.
        data: Bytes,
    },
    /// Cuts, or extends with zeros.
    Truncate {
        /// A plain object.
        id: ObjectId,
        /// The new length in bytes.
        len: u64,
    },
    /// Frees the pages that lie wholly inside `range` (a last partial page counts as whole when the range
    /// reaches the end): they read as zeros. Bytes of pages partly inside keep their values. The length
    /// stays.
    Punch {
        /// A plain object; one that was sealed by `Seal` too.
        id: ObjectId,
        /// Bytes no longer needed.
        range: Range<u64>,
    },
    /// Makes a plain object immutable.
    Seal {
        /// The object.
        id: ObjectId,
    },
    /// A second object with the same bytes; whole pages are shared.
    Clone {
        /// Plain or sealed.
        from: ObjectId,
        /// Must not exist.
        to: ObjectId,
    },
    /// Frames below `upto` are no longer needed; whole extents are freed.
    TrimStream {
        /// A stream.
        id: ObjectId,
        /// First frame that is kept; beyond the end, the next one there will be.
        upto: FramePos,
    },
    /// Removes the object and frees its space.
    Delete {
        /// Any kind.
        id: ObjectId,
    },
}

/// Operations that happen all or not at all.
#[derive(Default)]
pub struct Txn {
    /// In order.
    pub ops: Vec<Op>,
    /// The transaction counts only if these frames survive.
    pub after: Vec<(ObjectId, FramePos)>,
}
