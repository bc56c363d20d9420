//! Plays Gets through a store under one plan of memory, and counts reads as the engine would do them.

use super::{
    entrant::{CachePlan, ColumnPlan, Entrant},
    store::{BlockId, Key, PAGE_BYTES, Store},
    traces::Trace,
};
use crate::rules::random::{Random, mix};
use copal_filter::{
    Kind,
    rules::{Change, Classes, Heat, Outcome, PartitionId, Probe, Rule, Shape},
};
use copal_market::{ByteWorth, CachePool, ENTRY_BYTES, MarketAnswer, MemoryMarket, PoolEvents, PoolKind};
use std::collections::VecDeque;

/// Gets between two steps of the rule of columns.
const BATCH: u64 = 64;
/// Blocks that a plan without a pool of blocks keeps.
const RECENT_BLOCKS: usize = 32;
/// Entries of a block whose asking is recorded.
const ASKED: usize = 64;
/// Descriptor, fence and state of the rule for each partition.
const PARTITION_BYTES: u64 = 400;
/// Parts in which a memtable is claimed.
const GRAINS: u64 = 64;

/// Reads of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reads {
    pub(super) gets: u64,
    /// All reads of the device.
    pub(super) reads: u64,
    pub(super) bytes: u64,
    pub(super) false_positives: u64,
    /// Reads of filter pages.
    pub(super) filter_pages: u64,
    pub(super) index_pages: u64,
    /// Bytes by which pools grew between two looks.
    pub(super) grown: u64,
}

impl Reads {
    pub(super) fn minus(&self, before: &Reads) -> Reads {
        Reads {
            gets: self.gets - before.gets,
            reads: self.reads - before.reads,
            bytes: self.bytes - before.bytes,
            false_positives: self.false_positives - before.false_positives,
            filter_pages: self.filter_pages - before.filter_pages,
            index_pages: self.index_pages - before.index_pages,
            grown: self.grown - before.grown,
        }
    }
}

struct CachedBlock {
    id: BlockId,
    /// Rows that Gets were answered with.
    asked: Vec<u64>,
}

/// See the module.
pub(super) struct Player<'a> {
    store: &'a Store,
    entrant: &'a Entrant,
    market: MemoryMarket,
    rows: CachePool<u64>,
    blocks: CachePool<CachedBlock>,
    index: CachePool<u32>,
    recent: VecDeque<BlockId>,
    rule: Box<dyn Rule>,
    shapes: Vec<Shape>,
    units: Vec<u8>,
    /// Bytes of columns where they have a share.
    column_share: u64,
    bought: u64,
    probes: Vec<Probe>,
    /// Partitions whose content a merge has replaced, and how often.
    generations: Vec<u32>,
    is_look_due: bool,
    reads: Reads,
    /// Rows of blocks that left, and whether others may pay for them.
    handed: VecDeque<(u64, bool)>,
    /// Charged bytes of the names that left.
    ghost_bytes: u64,
    random: Random,
    memtable_every: u64,
    memtable_bytes: u64,
    filled: u64,
}

