//! Volumes and their names.
//!
//! Format: docs/formats/data-rows.md v1

use super::frame::{RowError, RowKind, open, set_checksum, start, verify};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_volume::{MAX_VOLUME_NAME_BYTES, VolumeId, VolumeOptions};

const NONE_U64: u64 = u64::MAX;
/// Reserved: a class of disk, which no store ever used. Rows from before 2026-11 may have one.
const FLAG_CLASS: u16 = 1;
/// Reserved bytes of a row: a number of replicas and the length of a class. Written as zero and ignored by
/// readers.
const NO_REPLICAS: u8 = 0;
const NO_CLASS: u8 = 0;
const FLAG_SPARE: u16 = 2;

/// State of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum VolumeState {
    /// Its name leads to it.
    Live = 1,
    /// In an embedded store: removed, and its rows are being purged. On a member: it may be removed, and
    /// accepts no creates.
    Removing = 2,
    /// Removed; used on members only.
    Removed = 3,
}

/// Row of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumeRow {
    pub(crate) state: VolumeState,
    pub(crate) parent: VolumeId,
    pub(crate) name: String,
    pub(crate) created_ms: u64,
    pub(crate) quota_bytes: Option<u64>,
    pub(crate) spare_copies: bool,
}

impl VolumeRow {
    /// A live volume.
    pub(crate) fn new(parent: VolumeId, name: &str, created_ms: u64, options: &VolumeOptions) -> VolumeRow {
        VolumeRow {
            state: VolumeState::Live,
            parent,
            name: name.to_owned(),
            created_ms,
            quota_bytes: options.quota_bytes.filter(|&quota| quota != NONE_U64),
            spare_copies: options.spare_copies,
        }
    }

    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let flags = if self.spare_copies { FLAG_SPARE } else { 0 };
        let mut row = start(RowKind::Volume, flags, 32 + self.name.len());
        row.put_u64(self.parent.0);
        row.put_u64(self.created_ms);
        row.put_u64(self.quota_bytes.unwrap_or(NONE_U64));
        row.put_u8(self.state as u8);
        row.put_u8(NO_REPLICAS);
        row.put_u8(self.name.len() as u8);
        row.put_u8(NO_CLASS);
        row.put_zeros(4);
        row.put_bytes(self.name.as_bytes());
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &[u8]) -> Result<VolumeRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Volume, FLAG_CLASS | FLAG_SPARE, &mut input)?;
        verify(&frame, key, row)?;
        let parent = VolumeId(input.u64()?);
        let created_ms = input.u64()?;
        let quota = input.u64()?;
        let state = match input.u8()? {
            1 => VolumeState::Live,
            2 => VolumeState::Removing,
            3 => VolumeState::Removed,
            other => return Err(value("state", other)),
        };
        input.u8()?;
        let name_len = input.u8()?;
        let class_len = input.u8()?;
        input.zeros(4)?;
        let name = text("name", input.bytes(usize::from(name_len))?)?;
        text("class", input.bytes(usize::from(class_len))?)?;
        input.finish()?;
        Ok(VolumeRow {
            state,
            parent,
            name,
            created_ms,
            quota_bytes: (quota != NONE_U64).then_some(quota),
            spare_copies: frame.flags & FLAG_SPARE != 0,
        })
    }
}

const _: () = assert!(MAX_VOLUME_NAME_BYTES <= u8::MAX as usize);

fn value(field: &'static str, value: u8) -> RowError {
    RowError::Value { field, value: u64::from(value) }
}

fn text(field: &'static str, bytes: &[u8]) -> Result<String, RowError> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(RowError::Value { field, value: u64::from(bytes[error.valid_up_to()]) }),
    }
}

/// Encodes the row from a name to its volume.
pub(crate) fn name_row(key: &[u8], vid: VolumeId) -> Bytes {
    let mut row = start(RowKind::Name, 0, 8);
    row.put_u64(vid.0);
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes the volume of a name.
pub(crate) fn parse_name_row(key: &[u8], row: &[u8]) -> Result<VolumeId, RowError> {
    let mut input = Reader::new(row);
    let frame = open(RowKind::Name, 0, &mut input)?;
    verify(&frame, key, row)?;
    let vid = VolumeId(input.u64()?);
    input.finish()?;
    Ok(vid)
}
