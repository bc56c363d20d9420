//! Decrypts and decompresses frames one after another. Frames that are known to be needed can be read ahead,
//! together.
//!
//! Memory: the frames that were read ahead, up to a fixed budget, and one more frame.

use crate::packs::frame_plan::{FramePlan, PlannedFrame};
use crate::packs::pack::reader::{self, FrameInflater, PackFooter};
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_cipher::TAG_BYTES;
use crate::packs::pack_store::{LocatedFrame, PackStore};
use crate::request::error::{Error, Result};
use copal_chunk::ChunkId;
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// Most bytes of frames that are read ahead.
pub(crate) const HELD_BYTES: usize = 4 << 20;

/// Most frames that are read ahead.
const MOST_AHEAD: usize = 1024;

/// Reads frames. One per thread.
pub(crate) struct FrameReader<'a> {
    pack_store: &'a PackStore,
    inflater: FrameInflater,
    /// The frames that were read ahead, one behind the other.
    bytes: Vec<u8>,
    ahead: HashMap<(PackNumber, u32), AheadFrame>,
    /// Locations of frames that were read ahead from another one.
    moved: HashMap<FrameLocation, FrameLocation>,
    /// A frame that was not read ahead.
    alone: Vec<u8>,
    raw: Vec<u8>,
}

/// A frame that was read ahead.
struct AheadFrame {
    place: Range<usize>,
    /// Whether it is decrypted.
    is_open: bool,
}

/// Place of a decrypted frame in the memory of its reader.
enum OpenFrame {
    Ahead(Range<usize>),
    Alone,
}

