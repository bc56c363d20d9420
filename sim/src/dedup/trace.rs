//! Traces: ids of the chunks in a VM's dirty segments on a day, without contents.
//!
//! One id stands for `scale` chunks of 4 KiB, as if only one in `scale` was sampled. Nothing is stored: seed,
//! VM, day and index determine an id. Most ids are drawn by popularity from a pool that all VMs share; the
//! others are new and private.

use super::inputs::{chunks, paper};
use crate::rules::random::{Random, mix};
use copal_backup::peers::ShortId;
use std::collections::HashSet;

/// One id of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// A chunk of no other VM.
    Private,
    /// The shared chunk of that popularity rank, from 0.
    Shared(u32),
}

/// The chunks of all VMs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    seed: u64,
    /// Bytes that an id stands for.
    pub(super) id_bytes: f64,
    /// Ids of all VMs on a day.
    pub(super) ids: u64,
    pool: u64,
}

impl Trace {
    pub(super) fn new(dirty_bytes: f64, scale: u64, seed: u64) -> Trace {
        let id_bytes = paper::CHUNK_BYTES * scale as f64;
        let ids = (dirty_bytes / id_bytes) as u64;
        Trace { seed: mix(seed), id_bytes, ids, pool: ((ids as f64 * chunks::POOL) as u64).max(1) }
    }

    /// Number of ids of a VM with `dirty_bytes`.
    pub(super) fn ids_of(&self, dirty_bytes: f64) -> u64 {
        ((dirty_bytes / self.id_bytes).round() as u64).max(1)
    }

    /// Number of ids in the paper's index: the most popular of all ids of a day.
    pub(super) fn popular(&self) -> u32 {
        let known = self.ids as f64 * (1.0 - chunks::SHARED) + self.pool as f64;
        (known * chunks::POPULAR) as u32
    }

    pub(super) fn chunk(&self, vm: usize, day: u32, at: u64) -> Chunk {
        let mut random =
            Random(mix(self.seed ^ mix((vm as u64) << 32 | u64::from(day))).wrapping_add(mix(at)));
        match random.unit() < chunks::SHARED {
            true => Chunk::Shared(self.rank(random.unit())),
            false => Chunk::Private,
        }
    }

    /// Zipf's law with the exponent 2, flat at its head: its sum inverted.
    fn rank(&self, drawn: f64) -> u32 {
        let (pool, head) = (self.pool as f64, (self.pool as f64 * chunks::HEAD).max(1.0));
        let (first, last) = (1.0 / head, 1.0 / (head + pool));
        let rank = 1.0 / (first - drawn * (first - last)) - head;
        (rank as u64).min(self.pool - 1) as u32
    }

    pub(super) fn id(&self, chunk: Chunk, vm: usize, day: u32, at: u64) -> ShortId {
        let number = match chunk {
            Chunk::Shared(rank) => mix(self.seed ^ 0x706f_6f6c).wrapping_add(u64::from(rank)),
            Chunk::Private => {
                mix(self.seed ^ mix((vm as u64) << 32 | u64::from(day)) ^ 0x006f_776e).wrapping_add(at)
            }
        };
        let first = mix(number);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&first.to_be_bytes());
        id[8..].copy_from_slice(&mix(first ^ number.rotate_left(17)).to_be_bytes());
        id
    }
}

/// Chunks of a VM that are read part by part; repeated chunks within the VM need no request.
#[derive(Debug, Default)]
pub(super) struct Seen(HashSet<u32>);

impl Seen {
    /// Whether the chunk is the first of its id in the VM on this day.
    pub(super) fn is_first(&mut self, chunk: Chunk) -> bool {
        match chunk {
            Chunk::Private => true,
            Chunk::Shared(rank) => self.0.insert(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_four_percent_cover_98_percent_of_the_shared_chunks() {
        let trace = Trace::new(22e12, 10_000, 1);
        let mut counts = [0_u64; 3];
        for at in 0..500_000 {
            counts[match trace.chunk(1, 0, at) {
                Chunk::Private => 0,
                Chunk::Shared(rank) if rank < trace.popular() => 1,
                Chunk::Shared(_) => 2,
            }] += 1;
        }
        let covered = counts[1] as f64 / (counts[1] + counts[2]) as f64;
        assert!((0.975..0.985).contains(&covered), "{covered}");
        let left = (counts[0] + counts[2]) as f64 / 500_000.0;
        assert!((left / (4840.0 / 22_000.0) - 1.0).abs() < 0.02, "{left}");
    }

    #[test]
    fn ids_of_equal_rank_are_shared_and_private_ids_are_not() {
        let trace = Trace::new(1e12, 1000, 7);
        let shared = |vm, day, at| trace.id(Chunk::Shared(5), vm, day, at);
        assert_eq!(shared(1, 0, 2), shared(9, 3, 4));
        let own = |vm, day, at| trace.id(Chunk::Private, vm, day, at);
        let all = [own(1, 0, 2), own(2, 0, 2), own(1, 1, 2), own(1, 0, 3), shared(1, 0, 2)];
        let different: HashSet<ShortId> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
        assert_ne!(Trace::new(1e12, 1000, 8).id(Chunk::Shared(5), 0, 0, 0), shared(0, 0, 0));
    }
}
