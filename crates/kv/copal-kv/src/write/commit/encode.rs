//! A group as bytes for the log, and its entry into the memtable.
//!
//! Invariants
//! - Both walk the operations in the same order, one sequence each.

use super::{
    WriteOp, WriteRequest,
    values::{DirectValues, ValuePlacement},
};
use crate::{
    engine::Engine,
    format::{
        entry::{EntryKind, RangeTombstone},
        key::KeyRange,
    },
    memory::rows::RowCache,
    tree::{memtable::Memtable, value::pointer::ValuePointer},
    write::log::format::LogOp,
};
use bytes::Bytes;

/// A group, encoded for the log.
pub(super) struct EncodedOps {
    /// The writes deferred before it, and then its own.
    pub(super) log: Vec<u8>,
    /// Its own.
    pub(super) count: u32,
    /// Of the direct values, in their order.
    pointers: Vec<Bytes>,
}

impl EncodedOps {
    /// Takes the writes deferred before, `len` bytes of log, back out: this group did not get its place. What
    /// the group took goes back with its charge.
    pub(super) fn without_own(&mut self, len: usize) -> Vec<u8> {
        let mut log = std::mem::take(&mut self.log);
        log.truncate(len);
        log.shrink_to_fit();
        log
    }
}

/// Encodes `writes` behind what stands in `log`, finding places for their direct values.
pub(super) fn encode(
    engine: &Engine,
    mut log: Vec<u8>,
    values: &mut DirectValues,
    placement: &mut ValuePlacement,
    writes: &[WriteRequest],
    first_seq: u64,
) -> EncodedOps {
    log.reserve(writes.iter().map(|write| write.log_bytes).sum());
    let mut encoded = EncodedOps { log, count: 0, pointers: Vec::new() };
    for op in writes.iter().flat_map(|write| &write.ops) {
        let seq = first_seq + u64::from(encoded.count);
        encoded.count += 1;
        let log = &mut encoded.log;
        match op {
            WriteOp::Put { key, value } => LogOp::Put { key, value }.encode(log),
            WriteOp::Delete { key } => LogOp::Delete { key }.encode(log),
            WriteOp::DeleteRange { start, end } => LogOp::DeleteRange { start, end }.encode(log),
            WriteOp::Direct { key, value, sums, head, group } => {
                let (object, offset) = values.place(placement, group, value, seq, || engine.new_object());
                let pointer = ValuePointer {
                    object,
                    offset,
                    len: value.len() as u32,
                    sums: sums.clone(),
                    head: head.to_vec(),
                };
                let pointer = Bytes::from(pointer.to_vec());
                LogOp::Pointer { key, pointer: &pointer }.encode(log);
                encoded.pointers.push(pointer);
            }
        }
    }
    encoded
}

/// Closes the value objects of groups that a range delete of `writes` covers: later values go elsewhere.
pub(super) fn close_covered(values: &mut DirectValues, writes: &[WriteRequest]) {
    for op in writes.iter().flat_map(|write| &write.ops) {
        if let WriteOp::DeleteRange { start, end } = op {
            values.close_within(&KeyRange { start: start.clone(), end: end.clone() });
        }
    }
}

/// Enters a group into the memtable; readers see it once its sequences are visible.
pub(super) fn insert(
    memtable: &Memtable,
    rows: &RowCache,
    writes: &mut [WriteRequest],
    encoded: EncodedOps,
    first_seq: u64,
) {
    let mut pointers = encoded.pointers.into_iter();
    let ops = writes.iter_mut().flat_map(|write| std::mem::take(&mut write.ops));
    for (seq, op) in (first_seq..).zip(ops) {
        let (key, kind, value) = match op {
            WriteOp::Put { key, value } => (key, EntryKind::Put, value),
            WriteOp::Delete { key } => (key, EntryKind::Delete, Bytes::new()),
            WriteOp::Direct { key, .. } => {
                // An empty pointer in the memtable would be a value that nobody finds again.
                let pointer = pointers.next().expect("encoding made a pointer for each direct value");
                (key, EntryKind::Pointer, pointer)
            }
            WriteOp::DeleteRange { start, end } => {
                rows.wrote_range(&start, &end, seq);
                memtable.insert_range_delete(RangeTombstone { start, end, seq });
                continue;
            }
        };
        rows.wrote(&key, seq);
        memtable.insert(key, seq, kind, value);
    }
}
