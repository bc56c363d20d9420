//! Chunks in flight: chunks that this backup has decided to store and that are not in the index yet.
//!
//! The reader adds an id when it decides to store the chunk. The packer adds the location when the frame is
//! encrypted, and removes the id once its pack is in the index. So an id is always found in this
//! table or in the index. The numbers of finished packs stay in the table until the backup ends.
//!
//! Memory: the ids of one pack and of the jobs in progress, and up to 21 bytes for each finished pack of 16
//! MiB.

use crate::packs::pack::writer::WrittenPack;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::peers::ShortId;
use copal_chunk::ChunkId;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(crate) struct InFlightChunks {
    chunks: Mutex<InFlightTable>,
}

#[derive(Default)]
struct InFlightTable {
    locations: HashMap<[u8; 16], Option<FrameLocation>>,
    /// Finished packs that are in the index.
    packs: HashSet<PackNumber>,
}

impl InFlightChunks {
    /// Whether the id is in flight.
    pub(crate) fn has(&self, id: &ShortId) -> bool {
        self.chunks.lock().locations.contains_key(id)
    }
    /// Adds an id that will be stored.
    pub(crate) fn enter(&self, id: &ShortId) {
        self.chunks.lock().locations.insert(*id, None);
    }
    /// Sets the location of an id whose frame was encrypted.
    pub(crate) fn place(&self, id: &ChunkId, location: FrameLocation) {
        self.chunks.lock().locations.insert(id.short(), Some(location));
    }
    /// Location of a frame that was encrypted and is not in the index yet.
    pub(crate) fn location(&self, id: &ChunkId) -> Option<FrameLocation> {
        self.chunks.lock().locations.get(&id.short()).copied().flatten()
    }
    /// Removes the ids of a pack that is in the index now.
    pub(crate) fn mark_indexed(&self, pack: &WrittenPack) {
        let mut chunks = self.chunks.lock();
        chunks.packs.insert(pack.number);
        for row in &pack.rows {
            chunks.locations.remove(&row.id);
        }
    }
    /// Whether this backup wrote the pack.
    pub(crate) fn wrote(&self, pack: PackNumber) -> bool {
        self.chunks.lock().packs.contains(&pack)
    }
}
