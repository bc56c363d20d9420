//! Sends a part: splits and spools its ids, and sends each batch to its owner, or to the stand-in if the
//! owner cannot be asked.

use super::{
    AT_ONCE, Shared, Ticket,
    batch::{AskedBatch, BatchId, BatchTarget, TargetRole, TargetState},
    member_connection::SendOutcome,
    split::{IdSplit, SplitEntry},
    spool::{self, SpoolWriter},
};
use crate::fleet::messages::AskMessage;
use copal_backup::peers::{Answer, ShortId};
use copal_proto::Method;
use futures_util::{StreamExt, stream};
use std::{
    io,
    sync::{Arc, atomic::Ordering},
};
use tracing::warn;

pub(super) fn run(
    shared: &Arc<Shared>,
    vm: u32,
    ids: &mut dyn Iterator<Item = io::Result<ShortId>>,
) -> io::Result<Ticket> {
    let (spool, mut writer) = spool::create(&shared.options.spool)?;
    let round = shared.round.load(Ordering::Acquire);
    let ticket = shared.pending.lock().add(vm, round, spool);
    let sent = send_all(shared, ticket, &mut writer, ids);
    if sent.is_err() {
        shared.pending.lock().take(ticket);
    }
    sent.map(|()| ticket)
}

fn send_all(
    shared: &Arc<Shared>,
    ticket: Ticket,
    writer: &mut SpoolWriter,
    ids: &mut dyn Iterator<Item = io::Result<ShortId>>,
) -> io::Result<()> {
    let mut split = IdSplit::new(shared.options.sort_bytes);
    let mut count = 0u32;
    for id in ids {
        let id = id?;
        let full = split.push(SplitEntry { partition: shared.owners.partition(&id), position: count, id });
        let next = count.checked_add(1);
        count = next.ok_or_else(|| io::Error::other("a part has more ids than 32 bits count"))?;
        if full {
            flush(shared, ticket, writer, &mut split, count)?;
        }
    }
    flush(shared, ticket, writer, &mut split, count)
}

/// Spools the gathered ids, then sends them. The part has `count` ids so far.
fn flush(
    shared: &Arc<Shared>,
    ticket: Ticket,
    writer: &mut SpoolWriter,
    split: &mut IdSplit,
    count: u32,
) -> io::Result<()> {
    let entries = split.batches();
    let mut batches = Vec::new();
    for batch in entries.clone() {
        let partition = batch[0].partition;
        batches.push(AskedBatch {
            at: writer.append(batch)?,
            partition,
            count: batch.len() as u16,
            targets: [
                BatchTarget::of(Some(shared.owners.owner(partition))),
                BatchTarget::of(shared.owners.stand_in(partition)),
            ],
            done: false,
        });
    }
    writer.flush()?;
    let first = {
        let mut pending = shared.pending.lock();
        let part = pending.part(ticket).expect("a part is there until it is received");
        part.answers.reserve_exact(count as usize - part.answers.len());
        part.answers.resize(count as usize, Answer::UNANSWERED);
        part.open += batches.len();
        let first = part.batches.len();
        part.batches.extend(batches);
        first
    };
    // Owners accept in parallel: a batch waits for no other owner's disk.
    let asked = stream::iter(entries.enumerate()).for_each_concurrent(AT_ONCE, async |(index, batch)| {
        let id = BatchId { ticket, index: first + index };
        let ids = batch.iter().map(|entry| entry.id).collect();
        shared.ask(id, TargetRole::Owner, Some(ids)).await;
    });
    shared.options.network.wait(asked);
    split.clear();
    Ok(())
}

/// A batch to ask, with its target.
struct BatchRequest {
    member: usize,
    ask: AskMessage,
}

