//! Deletion by the real summary vectors, on scaled VMs: counts freed and leaked ids, and checks that no live
//! chunk is freed.

use crate::rules::random::{Random, mix};
use anyhow::{Result, ensure};
use copal_backup::summary::{Block, Geometry};
use std::collections::HashSet;

/// Result of the deletions of all VMs, in ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) dead: u64,
    /// Dead ids that were kept.
    pub(crate) leaked: u64,
}

/// Deletes the oldest of `snapshots` of a VM with `ids` private ids; each snapshot replaces `new` of them at
/// random places.
///
/// # Errors
/// The method called a chunk of a remaining snapshot dead.
pub(super) fn delete_oldest(ids: u64, new: u64, snapshots: usize, seed: u64) -> Result<Freed> {
    let mut random = Random(mix(seed));
    let mut now: Vec<u64> = (0..ids).collect();
    let oldest = now.clone();
    let geometry = Geometry::for_references(ids);
    let mut merged: Vec<Block> = (0..geometry.blocks()).map(|_| Block::new(geometry)).collect();
    let mut living = HashSet::new();
    for snapshot in 1..snapshots as u64 {
        for number in 0..new {
            let at = random.below(ids) as usize;
            now[at] = ids * snapshot + number;
        }
        for &chunk in &now {
            let id = id(seed, chunk);
            merged[geometry.block_of(&id) as usize].insert(&id);
            living.insert(chunk);
        }
    }
    let mut freed = Freed::default();
    for chunk in oldest {
        let id = id(seed, chunk);
        let seems_used = merged[geometry.block_of(&id) as usize].has(&id);
        match (seems_used, living.contains(&chunk)) {
            (false, false) => freed.dead += 1,
            (true, false) => freed.leaked += 1,
            (true, true) => {}
            (false, true) => ensure!(false, "chunk {chunk} of VM {seed} is live and was called dead"),
        }
    }
    Ok(freed)
}

fn id(seed: u64, chunk: u64) -> [u8; 16] {
    let first = mix(chunk.wrapping_add(mix(seed)));
    let mut id = [0; 16];
    id[..8].copy_from_slice(&first.to_be_bytes());
    id[8..].copy_from_slice(&mix(first ^ 0x6465_6164).to_be_bytes());
    id
}
