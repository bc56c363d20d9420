//! What a caller chooses: of a store at each opening, of a keyspace once, at its creation.

/// How safe a write is when its call returns. After a crash the store is always a prefix of commit order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Durability {
    /// Survives power loss.
    #[default]
    Device,
    /// Survives a kill of the process, not power loss.
    Process,
    /// Logged within 100 ms or 1 MiB; a kill may lose it.
    Deferred,
}

/// Options of one opening of a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// All memory that grows with the data: memtables, filters, indexes, caches. At least 4 MiB is used.
    pub memory_bytes: u64,
    /// Replays the log into memory and writes nothing.
    pub read_only: bool,
    /// Size at which a table ends.
    pub table_bytes: u64,
    /// Threads for flush and merge. One does both today, whatever is asked for.
    pub worker_threads: usize,
    /// A tier merges into the bottom once it holds one part in this many of the bottom's bytes. Less means more
    /// runs to search and less to write; 0: only the last of the three tiers does.
    pub bottom_share: u32,
    /// Filter columns per partition that stay loaded, 0 to 15.
    pub filter_columns: u8,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            memory_bytes: 32 << 20,
            read_only: false,
            table_bytes: 32 << 20,
            worker_threads: 1,
            bottom_share: 10,
            filter_columns: 6,
        }
    }
}

impl Options {
    const LEAST_MEMORY: u64 = 4 << 20;

    /// Bytes at which a memtable is full: an eighth of the memory, at most 16 MiB. Two exist at a time.
    pub(crate) fn memtable_bytes(&self) -> u64 {
        (self.memory_bytes.max(Self::LEAST_MEMORY) / 8).min(16 << 20)
    }

    /// What is left for filters, indexes and blocks, beside memtables and an eighth for the buffers of log and
    /// merges.
    pub(crate) fn cache_bytes(&self) -> u64 {
        let total = self.memory_bytes.max(Self::LEAST_MEMORY);
        total - 2 * self.memtable_bytes() - total / 8
    }
}

/// Options of a keyspace, kept from its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Keys sharing this many first bytes share value objects and no one else's; 0 = one group.
    pub group_prefix_len: u8,
    /// Values from this size leave the tables at flush.
    pub separate_from_bytes: u32,
    /// Values from this size go straight to a value object, written once, never through the log.
    pub direct_from_bytes: u32,
    /// Keep data blocks as they are, or lz4.
    pub compress: bool,
    /// First bytes of a separated value that stay in the table beside its pointer, so that
    /// [`Keyspace::get_head`](crate::Keyspace::get_head) and a walk over heads touch no value object. At most 4096
    /// count; 0: none.
    pub value_head_bytes: u16,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions {
            group_prefix_len: 0,
            separate_from_bytes: 4096,
            direct_from_bytes: 65536,
            compress: false,
            value_head_bytes: 0,
        }
    }
}
