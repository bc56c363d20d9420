//! The adjuster: drains the samples, runs the rule, moves units.
//!
//! Invariants
//! - One adjustment runs at a time; it holds the state's lock only between reads, never during one.
//! - A thread that reads units for a partition has charged them and marked the partition `moving`. No other
//!   thread changes the partition's units meanwhile, but the partition may be retired.
//! - The state's lock is a leaf: under it no read is issued and no table is dropped.

use super::{
    filtered::{FilteredTable, LoadFailure},
    moves::UnitMoves,
    predicted::{AtHand, PredictedPartition},
    sample::ProbeSampler,
    slot::PartitionNumber,
    state::{ElasticState, PartState, WantedUnits},
    wake::AdjusterWake,
};
use crate::session::{
    options::{FilterMemory, FilterOptions},
    read_counters::{ReadCount, ReadCounters},
};
use copal_filter::{
    Units,
    rules::{Heat, Outcome, PartitionId, RuleKind, Shape},
};
use parking_lot::Mutex;
use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Units to read; they are charged, and the partition is marked as moving.
struct UnitLoad {
    table: Arc<dyn FilteredTable>,
    number: PartitionNumber,
    index: u32,
    /// Present number of units, and wanted number.
    have: u8,
    want: u8,
}

/// Filters of all stores that share a budget; see [`crate::memory::elastic`].
pub(crate) struct ElasticFilters {
    pub(super) options: FilterOptions,
    pub(super) sampler: ProbeSampler,
    pub(super) state: Mutex<ElasticState>,
    pub(super) moves: UnitMoves,
    pub(super) wake: AdjusterWake,
    /// Gets of all stores; striped, since threads count concurrently.
    gets: ReadCounters,
    turn: Mutex<()>,
    /// Limit of unit bytes.
    limit_bytes: AtomicU64,
    /// Bytes not granted to any partition, approximate: read before the lock is taken.
    room_bytes: AtomicU64,
}

impl ElasticFilters {
    pub(crate) fn new(options: FilterOptions, limit_bytes: u64) -> Arc<ElasticFilters> {
        Arc::new(ElasticFilters {
            sampler: ProbeSampler::new(),
            state: Mutex::new(ElasticState::new(options.rule.build())),
            moves: UnitMoves::default(),
            wake: AdjusterWake::default(),
            gets: ReadCounters::default(),
            turn: Mutex::new(()),
            limit_bytes: AtomicU64::new(limit_bytes),
            room_bytes: AtomicU64::new(limit_bytes),
            options,
        })
    }

    /// Bytes that one partition costs without its units.
    pub(crate) const PART_BYTES: u64 = ElasticState::PART_BYTES;

    /// Number of Gets so far.
    pub(super) fn now(&self) -> u64 {
        self.gets.sum(ReadCount::Gets)
    }

    /// Counts a Get.
    pub(crate) fn count_get(&self) {
        self.gets.add(ReadCount::Gets);
    }

    /// Limit of all units together, bytes.
    pub(super) fn budget(&self, state: &ElasticState) -> u64 {
        self.budget_of(state.keys, state.partitions())
    }

    fn budget_of(&self, keys: u64, partitions: u64) -> u64 {
        /// Units are rounded up to whole words.
        const ROUNDING_BYTES: u64 = 8;
        self.limit_bytes().min(match self.options.memory {
            FilterMemory::BitsPerKey(bits) if bits > 0.0 => {
                (bits * keys as f64 / 8.0) as u64 + partitions * ROUNDING_BYTES
            }
            FilterMemory::BitsPerKey(_) => 0,
            FilterMemory::Bytes(bytes) => bytes,
        })
    }

    fn room(&self, state: &ElasticState) -> u64 {
        self.budget(state).saturating_sub(state.charged)
    }

    fn note_room(&self, state: &ElasticState) {
        self.room_bytes.store(self.room(state), Ordering::Relaxed);
    }

