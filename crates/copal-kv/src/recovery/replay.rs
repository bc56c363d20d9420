//! Reading the logs back: into memtables, or, where they are more than the budget has room for, into tables.
//!
//! Invariants
//! - What is read into memory leaves room for one more memtable, so that the first write finds it.
//! - A log becomes tables from its beginning, group by group, and the manifest says up to which sequence: whoever opens
//!   the store after a kill goes on there.
//! - Values that a log names are accounted for before any of it becomes a table.

use crate::{
    Error,
    budget::{Class as Memory, MemoryBudget},
    commit::values::GroupKey,
    compact::{merge::group_of, separate::WorkerValues},
    engine::Engine,
    entry::{EntryKind, RangeTombstone},
    key::keyspace_of,
    leftovers::Found,
    log::{
        format::{Group, LogOp},
        replay,
    },
    manifest::{format::ValueMeta, state::State},
    memtable::Memtable,
    value::{
        interval::IntervalSet,
        pointer::{Pointer, VALUE_PAGE},
    },
};
use copal_object::{ObjectId, Store as Objects};
use std::{collections::HashMap, sync::Arc};

/// What the logs say.
pub(super) struct Replayed {
    /// In memory again, oldest first, with the frames each log holds.
    pub(super) memtables: Vec<(Arc<Memtable>, u64)>,
    pub(super) last_seq: u64,
    /// Bytes of value objects that logged pointers name.
    pub(super) named: HashMap<ObjectId, Named>,
    /// The logs are more than there is room for. Nothing of them is in memory, and they are still to become tables.
    pub(super) is_too_much: bool,
}

pub(super) struct Named {
    pub(super) ranges: IntervalSet,
    pub(super) group: GroupKey,
    pub(super) max_seq: u64,
}

impl Replayed {
    /// Reads every log behind the flushed ones, in order. Blocks.
    /// # Errors
    /// `Corrupt`. `OverBudget`: a store that is only read has no room for its logs.
    pub(super) fn read(
        objects: &Objects,
        state: &State,
        found: &Found,
        budget: &MemoryBudget,
        read_only: bool,
    ) -> Result<Replayed, Error> {
        let mut replayed = Replayed {
            memtables: Vec::new(),
            last_seq: state.last_seq,
            named: HashMap::new(),
            is_too_much: false,
        };
        for (&generation, &stream) in found.logs.range(state.flushed_generation + 1..) {
            if !replayed.is_too_much {
                let memtable = Arc::new(Memtable::new(generation, stream));
                budget.watch(&memtable);
                replayed.memtables.push((memtable, 0));
            }
            let mut frame = budget.charge(Memory::Log, 0);
            let held = |bytes| frame.set(bytes);
            let frames = replay(objects, generation, stream, held, |group| {
                let memtable = replayed.memtables.last().map(|(memtable, _)| memtable.clone());
                replayed.apply(state, generation, memtable.as_deref(), group)?;
                drop(memtable);
                replayed.keep_within(budget, read_only)
            })?;
            if let Some((_, counted)) = replayed.memtables.last_mut() {
                *counted = frames;
            }
        }
        Ok(replayed)
    }

    /// Gives up what is in memory when it is more than there is room for.
    fn keep_within(&mut self, budget: &MemoryBudget, read_only: bool) -> Result<(), Error> {
        if read_only {
            budget.count_memtables();
            return budget.check();
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
        state: &State,
        generation: u64,
        memtable: Option<&Memtable>,
        group: Group,
    ) -> Result<(), Error> {
        // An opening that was killed made tables of it.
        if group.first_seq + group.ops.len() as u64 <= state.last_seq + 1 {
            return Ok(());
        }
        if group.first_seq != self.last_seq + 1 {
            let place = format!("log {generation}");
            let why = format!("sequence {} follows {}", group.first_seq, self.last_seq);
            return Err(Error::corrupt(place, why));
        }
        for op in group.ops {
            self.last_seq += 1;
            let seq = self.last_seq;
            if let LogOp::Pointer { key, pointer } = &op {
                self.name(state, memtable, key, pointer, seq)?;
            }
            let Some(memtable) = memtable else { continue };
            match op {
                LogOp::Put { key, value } => memtable.insert(key, seq, EntryKind::Put, value),
                LogOp::Delete { key } => {
                    memtable.insert(key, seq, EntryKind::Delete, bytes::Bytes::new());
                }
                LogOp::DeleteRange { start, end } => {
                    memtable.insert_range_delete(RangeTombstone { start, end, seq });
                }
                LogOp::Pointer { key, pointer } => memtable.insert(key, seq, EntryKind::Pointer, pointer),
            }
        }
        Ok(())
    }

    /// Notes that the log names a value.
    fn name(
        &mut self,
        state: &State,
        memtable: Option<&Memtable>,
        key: &[u8],
        pointer: &[u8],
        seq: u64,
    ) -> Result<(), Error> {
        let pointer = Pointer::decode(pointer)?;
        let options = keyspace_of(key)
            .and_then(|id| state.keyspaces.get(&id))
            .map(|space| space.options.clone());
        let Some(group) = group_of(&options.unwrap_or_default(), key) else {
            return Ok(());
        };
        let range = pointer.range();
        let named = self.named.entry(pointer.object).or_insert_with(|| Named {
            ranges: IntervalSet::default(),
            group,
            max_seq: 0,
        });
        named.max_seq = named.max_seq.max(seq);
        named
            .ranges
            .insert(range.start..range.end.next_multiple_of(VALUE_PAGE));
        let Some(memtable) = memtable else { return Ok(()) };
        let accounted = named.ranges.iter().last().map_or(0, |range| range.end);
        let known = state
            .values
            .get(&pointer.object)
            .map_or(0, |value| value.meta.accounted);
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

impl Engine {
    /// Makes tables of all logs that were found, a memtable of the present budget after the other.
    /// # Errors
    /// `NoSpace`: there is none for the tables; the logs stay. `Corrupt`, or a failed write.
    pub(super) fn flush_logs(
        &self,
        values: &mut WorkerValues,
        mut replayed: Replayed,
        found: &Found,
    ) -> Result<(), Error> {
        let _step = self.step.lock();
        let flushed = {
            let state = &self.tree.lock().manifest.state;
            replayed.last_seq = state.last_seq;
            state.flushed_generation
        };
        for (&generation, &stream) in found.logs.range(flushed + 1..) {
            let begin = || {
                let part = Arc::new(Memtable::new(generation, stream));
                self.budget.watch(&part);
                part
            };
            let mut part = begin();
            let mut frame = self.budget.charge(Memory::Log, 0);
            let held = |bytes| frame.set(bytes);
            replay(&self.objects, generation, stream, held, |group| {
                replayed.apply(&self.tree.lock().manifest.state, generation, Some(&part), group)?;
                if part.charged_bytes() >= self.budget.memtable_bytes() {
                    self.budget.count_memtables();
                    self.in_reserve(|| self.flush_part(values, &part))?;
                    part = begin();
                }
                Ok(())
            })?;
            self.in_reserve(|| self.flush_log(values, &part))?;
        }
        self.budget.count_memtables();
        Ok(())
    }
}