impl Shared {
    /// Asks its owner or stand-in about a batch, again if the connection ended, and then the other one; if
    /// both fail, the batch is given up. `ids` are read from the spool if they are not in memory. Returns the
    /// member that was asked.
    pub(super) async fn ask(
        self: &Arc<Shared>,
        id: BatchId,
        role: TargetRole,
        mut ids: Option<Vec<ShortId>>,
    ) -> Option<usize> {
        for role in [role, role.other()] {
            while let Some(wanted) = self.begin_ask(id, role, ids.take()) {
                let BatchRequest { member, ask } = wanted;
                self.links[member].note_asked();
                let message = ask.to_message(&self.instance);
                let sent = self.links[member].send(self, Method::AgentAsk, &message).await;
                ids = Some(ask.ids);
                if self.end_ask(id, role, member, &sent) {
                    if role == TargetRole::StandIn {
                        self.was_repeated.store(true, Ordering::Release);
                    }
                    return Some(member);
                }
            }
        }
        self.give_up(id);
        None
    }

    /// `None`: this member must not be asked, since it was asked already or has failed.
    fn begin_ask(&self, id: BatchId, role: TargetRole, ids: Option<Vec<ShortId>>) -> Option<BatchRequest> {
        let mut pending = self.pending.lock();
        let batch = pending.open_batch(id)?;
        let target = batch.target(role);
        if target.standing != TargetState::Unasked {
            return None;
        }
        target.standing = TargetState::Asking;
        let member = usize::from(target.member);
        let (at, partition, count) = (batch.at, batch.partition, usize::from(batch.count));
        let part = pending.part(id.ticket)?;
        let (vm, round, spool) = (part.vm, part.round, part.spool.clone());
        drop(pending);
        let ids = match ids.map_or_else(|| spool.ids(at, count), Ok) {
            Ok(ids) => ids,
            Err(error) => {
                warn!(%error, "spool not readable, batch not sent again");
                self.set(id, role, TargetState::Failed);
                return None;
            }
        };
        let ask = AskMessage {
            job: self.options.job,
            round,
            vm,
            batch: id.number(),
            partition_bits: self.owners.partition_bits(),
            partition,
            ids,
        };
        Some(BatchRequest { member, ask })
    }

    /// Whether this member needs nothing more now. A connection that has ended since counts as not asked.
    fn end_ask(&self, id: BatchId, role: TargetRole, member: usize, sent: &SendOutcome) -> bool {
        let connection = match sent {
            SendOutcome::Over(connection) => *connection,
            // A member that refuses a batch is not asked again.
            SendOutcome::Refused => {
                self.set(id, role, TargetState::Failed);
                return false;
            }
            SendOutcome::Lost => {
                self.lose(id, role, TargetState::Asking);
                return false;
            }
        };
        if !self.set(id, role, TargetState::Asked(connection)) {
            return false;
        }
        // The end of a connection is handled once: perhaps before the batch was recorded as asked over it.
        self.links[member].is_alive(connection) || !self.lose(id, role, TargetState::Asked(connection))
    }

    /// Sets the state of a target; `false`: the batch is done, or was refused meanwhile.
    fn set(&self, id: BatchId, role: TargetRole, standing: TargetState) -> bool {
        let mut pending = self.pending.lock();
        let target = pending.open_batch(id).map(|batch| batch.target(role));
        target
            .filter(|target| target.standing == TargetState::Asking)
            .map(|target| target.standing = standing)
            .is_some()
    }

    /// Marks the question in state `standing` as lost, so that it may be asked again. `false`: another thread
    /// did so, or the batch is done.
    pub(super) fn lose(&self, id: BatchId, role: TargetRole, standing: TargetState) -> bool {
        let mut pending = self.pending.lock();
        let Some(batch) = pending.open_batch(id) else {
            return false;
        };
        let target = batch.target(role);
        if target.standing != standing {
            return false;
        }
        target.standing = match std::mem::replace(&mut target.retried, true) {
            false => TargetState::Unasked,
            true => TargetState::Failed,
        };
        true
    }

    /// Gives a batch up if no member is left that could answer.
    fn give_up(&self, id: BatchId) {
        let mut pending = self.pending.lock();
        let failed = pending
            .open_batch(id)
            .is_some_and(|batch| batch.targets.iter().all(|target| target.standing == TargetState::Failed));
        if failed {
            pending.finish(id);
            self.changed.notify_all();
        }
    }
}
