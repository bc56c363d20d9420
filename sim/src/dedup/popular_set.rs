//! The paper's index: all hosts know the same popular ids, the top few per cent, and store all other chunks.
//!
//! Paper: low-profile-dedup §2. A rule, not an index: the rank of an id decides its membership.

use super::hosts::Hosts;
use super::outcome::Chunks;
use super::trace::{Chunk, Seen, Trace};

/// Number of ids that each VM stores, and the totals of all chunks. `day` selects the day of the trace.
pub(super) fn store(hosts: &Hosts<'_>, trace: &Trace, day: u32) -> (Vec<u64>, Chunks) {
    let popular = trace.popular();
    let mut chunks = Chunks::default();
    let stored = hosts.fleet.vms.iter().enumerate().map(|(vm, of)| {
        let mut seen = Seen::default();
        let before = chunks.private;
        for at in 0..trace.ids_of(of.dirty_bytes) {
            let chunk = trace.chunk(vm, day, at);
            chunks.all += 1;
            match chunk {
                Chunk::Shared(rank) if rank < popular => chunks.hits += 1,
                _ if seen.is_first(chunk) => chunks.private += 1,
                _ => chunks.inner += 1,
            }
        }
        chunks.private - before
    });
    let stored = stored.collect();
    (stored, chunks)
}
