//! Classes of memory.

/// Purpose that bytes are charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    /// Memtables, including those that only old readers pin.
    Memtables,
    /// Groups on their way into the log.
    Log,
    /// Read-ahead and output of flush and merge.
    Merges,
    /// Writes that the object store accepted and the device has not completed: reserved, not counted one by
    /// one.
    Writes,
    /// Reads in progress.
    Reads,
    /// Blocks and read-ahead of open iterators.
    Scans,
    /// Loaded filter units.
    Filters,
    /// Descriptors and fences of open tables.
    Tables,
    /// Range tombstones of open tables.
    RangeTombstones,
    /// State of the manifest, including dead ranges of value objects.
    Manifest,
    /// Lists of runs, including those of versions that only old readers pin.
    Versions,
    /// Empty slots of the cache.
    Slots,
}

impl MemoryClass {
    pub(crate) const ALL: [MemoryClass; 12] = [
        MemoryClass::Memtables,
        MemoryClass::Log,
        MemoryClass::Merges,
        MemoryClass::Writes,
        MemoryClass::Reads,
        MemoryClass::Scans,
        MemoryClass::Filters,
        MemoryClass::Tables,
        MemoryClass::RangeTombstones,
        MemoryClass::Manifest,
        MemoryClass::Versions,
        MemoryClass::Slots,
    ];
}