impl<'a> Player<'a> {
    pub(super) fn new(trace: &'a Trace, entrant: &'a Entrant, seed: u64) -> Player<'a> {
        let store = &trace.store;
        let resident = u64::from(store.partitions()) * PARTITION_BYTES;
        let total = (entrant.elastic_bytes(trace.budget)).saturating_sub(resident);
        let market = MemoryMarket::new(total);
        let window = market.window();
        let mut rule: Box<dyn Rule> = Box::new(Classes::default());
        let kind = Kind::Ribbon;
        let shapes: Vec<Shape> = (0..store.partitions())
            .map(|partition| {
                let keys = store.keys_of(partition);
                Shape { kind, keys, unit_bytes: kind.unit_bytes(keys), units: kind.units(), level: 0 }
            })
            .collect();
        for (number, &shape) in shapes.iter().enumerate() {
            rule.add(PartitionId(number as u32), shape, Heat::default(), 0, 0);
        }
        let mut player = Player {
            store,
            entrant,
            market,
            rows: CachePool::new(window),
            blocks: CachePool::new(window),
            index: CachePool::new(window),
            recent: VecDeque::new(),
            rule,
            units: vec![0; shapes.len()],
            column_share: (store.rows / 2).min(total / 4),
            bought: 0,
            probes: Vec::new(),
            generations: vec![0; shapes.len()],
            shapes,
            is_look_due: false,
            reads: Reads::default(),
            handed: VecDeque::new(),
            ghost_bytes: 0,
            random: Random(mix(seed ^ 0xb10c)),
            memtable_every: if entrant.is_lent { trace.beside.memtable_every } else { 0 },
            memtable_bytes: trace.budget / 4,
            filled: 0,
        };
        player.adjust();
        player
    }

    pub(super) fn reads(&self) -> Reads {
        Reads { grown: self.market.grown_bytes(), ..self.reads }
    }

    /// Share of the budget of each pool, in the order of [`PoolKind::ALL`].
    pub(super) fn shares(&self) -> [f64; 4] {
        let all = PoolKind::ALL.map(|pool| self.market.used(pool));
        let total = (all.iter().sum::<u64>() + self.market.free_bytes() + self.market.claimed()).max(1);
        all.map(|bytes| bytes as f64 / total as f64)
    }

    /// One Get.
    pub(super) fn get(&mut self, key: Key) {
        self.reads.gets += 1;
        self.fill_memtable();
        if !key.is_absent && self.rows.get(key.hash(), |&id| id == key.id).is_some() {
            return self.end_get();
        }
        let home = self.store.home(key);
        for run in 0..self.store.runs() {
            let place = self.store.place(run, key);
            let partition = PartitionId(place.partition);
            if self.units[place.partition as usize] == 0 {
                self.load_cold(place.partition);
            }
            if run != home {
                let passes = self.passes(key, place.partition);
                let outcome = if passes { Outcome::FalsePositive } else { Outcome::Negative };
                self.probes.push(Probe { partition, outcome });
                if !passes {
                    continue;
                }
                self.reads.false_positives += 1;
            }
            self.read_index(place.partition);
            self.read_block(place.block, place.partition, (run == home).then_some(key.id));
            if run == home {
                break;
            }
        }
        self.end_get();
    }

    fn end_get(&mut self) {
        while let Some((id, may_take)) = self.handed.pop_front() {
            self.keep_row(id, may_take);
        }
        if self.reads.gets.is_multiple_of(BATCH) {
            self.adjust();
        }
        if self.is_look_due {
            self.look();
        }
    }

    /// Whether an absent key passes the loaded columns: each admits it independently, and always gives the
    /// same answer.
    fn passes(&self, key: Key, partition: u32) -> bool {
        let uid = u64::from(partition) << 32 | u64::from(self.generations[partition as usize]);
        let admitted = mix(key.hash() ^ mix(uid)).trailing_ones();
        u32::from(self.units[partition as usize]) <= admitted
    }

    fn read(&mut self, bytes: u64) {
        self.reads.reads += 1;
        self.reads.bytes += bytes;
        self.is_look_due |= self.market.read(bytes);
    }

    /// A probe that finds no unit reads the filter page, where the rule would load units of it.
    fn load_cold(&mut self, partition: u32) {
        let id = PartitionId(partition);
        if self.entrant.columns == ColumnPlan::AtMerges && self.market.free_bytes() == 0 {
            return;
        }
        let gets = self.reads.gets;
        let shape = self.shapes[partition as usize];
        let wanted = self.rule.predict(shape, self.rule.heat(id, gets), gets);
        let room = match self.entrant.columns {
            ColumnPlan::Share => self.column_share.saturating_sub(self.rule.granted_bytes()),
            _ => self.market.free_bytes(),
        };
        let most = (room / u64::from(shape.unit_bytes)).min(u64::from(shape.units)) as u8;
        let units = wanted.min(most);
        if units > 0 && self.set_units(partition, units) {
            self.rule.correct(id, units);
            self.reads.filter_pages += 1;
            self.read(PAGE_BYTES);
        }
    }

    /// Changes the number of loaded columns; false: there is no room.
    fn set_units(&mut self, partition: u32, units: u8) -> bool {
        let bytes = u64::from(self.shapes[partition as usize].unit_bytes);
        let have = self.units[partition as usize];
        match units.checked_sub(have) {
            None => self.market.give_back(PoolKind::Columns, u64::from(have - units) * bytes),
            Some(more) => {
                if !self.make_room(u64::from(more) * bytes, MemoryMarket::buy) {
                    return false;
                }
            }
        }
        self.units[partition as usize] = units;
        true
    }

    /// Asks until the bytes are granted, and evicts from the pools that the market names.
    fn make_room(&mut self, bytes: u64, ask: fn(&mut MemoryMarket, u64) -> MarketAnswer) -> bool {
        loop {
            match ask(&mut self.market, bytes) {
                MarketAnswer::Granted => return true,
                MarketAnswer::Refused | MarketAnswer::Evict(PoolKind::Columns) => return false,
                MarketAnswer::Evict(pool) => {
                    if !self.evict(pool, false) {
                        return false;
                    }
                }
            }
        }
    }

    /// Evicts one entry. Rows of a block that were asked for ask for memory later: the bytes of the block
    /// belong to the asker
    /// for which it left.
    fn evict(&mut self, pool: PoolKind, for_rows: bool) -> bool {
        let bytes = match pool {
            PoolKind::Rows => self.rows.evict().map(|left| left.bytes),
            PoolKind::IndexPages => self.index.evict().map(|left| left.bytes),
            PoolKind::Blocks => self.blocks.evict().map(|left| {
                self.market.give_back(PoolKind::Blocks, left.bytes);
                if self.entrant.caches == CachePlan::Both {
                    self.handed.extend(left.value.asked.iter().map(|&id| (id, !for_rows)));
                }
                0
            }),
            PoolKind::Columns => None,
        };
        if let Some(bytes) = bytes {
            self.market.give_back(pool, bytes);
        }
        bytes.is_some()
    }

    /// Inserts a row; `may_take`: others may pay for it.
    fn keep_row(&mut self, id: u64, may_take: bool) {
        let hash = Key { id, is_absent: false }.hash();
        if self.rows.peek(hash, |&other| other == id).is_some() {
            return;
        }
        let bytes = self.store.row_bytes + self.entrant.row_overhead;
        loop {
            match self.market.ask(PoolKind::Rows, bytes) {
                MarketAnswer::Granted => return self.rows.insert(hash, id, bytes as u32, false),
                MarketAnswer::Evict(pool) if pool == PoolKind::Rows || may_take => {
                    if !self.evict(pool, true) {
                        return self.rows.refuse(hash, bytes);
                    }
                }
                MarketAnswer::Evict(_) => {
                    if self.rows.is_empty() || !self.evict(PoolKind::Rows, true) {
                        return self.rows.refuse(hash, bytes);
                    }
                }
                MarketAnswer::Refused => return self.rows.refuse(hash, bytes),
            }
        }
    }

    fn read_index(&mut self, partition: u32) {
        let hash = mix(u64::from(partition) | 1 << 40);
        if self.index.get(hash, |&other| other == partition).is_some() {
            return;
        }
        self.index.missed(hash);
        self.reads.index_pages += 1;
        self.read(PAGE_BYTES);
        let bytes = self.store.index_bytes() + ENTRY_BYTES;
        if self.make_room(bytes, |market, bytes| market.ask(PoolKind::IndexPages, bytes)) {
            self.index.insert(hash, partition, bytes as u32, false);
        } else {
            self.index.refuse(hash, bytes);
        }
    }

    /// Reads a block, or finds it; `row` is the one that answers the Get.
    fn read_block(&mut self, block: BlockId, partition: u32, row: Option<u64>) {
        let id = block | u64::from(self.generations[partition as usize]) << 40;
        let hash = mix(id);
        let asked = |block: &mut CachedBlock| match row {
            Some(row) if block.asked.len() < ASKED && !block.asked.contains(&row) => block.asked.push(row),
            _ => {}
        };
        if self.entrant.caches != CachePlan::Rows {
            // A row that was asked for becomes one of the rows when its block leaves, so the block is not
            // needed for it.
            let is_handed = |block: &CachedBlock| {
                self.entrant.caches == CachePlan::Both && row.is_some_and(|row| block.asked.contains(&row))
            };
            if self.blocks.get_unless(hash, |block| block.id == id, is_handed).is_some() {
                if let Some(block) = self.blocks.peek_mut(hash, |block| block.id == id) {
                    asked(block);
                }
                return;
            }
            self.blocks.missed(hash);
        } else if let Some(at) = self.recent.iter().position(|&recent| recent == id) {
            self.recent.remove(at);
            self.recent.push_back(id);
            return self.note_row(row);
        }
        if let Some(row) = row {
            self.rows.missed(Key { id: row, is_absent: false }.hash());
        }
        self.read(self.store.read_bytes());
        if self.entrant.caches == CachePlan::Rows {
            self.recent.push_back(id);
            if self.recent.len() > RECENT_BLOCKS {
                self.recent.pop_front();
            }
            return self.note_row(row);
        }
        let mut entry = CachedBlock { id, asked: Vec::new() };
        asked(&mut entry);
        let bytes = self.store.block_bytes() + ENTRY_BYTES;
        if self.make_room(bytes, |market, bytes| market.ask(PoolKind::Blocks, bytes)) {
            self.blocks.insert(hash, entry, bytes as u32, false);
        } else {
            self.blocks.refuse(hash, bytes);
            if self.entrant.caches == CachePlan::Both {
                self.note_row(row);
            }
        }
    }

    fn note_row(&mut self, row: Option<u64>) {
        if let Some(row) = row {
            self.keep_row(row, true);
        }
    }

    /// Lets the rule of columns see the probes, and carries its changes out.
    fn adjust(&mut self) {
        let gets = self.reads.gets;
        let probes = std::mem::take(&mut self.probes);
        self.rule.observe(&probes, gets);
        let changes = match self.entrant.columns {
            ColumnPlan::Share => self.rule.step(self.column_share, gets),
            ColumnPlan::Market | ColumnPlan::AtMerges => {
                let mut offer = self.market.offer();
                offer.for_sale = offer.for_sale.saturating_sub(self.bought);
                if self.entrant.columns == ColumnPlan::AtMerges {
                    (offer.for_sale, offer.bid) = (0, 0.0);
                }
                let (granted, free) = (self.rule.granted_bytes(), offer.free_bytes);
                let changes = self.rule.trade(&offer, gets);
                self.bought += self.rule.granted_bytes().saturating_sub(granted + free);
                changes
            }
        };
        self.carry_out(&changes);
    }

    fn carry_out(&mut self, changes: &[Change]) {
        for &Change { partition, units } in changes {
            let had = self.units[partition.0 as usize];
            if !self.set_units(partition.0, units) {
                self.rule.correct(partition, had);
            } else if units > had {
                self.reads.filter_pages += 1;
                self.read(PAGE_BYTES);
            }
        }
    }

    fn look(&mut self) {
        self.is_look_due = false;
        self.bought = 0;
        let events: [PoolEvents; 3] =
            [self.rows.take_events(), self.blocks.take_events(), self.index.take_events()];
        let columns = match self.entrant.columns {
            ColumnPlan::Market => self.rule.worth(),
            ColumnPlan::Share | ColumnPlan::AtMerges => ByteWorth { gain: 0.0, loss: f64::INFINITY },
        };
        self.market.look(self.reads.gets, events, columns);
        self.charge_ghosts();
    }

    /// Memory of the names that left the pools: a claim, which changes at looks.
    fn charge_ghosts(&mut self) {
        let bytes = self.rows.ghost_bytes() + self.blocks.ghost_bytes() + self.index.ghost_bytes();
        if bytes < self.ghost_bytes {
            self.market.end_claim(self.ghost_bytes - bytes);
            self.ghost_bytes = bytes;
        } else if self.make_room(bytes - self.ghost_bytes, MemoryMarket::claim) {
            self.ghost_bytes = bytes;
        }
    }

    /// A writer beside the Gets fills a memtable in grains, and drops it.
    fn fill_memtable(&mut self) {
        if self.memtable_every == 0 {
            return;
        }
        let at = self.reads.gets % self.memtable_every;
        if at == 0 {
            self.market.end_claim(self.filled);
            self.filled = 0;
        }
        let due = self.memtable_bytes * at / self.memtable_every;
        let grain = self.memtable_bytes / GRAINS;
        while self.filled < due && self.make_room(grain, MemoryMarket::claim) {
            self.filled += grain;
        }
    }

    /// A merge replaces sixteen neighbouring partitions: blocks get other names, columns and index pages are
    /// handed on.
    pub(super) fn merge(&mut self) {
        let all = self.store.partitions();
        let first = self.random.below(u64::from(all.saturating_sub(16).max(1))) as u32;
        for partition in first..(first + 16).min(all) {
            let old = u64::from(self.generations[partition as usize]) << 40;
            self.generations[partition as usize] += 1;
            let new = u64::from(self.generations[partition as usize]) << 40;
            for block in self.store.blocks_of(partition) {
                let (was, is) = (block | old, block | new);
                let Some(mut left) = self.blocks.remove(mix(was), |block| block.id == was) else {
                    continue;
                };
                if self.entrant.hands_heat_on && !left.value.asked.is_empty() {
                    left.value.id = is;
                    self.blocks.insert(mix(is), left.value, left.bytes as u32, true);
                } else {
                    self.market.give_back(PoolKind::Blocks, left.bytes);
                }
            }
        }
    }
}
