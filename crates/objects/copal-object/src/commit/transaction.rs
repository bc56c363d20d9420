//! Transactions: checked against the tables, given space, turned into physical operations.
//!
//! Three steps:
//! - *check*: find every reason to refuse, the pages needed, and the units whose old bytes are needed.
//! - *fetch*: read those units with the mutex released, then check again.
//! - *apply*: cannot fail.
//!
//! Design: docs/design/object.md#transactions
//! Invariants
//! - A refused transaction has changed nothing and written nothing.
//! - No byte on the device is overwritten while a record names it (OBJ-26): partial pages are merged and
//!   written elsewhere.
//! - The last partial page of a `ReadCheck::Caller` object is a unit of its own, so that the next append
//!   replaces the whole unit.

use crate::{
    Ack, Lsn, ObjectId, Op, StoreError, Txn,
    engine::{
        admission::{close_full_group, wait_journal},
        pump::{pump, wait_change},
        shortage::clean_for_release,
    },
    format::{run::PageRun, sum_rule::SumRule},
    resize::grow::make_available,
    space::home::PageHome,
    state::{
        StoreCore, StoreState,
        commit::group::{GroupAdmission, GroupRoom},
    },
};
use bytes::Bytes;
use copal_device::Completion;
use parking_lot::MutexGuard;
use std::{collections::HashMap, sync::Arc};
use stream_cut::CutPlaces;

pub(crate) mod apply;
pub(crate) mod check;
mod stream_cut;

/// Old content of pages that a transaction merges with or sums again, by device page.
#[derive(Default)]
pub(crate) struct FetchedPages {
    pages: HashMap<u64, Bytes>,
}

impl FetchedPages {
    pub(crate) fn page(&self, page: u64) -> Option<&Bytes> {
        self.pages.get(&page)
    }

    pub(crate) fn has(&self, run: PageRun) -> bool {
        (run.at..run.end()).all(|page| self.pages.contains_key(&page))
    }

    fn put(&mut self, run: PageRun, bytes: Bytes, page_bytes: usize) {
        for index in 0..run.pages as usize {
            let part = bytes.slice(index * page_bytes..(index + 1) * page_bytes);
            self.pages.insert(run.at + index as u64, part);
        }
    }
}

/// A unit whose old bytes a transaction needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumUnit {
    pub(crate) id: u64,
    /// First page inside the object.
    pub(crate) at: u64,
    pub(crate) run: PageRun,
    pub(crate) rule: SumRule,
    pub(crate) sum: u32,
}

/// See `Store::commit`.
pub(crate) fn commit(store: &Arc<StoreCore>, txn: Txn, ack: Ack) -> Completion<Result<Lsn, StoreError>> {
    match try_commit(store, txn, ack) {
        Ok(completion) => completion,
        Err(error) => Completion::ready(Err(error)),
    }
}

fn try_commit(
    store: &Arc<StoreCore>,
    mut txn: Txn,
    ack: Ack,
) -> Result<Completion<Result<Lsn, StoreError>>, StoreError> {
    if store.shape.read_only {
        return Err(StoreError::ReadOnly);
    }
    for op in &txn.ops {
        if let Op::Publish(staged) = op
            && !staged.belongs_to(store)
        {
            return Err(StoreError::NotFound(staged.id()));
        }
    }
    if txn.ops.iter().any(|op| matches!(op, Op::TruncateStream { .. })) {
        stream_cut::expect_known(store)?;
    }
    join_appends(&mut txn.ops);
    let mut old = OldBytes::of(store);
    let mut state = store.state.lock();
    let GrantedTransaction { needs, runs, admitted } = grant(store, &mut state, &txn, &mut old)?;
    let lsn = apply::apply(store, &mut state, txn, &needs, runs, (&old.fetched, &old.cuts), admitted);
    old.pins.release(&mut state);
    let completion = acknowledge(store, &mut state, lsn, ack);
    drop(state);
    pump(store);
    Ok(completion)
}

