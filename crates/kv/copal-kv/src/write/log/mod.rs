//! The log: one stream per memtable generation, frames of operation groups in it.
//!
//! Format: docs/formats/kv-log.md v1
//! Invariants
//! - Before the first frame of a new log is acknowledged, every frame of the one before is durable: after a
//!   crash the logs, one behind the other, hold a prefix of commit order (KV-3).

pub(crate) mod format;

use crate::{
    Error,
    tree::manifest::{ObjectRole, label},
};
use copal_object::{
    Ack, Check, CreateOptions, FramePos, Lifetime, Lsn, ObjectId, ObjectKind, ReservedFrame, Store,
    StoreError, Txn,
};
use format::{GroupAssembler, GroupFrames, LogGroup};

/// A closing store leaves no log of more frames behind. Each takes a page or more, however little it holds: a
/// few MiB that are read by every opening, against a table of what they amount to.
const LONG_FRAMES: u64 = 512;

/// The log being written.
#[derive(Debug)]
pub(crate) struct WriteLog {
    pub(crate) generation: u64,
    pub(crate) stream: ObjectId,
    /// Number the next frame gets.
    position: u64,
    /// The last frame is not one that is acknowledged when it and all before it are durable.
    pub(crate) unsynced: bool,
}

/// A group as it goes into the log.
#[derive(Clone, Copy)]
pub(crate) struct LoggedGroup<'a> {
    pub(crate) first_seq: u64,
    pub(crate) count: u32,
    /// Its operations, encoded.
    pub(crate) ops: &'a [u8],
    /// The commit it comes after.
    pub(crate) after: Option<Lsn>,
}

impl WriteLog {
    /// Creates the stream of `generation`. Ordered: the first durable frame makes it durable.
    /// # Errors
    /// `NoSpace`, or a failed write.
    pub(crate) fn create(objects: &Store, generation: u64, stream: ObjectId) -> Result<WriteLog, StoreError> {
        let opts = CreateOptions {
            kind: ObjectKind::Stream,
            lifetime: Lifetime::Short,
            expected_bytes: 0,
            check: Check::Caller,
            label: label(ObjectRole::Log, generation),
        };
        objects.commit(Txn::new().create(stream, opts), Ack::Ordered).wait()?;
        Ok(WriteLog { generation, stream, position: 0, unsynced: true })
    }

    /// Goes on with a log found at opening, behind its last whole frame.
    pub(crate) fn resume(generation: u64, stream: ObjectId, position: u64) -> WriteLog {
        WriteLog { generation, stream, position, unsynced: true }
    }

    /// Whether this is the log `stream`, and `frame` its last.
    pub(crate) fn ends_with(&self, stream: ObjectId, frame: FramePos) -> bool {
        self.stream == stream && self.position == frame.0 + 1
    }

    /// Frames so far; each takes a page or more.
    pub(crate) fn frames(&self) -> u64 {
        self.position
    }

    /// Whether it is worth a table that the next opening does not read it.
    pub(crate) fn is_long(&self) -> bool {
        self.position > LONG_FRAMES
    }

    /// Appends all frames of a group but the last, and reserves that one: it is to be written next, and
    /// [`WriteLog::placed`] to be told. A full store may have no long run of pages left, and space for the group
    /// all the same: its frames become shorter. `after`: the group counts only if that commit survives.
    /// # Errors
    /// `NoSpace`: the group does not count, though some of its frames may be there. Otherwise a failed write.
    pub(crate) fn reserve_group(
        &mut self,
        objects: &Store,
        group: LoggedGroup<'_>,
        ack: Ack,
    ) -> Result<ReservedFrame, StoreError> {
        let LoggedGroup { first_seq, count, ops, after } = group;
        let mut frames = GroupFrames::new(self.generation, first_seq, count, ops);
        loop {
            let (payload, is_last) = frames.next_frame(self.position);
            let ack = if is_last { ack } else { Ack::Ordered };
            match objects.reserve_frame(self.stream, &payload, after, ack) {
                Ok(frame) if is_last => return Ok(frame),
                Ok(frame) => self.placed(frame.write().wait()?, ack),
                Err(StoreError::NoSpace { .. }) if frames.shorten() => continue,
                Err(error) => return Err(error),
            }
            frames.advance();
        }
    }

    /// A frame has its number, and will be acknowledged as `ack`.
    pub(crate) fn placed(&mut self, FramePos(position): FramePos, ack: Ack) {
        assert_eq!(position, self.position, "the stream is written by this log alone");
        self.position += 1;
        self.unsynced = ack != Ack::Durable;
    }

    /// Appends a group and waits until it is durable.
    /// # Errors
    /// As [`WriteLog::reserve_group`].
    pub(crate) fn append_durably(
        &mut self,
        objects: &Store,
        group: LoggedGroup<'_>,
    ) -> Result<(), StoreError> {
        let last = self.reserve_group(objects, group, Ack::Durable)?;
        self.placed(last.write().wait()?, Ack::Durable);
        Ok(())
    }
}

/// Copies of a frame while it is read: as it lies on the device, its payload, and its part of a group that
/// grows.
const COPIES: u64 = 4;

/// Reads a log from its beginning; calls `apply` for each whole group. Returns the number of frames. Blocks.
/// `held` is told what a frame and the group it belongs to take on their way. With `lost`, frames that cannot
/// be read are told there and passed over, and so is what is left of their groups.
/// # Errors
/// `Corrupt` in the middle of the log, unless there is `lost`; or what `apply` answers. A torn end is no
/// error.
pub(crate) fn replay(
    objects: &Store,
    generation: u64,
    stream: ObjectId,
    mut held: impl FnMut(u64),
    mut apply: impl FnMut(LogGroup) -> Result<(), Error>,
    mut lost: Option<&mut Vec<String>>,
) -> Result<u64, Error> {
    let mut reader = objects.frames(stream, FramePos(0))?;
    let mut assembler = GroupAssembler::new(generation);
    let mut position = 0;
    let named = |error| match error {
        StoreError::Corrupt { range, .. } => Error::corrupt(
            format!("log {generation} (object {})", stream.0),
            format!("frame {} cannot be read", range.start),
        ),
        error => Error::from(error),
    };
    loop {
        let (FramePos(at), frame) = match (reader.next_frame(), &mut lost) {
            (Ok(Some(found)), _) => found,
            (Ok(None), _) => return Ok(position),
            (Err(error @ StoreError::Corrupt { .. }), Some(lost)) => {
                lost.push(named(error).to_string());
                position += 1;
                if objects.stat(stream).is_none_or(|stat| position >= stat.len) {
                    return Ok(position);
                }
                assembler = GroupAssembler::new(generation);
                reader = objects.frames(stream, FramePos(position))?;
                continue;
            }
            (Err(error), _) => return Err(named(error)),
        };
        held(COPIES * frame.len() as u64 + assembler.held_bytes());
        if at != position {
            return Err(Error::corrupt(format!("log {generation}"), format!("frame {position} is missing")));
        }
        position += 1;
        match (assembler.push(at, &frame), &mut lost) {
            (Ok(Some(group)), _) => apply(group)?,
            (Ok(None), _) => {}
            (Err(error), Some(lost)) => {
                lost.push(error.to_string());
                assembler = GroupAssembler::new(generation);
            }
            (Err(error), None) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests;
