//! Room for calls in a server's memory: so many bytes for each class of calls, and who finds none comes again
//! later.
//!
//! Room is taken before a body is read from its connection, and given back when the answer is written.
//! Without room within a moment the call is refused with the time after which to ask again; it was not begun,
//! so it can be asked again as it is. Rule: VOL-31, docs/design/cluster.md
//! Invariant: bytes that are admitted in a class are never more than its budget.

use crate::status::Status;
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

/// How long a call waits for room before it is refused: what it waits for ends soon, mostly.
const PATIENCE: Duration = Duration::from_millis(100);
/// A call is counted as so many bytes at least: it takes a task, too.
const LEAST_BYTES: usize = 1 << 10;

/// Bytes that calls may hold in a server's memory, by class; each at least the longest frame.
#[derive(Clone, Copy, Debug)]
pub struct Budgets {
    /// Calls to and from masters.
    pub control: usize,
    /// Reads and changes of few bytes.
    pub small: usize,
    /// Bodies.
    pub bulk: usize,
    /// What members take over from each other.
    pub recovery: usize,
}

impl Default for Budgets {
    fn default() -> Budgets {
        Budgets { control: 8 << 20, small: 16 << 20, bulk: 64 << 20, recovery: 64 << 20 }
    }
}

impl Budgets {
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

/// The room of one class, and what was counted of it.
struct Share {
    room: Arc<Semaphore>,
    counts: Arc<Counts>,
    limit: usize,
}

#[derive(Default)]
struct Counts {
    held: AtomicU64,
    peak: AtomicU64,
    refused: AtomicU64,
}

/// What was counted of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Bytes that are admitted now.
    pub held_bytes: u64,
    /// The most that ever were at a time.
    pub peak_bytes: u64,
    /// The most that may be.
    pub limit_bytes: u64,
    /// Calls that found no room.
    pub refused: u64,
}

/// See the module.
pub(crate) struct Admission {
    shares: [Share; CallClass::ALL.len()],
}

/// Room that a call holds until it is dropped.
pub(crate) struct Held {
    bytes: u64,
    counts: Arc<Counts>,
    _room: OwnedSemaphorePermit,
}

impl Drop for Held {
    fn drop(&mut self) {
        // Before the room is given back: nobody counts it twice.
        self.counts.held.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Admission {
    pub(crate) fn new(budgets: &Budgets) -> Admission {
        let share = |class| {
            let limit = budgets.of(class);
            Share { room: Arc::new(Semaphore::new(limit)), counts: Arc::default(), limit }
        };
        Admission { shares: CallClass::ALL.map(share) }
    }

    /// Takes room for a call; waits for it a moment.
    /// # Errors
    /// `Busy`, with the milliseconds after which to ask again.
    pub(crate) async fn admit(&self, cost: CallCost) -> Result<Held, Status> {
        let share = &self.shares[cost.class as usize];
        let bytes = cost.bytes.clamp(LEAST_BYTES, share.limit);
        let room = Arc::clone(&share.room).acquire_many_owned(bytes as u32);
        let Ok(Ok(room)) = timeout(PATIENCE, room).await else {
            share.counts.refused.fetch_add(1, Ordering::Relaxed);
            return Err(busy(cost.class));
        };
        let bytes = bytes as u64;
        let held = share.counts.held.fetch_add(bytes, Ordering::SeqCst) + bytes;
        share.counts.peak.fetch_max(held, Ordering::SeqCst);
        Ok(Held { bytes, counts: Arc::clone(&share.counts), _room: room })
    }

    pub(crate) fn counted(&self, class: CallClass) -> Admitted {
        let share = &self.shares[class as usize];
        Admitted {
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
