//! Replays the logs: into memtables, or into tables if they exceed the budget.
//!
//! Invariants
//! - Data read into memory leaves room for one more memtable, so that the first write finds it.
//! - If there is no space for tables, the logs stay in memory if they fit there at all.
//! - A log is flushed from its beginning, group by group, and the manifest records the last flushed sequence.
//!   After a kill the next opening continues there.
//! - Values that a log names are accounted for before any of it is flushed.

use super::current::go_on;
use crate::{
    Error,
    compact::{
        install,
        merge::{self, group_of},
        sweep,
    },
    engine::Engine,
    format::entry::{EntryKind, RangeTombstone, keyspace_of},
    memory::budget::{MemoryAccounts, MemoryClass as Memory},
    open::leftovers::FoundObjects,
    tree::{
        manifest::{format::ValueMeta, state::ManifestState},
        memtable::Memtable,
        value::{
            interval::IntervalSet,
            pointer::{VALUE_PAGE, ValuePointer},
        },
        version::SuperVersion,
    },
    write::{
        admission,
        commit::values::GroupKey,
        log::{LogGroup, LogOp, replay},
    },
};
use bytes::Bytes;
use copal_object::{Ack, ObjectId, Store as Objects, Txn};
use std::{collections::HashMap, sync::Arc};

/// Result of the replay.
pub(crate) struct ReplayedLogs {
    /// Memtables, oldest first, each with the number of frames of its log.
    pub(crate) memtables: Vec<(Arc<Memtable>, u64)>,
    pub(crate) last_seq: u64,
    /// Last sequence that is in tables already.
    flushed_seq: u64,
    /// Bytes of value objects that logged pointers name.
    pub(crate) named: HashMap<ObjectId, NamedValue>,
    /// Unreadable parts of the logs, as sentences; `None`: such a part is an error.
    pub(crate) lost: Option<Vec<String>>,
    /// The logs do not fit the memory. None of them is in memory, and they have to be flushed.
    pub(crate) is_too_much: bool,
}

/// Policy for logs that do not fit the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OversizePolicy {
    /// Keep none of them in memory; they will be flushed. One more memtable must fit as well.
    Flush,
    /// Refuse the opening. Only the logs themselves must fit.
    Refuse,
    /// Like `Refuse`, for a store that is not written to.
    RefuseToRead,
}

pub(crate) struct NamedValue {
    pub(crate) ranges: IntervalSet,
    pub(crate) group: GroupKey,
    pub(crate) max_seq: u64,
}

impl ReplayedLogs {
    fn behind(state: &ManifestState) -> ReplayedLogs {
        ReplayedLogs {
            memtables: Vec::new(),
            last_seq: state.last_seq,
            flushed_seq: state.last_seq,
            named: HashMap::new(),
            lost: None,
            is_too_much: false,
        }
    }

    /// Reads every log after the flushed ones, in order. Blocks.
    /// # Errors
    /// `Corrupt`. `OverBudget`: the logs do not fit, and the policy refuses that.
    pub(crate) fn read(
        objects: &Objects,
        state: &ManifestState,
        found: &FoundObjects,
        budget: &MemoryAccounts,
        beyond: OversizePolicy,
        salvage: bool,
    ) -> Result<ReplayedLogs, Error> {
        let mut replayed = ReplayedLogs::behind(state);
        let mut lost = Vec::new();
        replayed.lost = salvage.then(Vec::new);
        for (&generation, &stream) in found.logs.range(state.flushed_generation + 1..) {
            if !replayed.is_too_much {
                let memtable = Arc::new(Memtable::new(generation, stream));
                budget.watch(&memtable);
                replayed.memtables.push((memtable, 0));
            }
            let mut frame = budget.charge(Memory::Log, 0);
            let held = |bytes| frame.set(bytes);
            let apply = |group| {
                let memtable = replayed.memtables.last().map(|(memtable, _)| memtable.clone());
                replayed.apply(state, generation, memtable.as_deref(), group)?;
                drop(memtable);
                replayed.keep_within(budget, beyond)
            };
            let frames = replay(objects, generation, stream, held, apply, salvage.then_some(&mut lost))?;
            if let Some((_, counted)) = replayed.memtables.last_mut() {
                *counted = frames;
            }
        }
        replayed.lost = salvage.then_some(lost);
        Ok(replayed)
    }

