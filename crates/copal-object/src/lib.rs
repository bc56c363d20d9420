//! Object store: hardware-neutral objects with atomic, ordered transactions.
#![allow(missing_docs, unused_variables, clippy::todo)]
use bytes::Bytes;
use copal_device::{Class, Completion, Device, DeviceError};
use std::{ops::Range, sync::Arc};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);
/// Position in the store's one commit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);
/// Number of a frame in its stream, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FramePos(pub u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Plain,
    Sealed,
    Stream,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    Short,
    Medium,
    Long,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    Pages,
    Caller,
}
/// `Ordered`: place in the order fixed. `Written`: survives a kill. `Durable`: survives power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    Ordered,
    Written,
    Durable,
}

#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub kind: ObjectKind,
    pub lifetime: Lifetime,
    pub expected_bytes: u64,
    pub check: Check,
    pub label: [u8; 16],
}

pub enum Op {
    Create {
        id: ObjectId,
        opts: CreateOptions,
    },
    Publish(Staged),
    Write {
        id: ObjectId,
        at: u64,
        data: Bytes,
    },
    /// `at` must equal the length.
    Append {
        id: ObjectId,
        at: u64,
        data: Bytes,
    },
    Truncate {
        id: ObjectId,
        len: u64,
    },
    Punch {
        id: ObjectId,
        range: Range<u64>,
    },
    Seal {
        id: ObjectId,
    },
    Clone {
        from: ObjectId,
        to: ObjectId,
    },
    TrimStream {
        id: ObjectId,
        upto: FramePos,
    },
    Delete {
        id: ObjectId,
    },
}
#[derive(Default)]
pub struct Txn {
    pub ops: Vec<Op>,
    pub after: Vec<(ObjectId, FramePos)>,
}

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("the store is full: {needed_bytes} bytes needed, {free_bytes} free")]
    NoSpace { needed_bytes: u64, free_bytes: u64 },
    #[error("object {0:?} exists")]
    Exists(ObjectId),
    #[error("object {0:?} does not exist")]
    NotFound(ObjectId),
    #[error("too large")]
    TooLarge,
    #[error("object {id:?} is {actual} bytes long, not {given}")]
    WrongLength { id: ObjectId, given: u64, actual: u64 },
    #[error("object {id:?} is damaged at {range:?}")]
    Corrupt { id: ObjectId, range: Range<u64> },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error("the store stopped taking writes after an I/O error; reopen it")]
    Fenced,
    #[error("the store is open read-only")]
    ReadOnly,
}
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("not a Copal store")]
    NotAStore,
    #[error(transparent)]
    Device(#[from] copal_device::DeviceError),
    #[error(transparent)]
    Open(#[from] copal_device::OpenError),
}
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    pub page_bytes: Option<u32>,
    pub journal_bytes: Option<u64>,
}
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub read_only: bool,
    pub max_size_bytes: Option<u64>,
    pub accept_tail_loss: bool,
}
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    pub records_replayed: u64,
    pub tail_dropped: Option<String>,
}
#[derive(Clone, Copy, Debug, Default)]
pub struct Space {
    pub size_bytes: u64,
    pub live_bytes: u64,
    pub staged_bytes: u64,
    pub quarantine_bytes: u64,
    pub reserved_bytes: u64,
    pub free_bytes: u64,
}
#[derive(Clone, Debug)]
pub struct Stat {
    pub id: ObjectId,
    pub kind: ObjectKind,
    pub sealed: bool,
    pub len: u64,
    pub allocated_bytes: u64,
    pub label: [u8; 16],
}

/// Handle of one open store; cheap to clone.
#[derive(Clone)]
pub struct Store {
    _p: Arc<()>,
}
/// Data on the device, not yet named by any record. `Op::Publish` makes it an object; dropping frees it.
pub struct Staged {
    _p: (),
}
impl Staged {
    pub fn len(&self) -> u64 {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
/// Writes a large immutable object piece by piece, before it has a name.
pub struct ObjectWriter {
    _p: (),
}
impl ObjectWriter {
    pub fn append(&mut self, data: &[u8]) -> Result<(), StoreError> {
        todo!()
    }
    pub fn len(&self) -> u64 {
        todo!()
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn finish(self) -> Result<Staged, StoreError> {
        todo!()
    }
}
/// Frames in order. Ends at the end of the log (`Ok(None)`) or at damage (`Err(Corrupt)`), told apart.
pub struct FrameReader {
    _p: (),
}
impl FrameReader {
    pub fn next_frame(&mut self) -> Result<Option<(FramePos, Bytes)>, StoreError> {
        todo!()
    }
}
/// Space kept for its owner until dropped.
pub struct Reservation {
    _p: (),
}

impl Store {
    pub fn mkfs(dev: &Arc<dyn Device>, options: &MkfsOptions) -> Result<(), OpenError> {
        todo!()
    }
    pub fn open(dev: Arc<dyn Device>, options: &OpenOptions) -> Result<(Store, RecoveryReport), OpenError> {
        todo!()
    }
    pub fn commit(&self, txn: Txn, ack: Ack) -> Completion<Result<Lsn, StoreError>> {
        todo!()
    }
    /// Durable up to and including `upto`.
    pub fn sync(&self, upto: Lsn) -> Completion<Result<(), StoreError>> {
        todo!()
    }
    /// Short only at the end of the object; holes read as zeros.
    pub fn read(
        &self,
        id: ObjectId,
        range: Range<u64>,
        class: Class,
    ) -> Completion<Result<Bytes, StoreError>> {
        todo!()
    }
    pub fn read_many(
        &self,
        reads: &[(ObjectId, Range<u64>)],
        class: Class,
    ) -> Completion<Vec<Result<Bytes, StoreError>>> {
        todo!()
    }
    pub fn writer(&self, id: ObjectId, opts: CreateOptions) -> Result<ObjectWriter, StoreError> {
        todo!()
    }
    /// `after`: the frame counts only if that commit survives. Payload at most 1 MiB less the header.
    pub fn append_frame(
        &self,
        stream: ObjectId,
        payload: Bytes,
        after: Option<Lsn>,
        ack: Ack,
    ) -> Completion<Result<FramePos, StoreError>> {
        todo!()
    }
    pub fn frames(&self, stream: ObjectId, from: FramePos) -> Result<FrameReader, StoreError> {
        todo!()
    }
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, StoreError> {
        todo!()
    }
    pub fn space(&self) -> Space {
        todo!()
    }
    pub fn stat(&self, id: ObjectId) -> Option<Stat> {
        todo!()
    }
    /// Objects with id >= `from`, ascending, at most `limit`.
    pub fn list(&self, from: ObjectId, limit: usize) -> Vec<Stat> {
        todo!()
    }
    /// Checkpoints and closes; later calls answer `Fenced`.
    pub fn close(&self) -> Result<(), StoreError> {
        todo!()
    }
}
