//! Chunks in flight: chunks that this backup has decided to store and that are not in the index yet.
//!
//! An id enters when its segment is decided. The packer adds the location when the frame has its place. The id leaves when
//! its pack is in the index and no look-up is left that began before. So each decision finds an id in this table or in the
//! rows that were looked up for it: one chunk is not stored twice. The numbers of finished packs stay until the backup
//! ends.
//!
//! Memory: the ids of the open packs, of packs that were finished during the look-ups in progress, and of the jobs in
//! progress; up to 21 bytes for each finished pack of 16 MiB.

use crate::packs::pack::writer::WrittenPack;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::peers::ShortId;
use copal_chunk::ChunkId;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

#[derive(Default)]
pub(crate) struct InFlightChunks {
    table: Mutex<InFlightTable>,
}

/// The chunks in flight, for several questions with one lock.
#[derive(Default)]
pub(crate) struct InFlightTable {
    locations: HashMap<ShortId, Option<FrameLocation>>,
    /// Finished packs that are in the index.
    packs: HashSet<PackNumber>,
    /// Number of packs that entered the index so far.
    indexed: u64,
    /// Look-ups in progress, by the number of packs that were in the index when they began.
    look_ups: BTreeMap<u64, u32>,
    /// Ids of packs that entered the index during a look-up in progress.
    leaving: VecDeque<LeavingIds>,
}

/// The ids of a pack that is in the index.
struct LeavingIds {
    /// Look-ups that began with at least as many packs in the index find the ids there.
    indexed: u64,
    ids: Vec<ShortId>,
}

/// A look-up in progress. Ids that enter the index stay in the table until it ends.
pub(crate) struct LookUp {
    indexed: u64,
}

impl InFlightTable {
    /// Whether the id is in flight.
    pub(crate) fn has(&self, id: &ShortId) -> bool {
        self.locations.contains_key(id)
    }
    /// Adds an id that will be stored.
    pub(crate) fn enter(&mut self, id: &ShortId) {
        self.locations.insert(*id, None);
    }
    /// Whether this backup wrote the pack.
    pub(crate) fn wrote(&self, pack: PackNumber) -> bool {
        self.packs.contains(&pack)
    }
    /// Ends a look-up, after the decisions that use its rows.
    pub(crate) fn end_look_up(&mut self, look_up: LookUp) {
        if let Some(count) = self.look_ups.get_mut(&look_up.indexed) {
            *count -= 1;
            if *count == 0 {
                self.look_ups.remove(&look_up.indexed);
            }
        }
        self.let_leave();
    }

    /// Removes the ids that every look-up in progress finds in the index.
    fn let_leave(&mut self) {
        let oldest = self.look_ups.keys().next().copied().unwrap_or(u64::MAX);
        while let Some(leaving) = self.leaving.pop_front_if(|leaving| leaving.indexed <= oldest) {
            for id in leaving.ids {
                self.locations.remove(&id);
            }
        }
    }
}

impl InFlightChunks {
    /// The table, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, InFlightTable> {
        self.table.lock()
    }
    /// Begins a look-up in the index.
    pub(crate) fn begin_look_up(&self) -> LookUp {
        let mut table = self.table.lock();
        let indexed = table.indexed;
        *table.look_ups.entry(indexed).or_default() += 1;
        LookUp { indexed }
    }
    /// Whether the id is in flight.
    pub(crate) fn has(&self, id: &ShortId) -> bool {
        self.table.lock().has(id)
    }
    /// Adds an id that will be stored.
    pub(crate) fn enter(&self, id: &ShortId) {
        self.table.lock().enter(id);
    }
    /// Sets the location of an id whose frame has its place.
    pub(crate) fn place(&self, id: &ChunkId, location: FrameLocation) {
        self.table.lock().locations.insert(id.short(), Some(location));
    }
    /// Location of a frame that has its place and is not in the index yet.
    pub(crate) fn location(&self, id: &ChunkId) -> Option<FrameLocation> {
        self.table.lock().locations.get(&id.short()).copied().flatten()
    }
    /// Removes the ids of a pack that is in the index now, once the look-ups in progress have ended.
    pub(crate) fn mark_indexed(&self, pack: &WrittenPack) {
        self.note_indexed(pack.number, pack.rows.iter().map(|row| row.id).collect());
    }

    fn note_indexed(&self, pack: PackNumber, ids: Vec<ShortId>) {
        let mut table = self.table.lock();
        table.packs.insert(pack);
        table.indexed += 1;
        let indexed = table.indexed;
        table.leaving.push_back(LeavingIds { indexed, ids });
        table.let_leave();
    }

    /// Whether this backup wrote the pack.
    pub(crate) fn wrote(&self, pack: PackNumber) -> bool {
        self.table.lock().wrote(pack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packs::home::PackHome;

    /// Symptom: with many threads, one chunk was stored twice. Cause: a look-up found nothing in the index; the pack with
    /// the chunk entered the index, and its id left this table, before the decision. Fix: ids stay until the look-ups that
    /// began before have been decided.
    #[test]
    fn ids_stay_for_look_ups_that_began_before_their_pack_was_in_the_index() {
        let chunks = InFlightChunks::default();
        let (first, second) = ([1; 16], [2; 16]);
        chunks.enter(&first);
        chunks.enter(&second);
        let early = chunks.begin_look_up();
        chunks.note_indexed(PackNumber(7), vec![first]);
        let late = chunks.begin_look_up();
        chunks.note_indexed(PackNumber(8), vec![second]);
        assert!(chunks.has(&first) && chunks.has(&second) && chunks.wrote(PackNumber(7)));
        chunks.lock().end_look_up(early);
        assert!(
            !chunks.has(&first) && chunks.has(&second),
            "the late look-up finds the first pack in the index"
        );
        chunks.lock().end_look_up(late);
        assert!(!chunks.has(&second));
        chunks.enter(&first);
        chunks.place(
            &ChunkId([1; 32]),
            FrameLocation { home: PackHome::Shared, volume: 0, pack: PackNumber(9), slot: 3 },
        );
        chunks.note_indexed(PackNumber(9), vec![first]);
        assert!(!chunks.has(&first), "without a look-up, ids leave at once");
    }
}
