//! Group commit: writers queue, one leads, the others wake together.
//!
//! The leader takes what has queued (up to 1 MiB of log), writes it as one group with one flush, inserts it into
//! the memtable and hands over to the next in the queue.
//! Invariants
//! - Sequences become visible in order, each after the durability it was promised.
//! - Exactly one thread leads at a time; it alone appends to log and direct value objects.
//!
//! Not here: what the leader writes (`leader`), where values go (`values`).

pub(crate) mod leader;
pub(crate) mod values;

use crate::{Durability, Error, log::format::LogOp, value::Pointer};
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::{collections::VecDeque, sync::Arc};
use values::GroupKey;

/// Log bytes after which a leader takes no further writes into its group.
const GROUP_BYTES: usize = 1 << 20;

/// One operation of a batch, keys with their keyspace.
#[derive(Debug)]
pub(crate) enum WriteOp {
    Put {
        key: Bytes,
        value: Bytes,
    },
    /// A value for a value object; `sums` were computed by the writer's own thread.
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
    /// Most bytes the operation takes in the log.
    fn log_bytes(&self) -> usize {
        match self {
            WriteOp::Put { key, value } => LogOp::encoded_bound(key.len(), value.len()),
            WriteOp::Direct { key, value, head, .. } => {
                LogOp::encoded_bound(key.len(), Pointer::encoded_len(value.len(), head.len()))
            }
            WriteOp::Delete { key } => LogOp::encoded_bound(key.len(), 0),
            WriteOp::DeleteRange { start, end } => LogOp::encoded_bound(start.len(), end.len()),
        }
    }
}

/// One batch on its way into the log.
#[derive(Debug)]
pub(crate) struct Write {
    pub(crate) ops: Vec<WriteOp>,
    pub(crate) durability: Durability,
    /// Log bytes, at most.
    pub(crate) log_bytes: usize,
    /// Keys and values as the caller gave them.
    pub(crate) user_bytes: u64,
    /// May use the reserve of a full store: it deletes something and adds little.
    pub(crate) frees_space: bool,
}

impl Write {
    pub(crate) fn new(ops: Vec<WriteOp>, durability: Durability) -> Write {
        const LITTLE: usize = 64 << 10;
        let log_bytes = ops.iter().map(WriteOp::log_bytes).sum();
        let user = |op: &WriteOp| match op {
            WriteOp::Put { key, value } | WriteOp::Direct { key, value, .. } => key.len() + value.len(),
            WriteOp::Delete { key } => key.len(),
            WriteOp::DeleteRange { start, end } => start.len() + end.len(),
        };
        let user_bytes = ops.iter().map(|op| user(op) as u64).sum();
        let deletes = ops
            .iter()
            .any(|op| matches!(op, WriteOp::Delete { .. } | WriteOp::DeleteRange { .. }));
        let direct = ops.iter().any(|op| matches!(op, WriteOp::Direct { .. }));
        let frees_space = deletes && !direct && log_bytes <= LITTLE;
        Write {
            ops,
            durability,
            log_bytes,
            user_bytes,
            frees_space,
        }
    }
}

/// A write in the queue and what became of it.
struct Pending {
    write: Mutex<Option<Write>>,
    state: Mutex<Progress>,
    wake: Condvar,
}

enum Progress {
    Waiting,
    Leads,
    Done(Result<(), Error>),
}

#[derive(Default)]
struct Waiting {
    queue: VecDeque<Arc<Pending>>,
    someone_leads: bool,
}

/// The queue of writers.
#[derive(Default)]
pub(crate) struct CommitQueue {
    waiting: Mutex<Waiting>,
}

impl CommitQueue {
    /// Passes `write` through the log. `write_group` is called by the leading thread only, with its own write
    /// first; it answers for each write.
    pub(crate) fn commit(
        &self,
        write: Write,
        write_group: impl FnOnce(Vec<Write>) -> Vec<Result<(), Error>>,
    ) -> Result<(), Error> {
        let me = Arc::new(Pending {
            write: Mutex::new(Some(write)),
            state: Mutex::new(Progress::Waiting),
            wake: Condvar::new(),
        });
        if let Some(done) = self.enqueue(&me) {
            return done;
        }
        let group = self.take_group();
        let writes = group
            .iter()
            .filter_map(|pending| pending.write.lock().take())
            .collect();
        let mut guard = PanicGuard {
            queue: self,
            group: &group,
            armed: true,
        };
        let results = write_group(writes);
        guard.armed = false;
        self.hand_over();
        assert_eq!(results.len(), group.len(), "each write of a group has an answer");
        let mut results = results.into_iter();
        let own = results.next().unwrap_or(Err(Error::Closed));
        for (pending, result) in group.iter().skip(1).zip(results) {
            *pending.state.lock() = Progress::Done(result);
            pending.wake.notify_one();
        }
        own
    }

