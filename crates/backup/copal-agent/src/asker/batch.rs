//! Open questions: parts and their batches. Without network and threads.

use super::{
    options::{DroppedAnswers, Ticket},
    spool::BatchSpool,
};
use copal_backup::peers::Answer;
use std::{collections::BTreeMap, time::Instant};

/// Role of the two members that may answer a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TargetRole {
    Owner,
    StandIn,
}

impl TargetRole {
    pub(super) fn other(self) -> TargetRole {
        match self {
            TargetRole::Owner => TargetRole::StandIn,
            TargetRole::StandIn => TargetRole::Owner,
        }
    }
}

/// No member.
pub(super) const NO_MEMBER: u16 = u16::MAX;

/// State of one member that may answer a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TargetState {
    /// Not asked.
    #[default]
    Unasked,
    /// Is being asked.
    Asking,
    /// Was asked over the connection of this number.
    Asked(u8),
    /// Cannot be asked, or will not answer.
    Failed,
}

/// A member that may answer a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchTarget {
    pub(super) member: u16,
    pub(super) standing: TargetState,
    /// Was asked again after a connection ended.
    pub(super) retried: bool,
}

impl BatchTarget {
    pub(super) fn of(member: Option<usize>) -> BatchTarget {
        BatchTarget {
            member: member.map_or(NO_MEMBER, |member| member as u16),
            standing: match member {
                Some(_) => TargetState::Unasked,
                None => TargetState::Failed,
            },
            retried: false,
        }
    }
}

const _: () = assert!(size_of::<AskedBatch>() == 32);

/// A batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct AskedBatch {
    /// Offset of its ids and positions in the part's spool.
    pub(super) at: u64,
    pub(super) partition: u32,
    pub(super) count: u16,
    pub(super) targets: [BatchTarget; 2],
    /// Answered or given up.
    pub(super) done: bool,
}

impl AskedBatch {
    pub(super) fn target(&mut self, role: TargetRole) -> &mut BatchTarget {
        &mut self.targets[role as usize]
    }
}

/// A batch by the numbers of its part and within it. Together they are its number on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BatchId {
    pub(super) ticket: Ticket,
    pub(super) index: usize,
}

impl BatchId {
    pub(super) fn number(self) -> u64 {
        self.ticket << 32 | self.index as u64
    }

    pub(super) fn of_number(number: u64) -> BatchId {
        BatchId { ticket: number >> 32, index: (number & 0xffff_ffff) as usize }
    }
}

/// A part that was sent.
pub(super) struct AskedPart {
    pub(super) vm: u32,
    pub(super) round: u32,
    pub(super) spool: BatchSpool,
    pub(super) answers: Vec<Answer>,
    pub(super) batches: Vec<AskedBatch>,
    /// Number of batches that are not done.
    pub(super) open: usize,
    /// Time from which answers may be expected.
    pub(super) since: Option<Instant>,
    /// Was sent to the stand-ins.
    pub(super) hedged: bool,
}

/// Events of connections, for the hedge thread.
#[derive(Clone, Copy, Debug)]
pub(super) enum ConnectionEvent {
    /// The connection of this number to a member ended.
    Closed { member: usize, connection: u8 },
}

/// All parts that were asked about and not yet received.
#[derive(Default)]
pub(super) struct PendingParts {
    pub(super) parts: BTreeMap<Ticket, AskedPart>,
    pub(super) next: Ticket,
    pub(super) dropped: DroppedAnswers,
    pub(super) events: Vec<ConnectionEvent>,
}

impl PendingParts {
    pub(super) fn add(&mut self, vm: u32, round: u32, spool: BatchSpool) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        let part = AskedPart {
            vm,
            round,
            spool,
            answers: Vec::new(),
            batches: Vec::new(),
            open: 0,
            since: None,
            hedged: false,
        };
        self.parts.insert(ticket, part);
        ticket
    }

    pub(super) fn part(&mut self, ticket: Ticket) -> Option<&mut AskedPart> {
        self.parts.get_mut(&ticket)
    }

    /// A batch that is still open.
    pub(super) fn open_batch(&mut self, id: BatchId) -> Option<&mut AskedBatch> {
        let batch = self.parts.get_mut(&id.ticket)?.batches.get_mut(id.index)?;
        (!batch.done).then_some(batch)
    }

    /// Marks a batch as done, unless it is done already.
    pub(super) fn finish(&mut self, id: BatchId) {
        if let Some(part) = self.parts.get_mut(&id.ticket)
            && let Some(batch) = part.batches.get_mut(id.index)
            && !std::mem::replace(&mut batch.done, true)
        {
            part.open -= 1;
        }
    }

    pub(super) fn end_round(&mut self, round: u32, now: Instant) {
        let parts = self.parts.values_mut();
        parts.filter(|part| part.round == round).for_each(|part| part.since = Some(now));
    }

    /// A thread waits for the part: if its round has not ended, its time begins now.
    pub(super) fn wait_began(&mut self, ticket: Ticket, now: Instant) {
        if let Some(part) = self.part(ticket) {
            part.since.get_or_insert(now);
        }
    }

    /// Start of the wait; `None`: all answers have arrived.
    pub(super) fn waiting_since(&self, ticket: Ticket) -> Option<Instant> {
        let part = self.parts.get(&ticket)?;
        part.since.filter(|_| part.open > 0)
    }

    pub(super) fn take(&mut self, ticket: Ticket) -> Vec<Answer> {
        self.parts.remove(&ticket).map(|part| part.answers).unwrap_or_default()
    }

    pub(super) fn ids(&self) -> usize {
        self.parts.values().map(|part| part.answers.len()).sum()
    }
}
