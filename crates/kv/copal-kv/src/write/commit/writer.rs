//! State under the writer lock: the log, the deferred writes, the page-cache log.
//!
//! Invariant: encoding a group and inserting it into the memtable use the same order of operations, one
//! sequence each.
//!
//! Not here: the work of a turn (`leader`), admission (`admission`).

use super::{
    WriteOp, WriteRequest,
    values::{DirectValues, ValuePlacement},
};
use crate::{
    Error,
    format::entry::{EntryKind, KeyRange, RangeTombstone},
    memory::{budget::MemoryCharge, rows::RowCache},
    tree::{memtable::Memtable, value::pointer::ValuePointer},
    write::{
        log::{LogOp, LoggedGroup, WriteLog},
        page_cache_log::{PageCacheLogState, ReuseAfter},
    },
};
use bytes::Bytes;
use copal_object::{Ack, Lsn, ObjectId, ReservedFrame, Store as Objects, StoreError};
use std::time::Instant;

/// Groups that are in the memtable and not in the log yet; see `deferred`.
#[derive(Default)]
pub(super) struct DeferredWrites {
    pub(super) ops: Vec<u8>,
    pub(super) count: u32,
    /// Time at which the first of them was accepted.
    pub(super) since: Option<Instant>,
    /// The last commit of values that they point to.
    pub(super) after: Option<Lsn>,
    pub(super) charge: Option<MemoryCharge>,
}

/// State that only the holder of the writer lock touches.
pub(crate) struct LogWriter {
    pub(crate) log: WriteLog,
    pub(super) deferred: DeferredWrites,
    pub(crate) page_cache_log: PageCacheLogState,
    /// Stream for a page-cache log that an earlier session created but did not begin to use.
    pub(crate) page_cache_stream: Option<ObjectId>,
    /// The budget had room for everything that the memtable may hold.
    pub(in crate::write) has_room: bool,
    /// The last merge of everything did not make enough room.
    pub(in crate::write) merged_in_vain: bool,
    /// The store is closed: nothing more is written.
    pub(in crate::write) closed: bool,
}

impl LogWriter {
    pub(crate) fn new(log: WriteLog) -> LogWriter {
        LogWriter {
            log,
            deferred: DeferredWrites::default(),
            page_cache_log: PageCacheLogState::default(),
            page_cache_stream: None,
            has_room: false,
            merged_in_vain: false,
            closed: false,
        }
    }

    /// # Errors
    /// `Closed`: the objects belong to the next opening, and nothing may be written to them.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        if self.closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Copies a group, which takes sequences after `given`, to the page-cache log, together with earlier
    /// deferred groups that are not there yet.
    pub(super) fn copy_to_page_cache_log(
        &mut self,
        log: &[u8],
        count: u32,
        given: u64,
    ) -> Result<(), StoreError> {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            let before = self.deferred.count - cache_log.copied_count;
            let first_seq = given + 1 - u64::from(before);
            cache_log.copy(log, first_seq, before + count)?;
        }
        Ok(())
    }

    /// Tells the page-cache log that all deferred groups were logged.
    pub(super) fn page_cache_logged(&mut self, reuse: ReuseAfter) {
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.logged(reuse);
        }
    }

    /// Reserves the last frame of a group of `count` operations; `log` also holds the deferred writes before
    /// it. Writes the frames before the last. `given` is the last allocated sequence.
    pub(super) fn reserve_group(
        &mut self,
        objects: &Objects,
        given: u64,
        (log, count): (&[u8], u32),
        after: Option<Lsn>,
        ack: Ack,
    ) -> Result<ReservedFrame, StoreError> {
        let before = &self.deferred;
        let group = LoggedGroup {
            first_seq: given + 1 - u64::from(before.count),
            count: before.count + count,
            ops: log,
            after: after.or(before.after),
        };
        self.log.reserve_group(objects, group, ack)
    }

    /// Logs the deferred groups and makes the whole log durable. `given` is the last allocated sequence; no
    /// group may be in flight.
    /// # Errors
    /// `NoSpace`: they stay deferred. Otherwise a failed write.
    pub(crate) fn sync(&mut self, objects: &Objects, given: u64) -> Result<(), StoreError> {
        let DeferredWrites { ops, count, after, .. } = &self.deferred;
        if *count > 0 || self.log.unsynced {
            let group =
                LoggedGroup { first_seq: given + 1 - u64::from(*count), count: *count, ops, after: *after };
            self.log.append_durably(objects, group)?;
            self.deferred = DeferredWrites::default();
        }
        if let PageCacheLogState::Open(cache_log) = &mut self.page_cache_log {
            cache_log.all_written();
        }
        Ok(())
    }
}

/// A group, encoded for the log.
pub(super) struct EncodedOps {
    /// The earlier deferred writes, then the group's own.
    pub(super) log: Vec<u8>,
    /// Number of the group's own operations.
    pub(super) count: u32,
    /// Pointers to the direct values, in their order.
    pointers: Vec<Bytes>,
}

impl EncodedOps {
    /// The first `len` bytes of log, the earlier deferred writes, for a group that got no place. The group's
    /// charge covers the rest.
    pub(super) fn without_own(&mut self, len: usize) -> Vec<u8> {
        let mut log = std::mem::take(&mut self.log);
        log.truncate(len);
        log.shrink_to_fit();
        log
    }
}

/// Encodes `writes` after the contents of `log`, and finds places for their direct values.
pub(super) fn encode(
    mut log: Vec<u8>,
    values: &mut DirectValues,
    placement: &mut ValuePlacement,
    writes: &[WriteRequest],
    first_seq: u64,
    new_object: impl Fn() -> ObjectId,
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
                let (object, offset) = values.place(placement, group, value, seq, &new_object);
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

/// Closes the value objects of groups that a range delete of `writes` covers: later values go to other
/// objects.
pub(super) fn close_covered(values: &mut DirectValues, writes: &[WriteRequest]) {
    for op in writes.iter().flat_map(|write| &write.ops) {
        if let WriteOp::DeleteRange { start, end } = op {
            values.close_within(&KeyRange { start: start.clone(), end: end.clone() });
        }
    }
}

/// Inserts a group into the memtable; readers see it once its sequences are visible.
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
                // An empty pointer in the memtable would lose the value.
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
