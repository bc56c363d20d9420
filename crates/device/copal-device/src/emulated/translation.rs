//! Page-mapped translation layer of a flash drive: blocks that are erased whole, and greedy collection.
//!
//! A unit is always written to a new place. The block with the fewest live units is collected when no erased
//! block is left for the host: its live units move, and the block is erased. So the cost of a write follows
//! from the writes before it, and from the spare space.
//!
//! Invariants
//! - One erased block at least is left for collection, whenever it begins.
//! - A full block stands in the list of its number of live units.

/// Parameters of a translation layer.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslationProfile {
    /// Bytes that are erased together.
    pub block_bytes: u64,
    /// Space beyond the size of the device, as a share of that size; four blocks at least.
    pub spare: f64,
    /// Mapping units that the medium writes in a second, for host and collection together.
    pub media_rate: f64,
}

impl Default for TranslationProfile {
    fn default() -> TranslationProfile {
        TranslationProfile { block_bytes: 16 << 20, spare: 0.07, media_rate: 464_000.0 }
    }
}

/// Blocks beyond the size of the device without which collection could stop.
const LEAST_SPARE_BLOCKS: u64 = 4;
/// Erased blocks that are left when the host takes one.
const KEPT_ERASED: usize = 1;
/// Units in a part of the map; parts without a unit take no memory.
const MAP_PART: u64 = 4096;
const NOWHERE: u32 = u32::MAX;

#[derive(Default)]
struct FlashBlock {
    /// Logical unit of each place, `NOWHERE` if dead; empty before the first use.
    owners: Box<[u32]>,
    live: u32,
    /// Places written since the block was erased.
    written: u32,
    /// Position in the list of full blocks.
    listed: u32,
}

/// Places of units, and the blocks they lie in.
pub(super) struct TranslationLayer {
    units_per_block: u32,
    map: Vec<Option<Box<[u32]>>>,
    blocks: Vec<FlashBlock>,
    erased: Vec<u32>,
    /// Full blocks by their number of live units.
    full: Vec<Vec<u32>>,
    /// No full block has fewer live units.
    fewest: usize,
    host: Option<u32>,
    collection: Option<u32>,
    collected: u64,
}

impl TranslationLayer {
    /// A layer for a device of `units` mapping units of `unit_bytes`, all unmapped.
    ///
    /// # Panics
    /// When a block has less than one unit, or the device more than 2^32 - 2.
    pub(super) fn new(units: u64, unit_bytes: u64, profile: &TranslationProfile) -> TranslationLayer {
        let units_per_block = profile.block_bytes / unit_bytes;
        assert!(units_per_block > 0, "a block has at least one mapping unit");
        let needed = units.div_ceil(units_per_block);
        let spare = ((needed as f64 * profile.spare.max(0.0)) as u64).max(LEAST_SPARE_BLOCKS);
        let blocks = needed + spare;
        assert!(blocks * units_per_block < u64::from(NOWHERE), "the device has too many mapping units");
        TranslationLayer {
            units_per_block: units_per_block as u32,
            map: vec![None; units.div_ceil(MAP_PART) as usize],
            blocks: (0..blocks).map(|_| FlashBlock::default()).collect(),
            erased: (0..blocks as u32).rev().collect(),
            full: vec![Vec::new(); units_per_block as usize + 1],
            fewest: 0,
            host: None,
            collection: None,
            collected: 0,
        }
    }

    /// Units that collection moved so far.
    pub(super) fn collected(&self) -> u64 {
        self.collected
    }

    /// Writes a unit; returns the number of units that the medium writes for it, moved ones included.
    pub(super) fn write(&mut self, unit: u64) -> u64 {
        let before = self.collected;
        self.trim(unit);
        let block = match self.host {
            Some(block) => block,
            None => {
                while self.erased.len() <= KEPT_ERASED {
                    self.collect();
                }
                self.take_erased()
            }
        };
        self.host = self.put(block, unit as u32);
        1 + self.collected - before
    }

    /// Forgets the place of a unit.
    pub(super) fn trim(&mut self, unit: u64) {
        let Some(Some(part)) = self.map.get_mut((unit / MAP_PART) as usize) else { return };
        let place = std::mem::replace(&mut part[(unit % MAP_PART) as usize], NOWHERE);
        if place == NOWHERE {
            return;
        }
        let index = place / self.units_per_block;
        let block = &mut self.blocks[index as usize];
        block.owners[(place % self.units_per_block) as usize] = NOWHERE;
        block.live -= 1;
        if block.written == self.units_per_block {
            let (live, listed) = (block.live as usize, block.listed);
            self.unlist(live + 1, listed);
            self.list(index);
        }
    }

    fn list(&mut self, block: u32) {
        let FlashBlock { live, listed, .. } = &mut self.blocks[block as usize];
        let list = &mut self.full[*live as usize];
        *listed = list.len() as u32;
        self.fewest = self.fewest.min(*live as usize);
        list.push(block);
    }

    fn unlist(&mut self, live: usize, listed: u32) {
        let list = &mut self.full[live];
        list.swap_remove(listed as usize);
        if let Some(moved) = list.get(listed as usize) {
            self.blocks[*moved as usize].listed = listed;
        }
    }

    /// Appends a unit to a block; returns the block while it has room.
    fn put(&mut self, index: u32, unit: u32) -> Option<u32> {
        let block = &mut self.blocks[index as usize];
        if block.owners.is_empty() {
            block.owners = vec![NOWHERE; self.units_per_block as usize].into();
        }
        let place = index * self.units_per_block + block.written;
        block.owners[block.written as usize] = unit;
        block.written += 1;
        block.live += 1;
        let is_full = block.written == self.units_per_block;
        let part = self.map[(u64::from(unit) / MAP_PART) as usize]
            .get_or_insert_with(|| vec![NOWHERE; MAP_PART as usize].into());
        part[(u64::from(unit) % MAP_PART) as usize] = place;
        if is_full {
            self.list(index);
        }
        (!is_full).then_some(index)
    }

    fn take_erased(&mut self) -> u32 {
        self.erased.pop().expect("the spare blocks leave one for collection")
    }

    /// Moves the live units of the block that has the fewest, and erases it.
    fn collect(&mut self) {
        while self.full[self.fewest].is_empty() {
            self.fewest += 1;
        }
        let live = self.fewest;
        let victim = self.full[live].pop().expect("a list that is not empty");
        let owners = std::mem::take(&mut self.blocks[victim as usize].owners);
        for &unit in owners.iter().filter(|unit| **unit != NOWHERE) {
            let block = self.collection.unwrap_or_else(|| self.take_erased());
            self.collection = self.put(block, unit);
        }
        self.collected += live as u64;
        self.blocks[victim as usize] = FlashBlock { owners, ..FlashBlock::default() };
        self.blocks[victim as usize].owners.fill(NOWHERE);
        self.erased.push(victim);
    }
}
