//! The hedge thread: sends batches of silent or lost members to the other member that can answer.

use super::{
    Shared,
    batch::{BatchId, ConnectionEvent, PendingParts, TargetRole, TargetState},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// A batch to be asked again.
struct LostBatch {
    batch: BatchId,
    role: TargetRole,
    standing: TargetState,
}

pub(super) fn run(shared: &Arc<Shared>) {
    let mut pending = shared.pending.lock();
    while !shared.stop.load(Ordering::Acquire) {
        let hedge_after = shared.patience.hedge_after();
        let events = std::mem::take(&mut pending.events);
        let lost: Vec<LostBatch> = events.into_iter().flat_map(|event| pending.lost_by(event)).collect();
        let silent = pending.silent(Instant::now(), hedge_after);
        if lost.is_empty() && silent.is_empty() {
            match pending.next_hedge(hedge_after) {
                Some(at) => drop(shared.changed.wait_until(&mut pending, at)),
                None => shared.changed.wait(&mut pending),
            }
            continue;
        }
        drop(pending);
        shared.options.network.wait(ask_again(shared, lost, silent));
        pending = shared.pending.lock();
    }
}

async fn ask_again(shared: &Arc<Shared>, lost: Vec<LostBatch>, silent: Vec<BatchId>) {
    let mut asked = BTreeSet::new();
    let goes_on = || !shared.stop.load(Ordering::Acquire);
    for lost in lost.into_iter().take_while(|_| goes_on()) {
        if shared.lose(lost.batch, lost.role, lost.standing) {
            let member = shared.ask(lost.batch, lost.role, None).await;
            asked.extend(member.map(|member| (member, lost.batch.ticket)));
        }
    }
    for batch in silent.into_iter().take_while(|_| goes_on()) {
        let member = shared.ask(batch, TargetRole::StandIn, None).await;
        asked.extend(member.map(|member| (member, batch.ticket)));
    }
    if !asked.is_empty() {
        // The owner may have compared the round without these batches: our marker came over a newer
        // connection.
        shared.was_repeated.store(true, Ordering::Release);
    }
    // No questions may follow the marker of a round. So after these questions the marker is sent again, with
    // the rest of our patience.
    let mut rounds = BTreeMap::new();
    let for_others = shared.patience.for_others();
    {
        let pending = shared.pending.lock();
        let now = shared.round.load(Ordering::Acquire);
        for (member, ticket) in asked {
            let part = pending.parts.get(&ticket);
            rounds.extend(part.filter(|part| part.round < now).map(|part| {
                let waited = part.since.map_or(Duration::ZERO, |since| since.elapsed());
                ((member, part.round), for_others.saturating_sub(waited))
            }));
        }
    }
    for ((member, round), patience) in rounds.into_iter().take_while(|_| goes_on()) {
        shared.mark(member, round, patience).await;
    }
}

impl PendingParts {
    /// The batches that an event has lost.
    fn lost_by(&mut self, event: ConnectionEvent) -> Vec<LostBatch> {
        match event {
            ConnectionEvent::Closed { member, connection } => {
                let standing = TargetState::Asked(connection);
                self.open_batches()
                    .flat_map(|(batch, targets)| {
                        [TargetRole::Owner, TargetRole::StandIn]
                            .map(|role| (batch, role, targets[role as usize]))
                    })
                    .filter(|(_, _, target)| {
                        usize::from(target.member) == member && target.standing == standing
                    })
                    .map(|(batch, role, _)| LostBatch { batch, role, standing })
                    .collect()
            }
        }
    }

    fn open_batches(&self) -> impl Iterator<Item = (BatchId, [super::batch::BatchTarget; 2])> {
        self.parts.iter().flat_map(|(&ticket, part)| {
            let batches = part.batches.iter().enumerate();
            batches
                .filter(|(_, batch)| !batch.done)
                .map(move |(index, batch)| (BatchId { ticket, index }, batch.targets))
        })
    }

    /// Open batches of parts whose hedge time has come; each is returned once.
    fn silent(&mut self, now: Instant, after: Duration) -> Vec<BatchId> {
        let mut silent = Vec::new();
        for (&ticket, part) in &mut self.parts {
            let due = part.since.is_some_and(|since| now >= since + after);
            if part.hedged || !due {
                continue;
            }
            part.hedged = true;
            let batches = part.batches.iter().enumerate();
            let open = batches.filter(|(_, batch)| {
                !batch.done && batch.targets[TargetRole::StandIn as usize].standing == TargetState::Unasked
            });
            silent.extend(open.map(|(index, _)| BatchId { ticket, index }));
        }
        silent
    }

    /// Time of the next hedge.
    fn next_hedge(&self, after: Duration) -> Option<Instant> {
        let parts = self.parts.values().filter(|part| !part.hedged && part.open > 0);
        parts.filter_map(|part| part.since).min().map(|since| since + after)
    }
}
