//! The asker in a job's rounds: sends ids of a part to the owners of their partitions, and receives the
//! answers.
//!
//! Paper: low-profile-dedup §2 (request and output threads of the backup agent).
//!
//! A part's ids are split by partition into batches while they arrive. A spool file keeps their positions and
//! the ids, so that a batch can be sent again. Memory holds one answer per id (4 bytes) and 32 bytes per
//! batch.
//!
//! Invariants
//! - An answer counts once, and only for a batch that its sender was asked, with the length, job, round and
//!   partition of that question. All others are dropped and counted ([`DroppedAnswers`]).
//! - A silent member costs time, never an error: its batches go to the stand-in, and at the deadline missing
//!   answers are `UNANSWERED`.
//! - Every thread and task has ended when the asker is dropped.
//!
//! Not here: when rounds begin and end (`agent::turns`), how long to wait ([`AnswerPatience`]).

mod answers;
mod batch;
mod hedge;
mod member_connection;
pub mod members;
mod options;
mod sender;
mod split;
mod spool;
#[cfg(test)]
mod tests;
mod traffic;

use crate::fleet::messages::{Instance, MarkerMessage};
use batch::PendingParts;
use copal_backup::peers::{Answer, ShortId};
use copal_proto::Method;
use futures_util::{StreamExt, stream};
use member_connection::{MemberConnection, SendOutcome};
pub use options::{
    AnswerPatience, AskerOptions, DroppedAnswers, FixedPatience, FleetMember, OwnerMap, Ticket,
};
use parking_lot::{Condvar, Mutex};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};
pub use traffic::AskerTraffic;

/// Most messages in transit.
const AT_ONCE: usize = 16;

struct Shared {
    options: AskerOptions,
    instance: Instance,
    owners: Arc<dyn OwnerMap>,
    patience: Arc<dyn AnswerPatience>,
    links: Vec<MemberConnection>,
    round: AtomicU32,
    pending: Mutex<PendingParts>,
    /// Signalled when a part was answered, given up or lost, or the asker ended.
    changed: Condvar,
    hedge: Mutex<Option<JoinHandle<()>>>,
    /// Tasks that read answers.
    tasks: Mutex<Vec<tokio::task::JoinHandle<()>>>,
    traffic: AskerTraffic,
    /// A batch was asked of a stand-in, or again.
    was_repeated: AtomicBool,
    stop: AtomicBool,
}

/// Asks the members of one job. Threads that back up share it by reference.
pub struct Asker {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asker").field("members", &self.shared.options.members).finish_non_exhaustive()
    }
}

impl Asker {
    /// Begins with round 0. Connects when it first sends.
    /// # Errors
    /// The system provides no random numbers or no thread.
    ///
    /// # Panics
    /// With 65,535 members or more.
    pub fn new(
        options: AskerOptions,
        owners: Arc<dyn OwnerMap>,
        patience: Arc<dyn AnswerPatience>,
    ) -> io::Result<Asker> {
        let members = options.members.len();
        assert!(members < usize::from(u16::MAX), "a batch names its owner in 16 bits");
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            instance,
            links: (0..members).map(MemberConnection::new).collect(),
            options,
            owners,
            patience,
            round: AtomicU32::new(0),
            pending: Mutex::default(),
            changed: Condvar::new(),
            hedge: Mutex::default(),
            tasks: Mutex::default(),
            traffic: AskerTraffic::default(),
            was_repeated: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let (asker, shared) = (Asker { shared: Arc::clone(&shared) }, shared);
        let hedge = std::thread::Builder::new().name("agent-hedge".to_owned());
        *asker.shared.hedge.lock() = Some(hedge.spawn(move || hedge::run(&shared))?);
        Ok(asker)
    }

    /// Splits the ids of a part of the VM's backup, and sends them to their owners while they arrive. Blocks
    /// until the owners have accepted them; a member that does not accept within some seconds counts as
    /// silent.
    /// # Errors
    /// Errors of `ids` and of the spool file. The part is then forgotten.
    pub fn send(&self, vm: u32, ids: &mut dyn Iterator<Item = io::Result<ShortId>>) -> io::Result<Ticket> {
        sender::run(&self.shared, vm, ids)
    }