    /// Checks the memory after each group. If it is too much, drops the memtables, or refuses the opening.
    fn keep_within(&mut self, budget: &MemoryAccounts, beyond: OversizePolicy) -> Result<(), Error> {
        budget.count_memtables();
        match beyond {
            OversizePolicy::Refuse => return budget.check_beside_tables(),
            OversizePolicy::RefuseToRead => return budget.check_used(),
            OversizePolicy::Flush => {}
        }
        if !self.is_too_much && budget.room_for_memtable().is_err() {
            self.is_too_much = true;
            self.memtables.clear();
            budget.count_memtables();
        }
        Ok(())
    }

    fn apply(
        &mut self,
        state: &ManifestState,
        generation: u64,
        memtable: Option<&Memtable>,
        group: LogGroup,
    ) -> Result<(), Error> {
        let first = group.first_seq;
        let next = first.saturating_add(group.ops.len() as u64);
        // An earlier opening that was interrupted flushed it. Such groups come only before all others.
        if self.last_seq == self.flushed_seq && next <= self.last_seq + 1 {
            return Ok(());
        }
        if first > self.last_seq + 1 && self.lost.is_some() {
            self.last_seq = first - 1;
        }
        if first != self.last_seq + 1 {
            let place = format!("log {generation}");
            let why = format!("sequence {first} follows {}", self.last_seq);
            return Err(Error::corrupt(place, why));
        }
        for op in group.ops {
            self.last_seq += 1;
            let seq = self.last_seq;
            if let LogOp::Pointer { key, pointer } = &op {
                self.name(state, memtable, key, pointer, seq)?;
            }
            let Some(memtable) = memtable else { continue };
            insert(memtable, op, seq);
        }
        Ok(())
    }

    /// Records that the log names a value.
    fn name(
        &mut self,
        state: &ManifestState,
        memtable: Option<&Memtable>,
        key: &[u8],
        pointer: &[u8],
        seq: u64,
    ) -> Result<(), Error> {
        let pointer = ValuePointer::decode(pointer)?;
        let options =
            keyspace_of(key).and_then(|id| state.keyspaces.get(&id)).map(|space| space.options.clone());
        let Some(group) = group_of(&options.unwrap_or_default(), key) else {
            return Ok(());
        };
        let range = pointer.range();
        let named = self.named.entry(pointer.object).or_insert_with(|| NamedValue {
            ranges: IntervalSet::default(),
            group,
            max_seq: 0,
        });
        named.max_seq = named.max_seq.max(seq);
        named.ranges.insert(range.start..range.end.next_multiple_of(VALUE_PAGE));
        let Some(memtable) = memtable else { return Ok(()) };
        let accounted = named.ranges.iter().last().map_or(0, |range| range.end);
        let known = state.values.get(&pointer.object).map_or(0, |value| value.meta.accounted);
        memtable.note_value(ValueMeta {
            object: pointer.object,
            keyspace: named.group.keyspace,
            group: named.group.prefix.clone(),
            accounted: accounted.max(known),
            max_seq: named.max_seq,
            by_worker: false,
        });
        Ok(())
    }
}

/// Inserts a logged operation.
pub(crate) fn insert(memtable: &Memtable, op: LogOp, seq: u64) {
    match op {
        LogOp::Put { key, value } => memtable.insert(key, seq, EntryKind::Put, value),
        LogOp::Delete { key } => memtable.insert(key, seq, EntryKind::Delete, Bytes::new()),
        LogOp::DeleteRange { start, end } => {
            memtable.insert_range_delete(RangeTombstone { start, end, seq });
        }
        LogOp::Pointer { key, pointer } => memtable.insert(key, seq, EntryKind::Pointer, pointer),
    }
}

