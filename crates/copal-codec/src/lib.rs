//! Bytes, checked: readers and writers, CRC32C, and the envelope of every on-disk format.

/// CRC32C of `bytes`, continuing from `seed` (0 to start).
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}
