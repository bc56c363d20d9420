//! Streams one pack into a volume.
//!
//! Invariants
//! - At most one block of 256 KiB, the rows and the hashes are in memory.
//! - Every frame is decrypted again before it is written, and compared with its input.
//! - Nothing is visible before [`PackWriter::finish`] returns, and then all of it is durable.

use super::format::{self, FrameRow, PackHeader, PackTrailer};
use super::{FrameLocation, PackNumber};
use crate::packs::home::PackHome;
use crate::packs::pack_cipher::{PackCipher, TAG_BYTES};
use crate::packs::volumes::settled;
use crate::request::error::{Error, Result};
use crate::rules::broken::{self, Flaw};
use bytes::{Bytes, BytesMut};
use copal_volume::{FileInfo, FileWriter, ReadOptions, VolumeError, VolumeId, VolumeStore};

/// Writer of one pack.
pub(crate) struct PackWriter {
    file: Box<dyn FileWriter>,
    cipher: PackCipher,
    header: PackHeader,
    home: PackHome,
    volume: u32,
    rows: Vec<FrameRow>,
    offset: u64,
    block: BytesMut,
    hashes: Vec<u8>,
    scratch: Vec<u8>,
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

impl PackWriter {
    /// Starts a pack. `file` writes to this volume of a home.
    pub(crate) fn start(
        file: Box<dyn FileWriter>,
        key: &[u8; 32],
        header: PackHeader,
        (home, volume): (PackHome, u32),
    ) -> Result<PackWriter> {
        let mut writer = PackWriter {
            file,
            cipher: PackCipher::new(key, header.pack_id),
            header,
            home,
            volume,
            rows: Vec::new(),
            offset: 0,
            block: BytesMut::with_capacity(format::BLOCK_BYTES),
            hashes: Vec::new(),
            scratch: Vec::new(),
        };
        let head = header.encode();
        writer.put(&head)?;
        Ok(writer)
    }

    pub(crate) fn number(&self) -> PackNumber {
        PackNumber::of(&self.header.pack_id)
    }

    /// Whether a frame with `payload` bytes fits into this pack.
    pub(crate) fn has_room(&self, payload: usize) -> bool {
        let frame = (payload + TAG_BYTES) as u64;
        let rows = self.rows.len() as u32;
        rows == 0 || (rows < format::MAX_FRAMES && self.offset + frame <= format::TARGET_BYTES)
    }

    /// Bytes given to the store so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.offset
    }

    /// Encrypts a frame, appends it and returns its location.
    pub(crate) fn append(&mut self, frame: &FrameInput<'_>) -> Result<FrameLocation> {
        let slot = self.rows.len() as u32;
        let mut encrypted = std::mem::take(&mut self.scratch);
        encrypted.clear();
        encrypted.extend_from_slice(frame.payload);
        let tag = self.cipher.encrypt(slot, &frame.id, &mut encrypted);
        encrypted.extend_from_slice(&tag);
        let row = FrameRow {
            id: frame.id,
            offset: self.offset as u32,
            stored: encrypted.len() as u32,
            raw: frame.raw_bytes,
            flags: frame.flags,
        };
        assert!(row.stored < 1 << 24 && row.raw < 1 << 24, "a frame is below 16 MiB");
        self.put(&encrypted)?;
        if broken::by(Flaw::BadMemory) {
            encrypted[0] ^= 1;
        }
        let opened = self.cipher.decrypt(slot, &frame.id, &mut encrypted);
        if opened.is_none_or(|bytes| bytes != frame.payload) && !broken::by(Flaw::NoSelfCheck) {
            return Err(Error::SelfCheck);
        }
        self.scratch = encrypted;
        self.rows.push(row);
        Ok(FrameLocation { home: self.home, volume: self.volume, pack: self.number(), slot })
    }

    /// Writes footer, table and trailer. The pack is visible and durable when this returns.
    pub(crate) fn finish(mut self, store: &dyn VolumeStore, vid: VolumeId) -> Result<WrittenPack> {
        let footer_at = self.offset as u32;
        let mut footer = format::encode_rows(&self.rows);
        let tag = self.cipher.encrypt(format::FOOTER_SLOT, &[0; 16], &mut footer);
        footer.extend_from_slice(&tag);
        self.put(&footer)?;
        self.end_block()?;
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
            let room = format::BLOCK_BYTES - self.block.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == format::BLOCK_BYTES {
                self.end_block()?;
            }
        }
        Ok(())
    }

    fn end_block(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        self.hashes.extend_from_slice(&format::block_hash(&self.block));
        let full = self.block.split().freeze();
        self.file.append(full)?;
        // A store that keeps no reference to the block leaves its memory for the next one.
        self.block.reserve(format::BLOCK_BYTES);
        Ok(())
    }
}
