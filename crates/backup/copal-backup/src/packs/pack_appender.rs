//! Appends frames to packs of one home; starts the next pack when one is full.
//!
//! A finished pack enters the index after it is durable, never before. A caller that seals frames in other threads places
//! them first and writes them later, so several packs may be open; only the last of them takes new frames.
//!
//! Where a store sends a file only when it ends, several packs may be on their way to it at once. Each enters the index
//! once it is durable, and in their order.

use crate::index::{OlderRows, PackEntry};
use crate::keys::random;
use crate::packs::home::PackHome;
use crate::packs::pack::format::PackHeader;
use crate::packs::pack::piece_buffers::PieceBuffers;
use crate::packs::pack::writer::{FrameHead, FrameInput, PackWriter, PlacedFrame, WrittenPack};
use crate::packs::pack::{FrameLocation, PackNumber, format};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use copal_kv::Durability;
use copal_volume::{PutOptions, VolumeId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Packs of a backup on their way to a store that sends whole files, each in memory. With fewer, a distant store waits for
/// the client.
const MOST_SENDING: usize = 3;
/// Packs for which a volume in such a store is chosen at once. A volume may hold so many more than it should.
const PACKS_OF_A_CHOICE: u32 = 32;

/// Memory of packs on their way to this store.
pub(crate) fn sending_bytes(pack_store: &PackStore) -> u64 {
    pack_store.volumes.store.limits().whole_file_bytes.map_or(0, |bytes| bytes * MOST_SENDING as u64)
}

/// Writes the packs of one home, one after another.
pub(crate) struct PackAppender<'a> {
    pack_store: &'a PackStore,
    home: PackHome,
    session: [u8; 16],
    durability: Durability,
    /// Packs with frames that are not written, in order, and the one that takes new frames.
    open: VecDeque<(VolumeId, PackWriter)>,
    /// Packs on their way, in order.
    sending: VecDeque<JoinHandle<Result<WrittenPack>>>,
    /// Most packs on their way while others are filled; 0: each is finished before the next.
    most_sending: usize,
    /// The volume of the next packs, and how many it takes before another look.
    chosen: Option<((u32, VolumeId), u32)>,
    buffers: Arc<PieceBuffers>,
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
        PackAppender {
            pack_store,
            home,
            session,
            durability,
            open: VecDeque::new(),
            sending: VecDeque::new(),
            most_sending: 0,
            chosen: None,
            buffers: Arc::default(),
            stored_bytes: 0,
        }
    }

    /// The same, which fills the next packs while others are on their way, where the store sends whole files. Frames of
    /// these packs are not in the index yet.
    pub(crate) fn sending_ahead(mut self) -> PackAppender<'a> {
        if self.pack_store.volumes.store.limits().whole_file_bytes.is_some() {
            self.most_sending = MOST_SENDING;
        }
        self
    }

    /// The home of its packs.
    pub(crate) fn home(&self) -> PackHome {
        self.home
    }

    /// Appends a frame. Returns its location, and the pack that was finished meanwhile.
    pub(crate) fn append(&mut self, frame: &FrameInput<'_>) -> Result<(FrameLocation, Option<WrittenPack>)> {
        let finished = self.make_room(frame.payload.len())?;
        Ok((self.last()?.append(frame)?, finished))
    }

    /// Gives a frame the next place. Returns also the pack that was finished meanwhile.
    pub(crate) fn place(&mut self, frame: &FrameHead) -> Result<(PlacedFrame, Option<WrittenPack>)> {
        let finished = self.make_room(frame.payload_bytes)?;
        Ok((self.last()?.place(frame), finished))
    }

    /// Writes the next sealed frame, in the order of the places. Returns the pack that was finished meanwhile.
    pub(crate) fn write(&mut self, sealed: &[u8]) -> Result<Option<WrittenPack>> {
        let (_, first) = self.open.front_mut().expect("a frame has its place in an open pack");
        first.write(sealed)?;
        let is_full = self.open.len() > 1;
        if is_full { self.finish_first() } else { Ok(None) }
    }

    /// Leaves the last pack if it has no room for a frame. If all its frames are written, it is finished.
    fn make_room(&mut self, payload_bytes: usize) -> Result<Option<WrittenPack>> {
        match self.open.back() {
            Some((_, pack)) if pack.has_room(payload_bytes) => return Ok(None),
            _ => {}
        }
        let finished = if self.open.len() == 1 { self.finish_first()? } else { None };
        self.start()?;
        Ok(finished)
    }

    /// The pack that takes new frames.
    fn last(&mut self) -> Result<&mut PackWriter> {
        if self.open.is_empty() {
            self.start()?;
        }
        let (_, pack) = self.open.back_mut().expect("one was started if there was none");
        Ok(pack)
    }

    /// Finishes the first pack if all its frames are written, or sends it on its way. Returns the pack that is durable now.
    fn finish_first(&mut self) -> Result<Option<WrittenPack>> {
        let Some((vid, pack)) = self.open.pop_front_if(|(_, pack)| pack.is_written()) else {
            return Ok(None);
        };
        if self.most_sending == 0 {
            let written = pack.finish(&*self.pack_store.volumes.store, vid)?;
            return self.enter(written).map(Some);
        }
        let store = Arc::clone(&self.pack_store.volumes.store);
        let sender = Builder::new().name("send".to_owned());
        let sending = sender.spawn(move || pack.finish(&*store, vid));
        self.sending.push_back(sending.map_err(|error| no_thread(&error))?);
        match self.sending.len() > self.most_sending {
            true => self.finish_sending(),
            false => Ok(None),
        }
    }

    /// Waits for the first pack that is on its way; `None`: there is none.
    fn finish_sending(&mut self) -> Result<Option<WrittenPack>> {
        let Some(first) = self.sending.pop_front() else { return Ok(None) };
        let written = first.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        self.enter(written).map(Some)
    }

    /// Enters a durable pack into the index.
    fn enter(&mut self, written: WrittenPack) -> Result<WrittenPack> {
        self.stored_bytes += written.info.size;
        let entry = PackEntry {
            home: self.home,
            volume: written.volume,
            frames: written.rows.len() as u32,
            file_bytes: written.info.size,
        };
        let ids = written.rows.iter().map(|row| row.id);
        self.pack_store.index.add_pack(written.number, entry, ids, OlderRows::Replaced, self.durability)?;
        Ok(written)
    }

    /// Finishes the open pack, if there is one, and those that are on their way; adds them to the index. Packs with frames
    /// that were placed and never written, because a thread failed, are dropped.
    pub(crate) fn finish(&mut self) -> Result<Vec<WrittenPack>> {
        let first = self.finish_first();
        self.open.clear();
        let mut finished: Vec<WrittenPack> = first?.into_iter().collect();
        while let Some(written) = self.finish_sending()? {
            finished.push(written);
        }
        Ok(finished)
    }

    /// Drops the open packs: nothing of them is stored.
    pub(crate) fn abandon(&mut self) {
        self.open.clear();
    }

    /// Size at which packs of this store end.
    pub(crate) fn target_bytes(&self) -> u64 {
        format::target_bytes(self.pack_store.volumes.store.limits().whole_file_bytes)
    }

    /// Bytes in the open packs.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open.iter().map(|(_, pack)| pack.bytes()).sum()
    }

    /// The volume for the next pack. The choice costs two lists, so one serves several packs where lists are requests and
    /// no volume is removed because it is empty.
    fn volume(&mut self) -> Result<(u32, VolumeId)> {
        if let Some((volume, left @ 1..)) = &mut self.chosen {
            *left -= 1;
            return Ok(*volume);
        }
        let volumes = &self.pack_store.volumes;
        let current = volumes.current(self.home)?;
        self.chosen =
            Some((current, if volumes.store.limits().removes_empty { 0 } else { PACKS_OF_A_CHOICE }));
        Ok(current)
    }

    /// Starts the next pack.
    fn start(&mut self) -> Result<()> {
        let pack_store = self.pack_store;
        let (volume, vid) = self.volume()?;
        let header = PackHeader {
            domain: *pack_store.volumes.domain.as_bytes(),
            pack_id: random()?,
            session: self.session,
            kind: self.home.kind(),
        };
        let name = PackNumber::of(&header.pack_id).file_name();
        let file = pack_store.volumes.store.writer(vid, name.as_bytes(), &PutOptions::default())?;
        let key = pack_store.keys.pack_key(&header.pack_id);
        let pack = PackWriter::start(file, &key, header, (self.home, volume), &self.buffers)?;
        let pack = pack.with_target(self.target_bytes());
        self.open.push_back((vid, pack));
        Ok(())
    }
}

impl Drop for PackAppender<'_> {
    /// No request of a backup goes on after its end.
    fn drop(&mut self) {
        for sending in self.sending.drain(..) {
            // After an error, a pack that arrives is one that no snapshot needs; the next backup finds its chunks.
            let _ = sending.join();
        }
    }
}

fn no_thread(error: &std::io::Error) -> Error {
    Error::Invalid { reason: format!("the system starts no thread that sends packs: {error}") }
}
