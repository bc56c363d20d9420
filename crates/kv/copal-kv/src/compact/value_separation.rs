//! Appends values that a flush separates and values that collection moves to the worker's own value objects,
//! one open object per group.
//!
//! Format: docs/formats/kv-values.md v2
//! Invariants
//! - Everything is appended, in order, before the transaction that installs the pointers. A crash in between
//!   leaves bytes after the accounted length, which the next opening truncates.
//! - Bytes that an abandoned step appended are truncated before the next append.

use crate::{
    format::entry::KeyRange,
    memory::budget::{MemoryAccounts, MemoryCharge, MemoryClass},
    tree::{
        manifest::format::ValueMeta,
        value::pointer::{ValuePointer, piece_sums},
    },
    write::commit::values::{GroupKey, OBJECT_BYTES, OpenObject, create_options},
};
use bytes::Bytes;
use copal_object::{Ack, ObjectId, Op, Store as Objects, StoreError, Txn};
use std::collections::BTreeMap;

/// Bytes buffered over all groups before they are appended.
const BUFFER_BYTES: u64 = 2 << 20;
/// Copies of buffered bytes: a vector that doubles, and the write.
const COPIES: u64 = 3;
/// Open groups kept between steps.
const MAX_OPEN: usize = 1024;

/// Open value objects that the worker keeps between its steps.
#[derive(Debug, Default)]
pub(crate) struct WorkerValues {
    open: BTreeMap<GroupKey, OpenObject>,
}

impl WorkerValues {
    pub(crate) fn open_objects(&self) -> Vec<ObjectId> {
        self.open.values().map(|open| open.object).collect()
    }

    /// Closes an object: nothing more is appended to it.
    pub(crate) fn close(&mut self, object: ObjectId) {
        self.open.retain(|_, open| open.object != object);
    }

    /// Closes the objects of groups that lie completely inside `range`.
    pub(crate) fn close_within(&mut self, range: &KeyRange) {
        self.open.retain(|group, _| !range.covers(&group.range()));
    }

    /// Continues to append to an object found at opening.
    pub(crate) fn resume(&mut self, group: GroupKey, open: OpenObject) {
        if self.open.len() < MAX_OPEN && open.len < OBJECT_BYTES / 2 {
            self.open.insert(group, open);
        }
    }
}

/// The values of one step.
pub(crate) struct ValueSeparation<'a> {
    objects: &'a Objects,
    /// Open objects, with the appends of this step.
    open: BTreeMap<GroupKey, OpenObject>,
    /// All objects that this step touched, for the manifest.
    touched: BTreeMap<ObjectId, ValueMeta>,
    /// Lengths before the step; `None`: the step created the object.
    before: BTreeMap<ObjectId, Option<u64>>,
    buffers: BTreeMap<ObjectId, Vec<u8>>,
    buffered: usize,
    buffer_limit: usize,
    charge: MemoryCharge,
    pub(crate) written: u64,
}

impl<'a> ValueSeparation<'a> {
    pub(crate) fn new(
        objects: &'a Objects,
        budget: &MemoryAccounts,
        values: &WorkerValues,
    ) -> ValueSeparation<'a> {
        let buffer_limit = BUFFER_BYTES.min(budget.merge_bytes() / 8) as usize;
        ValueSeparation {
            buffer_limit,
            charge: budget.charge(MemoryClass::Merges, 0),
            objects,
            open: values.open.clone(),
            touched: BTreeMap::new(),
            before: BTreeMap::new(),
            buffers: BTreeMap::new(),
            buffered: 0,
            written: 0,
        }
    }

    /// Assigns `value` a place and returns the pointer to it, with `head` beside it.
    pub(crate) fn place(
        &mut self,
        group: &GroupKey,
        value: &[u8],
        head: &[u8],
        seq: u64,
        new_object: impl FnOnce() -> ObjectId,
    ) -> Result<ValuePointer, StoreError> {
        let len = value.len() as u64;
        let full = |open: &OpenObject| open.len > 0 && open.len + len > OBJECT_BYTES;
        let mut open = match self.open.get(group).cloned() {
            Some(open) if !full(&open) => open,
            _ => {
                let object = new_object();
                let ops = vec![Op::Create { id: object, opts: create_options(OBJECT_BYTES) }];
                self.commit(ops)?;
                self.before.insert(object, None);
                OpenObject { object, len: 0, max_seq: 0 }
            }
        };
        self.before.entry(open.object).or_insert(Some(open.len));
        let pointer = ValuePointer {
            object: open.object,
            offset: open.len,
            len: value.len() as u32,
            sums: piece_sums(value),
            head: head.to_vec(),
        };
        self.charge.set((self.buffered + value.len()) as u64 * COPIES);
        self.buffers.entry(open.object).or_default().extend_from_slice(value);
        self.buffered += value.len();
        open.len += len;
        open.max_seq = open.max_seq.max(seq);
        self.touched.insert(open.object, open.meta(group, true));
        self.open.insert(group.clone(), open);
        if self.buffered >= self.buffer_limit {
            self.append_buffers()?;
        }
        Ok(pointer)
    }

    fn append_buffers(&mut self) -> Result<(), StoreError> {
        let mut ops = Vec::new();
        for (object, buffer) in std::mem::take(&mut self.buffers) {
            let end = self.touched.get(&object).map_or(0, |meta| meta.accounted);
            let at = end - buffer.len() as u64;
            ops.push(Op::Append { id: object, at, data: Bytes::from(buffer) });
        }
        self.written += self.buffered as u64;
        self.buffered = 0;
        let appended = if ops.is_empty() { Ok(()) } else { self.commit(ops) };
        self.charge.set(0);
        appended
    }

    fn commit(&self, ops: Vec<Op>) -> Result<(), StoreError> {
        self.objects.commit(Txn::new().ops(ops), Ack::Ordered).wait().map(drop)
    }

    /// Appends the buffered values; returns the touched objects for the manifest.
    pub(crate) fn finish(&mut self) -> Result<Vec<ValueMeta>, StoreError> {
        self.append_buffers()?;
        Ok(self.touched.values().cloned().collect())
    }

    /// After the step was installed: keeps its open objects.
    pub(crate) fn keep(self, values: &mut WorkerValues) {
        if self.before.is_empty() {
            return;
        }
        values.open = self.open;
        while values.open.len() > MAX_OPEN {
            let Some(group) = values.open.keys().next().cloned() else {
                break;
            };
            values.open.remove(&group);
        }
    }

    /// Abandons the step: truncates its appends. If there is no space for that, closes the object, and the
    /// next opening truncates it.
    pub(crate) fn abandon(self, values: &mut WorkerValues) -> Result<(), StoreError> {
        let undo = |(id, before): (ObjectId, Option<u64>)| {
            let stat = self.objects.stat(id)?;
            match before {
                Some(len) => (stat.len > len).then_some(Op::Truncate { id, len }),
                None => Some(Op::Delete { id }),
            }
        };
        let ops: Vec<Op> = self.before.iter().map(|(id, before)| (*id, *before)).filter_map(undo).collect();
        if ops.is_empty() {
            return Ok(());
        }
        match self.commit(ops) {
            Err(StoreError::NoSpace { .. }) => {
                self.before.keys().for_each(|object| values.close(*object));
                Ok(())
            }
            cut => cut,
        }
    }
}
