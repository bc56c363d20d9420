//! The 8 bytes every row begins with.
//!
//! Format: docs/formats/data-rows.md v1

use copal_codec::{DecodeError, Put, Reader, crc32c};

/// Bytes of the frame; the row's own fields follow.
pub(super) const FRAME_LEN: usize = 8;
const VERSION: u8 = 1;
const SUM_AT: usize = 4;

/// What a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Head = b'F',
    Sums = b'S',
    Upload = b'U',
    Piece = b'P',
    Volume = b'V',
    Name = b'N',
    Group = b'G',
    Journal = b'J',
    Member = b'M',
    Number = b'X',
    Mark = b'T',
    Tomb = b'D',
}

/// Why a row was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    /// Fields are cut off or out of bounds.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A row of another kind stands under this key.
    #[error("it is of kind {found:#04x}, not {wanted:#04x}")]
    Kind { found: u8, wanted: u8 },
    /// Written by another release.
    #[error("it has row version {found}, this build reads version {VERSION}; use the release that wrote it")]
    Version { found: u8 },
    /// Uses something this build does not know.
    #[error("it has flags {found:#06x} that this build does not know; use a newer release")]
    Flags { found: u16 },
    /// Not the bytes that were written under this key.
    #[error("its checksum is {stored:08x}, its key and bytes give {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    /// A field has a value that no writer gives it.
    #[error("its {field} is {value}, which no writer sets")]
    Value { field: &'static str, value: u64 },
}

/// Starts a row; the checksum is set by [`set_checksum`].
pub(super) fn start(kind: Kind, flags: u16, capacity: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(FRAME_LEN + capacity);
    row.put_u8(VERSION);
    row.put_u8(kind as u8);
    row.put_u16(flags);
    row.put_u32(0);
    row
}

/// Sets the checksum over the key and all of the row so far.
pub(super) fn set_checksum(key: &[u8], row: &mut [u8]) {
    let sum = checksum(key, row);
    row[SUM_AT..FRAME_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// What stands in the frame; trusted only after [`verify`].
pub(super) struct Frame {
    pub(super) flags: u16,
    stored: u32,
}

/// Reads the frame and refuses another kind, version, or flags outside `known_flags`.
pub(super) fn open(kind: Kind, known_flags: u16, input: &mut Reader<'_>) -> Result<Frame, RowError> {
    let version = input.u8()?;
    let found = input.u8()?;
    let flags = input.u16()?;
    let stored = input.u32()?;
    if found != kind as u8 {
        return Err(RowError::Kind { found, wanted: kind as u8 });
    }
    if version != VERSION {
        return Err(RowError::Version { found: version });
    }
    if flags & !known_flags != 0 {
        return Err(RowError::Flags { found: flags & !known_flags });
    }
    Ok(Frame { flags, stored })
}

/// Checks the first `len` bytes of the row against its checksum.
pub(super) fn verify(frame: &Frame, key: &[u8], row: &[u8]) -> Result<(), RowError> {
    let computed = checksum(key, row);
    if computed != frame.stored {
        return Err(RowError::Checksum { stored: frame.stored, computed });
    }
    Ok(())
}

/// CRC32C of key and row, the checksum field counted as zero.
fn checksum(key: &[u8], row: &[u8]) -> u32 {
    let before = crc32c(crc32c(0, key), &row[..SUM_AT]);
    crc32c(crc32c(before, &[0; 4]), &row[FRAME_LEN..])
}

/// A row of any kind, flags and fields under `key`, with the right sum.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(kind: u8, flags: u16, key: &[u8], fields: &[u8]) -> Vec<u8> {
    let mut row = start(Kind::Number, flags, fields.len());
    row[1] = kind;
    row.put_bytes(fields);
    set_checksum(key, &mut row);
    row
}
