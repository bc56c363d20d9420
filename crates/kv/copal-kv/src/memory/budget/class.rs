//! What memory is used for.

/// What bytes are charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryClass {
    /// Memtables, those that old readers pin too.
    Memtables,
    /// Groups on their way into the log.
    Log,
    /// Read-ahead and output of flush and merge.
    Merges,
    /// Writes that the object store took and the device has not: kept free, not counted one by one.
    Writes,
    /// Reads under way.
    Reads,
    /// Blocks and read-ahead of open iterators.
    Scans,
    /// Loaded filter units.
    Filters,
    /// Descriptors and fences of open tables.
    Tables,
    /// Range tombstones of open tables.
    RangeTombstones,
    /// The state of the manifest, dead ranges of value objects with it.
    Manifest,
    /// Lists of runs, of the versions that old readers pin too.
    Versions,
    /// Slots of the cache that hold nothing.
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
