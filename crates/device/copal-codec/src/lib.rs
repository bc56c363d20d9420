//! Checked reading and writing of bytes: the base of every on-disk format of Copal.
//!
//! - [`Reader`] decodes bytes. It bounds each length before it uses it; it neither panics nor allocates.
//! - [`Put`] encodes bytes, little-endian, into a [`SliceWriter`] over a fixed slice or into a `Vec<u8>`.
//! - [`varint`] is LEB128 with one encoding per value.
//! - [`Envelope`] is the 32-byte header at the start of every file, superblock and page chain.
//! - [`crc32c()`] is the checksum of blocks, records and frames.
//!
//! Format: docs/formats/envelope.md v1
//! Not here: meanings of bodies. Each layer keeps its formats in its own `format.rs`, by hand, never by
//! serde.

mod envelope;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod reader;
pub mod varint;
mod writer;

use crc_fast::{CrcAlgorithm, Digest, checksum_combine};

pub use envelope::{ENVELOPE_LEN, Envelope, EnvelopeError, Format, NotZeroPadding};
pub use reader::{DecodeError, Reader};
pub use writer::{Put, SliceWriter, WriterOverflow};

/// CRC32C (Castagnoli) of `bytes`, continuing from `seed` (0 to start).
///
/// `crc32c(crc32c(0, a), b)` equals the sum of `a` and `b` joined.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    // The library's state is the sum before its last inversion.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!seed));
    digest.update(bytes);
    digest.finalize() as u32
}

/// The sum of `a` and `b` joined, from `first = crc32c(0, a)` and `second = crc32c(0, b)`; reads no bytes.
#[must_use]
pub fn crc32c_joined(first: u32, second: u32, second_len_bytes: usize) -> u32 {
    let (first, second) = (u64::from(first), u64::from(second));
    checksum_combine(CrcAlgorithm::Crc32Iscsi, first, second, second_len_bytes as u64) as u32
}

#[cfg(test)]
mod tests;
