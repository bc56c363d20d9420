//! Division of the memory of a process.

use crate::error::NodeError;

/// Shares of the memory of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShares {
    /// For the engine: memtables, filters, indexes, caches.
    pub engine: u64,
    /// For the layers above the engine.
    pub work: u64,
}

impl MemoryShares {
    /// Code, stacks, the object store's tables and memory that the allocator keeps.
    const REST: u64 = 24_000_000;
    /// Hashing a password takes 67 MB before other memory is in use, and frees them afterwards.
    const LEAST: u64 = 80_000_000;

    /// Divides `total` bytes: the engine gets a third of the bytes above the fixed rest, at most 1 GiB.
    /// # Errors
    /// `TooLittleMemory`.
    pub fn of(total: u64) -> Result<MemoryShares, NodeError> {
        if total < MemoryShares::LEAST {
            return Err(NodeError::TooLittleMemory { bytes: total, least: MemoryShares::LEAST });
        }
        let rest = total - MemoryShares::REST;
        let engine = (rest / 3).min(1 << 30);
        Ok(MemoryShares { engine, work: rest - engine })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_rest_are_the_total() {
        for total in [MemoryShares::LEAST, 96 << 20, 64 << 30] {
            let shares = MemoryShares::of(total).unwrap();
            assert_eq!(shares.engine + shares.work + MemoryShares::REST, total);
            assert!(shares.engine <= 1 << 30);
        }
        let refused = MemoryShares::of(MemoryShares::LEAST - 1);
        assert!(matches!(refused, Err(NodeError::TooLittleMemory { .. })));
    }
}
