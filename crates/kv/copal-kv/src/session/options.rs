//! Options: of a store, chosen at each opening; of a keyspace, fixed at its creation.

use super::{error::Error, limits::MAX_HEAD};
#[cfg(test)]
use crate::broken::Flaw;
use copal_filter::{Kind, rules::RuleKind};

/// Durability of a write when its call returns. After a crash the store always holds a prefix of the commit
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Survives power loss.
    #[default]
    Device,
    /// Survives a kill of the process, but not power loss. Waits for no device if the batch fits the store's
    /// page-cache log: up to 1 MiB without separated values.
    Process,
    /// Logged within 100 ms or 1 MiB; a kill may lose it.
    Deferred,
}

/// Options of one opening of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Limit of all memory that grows with the data: memtables, filters, indexes, caches, buffers. At least 4
    /// MiB. Ignored by [`Store::open_within`](crate::Store::open_within).
    pub memory_bytes: u64,
    /// Replays the log into memory, and writes nothing.
    pub read_only: bool,
    /// With `read_only`, skips log frames that cannot be read, to rescue the rest;
    /// [`Store::lost_of_logs`](crate::Store::lost_of_logs) lists them. Writes after a skipped frame are
    /// applied, so the store shows a state that never existed.
    pub salvage: bool,
    /// Size at which a table ends, bytes; not 0.
    pub table_bytes: u64,
    /// A tier is merged into the bottom once its size reaches the bottom's size divided by this number. A
    /// smaller number means more runs to search and less to write. 0: only the last of the three tiers is
    /// merged into the bottom.
    pub bottom_share: u32,
    /// Also merge runs above the bottom when no tier is full, for fewer runs to search at the cost of a few
    /// more written bytes. Such a merge begins once writes have stopped and as many look-ups searched these
    /// runs as the merge moves blocks. An iterator counts once per run.
    pub merge_for_reads: bool,
    /// Threads that one merge may use, each on a key range of its own. 0: half of the processors. The memory
    /// for merges limits them too: two at 32 MiB, four at 64 MiB with the default sizes.
    pub merge_threads: u32,
    /// Run flusher, worker, scrubs and filter adjustment on threads of their own.
    ///
    /// Without threads, for simulators, the work is done inside the calls. On a device without threads, one
    /// calling thread and one seed then give one reproducible run:
    /// - only [`Store::adjust_filters`](crate::Store::adjust_filters) moves filters;
    /// - deferred writes are logged with the next write;
    /// - for a shared budget ([`Store::open_within`](crate::Store::open_within)) this option does not decide
    ///   the thread that adjusts filters: it belongs to the budget.
    pub threads: bool,
    /// Filters: kind, memory, and the rule that divides it. With a shared budget only the kind counts; the
    /// budget has the rest.
    pub filters: FilterOptions,
    /// An ordering that a crash test disables.
    #[cfg(test)]
    pub(crate) broken: Option<Flaw>,
}

/// Memory for filter units, within the store's memory budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FilterMemory {
    /// Bits for each key in tables, rounded up to whole words in each partition.
    BitsPerKey(f64),
    /// Number of bytes.
    Bytes(u64),
}

/// Filter options of one opening. Each table stores its filter kind, so one store may hold tables of several
/// kinds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterOptions {
    /// Kind of filters that flush and merge write.
    pub kind: Kind,
    /// Rule that decides which units are in memory.
    pub rule: RuleKind,
    /// Memory for the units.
    pub memory: FilterMemory,
    /// Move units in the background while Gets run. Otherwise only [`crate::Store::adjust_filters`] moves
    /// them, and the same Gets give the same counts.
    pub background: bool,
}

impl Default for FilterOptions {
    fn default() -> FilterOptions {
        FilterOptions {
            kind: Kind::Ribbon,
            rule: RuleKind::Classes,
            memory: FilterMemory::BitsPerKey(4.0),
            background: true,
        }
    }
}

impl FilterOptions {
    /// The paper's filters: Bloom units of 4 bits per key, the Multi-Queue rule, one read per loaded unit,
    /// `bits_per_key` of memory. The paper used tables of 2 MB and cached nothing else.
    #[must_use]
    pub fn paper(bits_per_key: f64) -> FilterOptions {
        FilterOptions {
            kind: Kind::Bloom,
            rule: RuleKind::Paper,
            memory: FilterMemory::BitsPerKey(bits_per_key),
            ..FilterOptions::default()
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 32 << 20,
            read_only: false,
            salvage: false,
            table_bytes: 32 << 20,
            bottom_share: 10,
            merge_for_reads: true,
            merge_threads: 0,
            threads: true,
            filters: FilterOptions::default(),
            #[cfg(test)]
            broken: None,
        }
    }
}

impl Options {
    /// Checks all options.
    /// # Errors
    /// `Options` names the one that is impossible.
    pub(crate) fn check(&self) -> Result<(), Error> {
        const MOST_BYTES: u64 = 1 << 50;
        for (name, value, why) in [
            ("table_bytes", self.table_bytes, "it must be from 1 byte to 1 PiB"),
            ("memory_bytes", self.memory_bytes.max(1), "no machine has more than 1 PiB"),
        ] {
            if value == 0 || value > MOST_BYTES {
                return Err(Error::Options { name, value, why });
            }
        }
        if self.salvage && !self.read_only {
            return Err(Error::Options {
                name: "salvage",
                value: 1,
                why: "salvage skips log frames, so it requires read_only",
            });
        }
        Ok(())
    }
}

/// The item that a look-up caches. Iterators cache the block in which they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// The row: for single hot keys.
    #[default]
    Rows,
    /// The block: for hot keys with hot neighbours.
    Blocks,
    /// Nothing: for data that is read once.
    Nothing,
}

/// Options of a keyspace, fixed at its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Only keys that share this many first bytes share value objects; 0: all keys of the keyspace do.
    pub group_prefix_len: u8,
    /// Flush separates values of at least this size from the tables.
    pub separate_from_bytes: u32,
    /// Values of at least this size are written once, directly to a value object, and never to the log. That
    /// is twice as fast from some MiB on, and no faster below 256 KiB.
    pub direct_from_bytes: u32,
    /// Compress data blocks with lz4.
    pub compress: bool,
    /// First bytes of a separated value that stay in the table beside its pointer, so that a scan of heads
    /// ([`Iter::heads`](crate::Iter::heads)) reads no value object. At most 4096 count; 0: none.
    pub value_head_bytes: u16,
    /// The item that look-ups cache.
    pub cache: CacheMode,
}

impl KeyspaceOptions {
    /// Length of the head that a scan of heads returns, for separated and inline values.
    pub(crate) fn head_bytes(&self) -> usize {
        usize::from(self.value_head_bytes).min(MAX_HEAD)
    }

    /// The head of a separated value, which stays beside its pointer.
    pub(crate) fn head_of<'a>(&self, value: &'a [u8]) -> &'a [u8] {
        &value[..self.head_bytes().min(value.len())]
    }
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            group_prefix_len: 0,
            separate_from_bytes: 4096,
            direct_from_bytes: 1 << 20,
            compress: false,
            value_head_bytes: 0,
            cache: CacheMode::Rows,
        }
    }
}
