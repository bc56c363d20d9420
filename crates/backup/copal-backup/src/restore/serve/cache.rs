//! Cache of a process that exports snapshots: decoded chunks, recipes and pages, bounded in bytes.
//!
//! Entries are keyed by the id of their content, so snapshots, disks and exports share common data.
//! Invariant: the cached content and its overhead never exceed the configured bytes.

use crate::snapshot::recipe::{RecipePage, SegmentRecipe};
use copal_chunk::ChunkId;
use parking_lot::{Mutex, MutexGuard};
use quick_cache::{Weighter, sync::Cache};
use std::collections::HashSet;
use std::sync::Arc;

/// Default size of a process's cache.
pub const CACHE_BYTES: u64 = 64 << 20;
/// Overhead of an entry.
const ENTRY_BYTES: u64 = 96;
/// Usual size of an entry: a chunk.
const USUAL_BYTES: u64 = 16 << 10;
/// Most reported ranges that are remembered; beyond this the list is cleared.
const TOLD: usize = 4096;
/// Share of the cache for chunks that one stream has fetched ahead.
const STREAM_SHARE: u64 = 4;
/// Number of locks for segments.
const TURNS: usize = 32;

/// Cache of one repository's content; one per process, shared by all its exports.
pub struct ServeCache {
    kept: Cache<CacheKey, CacheEntry, EntryWeight>,
    /// Locks by segment, so that nothing is fetched twice.
    turns: Vec<Mutex<()>>,
    /// Damaged ids that were reported.
    reported: Mutex<HashSet<ChunkId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CacheKey {
    Chunk([u8; 32]),
    Recipe([u8; 32]),
    Page([u8; 32]),
}

#[derive(Clone)]
enum CacheEntry {
    Chunk(Arc<[u8]>),
    Recipe(Arc<SegmentRecipe>),
    Page(Arc<RecipePage>),
}

#[derive(Clone)]
struct EntryWeight;

impl Weighter<CacheKey, CacheEntry> for EntryWeight {
    fn weight(&self, _key: &CacheKey, kept: &CacheEntry) -> u64 {
        ENTRY_BYTES
            + match kept {
                CacheEntry::Chunk(bytes) => bytes.len() as u64,
                CacheEntry::Recipe(recipe) => size_of_val(recipe.entries.as_slice()) as u64,
                CacheEntry::Page(page) => size_of_val(page.segments.as_slice()) as u64,
            }
    }
}

impl ServeCache {
    /// A cache of at most `bytes` bytes.
    pub fn new(bytes: u64) -> ServeCache {
        let usual = (bytes / USUAL_BYTES).max(1) as usize;
        ServeCache {
            kept: Cache::with_weighter(usual, bytes, EntryWeight),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            reported: Mutex::default(),
        }
    }

    /// Most bytes of chunks that a sequential read fetches ahead: a part of the cache, so that several streams
    /// fit into it.
    pub(super) fn ahead_bytes(&self) -> u64 {
        self.kept.capacity() / STREAM_SHARE
    }

    /// Bytes that are cached now.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.weight()
    }

    pub(super) fn chunk(&self, id: &ChunkId) -> Option<Arc<[u8]>> {
        match self.kept.get(&CacheKey::Chunk(id.0))? {
            CacheEntry::Chunk(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn recipe(&self, id: &ChunkId) -> Option<Arc<SegmentRecipe>> {
        match self.kept.get(&CacheKey::Recipe(id.0))? {
            CacheEntry::Recipe(recipe) => Some(recipe),
            _ => None,
        }
    }

    pub(super) fn page(&self, id: &ChunkId) -> Option<Arc<RecipePage>> {
        match self.kept.get(&CacheKey::Page(id.0))? {
            CacheEntry::Page(page) => Some(page),
            _ => None,
        }
    }

    pub(super) fn keep_chunk(&self, id: &ChunkId, bytes: &Arc<[u8]>) {
        self.kept.insert(CacheKey::Chunk(id.0), CacheEntry::Chunk(Arc::clone(bytes)));
    }

    pub(super) fn keep_recipe(&self, id: &ChunkId, recipe: &Arc<SegmentRecipe>) {
        self.kept.insert(CacheKey::Recipe(id.0), CacheEntry::Recipe(Arc::clone(recipe)));
    }

    pub(super) fn keep_page(&self, id: &ChunkId, page: &Arc<RecipePage>) {
        self.kept.insert(CacheKey::Page(id.0), CacheEntry::Page(Arc::clone(page)));
    }

    /// Locks a segment. Blocks while another thread fetches its chunks.
    pub(super) fn turn(&self, segment: &ChunkId) -> MutexGuard<'_, ()> {
        self.turns[usize::from(segment.0[0]) % TURNS].lock()
    }

    /// Whether this id was not reported before.
    pub(super) fn is_new_report(&self, id: &ChunkId) -> bool {
        let mut reported = self.reported.lock();
        if reported.len() >= TOLD {
            reported.clear();
        }
        reported.insert(*id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_stays_within_its_bytes() {
        const BYTES: u64 = 4 << 20;
        let cache = ServeCache::new(BYTES);
        let id = |number: u64| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
            ChunkId(id)
        };
        let mut most = 0;
        for number in 0..4000 {
            let bytes: Arc<[u8]> = vec![7; 1024 + (number as usize * 37) % (64 << 10)].into();
            cache.keep_chunk(&id(number), &bytes);
            most = most.max(cache.kept_bytes());
            // An entry that is used again and again stays.
            if number > 0 {
                cache.chunk(&id(0));
            }
        }
        assert!(most <= BYTES, "{most}");
        assert!(most > BYTES / 2, "{most}: little is cached");
        assert!(cache.chunk(&id(0)).is_some());
        assert!(cache.is_new_report(&id(1)) && !cache.is_new_report(&id(1)));
    }
}
