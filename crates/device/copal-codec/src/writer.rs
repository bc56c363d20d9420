//! Little-endian writing into a fixed slice or a growing vector.
//!
//! Invariants
//! - [`SliceWriter`] never allocates and never panics: it counts bytes that do not fit, and `finish` reports
//!   them.

use crate::varint;

/// Appends items little-endian. `Vec<u8>` grows; [`SliceWriter`] has a fixed size.
pub trait Put {
    /// Appends `bytes` as they are.
    fn put_bytes(&mut self, bytes: &[u8]);

    /// Appends one byte.
    fn put_u8(&mut self, value: u8) {
        self.put_bytes(&[value]);
    }

    /// Appends two bytes.
    fn put_u16(&mut self, value: u16) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends four bytes.
    fn put_u32(&mut self, value: u32) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends eight bytes.
    fn put_u64(&mut self, value: u64) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends sixteen bytes.
    fn put_u128(&mut self, value: u128) {
        self.put_bytes(&value.to_le_bytes());
    }

    /// Appends a LEB128 number of 1 to 10 bytes.
    fn put_varint(&mut self, value: u64) {
        let (bytes, used) = varint::encode(value);
        self.put_bytes(&bytes[..used]);
    }

    /// Appends the LEB128 length of `bytes`, then `bytes`.
    fn put_prefixed(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.put_bytes(bytes);
    }

    /// Appends `len` zero bytes.
    fn put_zeros(&mut self, mut len: usize) {
        const ZEROS: [u8; 64] = [0; 64];
        while len > 0 {
            let step = len.min(ZEROS.len());
            self.put_bytes(&ZEROS[..step]);
            len -= step;
        }
    }
}

impl Put for Vec<u8> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// More bytes were written than fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes were written into a buffer of {room}")]
pub struct WriterOverflow {
    /// Bytes that were put.
    pub wanted: usize,
    /// Size of the slice.
    pub room: usize,
}

/// Writes into a borrowed slice. Items that do not fit completely are omitted and counted.
#[derive(Debug)]
pub struct SliceWriter<'a> {
    room: &'a mut [u8],
    wanted: usize,
}

impl<'a> SliceWriter<'a> {
    /// Starts at the first byte of `room`.
    #[must_use]
    pub fn new(room: &'a mut [u8]) -> SliceWriter<'a> {
        SliceWriter { room, wanted: 0 }
    }

    /// Bytes written so far, including those that did not fit.
    #[must_use]
    pub fn position(&self) -> usize {
        self.wanted
    }

    /// Bytes that still fit.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.room.len().saturating_sub(self.wanted)
    }

    /// Ends writing; returns the number of written bytes.
    /// # Errors
    /// `WriterOverflow` if any item did not fit: the slice is then incomplete.
    pub fn finish(self) -> Result<usize, WriterOverflow> {
        if self.wanted > self.room.len() {
            return Err(WriterOverflow { wanted: self.wanted, room: self.room.len() });
        }
        Ok(self.wanted)
    }
}

impl Put for SliceWriter<'_> {
    fn put_bytes(&mut self, bytes: &[u8]) {
        let end = self.wanted.saturating_add(bytes.len());
        if let Some(slot) = self.room.get_mut(self.wanted..end) {
            slot.copy_from_slice(bytes);
        }
        self.wanted = end;
    }
}
