//! Operations of a transaction.
//!
//! Not here: their execution (`transaction`).

use crate::{
    CreateOptions, FramePos, ObjectId, SpaceReservation, StagedObject, resize::reservation::ReservedPages,
};
use bytes::Bytes;
use std::{ops::Range, sync::Arc};

/// One step of a transaction; steps see the effects of earlier ones.
pub enum Op {
    /// A new, empty object.
    Create {
        /// Its name.
        id: ObjectId,
        /// Kind and options of the object.
        opts: CreateOptions,
    },
    /// Gives the data of an `ObjectWriter` its name.
    Publish(StagedObject),
    /// Overwrites bytes. A write beyond the end extends the object; the gap reads as zeros.
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
    /// Shortens the object, or extends it with zeros.
    Truncate {
        /// A plain object.
        id: ObjectId,
        /// The new length in bytes.
        len: u64,
    },
    /// Frees the pages that lie completely inside `range`: they read as zeros. If the range reaches the end,
    /// a last partial page is freed too. Bytes of other pages keep their values. The length stays.
    Punch {
        /// A plain object, or one that was sealed by `Seal`.
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
        /// First frame that is kept. A number beyond the end means the next future frame.
        upto: FramePos,
    },
    /// Cuts the end of the stream: frames from `from` on are gone, and the next frame gets the number `from`. For a
    /// log that follows another one. A damaged stream takes frames again.
    ///
    /// Callers that wait for a frame that is gone get `FrameCut`. Frames before `from` do not become durable by this:
    /// if a crash takes some of them, the stream ends there. To exclude that, let the transaction come after frame
    /// `from - 1`. A reader that is behind the new end continues with new frames of the same numbers.
    TruncateStream {
        /// A stream.
        id: ObjectId,
        /// First frame that goes: at least the first kept frame, at most the next future one.
        from: FramePos,
    },
    /// Removes the object and frees its space.
    Delete {
        /// Any kind.
        id: ObjectId,
    },
}

/// Operations that take effect all or not at all, in their order.
#[derive(Default)]
#[must_use]
pub struct Txn {
    pub(crate) ops: Vec<Op>,
    pub(crate) after: Vec<(ObjectId, FramePos)>,
    pub(crate) reserved: Option<Arc<ReservedPages>>,
}

impl Txn {
    /// An empty transaction.
    pub fn new() -> Txn {
        Txn::default()
    }

    /// Adds an operation.
    pub fn op(mut self, op: Op) -> Txn {
        self.ops.push(op);
        self
    }

    /// Adds operations.
    pub fn ops(mut self, ops: impl IntoIterator<Item = Op>) -> Txn {
        self.ops.extend(ops);
        self
    }

    /// Lets the transaction take pages from a reservation of the same store, before those that are available to all.
    /// The reservation becomes smaller by the pages that the transaction allocates; a refused one takes none. The last
    /// reservation counts.
    pub fn spend(mut self, reservation: &SpaceReservation) -> Txn {
        self.reserved = Some(reservation.reserved());
        self
    }

    /// Adds a dependency: the transaction counts only if this frame of a stream survives.
    pub fn after(mut self, stream: ObjectId, frame: FramePos) -> Txn {
        self.after.push((stream, frame));
        self
    }

    /// Adds dependencies: the transaction counts only if these frames survive.
    pub fn after_all(mut self, frames: impl IntoIterator<Item = (ObjectId, FramePos)>) -> Txn {
        self.after.extend(frames);
        self
    }

    /// Adds [`Op::Create`].
    pub fn create(self, id: ObjectId, opts: CreateOptions) -> Txn {
        self.op(Op::Create { id, opts })
    }

    /// Adds [`Op::Publish`].
    pub fn publish(self, staged: StagedObject) -> Txn {
        self.op(Op::Publish(staged))
    }

    /// Adds [`Op::Write`].
    pub fn write(self, id: ObjectId, at: u64, data: impl Into<Bytes>) -> Txn {
        self.op(Op::Write { id, at, data: data.into() })
    }

    /// Adds [`Op::Append`].
    pub fn append(self, id: ObjectId, at: u64, data: impl Into<Bytes>) -> Txn {
        self.op(Op::Append { id, at, data: data.into() })
    }

    /// Adds [`Op::Truncate`].
    pub fn truncate(self, id: ObjectId, len: u64) -> Txn {
        self.op(Op::Truncate { id, len })
    }

    /// Adds [`Op::Punch`].
    pub fn punch(self, id: ObjectId, range: Range<u64>) -> Txn {
        self.op(Op::Punch { id, range })
    }

    /// Adds [`Op::Seal`].
    pub fn seal(self, id: ObjectId) -> Txn {
        self.op(Op::Seal { id })
    }

    /// Adds [`Op::Clone`].
    pub fn clone_object(self, from: ObjectId, to: ObjectId) -> Txn {
        self.op(Op::Clone { from, to })
    }

    /// Adds [`Op::TrimStream`].
    pub fn trim_stream(self, id: ObjectId, upto: FramePos) -> Txn {
        self.op(Op::TrimStream { id, upto })
    }

    /// Adds [`Op::TruncateStream`].
    pub fn truncate_stream(self, id: ObjectId, from: FramePos) -> Txn {
        self.op(Op::TruncateStream { id, from })
    }

    /// Adds [`Op::Delete`].
    pub fn delete(self, id: ObjectId) -> Txn {
        self.op(Op::Delete { id })
    }
}
