//! Admission of calls by memory: a byte budget for each class of calls.
//!
//! Memory is reserved before a body is read from its connection, and returned when the answer is written. If
//! none is free within a moment, the call is refused with the time after which to retry. A refused call has
//! not begun, so the caller repeats it unchanged.
//!
//! Rule: VOL-31, docs/design/cluster.md
//! Invariant: the admitted bytes of a class never exceed its budget.

use crate::net::status::Status;
use copal_proto::{CallClass, CallCost, MAX_FRAME_BYTES, messages::failure::Code};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// How long a call waits for memory before it is refused. Most calls end sooner.
const ADMISSION_WAIT: Duration = Duration::from_millis(100);
/// Least bytes that a call counts as: it also takes a task.
const MIN_BYTES: usize = 1 << 10;

/// Memory budgets by class of calls, in bytes; each is at least the longest frame.
#[derive(Clone, Copy, Debug)]
pub struct ClassBudgets {
    /// Calls of and to masters.
    pub control: usize,
    /// Small reads and changes.
    pub small: usize,
    /// Bodies of files.
    pub bulk: usize,
    /// Copies between replicas.
    pub recovery: usize,
}

impl Default for ClassBudgets {
    fn default() -> ClassBudgets {
        ClassBudgets { control: 8 << 20, small: 16 << 20, bulk: 64 << 20, recovery: 64 << 20 }
    }
}

impl ClassBudgets {
    fn of(&self, class: CallClass) -> usize {
        let bytes = match class {
            CallClass::Control => self.control,
            CallClass::Small => self.small,
            CallClass::Bulk => self.bulk,
            CallClass::Recovery => self.recovery,
        };
        bytes.clamp(MAX_FRAME_BYTES, Semaphore::MAX_PERMITS.min(u32::MAX as usize))
    }
}

/// Budget and counters of one class.
struct ClassRoom {
    room: Arc<Semaphore>,
    counts: Arc<ClassCounts>,
    limit: usize,
}

#[derive(Default)]
struct ClassCounts {
    held: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
}

/// Memory use of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassUsage {
    /// Bytes admitted now.
    pub held_bytes: u64,
    /// Highest value of `held_bytes` so far.
    pub peak_bytes: u64,
    /// The budget.
    pub limit_bytes: u64,
    /// Calls refused for lack of memory.
    pub refused: u64,
}

/// Budgets of all classes. See the module.
pub(crate) struct CallAdmission {
    shares: [ClassRoom; CallClass::ALL.len()],
}

/// Memory that a call holds, released on drop.
pub(crate) struct AdmittedBytes {
    bytes: u64,
    counts: Arc<ClassCounts>,
    _room: OwnedSemaphorePermit,
}

impl Drop for AdmittedBytes {
    fn drop(&mut self) {
        // Before the permits are released: otherwise the next call would count the same bytes.
        self.counts.held.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl CallAdmission {
    pub(crate) fn new(budgets: &ClassBudgets) -> CallAdmission {
        let share = |class| {
            let limit = budgets.of(class);
            ClassRoom { room: Arc::new(Semaphore::new(limit)), counts: Arc::default(), limit }
        };
        CallAdmission { shares: CallClass::ALL.map(share) }
    }

    /// Reserves memory for a call; waits up to `ADMISSION_WAIT`.
    /// # Errors
    /// `Busy`, with the milliseconds after which to retry.
    pub(crate) async fn admit(&self, cost: CallCost) -> Result<AdmittedBytes, Status> {
        let share = &self.shares[cost.class as usize];
        let bytes = cost.bytes.clamp(MIN_BYTES, share.limit);
        let room = Arc::clone(&share.room).acquire_many_owned(bytes as u32);
        let Ok(Ok(room)) = timeout(ADMISSION_WAIT, room).await else {
            share.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Err(busy(cost.class));
        };
        let bytes = bytes as u64;
        let held = share.counts.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        share.counts.peak.fetch_max(held, Ordering::SeqCst);
        Ok(AdmittedBytes { bytes, counts: Arc::clone(&share.counts), _room: room })
    }

    pub(crate) fn counted(&self, class: CallClass) -> ClassUsage {
        let share = &self.shares[class as usize];
        ClassUsage {
            held_bytes: share.counts.held.load(Ordering::SeqCst),
            peak_bytes: share.counts.peak.load(Ordering::SeqCst),
            limit_bytes: share.limit as u64,
            refused: share.counts.refused.load(Ordering::Relaxed),
        }
    }
}

fn busy(class: CallClass) -> Status {
    let again_ms = match class {
        CallClass::Control | CallClass::Small => 20,
        CallClass::Bulk => 50,
        CallClass::Recovery => 200,
    };
    Status::new(Code::Busy, format!("no room for {} calls now", class.name())).with_numbers(vec![again_ms])
}
