//! Chunks this backup has decided to store, before and after the index has them.
//!
//! The reader enters an id when it decides; the packer adds the spot when the frame is encrypted, and takes
//! the id out after its pack is in the index. So an id is always found in one of the two, and which packs
//! are this backup's stays known.
//!
//! Memory: the ids of one pack and of the jobs under way, and up to 21 bytes for each finished pack of 16
//! MiB.

use crate::packs::pack::writer::WrittenPack;
use crate::packs::pack::{PackNumber, Spot};
use crate::request::peers::ShortId;
use copal_chunk::ChunkId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(crate) struct InFlightChunks {
    chunks: Mutex<Chunks>,
}

#[derive(Default)]
struct Chunks {
    spots: HashMap<[u8; 16], Option<Spot>>,
    /// Finished and in the index.
    packs: HashSet<PackNumber>,
}

impl InFlightChunks {
    /// Whether the id was entered and not taken out.
    pub(crate) fn has(&self, id: &ShortId) -> bool {
        self.chunks.lock().spots.contains_key(id)
    }
    /// Enters an id that will be stored.
    pub(crate) fn enter(&self, id: &ShortId) {
        self.chunks.lock().spots.insert(*id, None);
    }
    /// The frame of an id was encrypted.
    pub(crate) fn place(&self, id: &ChunkId, spot: Spot) {
        self.chunks.lock().spots.insert(id.short(), Some(spot));
    }
    /// Where the frame is, if it was encrypted and is not in the index.
    pub(crate) fn spot(&self, id: &ChunkId) -> Option<Spot> {
        self.chunks.lock().spots.get(&id.short()).copied().flatten()
    }
    /// The index has this pack and its chunks now.
    pub(crate) fn mark_indexed(&self, pack: &WrittenPack) {
        let mut chunks = self.chunks.lock();
        chunks.packs.insert(pack.number);
        for row in &pack.rows {
            chunks.spots.remove(&row.id);
        }
    }
    /// Whether this backup wrote the pack.
    pub(crate) fn wrote(&self, pack: PackNumber) -> bool {
        self.chunks.lock().packs.contains(&pack)
    }
}
