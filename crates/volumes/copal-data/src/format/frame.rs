//! Frame of a row: its first 8 bytes.
//!
//! Format: docs/formats/data-rows.md v1

use copal_codec::{DecodeError, Put, Reader, crc32c};

/// Length of the frame in bytes; the row's own fields follow.
pub(super) const FRAME_LEN: usize = 8;
const VERSION: u8 = 1;
const SUM_AT: usize = 4;

/// Kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RowKind {
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

/// Reason that a row was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RowError {
    /// Fields are cut off or out of bounds.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The key has a row of another kind.
    #[error("it is of kind {found:#04x}, not {wanted:#04x}")]
    RowKind { found: u8, wanted: u8 },
    /// Another release wrote the row.
    #[error("it has row version {found}, this build reads version {VERSION}; use the release that wrote it")]
    Version { found: u8 },
    /// The row uses a feature that is unknown to this build.
    #[error("it has flags {found:#06x} that this build does not know; use a newer release")]
    Flags { found: u16 },
    /// These are not the bytes that were written under this key.
    #[error("its checksum is {stored:08x}, its key and bytes give {computed:08x}")]
    Checksum { stored: u32, computed: u32 },
    /// A field has a value that no writer sets.
    #[error("its {field} is {value}, which no writer sets")]
    Value { field: &'static str, value: u64 },
}

/// Starts a row; [`set_checksum`] completes it.
pub(super) fn start(kind: RowKind, flags: u16, capacity: usize) -> Vec<u8> {
    let mut row = Vec::with_capacity(FRAME_LEN + capacity);
    row.put_u8(VERSION);
    row.put_u8(kind as u8);
    row.put_u16(flags);
    row.put_u32(0);
    row
}

/// Sets the checksum over the key and the row so far.
pub(super) fn set_checksum(key: &[u8], row: &mut [u8]) {
    let sum = checksum(key, row);
    row[SUM_AT..FRAME_LEN].copy_from_slice(&sum.to_le_bytes());
}

/// Fields of the frame; untrusted before [`verify`].
pub(super) struct RowFrame {
    pub(super) flags: u16,
    stored: u32,
}

/// Reads the frame. Refuses another kind or version, and flags outside `known_flags`.
pub(super) fn open(kind: RowKind, known_flags: u16, input: &mut Reader<'_>) -> Result<RowFrame, RowError> {
    let version = input.u8()?;
    let found = input.u8()?;
    let flags = input.u16()?;
    let stored = input.u32()?;
    if found != kind as u8 {
        return Err(RowError::RowKind { found, wanted: kind as u8 });
    }
    if version != VERSION {
        return Err(RowError::Version { found: version });
    }
    if flags & !known_flags != 0 {
        return Err(RowError::Flags { found: flags & !known_flags });
    }
    Ok(RowFrame { flags, stored })
}

/// Checks the first `len` bytes of the row against its checksum.
pub(super) fn verify(frame: &RowFrame, key: &[u8], row: &[u8]) -> Result<(), RowError> {
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

/// A row of any kind, flags and fields under `key`, with a valid checksum.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn crafted(kind: u8, flags: u16, key: &[u8], fields: &[u8]) -> Vec<u8> {
    let mut row = start(RowKind::Number, flags, fields.len());
    row[1] = kind;
    row.put_bytes(fields);
    set_checksum(key, &mut row);
    row
}
