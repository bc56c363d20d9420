//! Rows of the index and their encoding. Not a stable format: an unreadable index is rebuilt.

use crate::packs::home::{PackHome, PackKind};
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use std::ops::Deref;
use uuid::Uuid;

/// Most frames of one id in a row; the newest are kept.
const MAX_PLACES: usize = 8;
const PLACE_BYTES: usize = 11;

/// Location of a frame by pack and slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexRow {
    pub(crate) pack: PackNumber,
    pub(crate) slot: u32,
}

/// Properties of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackEntry {
    pub(crate) home: PackHome,
    pub(crate) volume: u32,
    pub(crate) frames: u32,
    pub(crate) file_bytes: u64,
}

impl PackEntry {
    /// Location of a row of this pack.
    pub(crate) fn location(&self, row: IndexRow) -> FrameLocation {
        FrameLocation { home: self.home, volume: self.volume, pack: row.pack, slot: row.slot }
    }
}

/// Key of the rows of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct RowKey {
    /// In a fleet the VM, or nil for popular chunks; in the layout solo `None`.
    pub(super) vm: Option<Uuid>,
    pub(super) id: [u8; 16],
}

impl RowKey {
    /// Encodes the key; keys of one VM are adjacent.
    pub(super) fn bytes(&self) -> KeyBytes {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(self.vm.unwrap_or_default().as_bytes());
        bytes[16..].copy_from_slice(&self.id);
        let from = if self.vm.is_some() { 0 } else { 16 };
        KeyBytes { bytes, from }
    }
}

/// An encoded key of the index.
pub(super) struct KeyBytes {
    bytes: [u8; 32],
    from: usize,
}

impl Deref for KeyBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.from..]
    }
}

pub(super) fn bad(what: &str) -> Error {
    Error::Damaged {
        what: "the chunk index".into(),
        detail: format!("{what} cannot be read; `copal repair index` rebuilds it"),
    }
}

/// `row`, followed by the rows of `known` that differ from it.
pub(super) fn newest_first(row: IndexRow, known: &[IndexRow]) -> Vec<IndexRow> {
    let older = known.iter().copied().filter(|other| *other != row);
    std::iter::once(row).chain(older).take(MAX_PLACES).collect()
}

pub(super) fn encode_rows(rows: &[IndexRow]) -> Bytes {
    let mut bytes = Vec::with_capacity(rows.len() * PLACE_BYTES);
    for row in rows {
        bytes.put_bytes(&row.pack.0.to_be_bytes());
        bytes.put_bytes(&row.slot.to_le_bytes()[..3]);
    }
    Bytes::from(bytes)
}

pub(crate) fn decode_rows(value: &[u8]) -> Result<Vec<IndexRow>> {
    let (places, rest) = value.as_chunks::<PLACE_BYTES>();
    if places.is_empty() || places.len() > MAX_PLACES || !rest.is_empty() {
        return Err(bad("a chunk row"));
    }
    let row = |place: &[u8; PLACE_BYTES]| {
        let mut pack = [0; 8];
        pack.copy_from_slice(&place[..8]);
        IndexRow {
            pack: PackNumber(u64::from_be_bytes(pack)),
            slot: u32::from_le_bytes([place[8], place[9], place[10], 0]),
        }
    };
    Ok(places.iter().map(row).collect())
}

pub(super) fn encode_pack(entry: &PackEntry) -> Bytes {
    let mut bytes = Vec::with_capacity(33);
    bytes.put_u8(entry.home.kind().code());
    bytes.put_bytes(entry.home.vm().unwrap_or_default().as_bytes());
    bytes.put_u32(entry.volume);
    bytes.put_u32(entry.frames);
    bytes.put_u64(entry.file_bytes);
    Bytes::from(bytes)
}

pub(crate) fn decode_pack(value: &[u8]) -> Result<PackEntry> {
    let mut input = Reader::new(value);
    let mut parse = || -> std::result::Result<_, copal_codec::DecodeError> {
        Ok((input.u8()?, input.array::<16>()?, input.u32()?, input.u32()?, input.u64()?))
    };
    let (kind, vm, volume, frames, file_bytes) = parse().map_err(|_| bad("a pack row"))?;
    let kind = PackKind::from_code(kind).ok_or_else(|| bad("a pack row"))?;
    Ok(PackEntry { home: PackHome::of(kind, Uuid::from_bytes(vm)), volume, frames, file_bytes })
}
