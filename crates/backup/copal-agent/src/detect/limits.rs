//! Bounds of a detector, and the division of its memory.

/// Buffer of each file that is read or written.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;
/// Concurrent buffers: spool, both runs, the run being written, a batch being accepted.
pub(crate) const BUFFERS: u64 = 5;

/// Bounds of a detector.
#[derive(Clone, Copy, Debug)]
pub struct DetectLimits {
    /// Memory for the slice in comparison, new rows of its index run, grants and buffers. Less than 2 MiB
    /// counts as 2 MiB.
    pub memory_bytes: u64,
    /// Bytes of requests that wait on disk.
    pub spool_bytes: u64,
}

impl Default for DetectLimits {
    fn default() -> DetectLimits {
        DetectLimits { memory_bytes: 12 << 20, spool_bytes: 1 << 30 }
    }
}

impl DetectLimits {
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes.max(2 << 20)
    }

    /// Seven twelfths of the memory, at most 7 MiB.
    pub(crate) fn slice_bytes(&self) -> u64 {
        (self.memory_bytes() / 12 * 7).min(7 << 20)
    }

    /// One twelfth, at most 1 MiB.
    pub(crate) fn new_rows_bytes(&self) -> u64 {
        (self.memory_bytes() / 12).min(1 << 20)
    }

    /// The rest of the memory.
    pub(crate) fn grants_bytes(&self) -> u64 {
        let others = self.slice_bytes() + self.new_rows_bytes() + BUFFERS * BUFFER_BYTES as u64;
        (self.memory_bytes() - others).min(4 << 20)
    }
}
