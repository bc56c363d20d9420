//! Byte format of a pack: header, footer rows and trailer.
//!
//! Format: docs/formats/backup-pack.md v1
//! Not here: streaming (`writer`), fetching (`reader`).

use crate::packs::home::PackKind;
use copal_codec::{DecodeError, ENVELOPE_LEN, Envelope, Format, Put, Reader};

pub(crate) const FORMAT: Format =
    Format { magic: *b"COPALPK1", name: "pack", oldest: 1, version: 1, known_flags: 0 };

/// Bytes of envelope and header.
pub(crate) const HEADER_BYTES: usize = ENVELOPE_LEN + 64;
/// Bytes of the trailer.
pub(crate) const TRAILER_BYTES: usize = 64;
/// Bytes of one footer row.
pub(crate) const ROW_BYTES: usize = 23;
/// Size of a block that has its own hash in the clear table.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a block hash.
pub(crate) const BLOCK_HASH_BYTES: usize = 16;
/// The writer starts a new pack when a frame would take this one beyond this size.
pub(crate) const TARGET_BYTES: u64 = 16 << 20;
/// [`TARGET_BYTES`], or less for a store that creates files up to `whole` bytes in one step: rows, hashes and the
/// trailer take less than a sixteenth.
pub(crate) fn target_bytes(whole: Option<u64>) -> u64 {
    whole.map_or(TARGET_BYTES, |whole| TARGET_BYTES.min(whole - whole / 16))
}

/// Largest size of a pack.
pub(crate) const MAX_BYTES: u64 = 64 << 20;
/// Most frames of a pack.
pub(crate) const MAX_FRAMES: u32 = 8192;
/// Most bytes of a frame before compression.
pub(crate) const MAX_RAW_BYTES: u32 = (1 << 24) - 1;
/// Nonce of the footer: the largest slot number.
pub(crate) const FOOTER_SLOT: u32 = u32::MAX;
/// The frame is compressed with zstd.
pub(crate) const FLAG_ZSTD: u8 = 1;

/// Fields of the clear header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackHeader {
    pub(crate) domain: [u8; 16],
    pub(crate) pack_id: [u8; 16],
    pub(crate) session: [u8; 16],
    pub(crate) kind: PackKind,
}

impl PackHeader {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; ENVELOPE_LEN];
        bytes.put_bytes(&self.domain);
        bytes.put_bytes(&self.pack_id);
        bytes.put_bytes(&self.session);
        bytes.put_u8(self.kind.code());
        bytes.put_u8(0); // key mode: derived from the data key
        bytes.put_zeros(14);
        Envelope::seal(&FORMAT, 0, 0, &mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<PackHeader, String> {
        let (_, body) = Envelope::open(&FORMAT, bytes).map_err(|error| error.to_string())?;
        let mut input = Reader::new(body);
        let mut parse = || {
            let head = (input.array()?, input.array()?, input.array()?, input.u8()?, input.u8()?);
            input.zeros(14)?;
            Ok::<_, DecodeError>(head)
        };
        let (domain, pack_id, session, kind, mode) = parse().map_err(|error| error.to_string())?;
        input.finish().map_err(|error| error.to_string())?;
        let kind = PackKind::from_code(kind).ok_or_else(|| format!("its kind {kind} is not known"))?;
        if mode != 0 {
            return Err(format!("its key mode {mode} is not known to this program; use a newer one"));
        }
        Ok(PackHeader { domain, pack_id, session, kind })
    }
}

/// One frame, as the footer lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRow {
    pub(crate) id: [u8; 16],
    /// From the start of the pack: sum of the lengths of the header and all earlier frames.
    pub(crate) offset: u32,
    /// Bytes of the frame, tag included.
    pub(crate) stored: u32,
    /// Bytes of the chunk.
    pub(crate) raw: u32,
    pub(crate) flags: u8,
}

impl FrameRow {
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.stored)
    }
}

/// Encodes the footer rows before encryption.
pub(crate) fn encode_rows(rows: &[FrameRow]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rows.len() * ROW_BYTES + crate::packs::pack_cipher::TAG_BYTES);
    for row in rows {
        bytes.put_bytes(&row.id);
        bytes.put_bytes(&row.stored.to_le_bytes()[..3]);
        bytes.put_bytes(&row.raw.to_le_bytes()[..3]);
        bytes.put_u8(row.flags);
    }
    bytes
}

