//! Rows of moved chunks: the VM's index maps their ids to popular frames.
//!
//! The index notes each list that was applied, beside its packs. So no start applies a list again.

use super::rows::{bad, encode_rows, newest_first};
use super::{BATCH_ROWS, ChunkIndex, IndexBackend, IndexRow};
use crate::packs::home::PackHome;
use crate::request::error::Result;
use bytes::Bytes;
use copal_kv::Durability;
use uuid::Uuid;

/// Prefix of the keys of notes; the VM follows.
const NOTE: &[u8] = b"moved.";

fn note_key(vm: Uuid) -> Vec<u8> {
    [NOTE, vm.as_bytes()].concat()
}

/// Whether a key of the keyspace of packs is that of a note.
pub(super) fn is_note(key: &[u8]) -> bool {
    key.len() == NOTE.len() + 16 && key.starts_with(NOTE)
}

impl ChunkIndex {
    /// Hashes of the applied lists of moved frames of a VM.
    pub(crate) fn moved_lists(&self, vm: Uuid) -> Result<Vec<[u8; 32]>> {
        match &self.backend {
            IndexBackend::Memory(maps) => Ok(maps.lock().moved.get(&vm).cloned().unwrap_or_default()),
            IndexBackend::Kv { packs, .. } => {
                let Some(value) = packs.get(&note_key(vm))? else {
                    return Ok(Vec::new());
                };
                let (hashes, rest) = value.as_chunks::<32>();
                match rest.is_empty() {
                    true => Ok(hashes.to_vec()),
                    false => Err(bad("a note of moved frames")),
                }
            }
        }
    }

    /// Sets the result of [`ChunkIndex::moved_lists`]. Never durable before earlier changes.
    pub(crate) fn note_moved_lists(&self, vm: Uuid, hashes: &[[u8; 32]]) -> Result<()> {
        match &self.backend {
            IndexBackend::Memory(maps) => drop(maps.lock().moved.insert(vm, hashes.to_vec())),
            IndexBackend::Kv { store, packs, .. } => {
                let mut batch = store.batch();
                batch.put(packs, &note_key(vm), Bytes::from(hashes.concat()));
                batch.commit(Durability::Deferred)?;
            }
        }
        Ok(())
    }

    /// Makes these frames the first locations of their ids in a home. Durable with the next `sync`.
    pub(crate) fn add_locations(
        &self,
        home: PackHome,
        frames: impl Iterator<Item = ([u8; 16], IndexRow)>,
    ) -> Result<()> {
        let frames = frames.map(|(id, row)| (self.key(home, &id), row));
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                for (key, row) in frames {
                    let known = maps.chunks.entry(key).or_default();
                    *known = newest_first(row, known);
                }
            }
            IndexBackend::Kv { store, chunks, .. } => {
                let mut batch = store.batch();
                for (number, (key, row)) in frames.enumerate() {
                    let known = self.rows(&key)?;
                    batch.put(chunks, &key.bytes(), encode_rows(&newest_first(row, &known)));
                    if number % BATCH_ROWS == BATCH_ROWS - 1 {
                        std::mem::replace(&mut batch, store.batch()).commit(Durability::Deferred)?;
                    }
                }
                batch.commit(Durability::Deferred)?;
            }
        }
        Ok(())
    }
}
