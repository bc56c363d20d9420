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

/// Shares of two stores that one process has open at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairShares {
    /// Total from which [`MemoryShares::of`] takes the share of each engine.
    pub store: u64,
    /// For the layers above both engines.
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

    /// Divides `total` bytes between two stores: each engine gets a quarter of the bytes above the fixed rest, and not
    /// less than with the least total.
    /// # Errors
    /// `TooLittleMemory`.
    pub fn of_two(total: u64) -> Result<PairShares, NodeError> {
        MemoryShares::of(total)?;
        let store = (MemoryShares::REST + (total - MemoryShares::REST) / 4 * 3).max(MemoryShares::LEAST);
        let engine = MemoryShares::of(store)?.engine;
        Ok(PairShares { store, work: total - MemoryShares::REST - 2 * engine })
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
            let pair = MemoryShares::of_two(total).unwrap();
            let engines = 2 * MemoryShares::of(pair.store).unwrap().engine;
            assert_eq!(engines + pair.work + MemoryShares::REST, total);
            assert!(pair.work >= (total - MemoryShares::REST) / 3, "{pair:?}");
        }
        let refused = MemoryShares::of(MemoryShares::LEAST - 1);
        assert!(matches!(refused, Err(NodeError::TooLittleMemory { .. })));
    }
}
