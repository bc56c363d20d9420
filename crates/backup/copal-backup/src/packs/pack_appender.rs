//! Appends frames to packs of one home; starts the next pack when one is full.
//!
//! A finished pack enters the index after it is durable, never before.

use crate::index::{OlderRows, PackEntry};
use crate::keys::random;
use crate::packs::home::PackHome;
use crate::packs::pack::format::PackHeader;
use crate::packs::pack::writer::{FrameInput, PackWriter, WrittenPack};
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_store::PackStore;
use crate::request::error::Result;
use copal_kv::Durability;
use copal_volume::{PutOptions, VolumeId};

/// Writes the packs of one home, one after another.
pub(crate) struct PackAppender<'a> {
    pack_store: &'a PackStore,
    home: PackHome,
    session: [u8; 16],
    durability: Durability,
    open: Option<(VolumeId, PackWriter)>,
    /// Bytes of finished packs.
    pub(crate) stored_bytes: u64,
}

impl<'a> PackAppender<'a> {
    pub(crate) fn new(
        pack_store: &'a PackStore,
        home: PackHome,
        session: [u8; 16],
        durability: Durability,
    ) -> PackAppender<'a> {
        PackAppender { pack_store, home, session, durability, open: None, stored_bytes: 0 }
    }

    /// The home of its packs.
    pub(crate) fn home(&self) -> PackHome {
        self.home
    }

    /// Appends a frame. Returns its location, and the pack that was finished to make room.
    pub(crate) fn append(&mut self, frame: &FrameInput<'_>) -> Result<(FrameLocation, Option<WrittenPack>)> {
        let full = self.open.as_ref().is_some_and(|(_, pack)| !pack.has_room(frame.payload.len()));
        let finished = if full { self.finish()? } else { None };
        let (_, pack) = match &mut self.open {
            Some(open) => open,
            None => self.open.insert(start(self.pack_store, self.home, self.session)?),
        };
        Ok((pack.append(frame)?, finished))
    }

    /// Finishes the open pack, if there is one, and adds it to the index.
    pub(crate) fn finish(&mut self) -> Result<Option<WrittenPack>> {
        let Some((vid, pack)) = self.open.take() else {
            return Ok(None);
        };
        let written = pack.finish(&*self.pack_store.volumes.store, vid)?;
        self.stored_bytes += written.info.size;
        let entry = PackEntry {
            home: self.home,
            volume: written.volume,
            frames: written.rows.len() as u32,
            file_bytes: written.info.size,
        };
        let ids = written.rows.iter().map(|row| row.id);
        self.pack_store.index.add_pack(written.number, entry, ids, OlderRows::Replaced, self.durability)?;
        Ok(Some(written))
    }

    /// Drops the open pack: nothing of it is stored.
    pub(crate) fn abandon(&mut self) {
        self.open = None;
    }

    /// Bytes in the open pack.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open.as_ref().map_or(0, |(_, pack)| pack.bytes())
    }
}

fn start(pack_store: &PackStore, home: PackHome, session: [u8; 16]) -> Result<(VolumeId, PackWriter)> {
    let (volume, vid) = pack_store.volumes.current(home)?;
    let header = PackHeader {
        domain: *pack_store.volumes.domain.as_bytes(),
        pack_id: random()?,
        session,
        kind: home.kind(),
    };
    let name = PackNumber::of(&header.pack_id).file_name();
    let file = pack_store.volumes.store.writer(vid, name.as_bytes(), &PutOptions::default())?;
    let key = pack_store.keys.pack_key(&header.pack_id);
    Ok((vid, PackWriter::start(file, &key, header, (home, volume))?))
}
