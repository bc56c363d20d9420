//! Sorts the ids of a part into batches of one partition each, in their order of arrival.

use copal_backup::peers::ShortId;

/// Most ids of a sent batch: with its head it stays below 64 KiB.
pub(super) const ASK_IDS: usize = 4000;
const _: () = assert!(ASK_IDS <= crate::fleet::messages::BATCH_IDS);

/// An id, its position in its part, and its partition.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitEntry {
    pub(super) partition: u32,
    pub(super) position: u32,
    pub(super) id: ShortId,
}

/// Gathers ids up to a memory bound.
pub(super) struct IdSplit {
    entries: Vec<SplitEntry>,
    most: usize,
}

impl IdSplit {
    pub(super) fn new(bytes: usize) -> IdSplit {
        IdSplit { entries: Vec::new(), most: (bytes / size_of::<SplitEntry>()).max(1) }
    }

    /// Adds an id; returns whether it is full now.
    pub(super) fn push(&mut self, entry: SplitEntry) -> bool {
        if self.entries.len() == self.entries.capacity() {
            // Doubles like a vector, but not beyond the bound.
            let more = self.entries.len().max(1024).min(self.most - self.entries.len());
            self.entries.reserve_exact(more);
        }
        self.entries.push(entry);
        self.entries.len() == self.most
    }

    /// The gathered ids, as batches.
    pub(super) fn batches(&mut self) -> impl Iterator<Item = &[SplitEntry]> + Clone {
        self.entries.sort_unstable_by_key(|entry| (entry.partition, entry.position));
        self.entries
            .chunk_by(|a, b| a.partition == b.partition)
            .flat_map(|partition| partition.chunks(ASK_IDS))
    }

    /// Forgets the gathered ids.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<SplitEntry>()
    }
}
