//! Writes packs of popular chunks: makes them durable, then enters them in log `k`.

use super::compress::ChunkCompressor;
use super::in_flight_chunks::InFlightChunks;
use crate::catalog::popular::PopularState;
use crate::catalog::replay::ReplayedLog;
use crate::packs::home::PackHome;
use crate::packs::pack::FrameLocation;
use crate::packs::pack::format::FLAG_ZSTD;
use crate::packs::pack::writer::{FrameInput, WrittenPack};
use crate::packs::pack_appender::PackAppender;
use crate::popular;
use crate::request::error::Result;
use crate::request::peers::{ShortId, Writer};
use crate::sessions::parts::RepositoryParts;
use crate::steps::popular::{OwnHost, counts_for};
use copal_kv::Durability;
use std::sync::Arc;

/// Writes popular packs of one session.
pub(crate) struct PopularPacker<'a> {
    parts: &'a RepositoryParts,
    in_flight: InFlightChunks,
    packs: PackAppender<'a>,
    compressor: ChunkCompressor,
    writer: Writer,
    /// The log of popular packs at the start of the session.
    entered: Arc<ReplayedLog<PopularState>>,
}

impl<'a> PopularPacker<'a> {
    pub(crate) fn new(
        parts: &'a RepositoryParts,
        session: [u8; 16],
        writer: Writer,
    ) -> Result<PopularPacker<'a>> {
        let pack_store = parts.pack_store();
        Ok(PopularPacker {
            parts,
            in_flight: InFlightChunks::default(),
            packs: PackAppender::new(pack_store, PackHome::Shared, session, Durability::Deferred),
            compressor: ChunkCompressor::new()?,
            writer,
            entered: parts.catalog().popular()?,
        })
    }

    /// Whether a chunk is popular, as far as this host knows, or about to be.
    pub(crate) fn has(&self, id: &ShortId) -> Result<bool> {
        Ok(self.in_flight.has(id) || self.find(id)?.is_some())
    }

    /// Location of a popular chunk that this host stored, or that it may refer to.
    pub(crate) fn find(&self, id: &ShortId) -> Result<Option<FrameLocation>> {
        let pack_store = self.parts.pack_store();
        for (row, entry) in pack_store.index.places(PackHome::Shared, id)? {
            let location = entry.location(row);
            // A pack that no log names was left by a dead session, and will be removed.
            let own = OwnHost { writer: self.writer, key: pack_store.keys.host_key() };
            let counts = || counts_for(&self.entered, row.pack, own);
            if self.in_flight.wrote(row.pack) || (counts() && pack_store.has_pack(location)?) {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }

    /// Appends a chunk.
    pub(crate) fn store(&mut self, id: &ShortId, raw: &[u8]) -> Result<()> {
        self.in_flight.enter(id);
        let (flags, payload) = match self.compressor.compress(raw) {
            Some(packed) => (FLAG_ZSTD, packed),
            None => (0, raw),
        };
        let (_, finished) =
            self.packs.append(&FrameInput { id: *id, raw_bytes: raw.len() as u32, flags, payload })?;
        finished.map_or(Ok(()), |written| self.enter(&written))
    }

    /// Makes all frames durable and enters them. Returns whether there were any.
    pub(crate) fn finish(&mut self) -> Result<bool> {
        let finished = self.packs.finish()?;
        finished.iter().try_for_each(|written| self.enter(written))?;
        Ok(!finished.is_empty())
    }

    fn enter(&self, written: &WrittenPack) -> Result<()> {
        popular::enter(self.parts, written, self.writer)?;
        self.in_flight.mark_indexed(written);
        Ok(())
    }

    /// Bytes of finished packs.
    pub(crate) fn stored_bytes(&self) -> u64 {
        self.packs.stored_bytes
    }
}
