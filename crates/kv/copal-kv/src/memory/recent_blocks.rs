//! Blocks that look-ups read last and the cache does not keep: the next look-up is often that of a neighbour.
//!
//! A keyspace that caches rows keeps no blocks. Without these blocks each row of a file or pack, which lie side by
//! side in one block, would cost a read of that block.
//!
//! Invariants
//! - At most [`BLOCKS`] blocks of at most [`BLOCK_BYTES`] each, the most recently used ones.
//! - They are charged, and given up if memory is short.

use crate::{
    format::block::DataBlock,
    memory::{
        budget::{MemoryAccounts, MemoryCharge, MemoryClass},
        contents::PageKey,
    },
};
use parking_lot::Mutex;
use std::collections::VecDeque;

const BLOCKS: usize = 32;
/// Longer blocks hold long rows, and few of them.
const BLOCK_BYTES: usize = 16 << 10;

struct RecentBlock {
    key: PageKey,
    block: DataBlock,
    _charge: MemoryCharge,
}

/// The blocks of one store, the most recent one last.
#[derive(Default)]
pub(crate) struct RecentBlocks {
    blocks: Mutex<VecDeque<RecentBlock>>,
}

impl RecentBlocks {
    pub(crate) fn get(&self, key: PageKey) -> Option<DataBlock> {
        let mut blocks = self.blocks.lock();
        let at = blocks.iter().position(|recent| recent.key == key)?;
        let recent = blocks.remove(at)?;
        let block = recent.block.clone();
        blocks.push_back(recent);
        Some(block)
    }

    /// Keeps a block in place of the oldest one.
    pub(crate) fn put(&self, budget: &MemoryAccounts, key: PageKey, block: &DataBlock) {
        let bytes = block.heap_bytes();
        if bytes > BLOCK_BYTES {
            return;
        }
        // A charge may evict pages, and its end may give memory back: neither happens under the lock.
        let Some(charge) = budget.try_charge(MemoryClass::Reads, bytes as u64) else {
            let given_up = std::mem::take(&mut *self.blocks.lock());
            return drop(given_up);
        };
        let mut blocks = self.blocks.lock();
        let at = blocks.iter().position(|recent| recent.key == key);
        let old = at.and_then(|at| blocks.remove(at));
        let old = old.or_else(|| if blocks.len() == BLOCKS { blocks.pop_front() } else { None });
        blocks.push_back(RecentBlock { key, block: block.clone(), _charge: charge });
        drop(blocks);
        drop(old);
    }
}