    /// Ends the round: sends a marker to all members that this host has sent all its questions, and begins
    /// the next round. An asker without other participants marks only the members that it asked in the round:
    /// no other member waits for it. Returns the number of members that were reached. No other thread may
    /// send meanwhile.
    pub fn end_round(&self) -> usize {
        let round = self.shared.round.fetch_add(1, Ordering::AcqRel);
        let patience = self.shared.patience.for_others();
        let waits = |link: &MemberConnection| link.take_asked() || self.shared.options.participants > 1;
        let members = (0..self.shared.links.len()).filter(|&member| waits(&self.shared.links[member]));
        let replies = stream::iter(members)
            .map(|member| self.shared.mark(member, round, patience))
            .buffer_unordered(AT_ONCE)
            .filter(|is_told| std::future::ready(*is_told))
            .count();
        let replies = self.shared.options.network.wait(replies);
        self.shared.pending.lock().end_round(round, Instant::now());
        self.shared.changed.notify_all();
        replies
    }

    /// Waits for the answers of a part, in the order of its ids, up to the deadline; missing ones are then
    /// `UNANSWERED`. The part is forgotten afterwards. An unknown ticket has no answers.
    #[must_use]
    pub fn receive(&self, ticket: Ticket) -> Vec<Answer> {
        let began = Instant::now();
        let mut pending = self.shared.pending.lock();
        pending.wait_began(ticket, began);
        self.shared.changed.notify_all();
        while let Some(since) = pending.waiting_since(ticket) {
            let deadline = since + self.shared.patience.deadline();
            if self.shared.changed.wait_until(&mut pending, deadline).timed_out() {
                break;
            }
        }
        pending.take(ticket)
    }

    /// Number of ids with answers, or space for them, in memory.
    #[must_use]
    pub fn waiting_ids(&self) -> usize {
        self.shared.pending.lock().ids()
    }

    /// Counts of dropped answers.
    #[must_use]
    pub fn dropped(&self) -> DroppedAnswers {
        self.shared.pending.lock().dropped
    }

    /// Whether a question went to a stand-in, or again after a connection had ended. Then owner and stand-in,
    /// or two comparisons of the owner, may each have seen only some of the questions about a chunk.
    #[must_use]
    pub fn was_repeated(&self) -> bool {
        self.shared.was_repeated.load(Ordering::Acquire)
    }

    /// Bytes that went over the connections to members.
    #[must_use]
    pub fn traffic(&self) -> &AskerTraffic {
        &self.shared.traffic
    }
}

impl Asker {
    /// Ends all connections and waits for the threads. Counts remain readable; later messages are discarded.
    pub fn end(&self) {
        {
            let _pending = self.shared.pending.lock();
            self.shared.stop.store(true, Ordering::Release);
        }
        self.shared.changed.notify_all();
        if let Some(hedge) = self.shared.hedge.lock().take() {
            let _ = hedge.join();
        }
        self.shared.options.network.wait(async {
            for link in &self.shared.links {
                link.release().await;
            }
            let tasks = std::mem::take(&mut *self.shared.tasks.lock());
            for task in tasks {
                let _ = task.await;
            }
        });
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        tasks.retain(|task| !task.is_finished());
        tasks.push(self.options.network.spawn(task));
    }

    /// Sends a member the marker of `round`, with the patience for other hosts; returns whether it was
    /// reached.
    async fn mark(self: &Arc<Shared>, member: usize, round: u32, patience: Duration) -> bool {
        let marker = MarkerMessage {
            job: self.options.job,
            round,
            participants: self.options.participants,
            patience_ms: u32::try_from(patience.as_millis()).unwrap_or(u32::MAX),
        };
        let marker = marker.to_message(&self.instance);
        // The connection may have ended unnoticed: try once more.
        for _ in 0..2 {
            if let SendOutcome::Over(_) = self.links[member].send(self, Method::AgentMark, &marker).await {
                return true;
            }
        }
        false
    }
}