    /// Limit of unit bytes.
    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::SeqCst)
    }

    /// Sets the limit of unit bytes; units beyond it are released when the rule runs next.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Samples the outcome of a probe. Never blocks.
    pub(crate) fn note(&self, partition: Option<PartitionNumber>, outcome: Outcome) {
        if let Some(partition) = partition
            && self.sampler.note(partition, outcome, || self.now())
            && self.options.background
        {
            self.wake.wake();
        }
    }

    /// Registers the partitions of an opened table, with the units that were taken from memory when it was
    /// written, as far as they fit. The caller should call [`ElasticFilters::settle`] afterwards.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        table: &Arc<dyn FilteredTable>,
        level: u8,
        predicted: &mut Vec<PredictedPartition>,
        at_hand: &mut AtHand,
    ) {
        self.start();
        let now = self.now();
        let weak = Arc::downgrade(table);
        let mut predicted = predicted.drain(..).peekable();
        let mut state = self.state.lock();
        for index in 0..table.partitions() {
            let Some(shape) = table.filter_shape(index, level) else {
                continue;
            };
            while predicted.next_if(|predicted| predicted.index < index).is_some() {}
            let own = predicted.next_if(|predicted| predicted.index == index);
            let (heat, wanted, own) =
                own.map_or((Heat::default(), 0, None), |own| (own.heat, own.wanted, own.units));
            // The table's keys count at once, so that a new store has a budget at all.
            let budget = self.budget_of(state.keys + u64::from(shape.keys), state.partitions() + 1);
            let room = budget.saturating_sub(state.charged);
            let most = (room / u64::from(shape.unit_bytes)).min(u64::from(wanted)) as u8;
            let units = own
                .as_ref()
                .map(|units| units.first(most))
                .filter(|units| units.count() > 0 && table.charge_units(bytes(shape, units.count())));
            let count = units.as_ref().map_or(0, Units::count);
            let part = PartState {
                table: weak.clone(),
                index,
                shape,
                units: count,
                moving: false,
                seen: Default::default(),
                reported: 0,
            };
            let Some(number) = state.insert(part, heat, now) else {
                table.return_units(bytes(shape, count));
                continue;
            };
            self.moves.predicted(u64::from(count));
            let slot = table.slot(index);
            if units.is_some() {
                slot.swap(units);
            }
            slot.set_number(Some(number));
            if let Some(own) = own {
                at_hand.keep(&**table, index, own);
            }
        }
        self.note_room(&state);
    }

    /// Removes partitions that no new reader will probe, and frees their units. The caller should call
    /// [`ElasticFilters::settle`] afterwards.
    pub(crate) fn retire(&self, table: &dyn FilteredTable, partitions: Range<u32>) {
        let mut state = self.state.lock();
        for index in partitions {
            let slot = table.slot(index);
            let Some(number) = slot.number() else { continue };
            slot.set_number(None);
            slot.swap(None);
            if let Some(part) = state.remove(number) {
                table.return_units(bytes(part.shape, part.units));
                self.moves.retired(u64::from(part.units));
            }
        }
        self.note_room(&state);
    }

    /// Runs the rule with the present budget, and carries out at once the changes that need no read:
    /// releases, and loads of units at hand. Other loads wait for the adjuster.
    pub(crate) fn adjust_to_budget(&self, at_hand: &AtHand) {
        // Dropped after the lock is released: each may be the last reference to its table.
        let mut tables = Vec::new();
        {
            let state = &mut *self.state.lock();
            self.step(state);
            for wanted in state.take_wanted() {
                let Some(part) = state.wants(&wanted) else {
                    continue;
                };
                let (table, index) = (part.table.upgrade(), part.index);
                let own = table
                    .as_ref()
                    .and_then(|table| at_hand.of(&**table, index))
                    .filter(|own| own.count() >= wanted.units);
                let waits = part.moving || wanted.units > part.units && own.is_none();
                if waits {
                    state.put_off(wanted);
                } else if let Some(table) = &table
                    && let Some((have, want)) = self.begin(state, &**table, &wanted)
                {
                    state.set_units(wanted.number, want, false);
                    table.slot(index).swap(own.map(|own| own.first(want)));
                    self.moves.predicted(u64::from(want - have));
                }
                tables.extend(table);
            }
            self.note_room(state);
        }
        drop(tables);
        self.stir();
    }

    fn step(&self, state: &mut ElasticState) {
        let (now, budget) = (self.now(), self.budget(state));
        state.ask(budget, now);
    }

    /// Moves a table to another run. Pending changes for it become void. The caller should call
    /// [`ElasticFilters::settle`] afterwards.
    pub(crate) fn relevel(&self, table: &dyn FilteredTable, level: u8) {
        let now = self.now();
        let mut state = self.state.lock();
        for index in 0..table.partitions() {
            let slot = table.slot(index);
            let Some(number) = slot.number() else { continue };
            let other = state.same(number, table, index).is_some_and(|part| part.shape.level != level);
            if !other {
                continue;
            }
            let heat = state.rule.heat(PartitionId(number.0), now);
            let Some(mut part) = state.remove(number) else {
                continue;
            };
            part.shape.level = level;
            // The number that was freed last is allocated first, so a thread that moves the units still finds
            // the partition.
            slot.set_number(state.insert(part, heat, now));
        }
    }

    /// Wakes the background thread for a change, without waiting for Gets.
    fn stir(&self) {
        if self.options.background {
            self.wake.wake();
        }
    }

    /// Heat of partition `index` of `table`.
    pub(crate) fn heat(&self, table: &dyn FilteredTable, index: u32) -> Heat {
        let now = self.now();
        let Some(number) = table.slot(index).number() else {
            return Heat::default();
        };
        let mut state = self.state.lock();
        match state.same(number, table, index) {
            Some(_) => state.rule.heat(PartitionId(number.0), now),
            None => Heat::default(),
        }
    }

    /// Number of units that a partition of this shape and heat would get.
    pub(crate) fn predict(&self, shape: Shape, heat: Heat) -> u8 {
        let now = self.now();
        self.state.lock().rule.predict(shape, heat, now).min(shape.units)
    }

    /// Charges the units that a probe may load for a partition without units, and returns their number. The
    /// caller must call [`ElasticFilters::loaded`] afterwards.
    pub(crate) fn reserve(
        &self,
        table: &dyn FilteredTable,
        number: PartitionNumber,
        index: u32,
    ) -> Option<u8> {
        let unit_bytes = u64::from(table.filter_shape(index, 0)?.unit_bytes);
        if self.options.rule == RuleKind::Paper || self.room_bytes.load(Ordering::Relaxed) < unit_bytes {
            return None;
        }
        let now = self.now();
        let state = &mut *self.state.lock();
        let room = self.room(state);
        let part = state.same(number, table, index)?;
        if part.units > 0 || part.moving {
            return None;
        }
        let shape = part.shape;
        let id = PartitionId(number.0);
        let wanted = state.rule.predict(shape, state.rule.heat(id, now), now);
        let most = (room / u64::from(shape.unit_bytes)).min(u64::from(shape.units)) as u8;
        let units = wanted.min(most);
        if units == 0 || !table.charge_units(bytes(shape, units)) {
            return None;
        }
        state.correct(number, units);
        state.set_units(number, units, true);
        self.note_room(state);
        Some(units)
    }

    /// Installs the result of a read of all charged units; `had` of them were loaded before.
    pub(crate) fn loaded(
        &self,
        table: &dyn FilteredTable,
        number: PartitionNumber,
        index: u32,
        had: u8,
        read: Result<Units, LoadFailure>,
        cold: bool,
    ) {
        let state = &mut *self.state.lock();
        // If the partition was retired meanwhile, its charge was returned then.
        let Some(part) = state.same(number, table, index) else {
            return;
        };
        let (shape, charged) = (part.shape, part.units);
        match read {
            Ok(units) => {
                state.set_units(number, charged, false);
                table.slot(index).swap(Some(units));
                self.moves.loaded(u64::from(charged - had));
                if cold {
                    self.moves.cold();
                }
            }
            Err(failed) => {
                state.set_units(number, had, false);
                table.return_units(bytes(shape, charged - had));
                state.correct(number, had);
                self.give_up(state, table, number, index, failed);
            }
        }
        self.note_room(state);
    }

    /// The page is unusable and will not be read again: the partition keeps its present units.
    fn give_up(
        &self,
        state: &mut ElasticState,
        table: &dyn FilteredTable,
        number: PartitionNumber,
        index: u32,
        failed: LoadFailure,
    ) {
        let now = self.now();
        let heat = state.rule.heat(PartitionId(number.0), now);
        if failed == LoadFailure::Damaged {
            table.count_damaged_filter();
        }
        self.moves.failed();
        let slot = table.slot(index);
        slot.set_number(None);
        let Some(mut part) = state.remove(number) else {
            return;
        };
        if part.units == 0 {
            return;
        }
        part.shape.units = part.units;
        let (shape, units) = (part.shape, part.units);
        match state.insert(part, heat, now) {
            Some(number) => slot.set_number(Some(number)),
            None => {
                slot.swap(None);
                table.return_units(bytes(shape, units));
            }
        }
    }

    /// Drains the samples, runs the rule and moves units: releases, then loads. Blocks on reads.
    pub(crate) fn adjust(&self) {
        let _turn = self.turn.lock();
        {
            let state = &mut *self.state.lock();
            for sampled in self.sampler.drain() {
                state.observe(&sampled.probes, sampled.at);
            }
            self.step(state);
        }
        self.carry_out();
        self.note_room(&self.state.lock());
    }

    /// Waits for the running adjustment, including its reads. Afterwards it holds no tables or objects.
    pub(crate) fn wait_for_the_adjuster(&self) {
        drop(self.turn.lock());
    }

    /// Carries out the pending changes.
    pub(super) fn carry_out(&self) {
        while let Some(load) = self.next_load() {
            self.read(&load);
        }
    }

    /// Like [`ElasticFilters::adjust`], and also drains the calling thread's ring.
    pub(crate) fn adjust_now(&self) {
        self.sampler.hand_over_mine(self.now());
        self.adjust();
    }

    /// Carries out changes up to the next one that needs a read, and returns that one. Takes them one by one,
    /// since the rule may run again in between.
    fn next_load(&self) -> Option<UnitLoad> {
        loop {
            // The table is dropped after the lock is released: this may be its last reference, and its drop
            // returns units.
            let (table, begun) = {
                let state = &mut *self.state.lock();
                let wanted = state.next_wanted()?;
                let part = state.wants(&wanted)?;
                let (table, index) = (part.table.upgrade(), part.index);
                let begun = table.as_ref().and_then(|table| {
                    let (have, want) = self.begin(state, &**table, &wanted)?;
                    Some((wanted.number, index, have, want))
                });
                (table, begun)
            };
            if let (Some(table), Some((number, index, have, want))) = (table, begun) {
                return Some(UnitLoad { table, number, index, have, want });
            }
        }
    }

    fn read(&self, load: &UnitLoad) {
        let UnitLoad { ref table, number, index, have, want } = *load;
        // As in the paper, each Bloom unit takes its own read; columns take one read together.
        let stepwise = self.options.rule == RuleKind::Paper;
        let first = if stepwise { have + 1 } else { want };
        let mut read = Err(LoadFailure::Read);
        for units in first..=want {
            read = if self.wake.stopping() { Err(LoadFailure::Read) } else { table.read_units(index, units) };
            if read.is_err() {
                break;
            }
        }
        self.loaded(&**table, number, index, have, read, false);
    }

    /// Carries out a release at once. For a load, charges the units and returns the present and the wanted
    /// number.
    fn begin(
        &self,
        state: &mut ElasticState,
        table: &dyn FilteredTable,
        wanted: &WantedUnits,
    ) -> Option<(u8, u8)> {
        let part = state.wants(wanted)?;
        let (number, index, moving) = (wanted.number, part.index, part.moving);
        let (shape, have) = (part.shape, part.units);
        let want = wanted.units.min(shape.units);
        if moving {
            state.correct(number, have);
            return None;
        }
        if want < have {
            state.set_units(number, want, false);
            let kept = table.slot(index).ask(|units: &Units| units.first(want));
            table.slot(index).swap(kept.filter(|units| units.count() > 0));
            table.return_units(bytes(shape, have - want));
            self.moves.dropped(u64::from(have - want));
            return None;
        }
        if want == have {
            return None;
        }
        if !table.charge_units(bytes(shape, want - have)) {
            self.moves.refused();
            state.correct(number, have);
            return None;
        }
        state.set_units(number, want, true);
        Some((have, want))
    }
}

fn bytes(shape: Shape, units: u8) -> u64 {
    u64::from(shape.unit_bytes) * u64::from(units)
}
