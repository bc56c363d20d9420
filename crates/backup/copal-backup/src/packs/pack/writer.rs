//! Streams one pack into a volume.
//!
//! A frame is placed, sealed and written. The place fixes its slot and offset, so frames may be sealed by several
//! threads at once; they are written in the order of their places.
//!
//! Invariants
//! - At most one piece of 4 MiB, the rows and the hashes are in memory, and pieces that the store has not written yet.
//! - Every frame is decrypted again before it is written, and compared with its input.
//! - Nothing is visible before [`PackWriter::finish`] returns, and then all of it is durable.

use super::format::{self, FrameRow, PackHeader, PackTrailer};
use super::piece_buffers::{PIECE_BYTES, PieceBuffers};
use super::{FrameLocation, PackNumber};
use crate::packs::home::PackHome;
use crate::packs::pack_cipher::{PackCipher, TAG_BYTES};
use crate::packs::volumes::settled;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use bytes::{Bytes, BytesMut};
use copal_volume::{FileInfo, FileWriter, ReadOptions, VolumeError, VolumeId, VolumeStore};
use std::sync::Arc;

/// Writer of one pack.
pub(crate) struct PackWriter {
    file: Box<dyn FileWriter>,
    cipher: Arc<PackCipher>,
    header: PackHeader,
    home: PackHome,
    volume: u32,
    /// The frames that have a place.
    rows: Vec<FrameRow>,
    /// A frame that would end behind this goes into the next pack.
    target_bytes: u64,
    /// Offset behind the last of them.
    placed_end: u64,
    /// Number of frames that are written.
    written: usize,
    /// Bytes given to the store or waiting in `piece`.
    offset: u64,
    /// Blocks that are given to the store together.
    piece: BytesMut,
    buffers: Arc<PieceBuffers>,
    /// Of all complete blocks.
    hashes: Vec<u8>,
    scratch: SealScratch,
}

/// A durable pack.
pub(crate) struct WrittenPack {
    pub(crate) number: PackNumber,
    pub(crate) volume: u32,
    pub(crate) rows: Vec<FrameRow>,
    pub(crate) info: FileInfo,
}

/// One frame to append: short id, length before compression, flags and payload after compression.
pub(crate) struct FrameInput<'a> {
    pub(crate) id: [u8; 16],
    pub(crate) raw_bytes: u32,
    pub(crate) flags: u8,
    pub(crate) payload: &'a [u8],
}

/// The facts about a frame that its place depends on.
pub(crate) struct FrameHead {
    pub(crate) id: [u8; 16],
    pub(crate) raw_bytes: u32,
    pub(crate) flags: u8,
    /// Length of the payload after compression.
    pub(crate) payload_bytes: usize,
}

/// The place of a frame, and the cipher of its pack.
#[derive(Clone)]
pub(crate) struct PlacedFrame {
    cipher: Arc<PackCipher>,
    id: [u8; 16],
    pub(crate) location: FrameLocation,
}

/// Memory for the self-check of a frame. One per thread.
#[derive(Default)]
pub(crate) struct SealScratch {
    payload: Vec<u8>,
    encrypted: Vec<u8>,
}

impl PlacedFrame {
    /// Encrypts the payload in place and writes its tag behind it. `frame`: the payload, and room for the tag.
    /// # Errors
    /// `SelfCheck`: the encrypted frame does not decrypt to the payload.
    pub(crate) fn seal(&self, frame: &mut [u8], scratch: &mut SealScratch) -> Result<()> {
        let slot = self.location.slot;
        let SealScratch { payload, encrypted } = scratch;
        let (body, tag) = frame.split_at_mut(frame.len() - TAG_BYTES);
        payload.clear();
        payload.extend_from_slice(body);
        tag.copy_from_slice(&self.cipher.encrypt(slot, &self.id, body));
        encrypted.clear();
        encrypted.extend_from_slice(frame);
        if broken::by(Flaw::BadMemory) {
            encrypted[0] ^= 1;
        }
        let opened = self.cipher.decrypt(slot, &self.id, encrypted);
        if opened.is_none_or(|bytes| bytes != &payload[..]) && !broken::by(Flaw::NoSelfCheck) {
            return Err(Error::SelfCheck);
        }
        Ok(())
    }
}

impl PackWriter {
    /// Starts a pack. `file` writes to this volume of a home.
    pub(crate) fn start(
        file: Box<dyn FileWriter>,
        key: &[u8; 32],
        header: PackHeader,
        (home, volume): (PackHome, u32),
        buffers: &Arc<PieceBuffers>,
    ) -> Result<PackWriter> {
        let mut writer = PackWriter {
            file,
            cipher: Arc::new(PackCipher::new(key, header.pack_id)),
            header,
            home,
            volume,
            rows: Vec::new(),
            target_bytes: format::TARGET_BYTES,
            placed_end: 0,
            written: 0,
            offset: 0,
            piece: BytesMut::new(),
            buffers: Arc::clone(buffers),
            hashes: Vec::new(),
            scratch: SealScratch::default(),
        };
        let head = header.encode();
        writer.put(&head)?;
        writer.placed_end = writer.offset;
        Ok(writer)
    }

