//! Group commit: writers gather in groups, several groups are in flight at once, and each wakes its writers
//! together.
//!
//! The first writer of a group leads it. In its turn it takes the gathered writes (up to 1 MiB of log),
//! starts their log write, and passes the turn on. It inserts them into the memtable while the device writes.
//! Invariants
//! - Sequences become visible in order, each after its promised durability (KV-2).
//! - Exactly one thread has the turn; only that thread appends to the log and to direct value objects.
//!
//! Not here: the turns (`queue`), the leader's work (`leader`, `writer`), deferred groups (`deferred`),
//! making room (`admission`), placement of values (`values`).

pub(crate) mod deferred;
pub(crate) mod leader;
pub(crate) mod queue;
pub(crate) mod values;
pub(crate) mod writer;

use crate::{Durability, tree::value::ValuePointer, write::log::LogOp};
use bytes::Bytes;
use values::GroupKey;

/// One operation of a batch; keys include their keyspace.
#[derive(Debug)]
pub(crate) enum WriteOp {
    Put {
        key: Bytes,
        value: Bytes,
    },
    /// A value for a value object; the writer's own thread computed `sums`.
    Direct {
        key: Bytes,
        value: Bytes,
        sums: Vec<u32>,
        /// First bytes of the value, for its pointer.
        head: Bytes,
        group: GroupKey,
    },
    Delete {
        key: Bytes,
    },
    DeleteRange {
        start: Bytes,
        end: Bytes,
    },
}

impl WriteOp {
    /// Upper bound of the operation's bytes in the log.
    fn log_bytes(&self) -> usize {
        match self {
            WriteOp::Put { key, value } => LogOp::encoded_bound(key.len(), value.len()),
            WriteOp::Direct { key, value, head, .. } => {
                LogOp::encoded_bound(key.len(), ValuePointer::encoded_len(value.len(), head.len()))
            }
            WriteOp::Delete { key } => LogOp::encoded_bound(key.len(), 0),
            WriteOp::DeleteRange { start, end } => LogOp::encoded_bound(start.len(), end.len()),
        }
    }

    /// Bytes of memory that the operation takes in log and memtable.
    pub(crate) fn room_bytes(&self) -> u64 {
        let entry = match self {
            WriteOp::DeleteRange { .. } => RANGE_DELETE_BYTES,
            WriteOp::Put { .. } | WriteOp::Direct { .. } | WriteOp::Delete { .. } => ENTRY_BYTES,
        };
        self.log_bytes() as u64 + entry
    }
}

/// Bytes of an entry in the memtable, besides its key and value.
const ENTRY_BYTES: u64 = 128;
/// Bytes of a range delete in the memtable, besides its keys.
const RANGE_DELETE_BYTES: u64 = 416;

/// Most log bytes of puts in a write that deletes something and may use the reserve.
const LITTLE: usize = 64 << 10;
/// Most log bytes of any write that may use the reserve.
const SHORT: usize = 1 << 20;

/// One batch to be logged.
#[derive(Debug)]
pub(crate) struct WriteRequest {
    pub(crate) ops: Vec<WriteOp>,
    pub(crate) durability: Durability,
    /// Upper bound of the log bytes.
    pub(crate) log_bytes: usize,
    /// Bytes of keys and values as the caller gave them.
    pub(crate) user_bytes: u64,
    /// Bytes of memory that the batch takes in log and memtable.
    pub(crate) room_bytes: u64,
    /// May use the reserve of a full store: it is short, and either essential or deletes something while it
    /// adds little.
    pub(crate) frees_space: bool,
}

impl WriteRequest {
    pub(crate) fn new(ops: Vec<WriteOp>, durability: Durability) -> WriteRequest {
        let log_bytes = ops.iter().map(WriteOp::log_bytes).sum();
        let user = |op: &WriteOp| match op {
            WriteOp::Put { key, value } | WriteOp::Direct { key, value, .. } => key.len() + value.len(),
            WriteOp::Delete { key } => key.len(),
            WriteOp::DeleteRange { start, end } => start.len() + end.len(),
        };
        let user_bytes = ops.iter().map(|op| user(op) as u64).sum();
        let room_bytes = ops.iter().map(WriteOp::room_bytes).sum();
        let deletes = ops.iter().any(|op| matches!(op, WriteOp::Delete { .. } | WriteOp::DeleteRange { .. }));
        let mut write =
            WriteRequest { ops, durability, log_bytes, user_bytes, room_bytes, frees_space: false };
        let put = |op: &WriteOp| matches!(op, WriteOp::Put { .. }).then(|| op.log_bytes());
        let put_bytes: usize = write.ops.iter().filter_map(put).sum();
        write.frees_space = deletes && put_bytes <= LITTLE && write.is_short();
        write
    }

    /// Lets a short write use the reserve.
    pub(crate) fn essential(mut self) -> WriteRequest {
        self.frees_space = self.is_short();
        self
    }

    fn is_short(&self) -> bool {
        !self.has_direct() && self.log_bytes <= SHORT
    }

    /// Whether it has to leave space for small writes in a store that is nearly full.
    pub(crate) fn is_large(&self) -> bool {
        self.has_direct() || self.log_bytes > LITTLE
    }

    fn has_direct(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, WriteOp::Direct { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_free_space_or_are_essential_may_use_the_reserve() {
        let key = || Bytes::from_static(b"k");
        let delete = || WriteOp::Delete { key: key() };
        let put = |len: usize| WriteOp::Put { key: key(), value: Bytes::from(vec![0; len]) };
        assert!(WriteRequest::new(vec![delete(), put(100)], Durability::Device).frees_space);
        assert!(!WriteRequest::new(vec![put(1)], Durability::Device).frees_space);
        assert!(!WriteRequest::new(vec![delete(), put(1 << 20)], Durability::Device).frees_space);
        // Short, but its put is larger than a delete needs.
        assert!(!WriteRequest::new(vec![delete(), put(100_000)], Durability::Device).frees_space);
        assert!(WriteRequest::new(vec![delete(), put(60_000)], Durability::Device).frees_space);
        let essential = |len| WriteRequest::new(vec![put(len)], Durability::Device).essential();
        assert!(essential(100).frees_space);
        assert!(!essential(1 << 20).frees_space);
        let deletes = |count| WriteRequest::new((0..count).map(|_| delete()).collect(), Durability::Device);
        assert!(deletes(10_000).frees_space);
        assert!(!deletes(1_000_000).frees_space);
    }

    #[test]
    fn a_write_is_large_by_its_log_or_by_a_value_that_is_written_beside_it() {
        let put =
            |len: usize| WriteOp::Put { key: Bytes::from_static(b"k"), value: Bytes::from(vec![0; len]) };
        let direct = WriteOp::Direct {
            key: Bytes::from_static(b"k"),
            value: Bytes::from(vec![0; 8192]),
            sums: vec![0; 2],
            head: Bytes::new(),
            group: GroupKey { keyspace: crate::format::entry::KeyspaceId(1), prefix: Bytes::new() },
        };
        assert!(!WriteRequest::new(vec![put(60_000)], Durability::Device).is_large());
        assert!(WriteRequest::new(vec![put(70_000)], Durability::Device).is_large());
        assert!(WriteRequest::new(vec![direct], Durability::Device).is_large());
    }
}