/// Checks the transaction until everything it needs is available at the same time: old bytes, pages, room in
/// a record. Releases the mutex whenever it must wait.
fn grant(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    txn: &Txn,
    old: &mut OldBytes<'_>,
) -> Result<GrantedTransaction, StoreError> {
    loop {
        state.writable()?;
        let needs = check::check(state, txn, &store.shape)?;
        if state.commit.is_crowded() || state.inline.is_crowded() {
            wait_change(store, state);
            continue;
        }
        state.query_host_when_due();
        let spendable = txn.reserved.as_ref().map_or(0, |reserved| reserved.pages_for(store));
        let available = match needs.releases {
            true => state.space.releasable_pages(),
            false => state.space.available_pages_with(spendable),
        };
        if needs.pages > available {
            old.forget(state);
            if needs.releases && clean_for_release(store, state, needs.pages)? {
                continue;
            }
            let others = needs.pages - spendable.min(needs.pages);
            let needed = others.max(state.space.available_pages() + 1);
            make_available(store, state, needed, needed)?;
            continue;
        }
        if let Some(unit) = needs.units.iter().find(|unit| !old.fetched.has(unit.run)) {
            fetch(store, state, unit, old)?;
            continue;
        }
        if let Some(&cut) = needs.cuts.iter().find(|cut| old.cuts.page(state, **cut).is_none()) {
            old.cuts.find(store, state, cut)?;
            continue;
        }
        let Some(runs) = take_pages(state, &needs) else {
            if state.waits_for_group() {
                // The open group has no room for the data.
                close_full_group(store, state)?;
                continue;
            }
            // Enough pages are free, but a directory has no number left for another file.
            return Err(state.no_space(needs.pages));
        };
        let ops_bytes = needs.ops_bytes_with(&runs);
        let table_bytes = needs.table_bytes_with(ops_bytes);
        let missing = state.pages_for_tables_with(table_bytes, needs.releases, spendable);
        if missing > 0 {
            // The next checkpoint would no longer fit.
            give_back(state, runs);
            old.forget(state);
            let needed = (needs.pages + missing).saturating_sub(spendable);
            let needed = needed.max(state.space.available_pages() + 1);
            make_available(store, state, needed, needed)?;
            continue;
        }
        let record_bytes = ops_bytes + needs.inline_bytes(store.shape.page_bytes);
        match state.find_room(record_bytes, needs.releases && !txn.ops.is_empty()) {
            Ok(GroupRoom::Admitted(admitted)) => {
                if let Some(reserved) = &txn.reserved {
                    // First for data, then for a longer checkpoint.
                    let spent = needs.pages.min(spendable);
                    let for_tables = state.pages_for_tables_with(table_bytes, needs.releases, spent);
                    reserved.spend(state, spent + for_tables);
                }
                return Ok(GrantedTransaction { needs, runs, admitted });
            }
            Ok(GroupRoom::GroupFull) => {
                give_back(state, runs);
                close_full_group(store, state)?;
            }
            Ok(GroupRoom::JournalFull) => {
                give_back(state, runs);
                wait_journal(store, state)?;
            }
            Err(error) => {
                give_back(state, runs);
                return Err(error);
            }
        }
    }
}

fn acknowledge(
    store: &StoreCore,
    state: &mut StoreState,
    lsn: u64,
    ack: Ack,
) -> Completion<Result<Lsn, StoreError>> {
    if ack == Ack::Ordered {
        return Completion::ready(Ok(Lsn(lsn)));
    }
    let (completer, completion) = store.promise();
    if ack == Ack::Written {
        state.commit.wait_written(lsn, completer);
    } else {
        state.commit.wait_durable(lsn, completer);
    }
    completion
}

/// Reads and verifies the old bytes of one unit. Releases the mutex.
fn fetch(
    store: &Arc<StoreCore>,
    state: &mut MutexGuard<'_, StoreState>,
    unit: &SumUnit,
    old: &mut OldBytes<'_>,
) -> Result<(), StoreError> {
    let page_bytes = store.shape.page_bytes;
    if unit.run.pages == 1
        && let Some(page) = state.space.recent_page(unit.run.at)
    {
        old.fetched.put(unit.run, Bytes::from_owner(page), page_bytes);
        return Ok(());
    }
    let waiting: Vec<(u64, Bytes)> =
        (unit.run.at..unit.run.end()).filter_map(|at| Some((at, state.waiting_page(at)?))).collect();
    if waiting.len() == unit.run.pages as usize {
        for (at, bytes) in waiting {
            old.fetched.put(PageRun::new(at, 1), bytes, page_bytes);
        }
        return Ok(());
    }
    if waiting.is_empty() && state.is_unwritten(unit.run) || state.space.placement().journal().holds(unit.run)
    {
        wait_change(store, state);
        return Ok(());
    }
    // The pinned unit stays in place, even if another transaction frees it meanwhile.
    old.pins.tickets.push(state.space.pin(vec![unit.run]));
    let mut bytes = MutexGuard::unlocked(state, || store.read_pages(unit.run))?;
    for (at, page) in waiting {
        let from = (at - unit.run.at) as usize * page_bytes;
        bytes[from..from + page_bytes].copy_from_slice(&page);
    }
    if unit.rule.sum(0, &bytes, page_bytes) != unit.sum {
        let from = store.shape.byte(unit.at);
        let range = from..from + bytes.len() as u64;
        return Err(StoreError::Corrupt { id: ObjectId(unit.id), range });
    }
    old.fetched.put(unit.run, Bytes::from(bytes), page_bytes);
    Ok(())
}

