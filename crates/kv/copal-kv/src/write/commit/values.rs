//! Value objects of direct values: commits append to one open object per group.
//!
//! Format: docs/formats/kv-values.md v2
//! Invariants
//! - Only the commit leader appends, in log order. So at a rotation of the log every byte of an object
//!   belongs to the old generation or an older one.
//! - A direct value starts at a multiple of 4096 and is padded to one, so that a dead one leaves whole pages.
//! - Bytes that a failed group appended are truncated before anything else is appended.

use crate::{
    format::entry::{KeyRange, KeyspaceId},
    tree::{
        manifest::{ObjectRole, format::ValueMeta, label},
        value::pointer::VALUE_PAGE,
    },
};
use bytes::Bytes;
use copal_object::{CreateOptions, ObjectId, ObjectKind, ObjectLifetime, Op, ReadCheck};
use std::{collections::BTreeMap, ops::Bound};

/// Bytes at which a value object is closed.
pub(crate) const OBJECT_BYTES: u64 = 64 << 20;
/// Most open groups; beyond it one is closed for each new one.
const MAX_OPEN: usize = 4096;
/// Most data in one object transaction.
const TXN_BYTES: usize = 16 << 20;

/// A value group: values of one keyspace whose keys share a prefix, and so share objects.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct GroupKey {
    pub(crate) keyspace: KeyspaceId,
    /// First bytes of the user key.
    pub(crate) prefix: Bytes,
}

impl GroupKey {
    /// All keys whose values belong to the group.
    pub(crate) fn range(&self) -> KeyRange {
        self.keyspace.prefix(&self.prefix)
    }
}

/// An object that still gets appends.
#[derive(Clone, Debug)]
pub(crate) struct OpenObject {
    pub(crate) object: ObjectId,
    pub(crate) len: u64,
    pub(crate) max_seq: u64,
}

impl OpenObject {
    pub(crate) fn meta(&self, group: &GroupKey, by_worker: bool) -> ValueMeta {
        ValueMeta {
            object: self.object,
            keyspace: group.keyspace,
            group: group.prefix.clone(),
            accounted: self.len,
            max_seq: self.max_seq,
            by_worker,
        }
    }
}

/// Options of every new value object.
pub(crate) fn create_options(expected_bytes: u64) -> CreateOptions {
    CreateOptions {
        kind: ObjectKind::Plain,
        lifetime: ObjectLifetime::Long,
        expected_bytes,
        check: ReadCheck::Caller,
        label: label(ObjectRole::Value, 0),
    }
}

/// Open objects by group.
#[derive(Debug, Default)]
pub(crate) struct DirectValues {
    open: BTreeMap<GroupKey, OpenObject>,
}

/// Appends of one commit group to value objects: transactions to submit in order, and the state to undo them.
#[derive(Default)]
pub(crate) struct ValuePlacement {
    /// Each at most 16 MiB of data.
    pub(crate) txns: Vec<Vec<Op>>,
    txn_bytes: usize,
    /// Open objects of the groups before; `None`: the object is new.
    before: Vec<(GroupKey, Option<OpenObject>)>,
    /// Objects appended to, as of the end of the commit group, to be recorded in the memtable.
    pub(crate) touched: BTreeMap<ObjectId, ValueMeta>,
}

impl ValuePlacement {
    fn push(&mut self, op: Op, bytes: usize) {
        if self.txns.is_empty() || self.txn_bytes + bytes > TXN_BYTES {
            self.txns.push(Vec::new());
            self.txn_bytes = 0;
        }
        self.txn_bytes += bytes;
        if let Some(txn) = self.txns.last_mut() {
            txn.push(op);
        }
    }
}

impl DirectValues {
    /// Finds a place for `value` in its group's object, or in `new_object` if there is none or it is full.
    pub(crate) fn place(
        &mut self,
        placement: &mut ValuePlacement,
        group: &GroupKey,
        value: &Bytes,
        seq: u64,
        new_object: impl FnOnce() -> ObjectId,
    ) -> (ObjectId, u64) {
        let padded = (value.len() as u64).next_multiple_of(VALUE_PAGE);
        let full = |open: &OpenObject| open.len > 0 && open.len + padded > OBJECT_BYTES;
        let current = self.open.get(group).cloned();
        if !placement.before.iter().any(|(known, _)| known == group) {
            placement.before.push((group.clone(), current.clone()));
        }
        let mut open = match current {
            Some(open) if !full(&open) => open,
            _ => {
                self.make_room(group);
                let object = new_object();
                let opts = create_options(OBJECT_BYTES);
                placement.push(Op::Create { id: object, opts }, 0);
                OpenObject { object, len: 0, max_seq: 0 }
            }
        };
        let (object, offset) = (open.object, open.len);
        for (at, part) in pieces(value, padded) {
            let bytes = part.len();
            placement.push(Op::Append { id: object, at: offset + at, data: part }, bytes);
        }
        open.len += padded;
        open.max_seq = seq;
        placement.touched.insert(object, open.meta(group, false));
        self.open.insert(group.clone(), open);
        (object, offset)
    }

