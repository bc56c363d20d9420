//! What a caller chooses: of a store at each opening, of a keyspace once, at its creation.

use super::{error::Error, limits::MAX_HEAD};
#[cfg(test)]
use crate::broken::Flaw;
use copal_filter::{Kind, rules::RuleKind};

/// How safe a write is when its call returns. After a crash the store is always a prefix of commit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Survives power loss.
    #[default]
    Device,
    /// Survives a kill of the process, not power loss. Waits for no device where it can be copied to the
    /// store's waiting room in the page cache: a batch of up to 1 MiB without separated values.
    Process,
    /// Logged within 100 ms or 1 MiB; a kill may lose it.
    Deferred,
}

/// Options of one opening of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// All memory that grows with the data: memtables, filters, indexes, caches, buffers. At least 4 MiB is
    /// used. Not looked at by [`Store::open_within`](crate::Store::open_within).
    pub memory_bytes: u64,
    /// Replays the log into memory and writes nothing.
    pub read_only: bool,
    /// With `read_only`, to save what can be saved: log frames that cannot be read are passed over, and
    /// listed by [`Store::lost_of_logs`](crate::Store::lost_of_logs). Writes behind them are there, so what
    /// such a store says was true at no time.
    pub salvage: bool,
    /// Size at which a table ends; not 0.
    pub table_bytes: u64,
    /// A tier merges into the bottom once it holds one part in this many of the bottom's bytes. Less means
    /// more runs to search and less to write; 0: only the last of the three tiers does.
    pub bottom_share: u32,
    /// Merge runs above the bottom also where no tier is full, once nothing is written and as many look-ups
    /// as the merge moves blocks had to search them, a walk counting once for each run: fewer runs to search,
    /// a few more bytes written.
    pub merge_for_reads: bool,
    /// Flusher, worker, scrubs and the adjuster of filters run on threads of their own. Otherwise what they do
    /// is done inside the calls, so that one thread and one seed are one run on a device without threads:
    /// filters are moved by [`Store::adjust_filters`](crate::Store::adjust_filters) alone, and deferred writes
    /// go with the next write. Of a shared budget ([`Store::open_within`](crate::Store::open_within)) the
    /// adjuster is the budget's own. For simulators.
    pub threads: bool,
    /// Filters: what kind, how much of the memory, how it is divided. Of a shared budget only the kind
    /// counts, the rest is the budget's own.
    pub filters: FilterOptions,
    /// An ordering the crash tests break.
    #[cfg(test)]
    pub(crate) broken: Option<Flaw>,
}

/// How much memory filter units may take, within what the store's memory leaves them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FilterMemory {
    /// This many bits for each key in tables, in each partition rounded up to whole words.
    BitsPerKey(f64),
    /// This many bytes.
    Bytes(u64),
}

/// Filters of one opening. The kind is stored with each table: a store may hold tables of several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterOptions {
    /// Kind of the filters that flush and merge write.
    pub kind: Kind,
    /// Which partitions' units are in memory.
    pub rule: RuleKind,
    /// How much memory they take.
    pub memory: FilterMemory,
    /// Move units in the background while Gets go on; otherwise only [`crate::Store::adjust_filters`] does,
    /// and the same Gets give the same counts.
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
    /// Filters as in the paper: Bloom units of 4 bits per key, its Multi-Queue rule, each unit loaded by a
    /// read of its own, at `bits_per_key` of memory. Its tables were of 2 MB, and nothing else was cached.
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
            threads: true,
            filters: FilterOptions::default(),
            #[cfg(test)]
            broken: None,
        }
    }
}

impl Options {
    /// Looks at every choice that could not work, in one place.
    /// # Errors
    /// `Options` names it.
    pub(crate) fn check(&self) -> Result<(), Error> {
        const MOST_BYTES: u64 = 1 << 50;
        for (name, value, why) in [
            ("table_bytes", self.table_bytes, "a table ends somewhere between 1 byte and 1 PiB"),
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
                why: "what is passed over must not be written on: it goes with read_only",
            });
        }
        Ok(())
    }
}

/// What a look-up leaves in the cache for the next one. Iterators leave the block they begin in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CacheMode {
    /// The row it found: for keys that are hot one by one.
    #[default]
    Rows,
    /// The block it read: for keys that are hot with their neighbours.
    Blocks,
    /// Nothing: for what is read once.
    Nothing,
}

/// Options of a keyspace, kept from its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Keys sharing this many first bytes share value objects and no one else's; 0 = one group.
    pub group_prefix_len: u8,
    /// Values from this size leave the tables at flush.
    pub separate_from_bytes: u32,
    /// Values from this size go straight to a value object, written once, never through the log: twice as
    /// fast from some MiB on, no faster below 256 KiB.
    pub direct_from_bytes: u32,
    /// Keep data blocks as they are, or lz4.
    pub compress: bool,
    /// First bytes of a separated value that stay in the table beside its pointer, so that a walk over heads
    /// ([`Iter::heads`](crate::Iter::heads)) touches no value object. At most 4096 count; 0: none.
    pub value_head_bytes: u16,
    /// What look-ups leave in the cache.
    pub cache: CacheMode,
}

impl KeyspaceOptions {
    /// How many first bytes of a value a look at heads alone gets, separated or not.
    pub(crate) fn head_bytes(&self) -> usize {
        usize::from(self.value_head_bytes).min(MAX_HEAD)
    }

    /// The first bytes of a separated value that stay beside its pointer.
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