    /// The same pack, which ends at another size.
    #[must_use]
    pub(crate) fn with_target(self, target_bytes: u64) -> PackWriter {
        PackWriter { target_bytes, ..self }
    }

    pub(crate) fn number(&self) -> PackNumber {
        PackNumber::of(&self.header.pack_id)
    }

    /// Whether a frame with `payload` bytes fits into this pack.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        let frame = (payload + TAG_BYTES) as u64;
        let rows = self.rows.len() as u32;
        rows == 0 || (rows < format::MAX_FRAMES && self.placed_end + frame <= self.target_bytes)
    }

    /// Bytes of the pack so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.placed_end
    }

    /// Whether every frame with a place is written.
    pub(crate) fn is_written(&self) -> bool {
        self.written == self.rows.len()
    }

    /// Gives a frame the next place.
    pub(crate) fn place(&mut self, frame: &FrameHead) -> PlacedFrame {
        let row = FrameRow {
            id: frame.id,
            offset: self.placed_end as u32,
            stored: (frame.payload_bytes + TAG_BYTES) as u32,
            raw: frame.raw_bytes,
            flags: frame.flags,
        };
        assert!(row.stored < 1 << 24 && row.raw < 1 << 24, "a frame is below 16 MiB");
        let slot = self.rows.len() as u32;
        self.placed_end = row.end();
        self.rows.push(row);
        let location = FrameLocation { home: self.home, volume: self.volume, pack: self.number(), slot };
        PlacedFrame { cipher: Arc::clone(&self.cipher), id: frame.id, location }
    }

    /// Writes the next sealed frame, in the order of the places.
    pub(crate) fn write(&mut self, sealed: &[u8]) -> Result<()> {
        let row = &self.rows[self.written];
        assert!(
            u64::from(row.offset) == self.offset && row.stored as usize == sealed.len(),
            "frames are written in the order of their places"
        );
        self.written += 1;
        self.put(sealed)
    }

    /// Places, seals and writes a frame. Returns its location.
    pub(crate) fn append(&mut self, frame: &FrameInput<'_>) -> Result<FrameLocation> {
        let FrameInput { id, raw_bytes, flags, payload } = *frame;
        let placed = self.place(&FrameHead { id, raw_bytes, flags, payload_bytes: payload.len() });
        let mut sealed = Vec::with_capacity(payload.len() + TAG_BYTES);
        sealed.extend_from_slice(payload);
        sealed.resize(payload.len() + TAG_BYTES, 0);
        placed.seal(&mut sealed, &mut self.scratch)?;
        self.write(&sealed)?;
        Ok(placed.location)
    }

    /// Writes footer, table and trailer. The pack is visible and durable when this returns. All its frames are written.
    pub(crate) fn finish(mut self, store: &dyn VolumeStore, vid: VolumeId) -> Result<WrittenPack> {
        assert!(self.is_written(), "each frame of a finished pack is written");
        let footer_at = self.offset as u32;
        let mut footer = format::encode_rows(&self.rows);
        let tag = self.cipher.encrypt(format::FOOTER_SLOT, &[0; 16], &mut footer);
        footer.extend_from_slice(&tag);
        self.put(&footer)?;
        if !self.piece.len().is_multiple_of(format::BLOCK_BYTES) {
            self.hash_last_block();
        }
        if !self.piece.is_empty() {
            self.end_piece()?;
        }
        let table = std::mem::take(&mut self.hashes);
        let trailer = PackTrailer {
            pack_id: self.header.pack_id,
            kind: self.header.kind,
            footer_at,
            footer_bytes: footer.len() as u32,
            table_bytes: table.len() as u32,
        };
        let mut end = table;
        let encoded = trailer.encode(&end);
        end.extend_from_slice(&encoded);
        self.file.append(Bytes::from(end))?;
        let number = self.number();
        let info = match self.file.commit() {
            Err(VolumeError::Unknown { fid }) if settled(store, vid, fid)? => {
                let options = ReadOptions { if_file: Some(fid), ..ReadOptions::default() };
                store.stat(vid, number.file_name().as_bytes(), &options)?
            }
            outcome => outcome?,
        };
        Ok(WrittenPack { number, volume: self.volume, rows: self.rows, info })
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.offset += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.piece.capacity() == 0 {
                self.piece = self.buffers.next();
            }
            let room = format::BLOCK_BYTES - self.piece.len() % format::BLOCK_BYTES;
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            if self.piece.len().is_multiple_of(format::BLOCK_BYTES) {
                self.hash_last_block();
            }
            if self.piece.len() == PIECE_BYTES {
                self.end_piece()?;
            }
        }
        Ok(())
    }

    /// Hashes the last block of the piece, complete or not, while it is in the processor's cache.
    fn hash_last_block(&mut self) {
        let start = (self.piece.len() - 1) / format::BLOCK_BYTES * format::BLOCK_BYTES;
        self.hashes.extend_from_slice(&format::block_hash(&self.piece[start..]));
    }

    fn end_piece(&mut self) -> Result<()> {
        let piece = std::mem::take(&mut self.piece).freeze();
        self.buffers.note(piece.clone());
        Ok(self.file.append(piece)?)
    }
}
