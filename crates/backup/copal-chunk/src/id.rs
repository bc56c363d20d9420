//! Chunk ids: keyed BLAKE3-256 of the bytes.
//!
//! The key belongs to one domain. Without the key an id reveals nothing, and equal chunks of two domains have
//! different ids.

use std::fmt;

/// Key under which the ids of one domain are computed.
#[derive(Clone)]
pub struct IdKey([u8; 32]);

impl IdKey {
    /// Creates a key from these bytes.
    pub fn new(key: [u8; 32]) -> IdKey {
        IdKey(key)
    }
    /// The id of a chunk. About 4 GB/s with AVX-512.
    pub fn id(&self, chunk: &[u8]) -> ChunkId {
        ChunkId(*blake3::keyed_hash(&self.0, chunk).as_bytes())
    }
}

impl fmt::Debug for IdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdKey(..)")
    }
}

/// Content-derived name of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkId(pub [u8; 32]);

impl ChunkId {
    /// The first 16 bytes, used as index key. Two chunks of a domain collide with probability 2^-128.
    pub fn short(&self) -> [u8; 16] {
        let mut short = [0; 16];
        short.copy_from_slice(&self.0[..16]);
        short
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Debug for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..6].iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        f.write_str("..")
    }
}