/// Flushes all logs that were found, through one memtable of the present budget after another.
/// # Errors
/// `NoSpace`: there is none for the tables; the logs stay. `Corrupt`, or a failed write.
pub(crate) fn flush_logs(
    engine: &Engine,
    mut replayed: ReplayedLogs,
    found: &FoundObjects,
) -> Result<(), Error> {
    let _step = engine.compactor.step.lock();
    let flushed = {
        let state = &engine.stored.tree.lock().manifest.state;
        (replayed.last_seq, replayed.flushed_seq) = (state.last_seq, state.last_seq);
        state.flushed_generation
    };
    for (&generation, &stream) in found.logs.range(flushed + 1..) {
        let begin = || {
            let part = Arc::new(Memtable::new(generation, stream));
            engine.budget.watch(&part);
            part
        };
        let mut part = begin();
        let mut frame = engine.budget.charge(Memory::Log, 0);
        let held = |bytes| frame.set(bytes);
        let apply = |group| {
            replayed.apply(&engine.stored.tree.lock().manifest.state, generation, Some(&part), group)?;
            if part.charged_bytes() >= engine.budget.memtable_bytes() {
                engine.budget.count_memtables();
                flush_or_free(engine, || {
                    merge::flush_part(engine, &mut engine.compactor.worker_values.lock(), &part)
                })?;
                part = begin();
            }
            Ok(())
        };
        replay(&engine.objects, generation, stream, held, apply, None)?;
        flush_or_free(engine, || {
            merge::flush_log(engine, &mut engine.compactor.worker_values.lock(), &part)
        })?;
    }
    engine.budget.count_memtables();
    Ok(())
}

/// In a full store, retries as long as something can be freed without a flush, as the worker does.
fn flush_or_free(engine: &Engine, mut flush: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    let mut is_first = true;
    loop {
        match admission::in_whole_reserve(engine, &mut flush) {
            Err(error) if error.is_no_space() => {
                // A value object that the rest of the logs names is kept, since its account has their sequences.
                let swept = admission::in_reserve(engine, || sweep::sweep(engine))?;
                install::free_garbage(engine)?;
                if !swept && !is_first {
                    return Err(error);
                }
                is_first = false;
            }
            flushed => return flushed,
        }
    }
}

/// After [`flush_logs`] failed: keeps the unflushed data in memory, if it fits there, and continues the
/// newest log. Deletes the new, empty log in any case.
/// # Errors
/// The given `error`, unless it was `NoSpace` and the data fits the memory; a failed write.
pub(crate) fn keep_logs(engine: &Engine, found: &FoundObjects, error: Error) -> Result<(), Error> {
    let mut writer = engine.writes.writer.lock();
    let txn = Txn::new().delete(writer.log.stream);
    let deleted = engine.objects.commit(txn, Ack::Durable).wait();
    if !error.is_no_space() {
        return Err(error);
    }
    deleted.map_err(|error| engine.poison.failed_write(error))?;
    let state = &engine.stored.tree.lock().manifest.state;
    let kept = match ReplayedLogs::read(
        &engine.objects,
        state,
        found,
        &engine.budget,
        OversizePolicy::Refuse,
        false,
    ) {
        Err(Error::OverBudget { .. }) => return Err(error),
        kept => kept?,
    };
    let Some((log, active, frozen)) = go_on(kept.memtables) else {
        return Err(error);
    };
    *writer = log;
    engine.change_super_version(|view| SuperVersion { active, frozen, version: view.version.clone() });
    Ok(())
}

/// Applies groups as an opening does whose tables end at sequence 3.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn apply_groups(groups: impl Iterator<Item = LogGroup>) -> Result<u64, Error> {
    let state = ManifestState { last_seq: 3, ..ManifestState::default() };
    let memtable = Memtable::new(1, ObjectId(1));
    let mut replayed = ReplayedLogs::behind(&state);
    for group in groups {
        replayed.apply(&state, 1, Some(&memtable), group)?;
    }
    Ok(replayed.last_seq)
}