    /// Closes another group's object when too many are open.
    fn make_room(&mut self, group: &GroupKey) {
        if self.open.len() < MAX_OPEN {
            return;
        }
        // The next one in order: any will do, and a repeated run closes the same one.
        let behind = (Bound::Excluded(group), Bound::Unbounded);
        let next = self.open.range(behind).next().or_else(|| self.open.iter().next());
        let victim = next.map(|(other, _)| other.clone()).filter(|other| other != group);
        if let Some(victim) = victim {
            self.open.remove(&victim);
        }
    }

    /// Restores the open objects; returns the operations that remove the appends of `placement`.
    pub(crate) fn undo(&mut self, placement: ValuePlacement) -> Vec<Op> {
        let mut lengths: BTreeMap<ObjectId, u64> = BTreeMap::new();
        for (group, before) in placement.before {
            match before {
                Some(open) => {
                    lengths.insert(open.object, open.len);
                    self.open.insert(group, open);
                }
                None => {
                    self.open.remove(&group);
                }
            }
        }
        let undo = |id: &ObjectId| match lengths.get(id) {
            Some(len) => Op::Truncate { id: *id, len: *len },
            None => Op::Delete { id: *id },
        };
        placement.touched.keys().map(undo).collect()
    }

    /// Closes the objects of groups that lie completely inside `range`: later values go to other objects.
    pub(crate) fn close_within(&mut self, range: &KeyRange) {
        self.open.retain(|group, _| !range.covers(&group.range()));
    }

    /// Closes an object: nothing more is appended to it.
    pub(crate) fn close(&mut self, object: ObjectId) {
        self.open.retain(|_, open| open.object != object);
    }

    pub(crate) fn resume(&mut self, group: GroupKey, open: OpenObject) {
        if self.open.len() < MAX_OPEN && open.len < OBJECT_BYTES / 2 {
            self.open.insert(group, open);
        }
    }

    /// Objects that still get appends.
    pub(crate) fn open_objects(&self) -> Vec<ObjectId> {
        self.open.values().map(|open| open.object).collect()
    }
}

/// `value` and its padding in pieces of at most 16 MiB, each with its offset.
fn pieces(value: &Bytes, padded: u64) -> Vec<(u64, Bytes)> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < value.len() {
        let end = value.len().min(at + TXN_BYTES);
        let short = (end as u64).next_multiple_of(VALUE_PAGE) - end as u64;
        let part = if short == 0 {
            value.slice(at..end)
        } else {
            let mut copy = Vec::with_capacity(end - at + short as usize);
            copy.extend_from_slice(&value[at..end]);
            copy.resize(end - at + short as usize, 0);
            Bytes::from(copy)
        };
        parts.push((at as u64, part));
        at = end;
    }
    debug_assert_eq!(parts.iter().map(|(_, part)| part.len() as u64).sum::<u64>(), padded);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &'static [u8]) -> GroupKey {
        GroupKey { keyspace: KeyspaceId(1), prefix: Bytes::from_static(name) }
    }

    #[test]
    fn values_of_a_group_follow_each_other_on_pages() {
        let mut values = DirectValues::default();
        let mut placement = ValuePlacement::default();
        let value = Bytes::from(vec![1; 5000]);
        let first = values.place(&mut placement, &group(b"a"), &value, 1, || ObjectId(10));
        let second = values.place(&mut placement, &group(b"a"), &value, 2, || ObjectId(11));
        let other = values.place(&mut placement, &group(b"b"), &value, 3, || ObjectId(12));
        assert_eq!((first, second, other), ((ObjectId(10), 0), (ObjectId(10), 8192), (ObjectId(12), 0)));
        assert_eq!(placement.touched[&ObjectId(10)].accounted, 16384);
    }

    #[test]
    fn undo_leaves_the_objects_as_they_were() {
        let mut values = DirectValues::default();
        let value = Bytes::from(vec![1; 4096]);
        let mut kept = ValuePlacement::default();
        values.place(&mut kept, &group(b"a"), &value, 1, || ObjectId(10));
        let mut failed = ValuePlacement::default();
        values.place(&mut failed, &group(b"a"), &value, 2, || ObjectId(11));
        values.place(&mut failed, &group(b"b"), &value, 2, || ObjectId(12));
        let ops = values.undo(failed);
        assert!(ops.iter().any(|op| matches!(op, Op::Truncate { id: ObjectId(10), len: 4096 })));
        assert!(ops.iter().any(|op| matches!(op, Op::Delete { id: ObjectId(12) })));
        assert_eq!(values.open_objects(), vec![ObjectId(10)]);
    }

    #[test]
    fn a_full_object_gives_way_to_a_new_one() {
        let mut values = DirectValues::default();
        let mut placement = ValuePlacement::default();
        let value = Bytes::from(vec![1; 40 << 20]);
        values.place(&mut placement, &group(b""), &value, 1, || ObjectId(10));
        let second = values.place(&mut placement, &group(b""), &value, 2, || ObjectId(11));
        assert_eq!(second, (ObjectId(11), 0));
        let per_txn = |txn: &Vec<Op>| {
            let data = |op: &Op| {
                if let Op::Append { data, .. } = op { data.len() } else { 0 }
            };
            txn.iter().map(data).sum::<usize>()
        };
        assert!(placement.txns.iter().all(|txn| per_txn(txn) <= TXN_BYTES));
        let ops = values.undo(placement);
        assert_eq!(ops.len(), 2);
    }
}
