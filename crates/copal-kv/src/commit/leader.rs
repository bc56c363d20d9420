//! What the leader of a group does: make room, place values, log, insert, publish the sequences.
//!
//! Invariants
//! - A group takes its sequences only when its last frame is acknowledged: sequences have no gaps.
//! - A `Deferred` group is inserted at once and logged within 100 ms or 1 MiB, in front of whatever is logged next.
//! - `NoSpace` leaves log, value objects and memtable as they were. A group refused for lack of space is tried
//!   again write by write, so that a delete is not refused because of its neighbour.

use super::{
    Write, WriteOp,
    values::{DirectValues, Placement},
};
use crate::{
    Durability, Error,
    broken::Flaw,
    budget::{Charge, Class as Memory},
    engine::Engine,
    entry::{EntryKind, RangeTombstone},
    key::KeyRange,
    log::{Log, format::LogOp},
    memtable::Memtable,
    rows::Rows,
    value::pointer::Pointer,
    view::View,
};
use bytes::Bytes;
use copal_object::{Ack, Lsn, Op, Store as Objects, StoreError, Txn};
use std::{sync::Arc, time::Instant};

/// Log bytes that deferred groups may keep waiting.
const DEFERRED_BYTES: usize = 1 << 20;

/// What only the leader touches.
pub(crate) struct Writer {
    pub(crate) log: Log,
    deferred: Deferred,
}

/// Groups that are in the memtable and not in the log yet.
#[derive(Default)]
struct Deferred {
    ops: Vec<u8>,
    count: u32,
    /// When the first of them was accepted.
    since: Option<Instant>,
    /// The last commit of values that they point to.
    after: Option<Lsn>,
    charge: Option<Charge>,
}

impl Writer {
    pub(crate) fn new(log: Log) -> Writer {
        Writer {
            log,
            deferred: Deferred::default(),
        }
    }

    /// Since when a deferred write waits for the log.
    pub(crate) fn deferred_since(&self) -> Option<Instant> {
        self.deferred.since
    }

    /// Appends the deferred groups and behind them `encoded` as one group; `visible` is the last sequence so far.
    fn append(
        &mut self,
        objects: &Objects,
        visible: u64,
        encoded: &Encoded,
        after: Option<Lsn>,
        ack: Ack,
    ) -> Result<(), StoreError> {
        let Deferred {
            ops,
            count,
            after: before,
            ..
        } = &mut self.deferred;
        let (kept, first_seq) = (ops.len(), visible + 1 - u64::from(*count));
        ops.extend_from_slice(&encoded.log);
        let appended = self.log.append(
            objects,
            first_seq,
            *count + encoded.count,
            ops,
            after.or(*before),
            ack,
        );
        match appended {
            Ok(()) => self.deferred = Deferred::default(),
            Err(_) => ops.truncate(kept),
        }
        appended
    }

    /// Brings the deferred groups into the log, and makes everything in it durable.
    /// # Errors
    /// `NoSpace`: they go on waiting. Otherwise a failed write.
    pub(crate) fn sync(&mut self, objects: &Objects, visible: u64) -> Result<(), StoreError> {
        if self.deferred.count > 0 {
            let nothing = Encoded {
                log: Vec::new(),
                count: 0,
                inserts: Vec::new(),
            };
            return self.append(objects, visible, &nothing, None, Ack::Durable);
        }
        self.log.sync(objects, visible + 1)
    }
}

/// A group, encoded: operations for the log and what to insert once they are logged.
struct Encoded {
    log: Vec<u8>,
    count: u32,
    inserts: Vec<Insert>,
}

enum Insert {
    Entry {
        key: Bytes,
        kind: EntryKind,
        value: Bytes,
    },
    DeleteRange {
        start: Bytes,
        end: Bytes,
    },
}

impl Engine {
    /// Logs and applies `writes` as one group where that is possible; answers for each.
    pub(crate) fn write_group(&self, writes: Vec<Write>) -> Vec<Result<(), Error>> {
        let mut writer = self.writer.lock();
        let frees_space = writes.iter().all(|write| write.frees_space);
        let bytes = writes.iter().map(|write| write.user_bytes).sum();
        let refused = |error: Error| writes.iter().map(|_| Err(error.clone())).collect();
        let alone = |writer: &mut Writer| {
            writes
                .iter()
                .map(|write| self.write_alone(writer, write))
                .collect::<Vec<_>>()
        };
        match self.make_room(&mut writer, frees_space) {
            Ok(()) => {}
            Err(error) if error.is_no_space() => return alone(&mut writer),
            Err(error) => return refused(error),
        }
        let all: Vec<&Write> = writes.iter().collect();
        let results = match self.log_and_apply(&mut writer, &all) {
            Ok(()) => writes.iter().map(|_| Ok(())).collect(),
            Err(error) if error.is_no_space() => alone(&mut writer),
            Err(error) => return refused(error),
        };
        drop(writer);
        self.pace(bytes);
        results
    }

