//! `DiskState`: commands and contents of an emulated disk, without a clock of its own.
//!
//! Invariants
//! - A command takes effect when the model has served it.
//! - At most the model's depth of queued commands is in the drive; the others wait by class, as in front of a
//!   real device.
//! - After a failed write, only reads go on (C7).

use super::contents::DiskContents;
use super::model::{CommandKind, DiskModel, ModelCommand};
use crate::class_queue::ClassQueue;
use crate::device::tally::IoTally;
use crate::{Completer, DeviceError, Geometry, Io, IoDone, IoKind};
use std::collections::HashMap;
use std::time::Duration;

pub(super) struct DiskState<M, C> {
    pub(super) model: M,
    pub(super) contents: C,
    /// Commands that the drive has no room for yet.
    queue: ClassQueue<QueuedIo>,
    /// Commands in the drive, by id.
    running: HashMap<u64, QueuedIo>,
    next_id: u64,
    discards: bool,
    poisoned: bool,
}

pub(super) struct QueuedIo {
    pub(super) io: Io,
    /// `None`: the submitting thread itself serves until the command has ended.
    pub(super) completer: Option<Completer<IoDone>>,
    /// Time of the submission.
    pub(super) arrival: Duration,
}

/// A command that the model has served.
pub(super) struct ServedIo {
    pub(super) id: u64,
    pub(super) completer: Option<Completer<IoDone>>,
    pub(super) done: IoDone,
}

/// The command that the model serves for an I/O.
fn command_of(io: &Io) -> ModelCommand {
    let kind = match &io.kind {
        IoKind::Read(_) => CommandKind::Read,
        IoKind::Write { fua: true, .. } => CommandKind::WriteThrough,
        IoKind::Write { .. } | IoKind::WriteZeroes(_) => CommandKind::Write,
        IoKind::Flush => return ModelCommand { kind: CommandKind::Flush, at: 0, len: 0 },
        IoKind::Discard(_) => CommandKind::Discard,
    };
    ModelCommand { kind, at: io.at, len: io.kind.len_bytes() }
}

impl<M: DiskModel, C: DiskContents> DiskState<M, C> {
    pub(super) fn new(model: M, contents: C, geometry: &Geometry) -> DiskState<M, C> {
        DiskState {
            queue: ClassQueue::new(model.depth()),
            model,
            contents,
            running: HashMap::new(),
            next_id: 0,
            discards: geometry.discard_unit > 0,
            poisoned: false,
        }
    }

    /// Queues a command behind those of its class.
    pub(super) fn push(&mut self, queued: QueuedIo) {
        self.queue.push(queued.io.class, queued);
    }

    /// Hands queued commands to the drive while it has room.
    pub(super) fn fill(&mut self) {
        while let Some(queued) = self.queue.pop() {
            self.start(queued);
        }
    }

    /// Hands a command to the drive; returns its id.
    pub(super) fn start(&mut self, queued: QueuedIo) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        // One that waited for room comes when the drive has it.
        let arrival = queued.arrival.max(self.model.now());
        self.model.accept(id, command_of(&queued.io), arrival);
        self.running.insert(id, queued);
        id
    }

    /// Serves one command. `None`: the drive has none.
    pub(super) fn serve(&mut self, tally: &IoTally) -> Option<ServedIo> {
        let id = self.model.serve()?;
        let QueuedIo { io, completer, .. } = self.running.remove(&id)?;
        if completer.is_some() {
            self.queue.finished(io.class);
            self.fill();
        }
        let Io { at, mut kind, .. } = io;
        let result = self.apply(at, &mut kind);
        self.poisoned |= result.is_err() && !matches!(kind, IoKind::Read(_));
        if result.is_ok() {
            tally.count(&kind);
        }
        Some(ServedIo { id, completer, done: IoDone { result, buf: kind.into_buf() } })
    }

    fn apply(&mut self, at: u64, kind: &mut IoKind) -> Result<(), DeviceError> {
        match kind {
            IoKind::Read(buf) => self.contents.read_at(at, buf),
            _ if self.poisoned => Err(DeviceError::Poisoned),
            IoKind::Write { buf, .. } => self.contents.write_at(at, buf),
            IoKind::WriteZeroes(len) => self.contents.zero(at, *len),
            IoKind::Discard(len) if self.discards => self.contents.discard(at, *len),
            IoKind::Flush | IoKind::Discard(_) => Ok(()),
        }
    }

    /// Takes all commands out. If they are dropped, their waiters panic.
    pub(super) fn abandon(&mut self) -> (HashMap<u64, QueuedIo>, ClassQueue<QueuedIo>) {
        let queue = std::mem::replace(&mut self.queue, ClassQueue::new(self.model.depth()));
        (std::mem::take(&mut self.running), queue)
    }
}