    /// Queues up; returns when done by another's group, or with `None` when it is this thread's turn to lead.
    fn enqueue(&self, me: &Arc<Pending>) -> Option<Result<(), Error>> {
        let mut waiting = self.waiting.lock();
        waiting.queue.push_back(me.clone());
        if !waiting.someone_leads {
            waiting.someone_leads = true;
            return None;
        }
        drop(waiting);
        let mut state = me.state.lock();
        loop {
            match &*state {
                Progress::Waiting => me.wake.wait(&mut state),
                Progress::Leads => return None,
                Progress::Done(result) => return Some(result.clone()),
            }
        }
    }

    fn take_group(&self) -> Vec<Arc<Pending>> {
        let mut waiting = self.waiting.lock();
        let mut group = Vec::new();
        let mut bytes = 0;
        while let Some(next) = waiting.queue.front() {
            let size = next.write.lock().as_ref().map_or(0, |write| write.log_bytes);
            if !group.is_empty() && bytes + size > GROUP_BYTES {
                break;
            }
            bytes += size;
            group.extend(waiting.queue.pop_front());
        }
        group
    }

    fn hand_over(&self) {
        let mut waiting = self.waiting.lock();
        match waiting.queue.front() {
            None => waiting.someone_leads = false,
            Some(next) => {
                *next.state.lock() = Progress::Leads;
                next.wake.notify_one();
            }
        }
    }
}

/// A leader that panics must not leave its followers waiting.
struct PanicGuard<'a> {
    queue: &'a CommitQueue,
    group: &'a [Arc<Pending>],
    armed: bool,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            for pending in self.group.iter().skip(1) {
                let reason = "the thread that led the commit panicked".to_owned();
                *pending.state.lock() = Progress::Done(Err(Error::Poisoned { reason }));
                pending.wake.notify_one();
            }
            self.queue.hand_over();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(tag: u8) -> Write {
        let op = WriteOp::Put {
            key: Bytes::from(vec![tag]),
            value: Bytes::new(),
        };
        Write::new(vec![op], Durability::Device)
    }

    #[test]
    fn writers_that_queue_behind_a_leader_share_one_group() {
        let queue = CommitQueue::default();
        let groups = Mutex::new(Vec::new());
        let lead = |writes: Vec<Write>| {
            groups.lock().push(writes.len());
            writes.iter().map(|_| Ok(())).collect::<Vec<_>>()
        };
        std::thread::scope(|scope| {
            let (entered_tx, entered_rx) = std::sync::mpsc::channel();
            let (go_tx, go_rx) = std::sync::mpsc::channel::<()>();
            let (queue, lead) = (&queue, &lead);
            scope.spawn(move || {
                queue.commit(write(0), |writes| {
                    entered_tx.send(()).unwrap();
                    go_rx.recv().unwrap();
                    lead(writes)
                })
            });
            entered_rx.recv().unwrap();
            for tag in 1..9 {
                scope.spawn(move || queue.commit(write(tag), lead).unwrap());
            }
            // Everyone is in the queue before the first group may end.
            while queue.waiting.lock().queue.len() < 8 {
                std::thread::yield_now();
            }
            go_tx.send(()).unwrap();
        });
        assert_eq!(*groups.lock(), vec![1, 8]);
    }

    #[test]
    fn only_writes_that_free_space_may_use_the_reserve() {
        let key = || Bytes::from_static(b"k");
        let delete = || WriteOp::Delete { key: key() };
        let put = |len: usize| WriteOp::Put {
            key: key(),
            value: Bytes::from(vec![0; len]),
        };
        assert!(Write::new(vec![delete(), put(100)], Durability::Device).frees_space);
        assert!(!Write::new(vec![put(1)], Durability::Device).frees_space);
        assert!(!Write::new(vec![delete(), put(1 << 20)], Durability::Device).frees_space);
    }
}