/// Resources of a transaction that may be applied now.
struct GrantedTransaction {
    needs: check::TransactionNeeds,
    runs: Runs,
    admitted: GroupAdmission,
}

/// Old bytes that a transaction has read so far; their pages are pinned.
struct OldBytes<'a> {
    fetched: FetchedPages,
    cuts: CutPlaces,
    pins: TransactionPins<'a>,
}

impl OldBytes<'_> {
    fn of(inner: &Arc<StoreCore>) -> OldBytes<'_> {
        let pins = TransactionPins { inner, tickets: Vec::new() };
        OldBytes { fetched: FetchedPages::default(), cuts: CutPlaces::default(), pins }
    }

    /// Drops the bytes, which must be read again: pins of the transaction itself must not block the space it
    /// waits for.
    fn forget(&mut self, state: &mut StoreState) {
        self.pins.release(state);
        self.fetched = FetchedPages::default();
    }
}

/// Pins that end with the transaction, also when it is refused.
struct TransactionPins<'a> {
    inner: &'a Arc<StoreCore>,
    tickets: Vec<u64>,
}

impl TransactionPins<'_> {
    fn release(&mut self, state: &mut StoreState) {
        for ticket in self.tickets.drain(..) {
            state.space.unpin(ticket);
        }
    }
}

impl Drop for TransactionPins<'_> {
    fn drop(&mut self) {
        self.tickets.drain(..).for_each(|ticket| self.inner.unpin(ticket));
    }
}

/// Runs of each operation, in order.
pub(crate) type Runs = Vec<Vec<PageRun>>;

/// Allocates the pages of a checked transaction. `None`, with nothing allocated, if they are not available.
fn take_pages(state: &mut StoreState, needs: &check::TransactionNeeds) -> Option<Runs> {
    let journal = state.space.placement_mut().journal_mut();
    let ops_bytes = needs.ops_bytes_in_group();
    let ops_pages = ops_bytes.div_ceil(state.tables.page_bytes) as u64;
    let fits_group = needs.pages.max(ops_pages) <= journal.group_pages();
    if fits_group && !journal.prepare_data(needs.pages, ops_bytes) {
        return None;
    }
    let mut runs = Vec::with_capacity(needs.per_op.len());
    for need in &needs.per_op {
        let home = PageHome { in_group: need.home.in_group && fits_group, ..need.home };
        let taken = if need.pages == 0 { Some(Vec::new()) } else { state.space.allocate(need.pages, home) };
        let Some(taken) = taken else {
            give_back(state, runs);
            return None;
        };
        runs.push(taken);
    }
    Some(runs)
}

/// Frees pages that were not used. The last ones first: those of the open group can then be taken again.
fn give_back(state: &mut StoreState, runs: Runs) {
    for run in runs.into_iter().flatten().rev() {
        state.space.release(run);
    }
}

/// Joins consecutive appends, so that the page between them is written once.
fn join_appends(ops: &mut Vec<Op>) {
    let mut joined: Vec<Op> = Vec::with_capacity(ops.len());
    let mut parts: Vec<Bytes> = Vec::new();
    let flush = |joined: &mut Vec<Op>, parts: &mut Vec<Bytes>| {
        if parts.len() > 1
            && let Some(Op::Append { data, .. }) = joined.last_mut()
        {
            *data = Bytes::from(parts.concat());
        }
        parts.clear();
    };
    for op in ops.drain(..) {
        if let Op::Append { id, at, data } = &op
            && let Some(Op::Append { id: before, at: start, .. }) = joined.last()
            && before == id
            && start.checked_add(parts.iter().map(|part| part.len() as u64).sum()) == Some(*at)
        {
            parts.push(data.clone());
            continue;
        }
        flush(&mut joined, &mut parts);
        if let Op::Append { data, .. } = &op {
            parts.push(data.clone());
        }
        joined.push(op);
    }
    flush(&mut joined, &mut parts);
    *ops = joined;
}