/// Decodes the rows of a decrypted footer. The frames must end at `frames_end`.
pub(crate) fn decode_rows(bytes: &[u8], frames_end: u32) -> Result<Vec<FrameRow>, String> {
    let (rows, rest) = bytes.as_chunks::<ROW_BYTES>();
    if !rest.is_empty() || rows.len() > MAX_FRAMES as usize {
        return Err(format!("its footer of {} bytes is no list of frames", bytes.len()));
    }
    let mut offset = HEADER_BYTES as u64;
    let mut decoded = Vec::with_capacity(rows.len());
    for row in rows {
        let mut id = [0; 16];
        id.copy_from_slice(&row[..16]);
        let number = |at: usize| u32::from_le_bytes([row[at], row[at + 1], row[at + 2], 0]);
        let next =
            FrameRow { id, offset: offset as u32, stored: number(16), raw: number(19), flags: row[22] };
        if next.flags & !FLAG_ZSTD != 0 {
            return Err(format!("a frame has unknown flags {:#x}", next.flags));
        }
        offset = next.end();
        if offset > u64::from(frames_end) {
            return Err("its frames are longer than the pack".into());
        }
        decoded.push(next);
    }
    if offset != u64::from(frames_end) {
        return Err("its frames do not end where the footer begins".into());
    }
    Ok(decoded)
}

/// The fixed end of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackTrailer {
    pub(crate) pack_id: [u8; 16],
    pub(crate) kind: PackKind,
    /// End of the frames and start of the encrypted footer.
    pub(crate) footer_at: u32,
    /// Bytes of the encrypted footer, tag included.
    pub(crate) footer_bytes: u32,
    /// Bytes of the clear table of block hashes that follows it.
    pub(crate) table_bytes: u32,
}

impl PackTrailer {
    /// The trailer of a pack whose table is `table`.
    pub(crate) fn encode(&self, table: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(TRAILER_BYTES);
        bytes.put_bytes(&self.pack_id);
        bytes.put_u32(self.footer_at);
        bytes.put_u32(self.footer_bytes);
        bytes.put_u32(self.table_bytes);
        bytes.put_u8(self.kind.code());
        bytes.put_zeros(3);
        let hash = trailer_hash(table, &bytes);
        bytes.put_bytes(&hash);
        bytes
    }

    /// Decodes a trailer and checks its lengths against `size`, the size of the pack. `trailer_fits` checks
    /// the hash.
    pub(crate) fn decode(bytes: &[u8; TRAILER_BYTES], size: u64) -> Result<PackTrailer, String> {
        let mut input = Reader::new(bytes);
        let mut parse = || {
            let parts = (input.array()?, input.u32()?, input.u32()?, input.u32()?, input.u8()?);
            input.zeros(3)?;
            Ok::<_, DecodeError>(parts)
        };
        let (pack_id, footer_at, footer_bytes, table_bytes, kind) =
            parse().map_err(|error| error.to_string())?;
        let kind = PackKind::from_code(kind).ok_or_else(|| format!("its kind {kind} is not known"))?;
        let hashed = u64::from(footer_at) + u64::from(footer_bytes);
        let sum = hashed + u64::from(table_bytes) + TRAILER_BYTES as u64;
        let blocks = hashed.div_ceil(BLOCK_BYTES as u64) * BLOCK_HASH_BYTES as u64;
        let shaped = footer_at as usize >= HEADER_BYTES && u64::from(table_bytes) == blocks;
        if size > MAX_BYTES || sum != size || !shaped {
            return Err(format!("its {size} bytes do not fit its trailer; it may be cut off"));
        }
        Ok(PackTrailer { pack_id, kind, footer_at, footer_bytes, table_bytes })
    }
}

/// Checks the hash at the end of a trailer over the table of block hashes.
pub(crate) fn trailer_fits(table: &[u8], trailer: &[u8; TRAILER_BYTES]) -> bool {
    let (fields, hash) = trailer.split_at(TRAILER_BYTES - 32);
    trailer_hash(table, fields)[..] == *hash
}

fn trailer_hash(table: &[u8], fields: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(table);
    hasher.update(fields);
    *hasher.finalize().as_bytes()
}

/// The clear hash of one block.
pub(crate) fn block_hash(block: &[u8]) -> [u8; BLOCK_HASH_BYTES] {
    let mut short = [0; BLOCK_HASH_BYTES];
    short.copy_from_slice(&blake3::hash(block).as_bytes()[..BLOCK_HASH_BYTES]);
    short
}
