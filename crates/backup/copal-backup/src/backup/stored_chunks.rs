//! Finds frames of chunks in the index, and verifies that they exist or decrypt to their chunk.
//!
//! Not here: the chunks in flight (`in_flight_chunks`), the decision about a chunk (`decide`).

use super::in_flight_chunks::InFlightChunks;
use crate::catalog::popular::PopularState;
use crate::catalog::replay::ReplayedLog;
use crate::index::IndexRow;
use crate::packs::frame_reader::FrameReader;
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::packs::pack_store::{LocatedFrame, PackStore};
use crate::request::error::Result;
use crate::snapshot::recipe::FrameRef;
use crate::steps::popular::counts;
use copal_chunk::ChunkId;
use parking_lot::RwLock;
use std::collections::HashSet;
use std::sync::Arc;

/// Knowledge about stored chunks that the threads of a backup share.
pub(super) struct StoredScope<'a> {
    pub(super) pack_store: &'a PackStore,
    pub(super) in_flight: &'a InFlightChunks,
    /// Home of new chunks; others are looked up there.
    pub(super) home: PackHome,
    /// Each stored frame is decrypted before it is referred to; otherwise the frames of other sessions are trusted.
    pub(super) verifies_frames: bool,
    /// In a fleet, the log of popular packs: the VM's index may lead to a pack that is condemned by now. Frames of popular
    /// packs that do not count in this log are ignored.
    pub(super) popular: Option<Arc<ReplayedLog<PopularState>>>,
    /// Packs from the index that exist: 8 bytes for each of 16 MiB.
    pub(super) seen: RwLock<HashSet<PackNumber>>,
}

/// Chunks that the index of a VM has. One per thread.
pub(super) struct StoredChunks<'a> {
    scope: &'a StoredScope<'a>,
    /// Decrypts frames, if they are not trusted.
    opened: Option<FrameReader<'a>>,
}

impl<'a> StoredChunks<'a> {
    pub(super) fn new(scope: &'a StoredScope<'a>) -> Result<StoredChunks<'a>> {
        let opened = match scope.verifies_frames {
            true => Some(FrameReader::new(scope.pack_store)?),
            false => None,
        };
        Ok(StoredChunks { scope, opened })
    }

    pub(super) fn home(&self) -> PackHome {
        self.scope.home
    }

    /// Reads the frames of these ids ahead, if each is decrypted before it is referred to. `rows`: their index
    /// rows.
    /// # Errors
    /// Errors of the store and the index.
    pub(super) fn read_ahead<'r>(
        &mut self,
        rows: impl IntoIterator<Item = (&'r [u8; 16], &'r Vec<IndexRow>)>,
    ) -> Result<()> {
        let Some(opened) = &mut self.opened else { return Ok(()) };
        let mut frames = Vec::new();
        for (id, rows) in rows {
            let places = self.scope.pack_store.index.places_of(rows.clone())?;
            let first = places.into_iter().find(|(_, entry)| entry.home.has_chunks());
            frames.extend(first.map(|(row, entry)| (entry.location(row), *id)));
        }
        opened.read_ahead(frames).map(drop)
    }

    /// The frame of a chunk in the index; `None`: no usable one. A full backup accepts only a frame that decrypts to
    /// the chunk. `rows`: index rows of its id, if they were looked up already.
    /// # Errors
    /// Errors of the store and the index.
    pub(super) fn find(&mut self, id: ChunkId, rows: Option<&Vec<IndexRow>>) -> Result<Option<FrameRef>> {
        let index = &self.scope.pack_store.index;
        let places = match rows {
            Some(rows) => index.places_of(rows.clone())?,
            None => index.places(self.scope.home, &id.short())?,
        };
        for (row, entry) in places {
            if !entry.home.has_chunks() {
                continue;
            }
            // A moved chunk's own frame is noted as damaged in this way too, and the id still resolves to the
            // popular frame.
            if index.is_damaged(row.pack, row.slot)? {
                continue;
            }
            let popular = self.scope.popular.as_ref().filter(|_| entry.home == PackHome::Shared);
            if popular.is_some_and(|popular| !counts(popular, row.pack)) {
                continue;
            }
            let location = entry.location(row);
            let known = FrameRef { id, location };
            if self.scope.in_flight.wrote(row.pack) || self.opens(&known)? {
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    fn opens(&mut self, known: &FrameRef) -> Result<bool> {
        let Some(frames) = &mut self.opened else {
            // The index may be outdated, so the existence of each pack is checked once.
            let pack = known.location.pack;
            let is_seen = self.scope.seen.read().contains(&pack);
            if !is_seen {
                if !self.scope.pack_store.has_pack(known.location)? {
                    return Ok(false);
                }
                self.scope.seen.write().insert(pack);
            }
            return Ok(true);
        };
        match self.scope.pack_store.at(known.location, &known.id.short()) {
            Ok(Some(located)) => frames.opens_to(&located, &known.id),
            Ok(None) => Ok(false),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a located frame decrypts to the chunk; `true` without a look if stored frames are trusted.
    /// # Errors
    /// Errors of the store.
    pub(super) fn opens_to(&mut self, located: &LocatedFrame, id: &ChunkId) -> Result<bool> {
        match &mut self.opened {
            Some(frames) => frames.opens_to(located, id),
            None => Ok(true),
        }
    }
}
