//! Chunks this backup has decided to store and that the index does not have yet.
//!
//! The reader enters an id when it decides; the packer adds the spot when the frame is sealed, and takes
//! the id out after its pack is in the index. So an id is always found in one of the two.

use crate::pack::Spot;
use copal_chunk::ChunkId;
use parking_lot::Mutex;
use std::collections::HashMap;

#[derive(Default)]
pub(crate) struct Issued {
    spots: Mutex<HashMap<[u8; 16], Option<Spot>>>,
}

impl Issued {
    /// Whether the id was entered and not taken out.
    pub(crate) fn has(&self, id: &ChunkId) -> bool {
        self.spots.lock().contains_key(&id.short())
    }
    /// Enters an id that will be stored.
    pub(crate) fn enter(&self, id: &ChunkId) {
        self.spots.lock().insert(id.short(), None);
    }
    /// The frame of an id was sealed.
    pub(crate) fn place(&self, id: &ChunkId, spot: Spot) {
        self.spots.lock().insert(id.short(), Some(spot));
    }
    /// Where the frame is, if it was sealed and is not in the index.
    pub(crate) fn spot(&self, id: &ChunkId) -> Option<Spot> {
        self.spots.lock().get(&id.short()).copied().flatten()
    }
    /// The index has these now.
    pub(crate) fn settle(&self, ids: impl Iterator<Item = [u8; 16]>) {
        let mut spots = self.spots.lock();
        for id in ids {
            spots.remove(&id);
        }
    }
}
