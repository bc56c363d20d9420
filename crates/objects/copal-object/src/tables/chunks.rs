//! Entries of the tables by id, in chunks of about a thousand that are shared and copied on write.
//!
//! A checkpoint holds all chunks as they were when it began, at the cost of a pointer each. A later operation
//! copies the chunk of the entry that it changes, once.
//! Invariants
//! - Ids ascend within a chunk, and from one chunk to the next; no chunk is empty.
//! - A chunk that is filled by ascending ids stays full: it is not split in halves.
//!
//! Not here: the operations (`tables`), the encoding (`snapshot`).

use crate::tables::entry::TableEntry;
use std::sync::Arc;

/// Most entries of one chunk.
pub(crate) const CHUNK_ENTRIES: usize = 1024;

/// Entries in the order of their ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryChunk {
    ids: Vec<u64>,
    entries: Vec<TableEntry>,
}

impl EntryChunk {
    /// All entries, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &TableEntry)> {
        self.ids.iter().copied().zip(&self.entries)
    }

    fn insert(&mut self, index: usize, id: u64, entry: TableEntry, most: usize) {
        if self.ids.len() == self.ids.capacity() {
            // Little is left unused when the chunk is full.
            let more = (self.ids.len() / 8).clamp(4, most.saturating_sub(self.ids.len()).max(4));
            self.ids.reserve_exact(more);
            self.entries.reserve_exact(more);
        }
        self.ids.insert(index, id);
        self.entries.insert(index, entry);
    }

    fn split_off(&mut self, index: usize) -> EntryChunk {
        let rest = EntryChunk { ids: self.ids.split_off(index), entries: self.entries.split_off(index) };
        self.shrink();
        rest
    }

    fn append(&mut self, next: &mut EntryChunk) {
        self.ids.append(&mut next.ids);
        self.entries.append(&mut next.entries);
        self.shrink();
    }

    fn shrink(&mut self) {
        self.ids.shrink_to_fit();
        self.entries.shrink_to_fit();
    }
}

/// A chunk, and a number that no id in it is below and all ids before it are.
type PlacedChunk = (u64, Arc<EntryChunk>);

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct EntryChunks {
    chunks: Vec<PlacedChunk>,
    len: u64,
    /// Most entries of one chunk.
    most: usize,
}

impl EntryChunks {
    /// No entry; chunks have at most `most` entries.
    pub(crate) fn new(most: usize) -> EntryChunks {
        EntryChunks { chunks: Vec::new(), len: 0, most }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The chunk that holds `id` if one does.
    fn chunk_of(&self, id: u64) -> Option<usize> {
        self.chunks.partition_point(|(first, _)| *first <= id).checked_sub(1)
    }

    /// Chunk and index of an entry.
    fn find(&self, id: u64) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(id)?;
        let index = self.chunks[chunk].1.ids.binary_search(&id).ok()?;
        Some((chunk, index))
    }

    pub(crate) fn get(&self, id: u64) -> Option<&TableEntry> {
        let (chunk, index) = self.find(id)?;
        self.chunks[chunk].1.entries.get(index)
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.find(id).is_some()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut TableEntry> {
        let (chunk, index) = self.find(id)?;
        Arc::make_mut(&mut self.chunks[chunk].1).entries.get_mut(index)
    }

    /// Adds an entry, or replaces the one of this id.
    pub(crate) fn insert(&mut self, id: u64, entry: TableEntry) {
        if let Some(found) = self.get_mut(id) {
            *found = entry;
            return;
        }
        self.len += 1;
        let Some(mut at) = self.chunk_of(id) else {
            // Below all others.
            match self.chunks.first_mut() {
                Some((first, _)) => *first = id,
                None => self.chunks.push((id, Arc::default())),
            }
            return self.insert_into(0, id, entry);
        };
        if self.chunks[at].1.ids.len() >= self.most {
            let chunk = &self.chunks[at].1;
            if chunk.ids.last().is_some_and(|&last| last < id) {
                self.chunks.insert(at + 1, (id, Arc::default()));
                at += 1;
            } else {
                at = self.split(at, id);
            }
        }
        self.insert_into(at, id, entry);
    }

    fn insert_into(&mut self, at: usize, id: u64, entry: TableEntry) {
        if self.chunks[at].1.ids.len() >= self.most {
            let at = self.split(at, id);
            return self.insert_into(at, id, entry);
        }
        let chunk = Arc::make_mut(&mut self.chunks[at].1);
        let index = chunk.ids.partition_point(|&other| other < id);
        chunk.insert(index, id, entry, self.most);
    }

    /// Splits a chunk in halves; returns the one where `id` belongs.
    fn split(&mut self, at: usize, id: u64) -> usize {
        let chunk = Arc::make_mut(&mut self.chunks[at].1);
        let rest = chunk.split_off(chunk.ids.len() / 2);
        let first = rest.ids[0];
        self.chunks.insert(at + 1, (first, Arc::new(rest)));
        if id < first { at } else { at + 1 }
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, id: u64) -> Option<TableEntry> {
        let (at, index) = self.find(id)?;
        let chunk = Arc::make_mut(&mut self.chunks[at].1);
        chunk.ids.remove(index);
        let entry = chunk.entries.remove(index);
        self.len -= 1;
        if chunk.ids.is_empty() {
            self.chunks.remove(at);
        } else if chunk.ids.len() < self.most / 4 {
            self.join(at);
        }
        Some(entry)
    }

    /// Joins a short chunk with a neighbour, if both together are half full at most.
    fn join(&mut self, at: usize) {
        let len = |at: usize| self.chunks.get(at).map_or(usize::MAX, |(_, chunk)| chunk.ids.len());
        let fits = |other: usize| len(at).saturating_add(len(other)) <= self.most / 2;
        let first = match at.checked_sub(1) {
            Some(before) if fits(before) => before,
            _ if fits(at + 1) => at,
            _ => return,
        };
        let (_, mut next) = self.chunks.remove(first + 1);
        let next = Arc::make_mut(&mut next);
        Arc::make_mut(&mut self.chunks[first].1).append(next);
    }

    /// All entries, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &TableEntry)> {
        self.chunks.iter().flat_map(|(_, chunk)| chunk.iter())
    }

    /// Entries from `id` on, ascending.
    pub(crate) fn iter_from(&self, id: u64) -> impl Iterator<Item = (u64, &TableEntry)> {
        let at = self.chunk_of(id).unwrap_or(0);
        let skipped = self.chunks.get(at).map_or(0, |(_, chunk)| chunk.ids.partition_point(|&o| o < id));
        self.chunks.iter().skip(at).flat_map(|(_, chunk)| chunk.iter()).skip(skipped)
    }

    /// Number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Takes the last chunk.
    pub(crate) fn pop_chunk(&mut self) -> Option<Arc<EntryChunk>> {
        self.chunks.pop().map(|(_, chunk)| chunk)
    }

    /// The same entries in chunks of at most `most`.
    pub(crate) fn with_most(self, most: usize) -> EntryChunks {
        let mut chunks = EntryChunks::new(most);
        self.iter().for_each(|(id, entry)| chunks.insert(id, entry.clone()));
        chunks
    }
}

#[cfg(test)]
mod tests;
