//! Reads footers and frames of packs.
//!
//! Not here: the search for the pack of a chunk, and the cache of footers (`pack_store`).

use super::PackNumber;
use super::format::{self, FrameRow, PackHeader, PackTrailer};
use crate::keys::DomainKeys;
use crate::packs::home::PackHome;
use crate::packs::pack_cipher::PackCipher;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_volume::{FileId, FileInfo, ReadOptions, VolumeId, VolumeStore};

/// Bytes read from the end of a pack at first; most footers are shorter.
pub(crate) const TAIL_BYTES: u64 = 64 << 10;

/// The list of frames of one pack, and the cipher that decrypts them.
pub(crate) struct PackFooter {
    pub(crate) number: PackNumber,
    pub(crate) home: PackHome,
    /// Identity of the file. Ids ascend in the order in which packs were written.
    pub(crate) file: FileId,
    pub(crate) rows: Vec<FrameRow>,
    pub(crate) cipher: PackCipher,
    /// Size of the file.
    pub(crate) file_bytes: u64,
    /// End of the bytes that have block hashes.
    pub(crate) hashed_end: u64,
    pub(crate) table: Vec<u8>,
}

impl PackFooter {
    /// Its memory in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<PackFooter>() + self.rows.capacity() * size_of::<FrameRow>() + self.table.capacity() + 1024
    }

    /// End of the frames: the footer is read from here on.
    pub(crate) fn frames_end(&self) -> u32 {
        self.rows.last().map_or(format::HEADER_BYTES as u32, |row| row.end() as u32)
    }

    pub(crate) fn damaged(&self, detail: impl Into<String>) -> Error {
        damaged(self.number, detail)
    }
}

/// Error of a damaged pack.
pub(crate) fn damaged(pack: PackNumber, detail: impl Into<String>) -> Error {
    Error::Damaged { what: format!("pack {pack}"), detail: detail.into() }
}

/// Reads the footer of a pack in a volume of this home.
/// # Errors
/// `Damaged` if the footer, the table or the trailer is damaged; errors of the store.
pub(crate) fn footer(
    store: &dyn VolumeStore,
    home: PackHome,
    vid: VolumeId,
    pack: PackNumber,
    keys: &DomainKeys,
) -> Result<PackFooter> {
    let name = pack.file_name();
    let options = ReadOptions::ANY_COPY;
    let info = store.stat(vid, name.as_bytes(), &options)?;
    check_size(pack, info.size)?;
    let tail_at = info.size.saturating_sub(TAIL_BYTES);
    let tail = store.get(vid, name.as_bytes(), tail_at..info.size, &options)?;
    footer_of(store, (home, vid, pack), &info, tail, keys)
}

fn check_size(pack: PackNumber, size: u64) -> Result<()> {
    let smallest = (format::HEADER_BYTES + format::TRAILER_BYTES) as u64;
    match size < smallest || size > format::MAX_BYTES {
        true => Err(damaged(pack, format!("no pack has {size} bytes"))),
        false => Ok(()),
    }
}

