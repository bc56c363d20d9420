//! The cache of a process that serves snapshots: decoded chunks, recipes and pages, within one number of
//! bytes.
//!
//! Everything is kept under the id of its content, so snapshots, disks and doors share what they have in
//! common.
//! Invariant: what is kept, with what the keeping costs, is at most the bytes it was made with.

use crate::snapshot::recipe::{Page, SegmentRecipe};
use copal_chunk::ChunkId;
use parking_lot::{Mutex, MutexGuard};
use quick_cache::{Weighter, sync::Cache};
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes of a process's cache unless it says otherwise.
pub const CACHE_BYTES: u64 = 64 << 20;
/// What an entry takes beside its content.
const ENTRY_BYTES: u64 = 96;
/// What a usual entry is: a chunk.
const USUAL_BYTES: u64 = 16 << 10;
/// Ranges that were told of are remembered up to so many; the next is told again.
const TOLD: usize = 4096;
/// Segments that are fetched at the same time.
const TURNS: usize = 32;

/// Caches of one repository's content; one per process, shared by all that it serves.
pub struct ServeCache {
    kept: Cache<Key, Kept, Bytes>,
    /// Whoever fetches of a segment takes its turn, so that nothing is fetched twice.
    turns: Vec<Mutex<()>>,
    /// What was found damaged and told.
    told: Mutex<HashSet<ChunkId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    Chunk([u8; 32]),
    Recipe([u8; 32]),
    Page([u8; 32]),
}

#[derive(Clone)]
enum Kept {
    Chunk(Arc<[u8]>),
    Recipe(Arc<SegmentRecipe>),
    Page(Arc<Page>),
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Kept> for Bytes {
    fn weight(&self, _key: &Key, kept: &Kept) -> u64 {
        ENTRY_BYTES
            + match kept {
                Kept::Chunk(bytes) => bytes.len() as u64,
                Kept::Recipe(recipe) => size_of_val(recipe.entries.as_slice()) as u64,
                Kept::Page(page) => size_of_val(page.segments.as_slice()) as u64,
            }
    }
}

impl ServeCache {
    /// A cache of at most so many bytes.
    pub fn new(bytes: u64) -> ServeCache {
        let usual = (bytes / USUAL_BYTES).max(1) as usize;
        ServeCache {
            kept: Cache::with_weighter(usual, bytes, Bytes),
            turns: (0..TURNS).map(|_| Mutex::new(())).collect(),
            told: Mutex::default(),
        }
    }

    /// Bytes that are kept now.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.weight()
    }

    pub(super) fn chunk(&self, id: &ChunkId) -> Option<Arc<[u8]>> {
        match self.kept.get(&Key::Chunk(id.0))? {
            Kept::Chunk(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn recipe(&self, id: &ChunkId) -> Option<Arc<SegmentRecipe>> {
        match self.kept.get(&Key::Recipe(id.0))? {
            Kept::Recipe(recipe) => Some(recipe),
            _ => None,
        }
    }

    pub(super) fn page(&self, id: &ChunkId) -> Option<Arc<Page>> {
        match self.kept.get(&Key::Page(id.0))? {
            Kept::Page(page) => Some(page),
            _ => None,
        }
    }

    pub(super) fn keep_chunk(&self, id: &ChunkId, bytes: &Arc<[u8]>) {
        self.kept.insert(Key::Chunk(id.0), Kept::Chunk(Arc::clone(bytes)));
    }

    pub(super) fn keep_recipe(&self, id: &ChunkId, recipe: &Arc<SegmentRecipe>) {
        self.kept.insert(Key::Recipe(id.0), Kept::Recipe(Arc::clone(recipe)));
    }

    pub(super) fn keep_page(&self, id: &ChunkId, page: &Arc<Page>) {
        self.kept.insert(Key::Page(id.0), Kept::Page(Arc::clone(page)));
    }

    /// Takes the turn of a segment. Blocks while somebody fetches of it.
    pub(super) fn turn(&self, segment: &ChunkId) -> MutexGuard<'_, ()> {
        self.turns[usize::from(segment.0[0]) % TURNS].lock()
    }

    /// Whether this was not told before.
    pub(super) fn is_news(&self, id: &ChunkId) -> bool {
        let mut told = self.told.lock();
        if told.len() >= TOLD {
            told.clear();
        }
        told.insert(*id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_stays_within_its_bytes() {
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
            // What is asked for again and again stays.
            if number > 0 {
                cache.chunk(&id(0));
            }
        }
        assert!(most <= BYTES, "{most}");
        assert!(most > BYTES / 2, "{most}: little is kept");
        assert!(cache.chunk(&id(0)).is_some());
        assert!(cache.is_news(&id(1)) && !cache.is_news(&id(1)));
    }
}