impl<'a> FrameReader<'a> {
    pub(crate) fn new(pack_store: &'a PackStore) -> Result<FrameReader<'a>> {
        Ok(FrameReader {
            pack_store,
            inflater: FrameInflater::new()?,
            bytes: Vec::new(),
            ahead: HashMap::new(),
            moved: HashMap::new(),
            alone: Vec::new(),
            raw: Vec::new(),
        })
    }

    /// Reads frames that are needed next, given by location and short id, in place of those that were read
    /// ahead before. Returns how many of them it has dealt with, at least one if there is any: not all fit into
    /// the budget. Call again for the others once these are used. A frame that is missing or damaged is left out:
    /// its later read returns the error.
    /// # Errors
    /// Errors of the store and the index that are not damage.
    pub(crate) fn read_ahead(
        &mut self,
        frames: impl IntoIterator<Item = (FrameLocation, [u8; 16])>,
    ) -> Result<usize> {
        self.bytes.clear();
        self.ahead.clear();
        self.moved.clear();
        let pack_store = self.pack_store;
        let wanted: Vec<_> = frames.into_iter().take(MOST_AHEAD).collect();
        let mut found: Vec<Option<(PlannedFrame, usize)>> = vec![None; wanted.len()];
        pack_store.find_frames(&wanted, &mut |at, located| {
            found[at] = located.map(|frame| (PlannedFrame::of(&frame, 0), frame.row().stored as usize));
            Ok(())
        })?;
        let (mut planned, mut bytes, mut count) = (Vec::new(), 0, 0);
        for (found, (location, _)) in found.into_iter().zip(&wanted) {
            if let Some((frame, stored)) = found {
                bytes += stored;
                if bytes > HELD_BYTES && !planned.is_empty() {
                    break;
                }
                if frame.location != *location {
                    self.moved.insert(*location, frame.location);
                }
                planned.push(frame);
            }
            count += 1;
        }
        for frames in FramePlan::new(planned).packs() {
            let FrameLocation { home, volume, pack, .. } = frames[0].location;
            let Some((footer, vid)) = pack_store.footer(home, volume, pack)? else {
                continue;
            };
            let slots: Vec<u32> = frames.iter().map(|frame| frame.location.slot).collect();
            pack_store.read_frames((&footer, vid), &slots, &mut |at, answer| {
                if let Ok(frame) = answer {
                    let start = self.bytes.len();
                    self.bytes.extend_from_slice(frame);
                    let place = start..self.bytes.len();
                    self.ahead.insert((pack, slots[at]), AheadFrame { place, is_open: false });
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(count)
    }

    /// Decrypts the frames of a pack that were read ahead. Drops those that do not decrypt: their later read returns the
    /// error.
    pub(crate) fn open_ahead(&mut self, footer: &PackFooter) {
        let bytes = &mut self.bytes;
        self.ahead.retain(|(pack, slot), frame| {
            if *pack == footer.number && !frame.is_open {
                let stored = &mut bytes[frame.place.clone()];
                frame.is_open = reader::open_frame(footer, *slot, stored).is_ok();
                return frame.is_open;
            }
            true
        });
    }

    /// The location from which a frame was read ahead; its own one if it was not.
    pub(crate) fn place_of(&self, location: FrameLocation) -> FrameLocation {
        self.moved.get(&location).copied().unwrap_or(location)
    }

    /// Whether a frame was read ahead.
    pub(crate) fn has(&self, location: FrameLocation) -> bool {
        self.ahead.contains_key(&(location.pack, location.slot))
    }

    /// Reads and decompresses a frame. The caller compares the bytes with their id.
    /// # Errors
    /// `Damaged`, and errors of the store.
    pub(crate) fn raw(&mut self, located: &LocatedFrame) -> Result<&[u8]> {
        let open = self.open(located)?;
        let FrameReader { pack_store, inflater, bytes, alone, raw, .. } = self;
        let payload = match open {
            OpenFrame::Ahead(place) => &bytes[place],
            OpenFrame::Alone => &alone[..alone.len() - TAG_BYTES],
        };
        inflater.inflate(located.row(), payload, raw).map_err(|detail| {
            pack_store.note_damaged(&located.footer, located.location.slot);
            located.footer.damaged(format!("frame {}: {detail}", located.location.slot))
        })
    }

    /// Whether the frame decrypts to the chunk of this id.
    /// # Errors
    /// Errors of the store that are not damage.
    pub(crate) fn opens_to(&mut self, located: &LocatedFrame, id: &ChunkId) -> Result<bool> {
        let pack_store = self.pack_store;
        match self.raw(located) {
            Ok(raw) if pack_store.keys.id.id(raw) == *id => Ok(true),
            Ok(_) => {
                pack_store.note_damaged(&located.footer, located.location.slot);
                Ok(false)
            }
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Decrypts a frame; the payload is still compressed if its row says so.
    /// # Errors
    /// `Damaged`, and errors of the store.
    pub(crate) fn payload(&mut self, located: &LocatedFrame) -> Result<&[u8]> {
        match self.open(located)? {
            OpenFrame::Ahead(place) => Ok(&self.bytes[place]),
            OpenFrame::Alone => Ok(&self.alone[..self.alone.len() - TAG_BYTES]),
        }
    }

    /// Decrypts a frame where it is, or reads it first. Notes damage.
    fn open(&mut self, located: &LocatedFrame) -> Result<OpenFrame> {
        let LocatedFrame { footer, vid, location } = located;
        let key = (location.pack, location.slot);
        let noted = |error: &Error| {
            if error.is_corruption() {
                self.pack_store.note_damaged(footer, location.slot);
            }
        };
        if let Some(frame) = self.ahead.get_mut(&key) {
            let payload = frame.place.start..frame.place.end.saturating_sub(TAG_BYTES);
            if frame.is_open {
                return Ok(OpenFrame::Ahead(payload));
            }
            frame.is_open = true;
            let opened = reader::open_frame(footer, location.slot, &mut self.bytes[frame.place.clone()]);
            if let Err(error) = opened.inspect_err(noted) {
                self.ahead.remove(&key);
                return Err(error);
            }
            return Ok(OpenFrame::Ahead(payload));
        }
        let row = located.row();
        let read = self.pack_store.read(*vid, location.pack, u64::from(row.offset)..row.end());
        let bytes = read.inspect_err(noted)?;
        self.alone.clear();
        self.alone.extend_from_slice(&bytes);
        reader::open_frame(footer, location.slot, &mut self.alone).inspect_err(noted)?;
        Ok(OpenFrame::Alone)
    }
}