/// The footer of a pack, given its last [`TAIL_BYTES`]; reads more if it is longer.
/// # Errors
/// As [`footer`].
pub(crate) fn footer_of(
    store: &dyn VolumeStore,
    (home, vid, pack): (PackHome, VolumeId, PackNumber),
    info: &FileInfo,
    mut tail: Bytes,
    keys: &DomainKeys,
) -> Result<PackFooter> {
    let (file, size, name) = (info.fid, info.size, pack.file_name());
    check_size(pack, size)?;
    let trailer_bytes: [u8; format::TRAILER_BYTES] =
        *tail.last_chunk().ok_or_else(|| damaged(pack, "its end cannot be read"))?;
    let trailer = PackTrailer::decode(&trailer_bytes, size).map_err(|detail| damaged(pack, detail))?;
    if PackNumber::of(&trailer.pack_id) != pack {
        return Err(damaged(pack, "its trailer belongs to another pack"));
    }
    if trailer.kind != home.kind() {
        return Err(damaged(pack, "it is of another kind than its place"));
    }
    let footer_at = u64::from(trailer.footer_at);
    let wanted = (size - footer_at) as usize;
    if wanted > tail.len() {
        tail = store.get(vid, name.as_bytes(), footer_at..size, &ReadOptions::ANY_COPY)?;
    }
    let end = tail
        .len()
        .checked_sub(wanted)
        .map(|from| &tail[from..])
        .ok_or_else(|| damaged(pack, "its end cannot be read"))?;
    let (encrypted, rest) = end.split_at(trailer.footer_bytes as usize);
    let table = &rest[..trailer.table_bytes as usize];
    if !format::trailer_fits(table, &trailer_bytes) {
        return Err(damaged(pack, "its table of hashes does not fit its trailer"));
    }
    let cipher = PackCipher::new(&keys.pack_key(&trailer.pack_id), trailer.pack_id);
    let mut encrypted = encrypted.to_vec();
    let rows = cipher
        .decrypt(format::FOOTER_SLOT, &[0; 16], &mut encrypted)
        .ok_or_else(|| damaged(pack, "its footer does not open"))?;
    let rows = format::decode_rows(rows, trailer.footer_at).map_err(|detail| damaged(pack, detail))?;
    Ok(PackFooter {
        number: pack,
        home,
        file,
        rows,
        cipher,
        file_bytes: size,
        hashed_end: footer_at + u64::from(trailer.footer_bytes),
        table: table.to_vec(),
    })
}

/// Reads and checks the clear header of a pack.
/// # Errors
/// `Damaged`; errors of the store.
pub(crate) fn header(store: &dyn VolumeStore, vid: VolumeId, pack: PackNumber) -> Result<PackHeader> {
    let name = pack.file_name();
    let head = store.get(vid, name.as_bytes(), 0..format::HEADER_BYTES as u64, &ReadOptions::default())?;
    header_of(pack, &head)
}

/// Checks the clear header of a pack, given its bytes.
/// # Errors
/// `Damaged`.
pub(crate) fn header_of(pack: PackNumber, head: &[u8]) -> Result<PackHeader> {
    let header = PackHeader::decode(head).map_err(|detail| damaged(pack, detail))?;
    if PackNumber::of(&header.pack_id) != pack {
        return Err(damaged(pack, "its header belongs to another pack"));
    }
    Ok(header)
}

/// Decrypts one frame in place. Returns the payload, which may be compressed.
/// # Errors
/// `Damaged` if the authentication tag does not match.
pub(crate) fn open_frame<'a>(
    footer: &PackFooter,
    slot: u32,
    encrypted: &'a mut [u8],
) -> Result<&'a mut [u8]> {
    let row =
        footer.rows.get(slot as usize).ok_or_else(|| footer.damaged(format!("it has no frame {slot}")))?;
    footer
        .cipher
        .decrypt(slot, &row.id, encrypted)
        .ok_or_else(|| damaged(footer.number, format!("frame {slot} does not open")))
}

/// Decompresses payloads. One per thread.
pub(crate) struct FrameInflater {
    zstd: zstd::bulk::Decompressor<'static>,
}

impl FrameInflater {
    pub(crate) fn new() -> Result<FrameInflater> {
        let zstd = zstd::bulk::Decompressor::new()
            .map_err(|error| Error::Invalid { reason: format!("zstd cannot start: {error}") })?;
        Ok(FrameInflater { zstd })
    }

    /// The raw bytes of a payload, which are `row.raw` long: the payload itself, or `out` if it is compressed.
    /// # Errors
    /// The mismatch, as text.
    pub(crate) fn inflate<'b>(
        &mut self,
        row: &FrameRow,
        payload: &'b [u8],
        out: &'b mut Vec<u8>,
    ) -> std::result::Result<&'b [u8], String> {
        let raw = row.raw as usize;
        let inflated = if row.flags & format::FLAG_ZSTD == 0 {
            payload
        } else {
            out.clear();
            out.reserve_exact(raw);
            self.zstd
                .decompress_to_buffer(payload, out)
                .map_err(|error| format!("it does not decompress: {error}"))?;
            &out[..]
        };
        if inflated.len() != raw {
            return Err(format!("it has {} bytes, {raw} were stored", inflated.len()));
        }
        Ok(inflated)
    }
}
