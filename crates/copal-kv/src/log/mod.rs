//! The log: one stream per memtable generation, frames of operation groups in it.
//!
//! Format: docs/formats/kv-log.md v1
//! Invariants
//! - Before the first frame of a new log is acknowledged, every frame of the one before is durable: after a
//!   crash the logs, one behind the other, hold a prefix of commit order.

pub(crate) mod format;

use crate::{
    Error,
    manifest::{Role, label},
};
use copal_object::{
    Ack, Check, CreateOptions, FramePos, Lifetime, Lsn, ObjectId, ObjectKind, Op, Store, StoreError, Txn,
};
use format::{Assembler, Group, frames};

/// The log being written.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) generation: u64,
    pub(crate) stream: ObjectId,
    /// Number the next frame gets.
    position: u64,
    /// Something was appended that no durable acknowledgement covers yet.
    pub(crate) unsynced: bool,
}

impl Log {
    /// Creates the stream of `generation`. Ordered: the first durable frame makes it durable.
    /// # Errors
    /// `NoSpace`, or a failed write.
    pub(crate) fn create(objects: &Store, generation: u64, stream: ObjectId) -> Result<Log, StoreError> {
        let opts = CreateOptions {
            kind: ObjectKind::Stream,
            lifetime: Lifetime::Short,
            expected_bytes: 0,
            check: Check::Caller,
            label: label(Role::Log, generation),
        };
        let ops = vec![Op::Create { id: stream, opts }];
        objects
            .commit(
                Txn {
                    ops,
                    ..Txn::default()
                },
                Ack::Ordered,
            )
            .wait()?;
        Ok(Log {
            generation,
            stream,
            position: 0,
            unsynced: true,
        })
    }

    /// Goes on with a log found at opening, behind its last whole frame.
    pub(crate) fn resume(generation: u64, stream: ObjectId, position: u64) -> Log {
        Log {
            generation,
            stream,
            position,
            unsynced: true,
        }
    }

    /// Whether nothing was ever appended.
    pub(crate) fn is_empty(&self) -> bool {
        self.position == 0
    }

    /// Appends a group and waits for `ack`. `after`: the group counts only if that commit survives.
    /// # Errors
    /// `NoSpace`: the group does not count, though some of its frames may be there. Otherwise a failed write.
    pub(crate) fn append(
        &mut self,
        objects: &Store,
        first_seq: u64,
        count: u32,
        ops: &[u8],
        after: Option<Lsn>,
        ack: Ack,
    ) -> Result<(), StoreError> {
        let frames = frames(self.generation, self.position, first_seq, count, ops);
        let last = frames.len() - 1;
        self.unsynced = true;
        for (index, frame) in frames.into_iter().enumerate() {
            let ack = if index == last { ack } else { Ack::Ordered };
            let FramePos(position) = objects.append_frame(self.stream, frame, after, ack).wait()?;
            assert_eq!(position, self.position, "the stream is written by this log alone");
            self.position += 1;
        }
        if ack == Ack::Durable {
            self.unsynced = false;
        }
        Ok(())
    }

    /// Makes everything appended so far durable.
    /// # Errors
    /// `NoSpace`, or a failed write.
    pub(crate) fn sync(&mut self, objects: &Store, next_seq: u64) -> Result<(), StoreError> {
        if self.unsynced {
            self.append(objects, next_seq, 0, &[], None, Ack::Durable)?;
        }
        Ok(())
    }
}

/// Reads a log from its beginning; calls `apply` for each whole group. Returns the number of frames.
/// # Errors
/// `Corrupt` in the middle of the log, or what `apply` answers. A torn end is no error.
pub(crate) fn replay(
    objects: &Store,
    generation: u64,
    stream: ObjectId,
    mut apply: impl FnMut(Group) -> Result<(), Error>,
) -> Result<u64, Error> {
    let mut reader = objects.frames(stream, FramePos(0))?;
    let mut assembler = Assembler::new(generation);
    let mut position = 0;
    while let Some((FramePos(at), frame)) = reader.next_frame()? {
        if at != position {
            return Err(Error::corrupt(
                format!("log {generation}"),
                format!("frame {position} is missing"),
            ));
        }
        if let Some(group) = assembler.push(at, &frame)? {
            apply(group)?;
        }
        position += 1;
    }
    Ok(position)
}
