//! Holes: aligned 4 KiB blocks of zero bytes.
//!
//! A hole is found by content, so sources that report their holes and sources that do not give the
//! same chunks.

/// Length and alignment of the blocks that can be holes, in bytes.
pub const BLOCK_BYTES: usize = 4096;

/// Whether all bytes are zero. An empty slice is.
pub fn is_zero(bytes: &[u8]) -> bool {
    // Data differs from zero within its first bytes nearly always: look there before the long loop.
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