    /// One write as its own group; one that frees space may use the reserve.
    fn write_alone(&self, writer: &mut Writer, write: &Write) -> Result<(), Error> {
        let attempt = |writer: &mut Writer| {
            self.make_room(writer, write.frees_space)?;
            self.log_and_apply(writer, &[write])
        };
        match attempt(writer) {
            Err(error) if error.is_no_space() && write.frees_space => {
                let opened = self.reserve.open(&self.objects);
                let result = attempt(writer);
                drop(opened);
                self.signal.kick();
                result
            }
            result => result,
        }
    }

    fn log_and_apply(&self, writer: &mut Writer, writes: &[&Write]) -> Result<(), Error> {
        self.poison.check()?;
        // While the reserve is open or spent, its space is not for writes that only add.
        if !writes.iter().all(|write| write.frees_space) && !self.reserve.refill(&self.objects) {
            return Err(Error::NoSpace);
        }
        // Operations, frames, and their copy on the way to the device.
        let bytes: usize = writes.iter().map(|write| write.log_bytes).sum();
        let _group = self.budget.charge(Memory::Log, 3 * bytes as u64);
        let first_seq = self.snapshots.visible() + 1;
        let mut values = self.direct_values.lock();
        let mut placement = Placement::default();
        let encoded = self.encode(&mut values, &mut placement, writes, first_seq);
        let after = match self.append_values(&mut placement) {
            Ok(after) => after,
            Err(error) => return Err(self.take_back(&mut values, placement, error)),
        };
        let durability = writes
            .iter()
            .map(|write| write.durability)
            .min()
            .unwrap_or_default();
        if let Err(error) = self.log_group(writer, &encoded, after, durability) {
            return Err(self.take_back(&mut values, placement, error));
        }
        let memtable = self.view().active.clone();
        let last_seq = apply(&memtable, &self.rows, &mut values, encoded.inserts, first_seq);
        placement
            .touched
            .into_values()
            .for_each(|meta| memtable.note_value(meta));
        drop(values);
        self.snapshots.advance(last_seq);
        let bytes = writes.iter().map(|write| write.user_bytes).sum();
        self.counters.wrote(writes.len() as u64, bytes);
        Ok(())
    }

    /// Logs a group as its most demanding write asks; a deferred one may wait for others.
    fn log_group(
        &self,
        writer: &mut Writer,
        encoded: &Encoded,
        after: Option<Lsn>,
        durability: Durability,
    ) -> Result<(), StoreError> {
        let visible = self.snapshots.visible();
        let deferred = &mut writer.deferred;
        let ack = match durability {
            Durability::Device => Ack::Durable,
            Durability::Process => Ack::Written,
            Durability::Deferred if deferred.ops.len() + encoded.log.len() > self.deferred_bytes() => {
                Ack::Written
            }
            Durability::Deferred => {
                let bytes = deferred.ops.len() + encoded.log.len();
                let charge = self.budget.charge(Memory::Log, 2 * bytes as u64);
                deferred.charge = Some(charge);
                deferred.ops.extend_from_slice(&encoded.log);
                deferred.count += encoded.count;
                deferred.after = after.or(deferred.after);
                if deferred.since.is_none() {
                    deferred.since = Some(Instant::now());
                    self.signal.kick();
                }
                return Ok(());
            }
        };
        writer.append(&self.objects, visible, encoded, after, ack)
    }

    fn deferred_bytes(&self) -> usize {
        DEFERRED_BYTES.min(self.budget.log_bytes() as usize / 4)
    }

    fn encode(
        &self,
        values: &mut DirectValues,
        placement: &mut Placement,
        writes: &[&Write],
        first_seq: u64,
    ) -> Encoded {
        let bytes = writes.iter().map(|write| write.log_bytes).sum();
        let mut encoded = Encoded {
            log: Vec::with_capacity(bytes),
            count: 0,
            inserts: Vec::new(),
        };
        for op in writes.iter().flat_map(|write| &write.ops) {
            let seq = first_seq + u64::from(encoded.count);
            encoded.count += 1;
            let (logged, insert) = match op {
                WriteOp::Put { key, value } => (
                    LogOp::Put {
                        key: key.clone(),
                        value: value.clone(),
                    },
                    Insert::Entry {
                        key: key.clone(),
                        kind: EntryKind::Put,
                        value: value.clone(),
                    },
                ),
                WriteOp::Delete { key } => (
                    LogOp::Delete { key: key.clone() },
                    Insert::Entry {
                        key: key.clone(),
                        kind: EntryKind::Delete,
                        value: Bytes::new(),
                    },
                ),
                WriteOp::DeleteRange { start, end } => (
                    LogOp::DeleteRange {
                        start: start.clone(),
                        end: end.clone(),
                    },
                    Insert::DeleteRange {
                        start: start.clone(),
                        end: end.clone(),
                    },
                ),
                WriteOp::Direct {
                    key,
                    value,
                    sums,
                    head,
                    group,
                } => {
                    let new_object = || self.new_object();
                    let (object, offset) = values.place(placement, group, value, seq, new_object);
                    let pointer = Pointer {
                        object,
                        offset,
                        len: value.len() as u32,
                        sums: sums.clone(),
                        head: head.to_vec(),
                    };
                    let pointer = Bytes::from(pointer.to_vec());
                    (
                        LogOp::Pointer {
                            key: key.clone(),
                            pointer: pointer.clone(),
                        },
                        Insert::Entry {
                            key: key.clone(),
                            kind: EntryKind::Pointer,
                            value: pointer,
                        },
                    )
                }
            };
            logged.encode(&mut encoded.log);
            encoded.inserts.push(insert);
        }
        encoded
    }

