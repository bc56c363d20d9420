//! The shape of a store as Gets see it: runs, partitions and blocks, all computed from a key.

use crate::rules::random::mix;

/// Raw bytes of a data block.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes that a read of one block moves: its cover in sectors, since blocks are packed back to back.
pub(super) const READ_BYTES: u64 = 4608;
/// Bytes of the read of a filter page or an index page.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Keys of a full partition.
const PARTITION_KEYS: u64 = 2021;
/// Bytes of an index entry of one block.
const INDEX_ENTRY_BYTES: u64 = 5;

/// A key: row `id` of the store, or the one between `id` and the next that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) id: u64,
    pub(super) is_absent: bool,
}

impl Key {
    pub(super) fn hash(self) -> u64 {
        mix(self.id ^ mix(u64::from(self.is_absent)))
    }
}

/// A sorted run.
#[derive(Clone, Debug)]
struct Run {
    rows: u64,
    /// Homes below this, and not below that of the run above, lie here.
    home_end: u64,
    first_partition: u32,
    first_block: u64,
}

/// A block's number within the store.
pub(super) type BlockId = u64;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Store {
    pub(super) rows: u64,
    pub(super) row_bytes: u64,
    pub(super) partition_keys: u64,
    runs: Vec<Run>,
    partitions: u32,
    blocks: u64,
}

/// Place of a key in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) partition: u32,
    pub(super) block: BlockId,
}

impl Store {
    /// A tree with three tiers that are half full, above one bottom run, as the engine keeps it.
    pub(super) fn new(rows: u64, row_bytes: u64) -> Store {
        Store::with_partitions(rows, row_bytes, PARTITION_KEYS)
    }

    /// Like [`Store::new`], with smaller partitions: many small keyspaces.
    pub(super) fn with_partitions(rows: u64, row_bytes: u64, partition_keys: u64) -> Store {
        // Shares of the runs, newest first.
        let shares = [640, 640, 160, 160, 40, 40].map(|part| rows / part);
        let above: u64 = shares.iter().sum();
        let counts = shares.into_iter().filter(|&count| count > 0).chain([rows - above]);
        let mut store = Store { rows, row_bytes, partition_keys, runs: Vec::new(), partitions: 0, blocks: 0 };
        let mut before = 0;
        for rows_of_run in counts {
            before += rows_of_run;
            store.runs.push(Run {
                rows: rows_of_run,
                home_end: ((u128::from(before) << 64) / u128::from(rows)).min(u128::from(u64::MAX)) as u64,
                first_partition: store.partitions,
                first_block: store.blocks,
            });
            store.partitions += rows_of_run.div_ceil(partition_keys) as u32;
            store.blocks += rows_of_run.div_ceil(store.block_rows());
        }
        store
    }

    /// Rows of a block.
    pub(super) fn block_rows(&self) -> u64 {
        (BLOCK_BYTES / self.row_bytes).max(1)
    }

    /// Bytes of a block in memory.
    pub(super) fn block_bytes(&self) -> u64 {
        BLOCK_BYTES.max(self.row_bytes) + 96
    }

    /// Bytes of the device for one block.
    pub(super) fn read_bytes(&self) -> u64 {
        READ_BYTES.max(self.row_bytes + 512)
    }

    /// Bytes of an index page.
    pub(super) fn index_bytes(&self) -> u64 {
        (self.partition_keys / self.block_rows()).max(1) * INDEX_ENTRY_BYTES + 96
    }

    pub(super) fn partitions(&self) -> u32 {
        self.partitions
    }

    /// Keys of a partition.
    pub(super) fn keys_of(&self, partition: u32) -> u32 {
        let run = self.runs.partition_point(|run| run.first_partition <= partition) - 1;
        let run = &self.runs[run];
        let before = u64::from(partition - run.first_partition) * self.partition_keys;
        (run.rows - before).min(self.partition_keys) as u32
    }

    /// Blocks whose first row is in a partition.
    pub(super) fn blocks_of(&self, partition: u32) -> std::ops::Range<BlockId> {
        let at = self.runs.partition_point(|run| run.first_partition <= partition) - 1;
        let run = &self.runs[at];
        let first = u64::from(partition - run.first_partition) * self.partition_keys;
        let block = |ordinal: u64| run.first_block + ordinal.min(run.rows).div_ceil(self.block_rows());
        block(first)..block(first + self.partition_keys)
    }

    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The run that holds a key, or the number of runs.
    pub(super) fn home(&self, key: Key) -> usize {
        if key.is_absent {
            return self.runs.len();
        }
        let home = mix(key.id ^ 0x5555_5555_5555_5555);
        self.runs.partition_point(|run| run.home_end <= home).min(self.runs.len() - 1)
    }

    /// Where a run would have the key.
    pub(super) fn place(&self, run: usize, key: Key) -> Place {
        let run = &self.runs[run];
        let ordinal = (u128::from(key.id) * u128::from(run.rows) / u128::from(self.rows)) as u64;
        Place {
            partition: run.first_partition + (ordinal / self.partition_keys) as u32,
            block: run.first_block + ordinal / self.block_rows(),
        }
    }
}
