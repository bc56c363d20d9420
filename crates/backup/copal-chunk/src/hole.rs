//! Holes: aligned 4 KiB blocks of zero bytes.
//!
//! Holes are detected by content, so the chunks are the same whether or not a source reports holes.

/// Length and alignment of the blocks that can be holes, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Whether all bytes are zero; true for an empty slice.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Data is almost always nonzero in its first bytes, so these are checked first.
    let (head, rest) = bytes.split_at(bytes.len().min(16));
    if head.iter().any(|&byte| byte != 0) {
        return false;
    }
    let mut groups = rest.chunks_exact(64);
    for group in &mut groups {
        // A fold without early exit, so that the compiler uses vector registers.
        if group.iter().fold(0, |any, &byte| any | byte) != 0 {
            return false;
        }
    }
    groups.remainder().iter().all(|&byte| byte == 0)
}