    /// Appends the values, ordered before the log frames; returns the commit the frames come after.
    fn append_values(&self, placement: &mut Placement) -> Result<Option<Lsn>, StoreError> {
        let mut after = None;
        for ops in std::mem::take(&mut placement.txns) {
            after = Some(
                self.objects
                    .commit(
                        Txn {
                            ops,
                            ..Txn::default()
                        },
                        Ack::Ordered,
                    )
                    .wait()?,
            );
        }
        Ok(after.filter(|_| !self.broken(Flaw::LogBeforeValues)))
    }

    /// Cuts off what a failed group appended; turns the failure into what the writer is told.
    fn take_back(&self, values: &mut DirectValues, placement: Placement, error: StoreError) -> Error {
        let error = self.poison.failed_write(error);
        let mut ops = values.undo(placement);
        ops.retain(|op| match op {
            Op::Truncate { id, len } => self.objects.stat(*id).is_some_and(|stat| stat.len > *len),
            Op::Delete { id } => self.objects.stat(*id).is_some(),
            _ => true,
        });
        if error.is_no_space() && !ops.is_empty() {
            let undone = self
                .objects
                .commit(
                    Txn {
                        ops,
                        ..Txn::default()
                    },
                    Ack::Ordered,
                )
                .wait();
            if let Err(second) = undone {
                // The lengths are no longer known to be those of the open objects.
                self.poison.set(&format!("could not take back a value: {second}"));
            }
        }
        error
    }

    /// Starts a new memtable when the active one is full; waits while the one before is not flushed yet.
    fn make_room(&self, writer: &mut Writer, frees_space: bool) -> Result<(), Error> {
        loop {
            self.poison.check()?;
            if self.signal.stopping() {
                return Err(Error::Closed);
            }
            let view = self.view();
            let limit = self.budget.memtable_bytes();
            let charged = view.active.charged_bytes();
            if charged < limit {
                return Ok(());
            }
            if view.frozen.is_empty() {
                return self.rotate(writer);
            }
            if self.signal.flush_is_stuck() {
                return if frees_space && charged < 2 * limit {
                    Ok(())
                } else {
                    Err(Error::NoSpace)
                };
            }
            self.signal
                .wait_for_flush(|| self.view().frozen.len() < view.frozen.len());
        }
    }

    /// Freezes the active memtable, if it holds anything, and opens a new log and memtable.
    pub(crate) fn rotate(&self, writer: &mut Writer) -> Result<(), Error> {
        if self.view().active.is_empty() {
            return Ok(());
        }
        self.next_log(writer)
    }

    /// Freezes the active memtable, empty or not, and opens a new log and memtable.
    pub(crate) fn next_log(&self, writer: &mut Writer) -> Result<(), Error> {
        self.budget.room_for_memtable()?;
        let generation = writer.log.generation + 1;
        let fail = |error| self.poison.failed_write(error);
        let log = Log::create(&self.objects, generation, self.new_object()).map_err(fail)?;
        if let Err(error) = writer.sync(&self.objects, self.snapshots.visible()) {
            let ops = vec![Op::Delete { id: log.stream }];
            let error = self.poison.failed_write(error);
            if let Err(second) = self
                .objects
                .commit(
                    Txn {
                        ops,
                        ..Txn::default()
                    },
                    Ack::Ordered,
                )
                .wait()
            {
                self.poison.set(&second.to_string());
            }
            return Err(error);
        }
        let active = Arc::new(Memtable::new(generation, log.stream));
        self.budget.watch(&active);
        writer.log = log;
        self.change_view(|view| {
            let mut frozen = view.frozen.clone();
            frozen.insert(0, view.active.clone());
            View {
                active,
                frozen,
                version: view.version.clone(),
            }
        });
        self.signal.kick();
        Ok(())
    }
}

/// Inserts a logged group, not yet visible; returns its last sequence.
fn apply(
    memtable: &Memtable,
    rows: &Rows,
    values: &mut DirectValues,
    inserts: Vec<Insert>,
    first_seq: u64,
) -> u64 {
    let mut seq = first_seq;
    for insert in inserts {
        match insert {
            Insert::Entry { key, kind, value } => {
                rows.wrote(&key, seq);
                memtable.insert(key, seq, kind, value);
            }
            Insert::DeleteRange { start, end } => {
                rows.wrote_range(&start, &end, seq);
                values.close_within(&KeyRange {
                    start: start.clone(),
                    end: end.clone(),
                });
                memtable.insert_range_delete(RangeTombstone { start, end, seq });
            }
        }
        seq += 1;
    }
    seq - 1
}
