//! Notes of damaged frames: such frames leave the index, and stay out when it is rebuilt.
//!
//! A note is only a hint. Readers try the location of a reference despite any note, so a wrong note costs a
//! second copy of a chunk and no more. The notes of a pack are removed with it.

use super::rows::{bad, encode_rows};
use super::{ChunkIndex, IndexBackend, IndexRow};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::error::Result;
use bytes::Bytes;
use copal_kv::{Durability, Error as KvError, Keyspace, KeyspaceOptions, Store};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const DAMAGED: &str = "backup-damaged";

/// The keyspace of notes; `None` if the store is read-only and has none.
pub(super) fn keyspace(store: &Store) -> Result<Option<Keyspace>> {
    match store.keyspace(DAMAGED, KeyspaceOptions::default()) {
        Ok(damaged) => Ok(Some(damaged)),
        Err(KvError::ReadOnly) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn key(pack: PackNumber, slot: u32) -> [u8; 12] {
    let mut key = [0; 12];
    key[..8].copy_from_slice(&pack.0.to_be_bytes());
    key[8..].copy_from_slice(&slot.to_be_bytes());
    key
}

impl ChunkIndex {
    /// Whether any frame is noted as damaged.
    pub(crate) fn has_damaged(&self) -> bool {
        self.has_damaged.load(Ordering::Relaxed)
    }

    pub(super) fn look_for_damaged(&self) -> Result<()> {
        if let IndexBackend::Kv { damaged: Some(damaged), .. } = &self.backend
            && let Some(first) = damaged.prefix(&[]).keys_only().next()
        {
            first?;
            self.has_damaged.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether this frame is noted as damaged.
    pub(crate) fn is_damaged(&self, pack: PackNumber, slot: u32) -> Result<bool> {
        if !self.has_damaged() {
            return Ok(false);
        }
        match &self.backend {
            IndexBackend::Memory(maps) => Ok(maps.lock().damaged.contains(&(pack, slot))),
            IndexBackend::Kv { damaged: Some(damaged), .. } => Ok(damaged.get(&key(pack, slot))?.is_some()),
            IndexBackend::Kv { .. } => Ok(false),
        }
    }

    /// Frames of a pack that are noted as damaged.
    pub(crate) fn damaged_slots(&self, pack: PackNumber) -> Result<BTreeSet<u32>> {
        if !self.has_damaged() {
            return Ok(BTreeSet::new());
        }
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let maps = maps.lock();
                let notes = maps.damaged.range((pack, 0)..=(pack, u32::MAX));
                Ok(notes.map(|(_, slot)| *slot).collect())
            }
            IndexBackend::Kv { damaged: Some(damaged), .. } => {
                let mut slots = BTreeSet::new();
                for note in damaged.prefix(&pack.0.to_be_bytes()).keys_only() {
                    let (key, _) = note?;
                    let slot = key.last_chunk().filter(|_| key.len() == 12);
                    slots.insert(u32::from_be_bytes(*slot.ok_or_else(|| bad("a note of damage"))?));
                }
                Ok(slots)
            }
            IndexBackend::Kv { .. } => Ok(BTreeSet::new()),
        }
    }

    /// Notes that a frame is damaged, and removes its row. Durable with the next `sync`.
    /// # Errors
    /// `ChunkIndex(ReadOnly)` in a read-only store.
    pub(crate) fn note_damaged(
        &self,
        home: PackHome,
        pack: PackNumber,
        slot: u32,
        id: &[u8; 16],
    ) -> Result<()> {
        let of_id = self.key(home, id);
        let mut rows = self.rows(&of_id)?;
        rows.retain(|row| *row != IndexRow { pack, slot });
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                maps.damaged.insert((pack, slot));
                match rows.is_empty() {
                    true => drop(maps.chunks.remove(&of_id)),
                    false => drop(maps.chunks.insert(of_id, rows)),
                }
            }
            IndexBackend::Kv { store, chunks, damaged, .. } => {
                let damaged = damaged.as_ref().ok_or(KvError::ReadOnly)?;
                let mut batch = store.batch();
                match rows.is_empty() {
                    true => batch.delete(chunks, &of_id.bytes()),
                    false => batch.put(chunks, &of_id.bytes(), encode_rows(&rows)),
                };
                batch.put(damaged, &key(pack, slot), Bytes::from_static(&[1]));
                batch.commit(Durability::Deferred)?;
            }
        }
        self.has_damaged.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Drops the notes of a pack that is being removed.
    pub(super) fn forget_damaged(&self, pack: PackNumber) -> Result<()> {
        let slots = self.damaged_slots(pack)?;
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                for slot in slots {
                    maps.damaged.remove(&(pack, slot));
                }
            }
            IndexBackend::Kv { store, damaged: Some(damaged), .. } if !slots.is_empty() => {
                let mut batch = store.batch();
                for slot in slots {
                    batch.delete(damaged, &key(pack, slot));
                }
                batch.commit(Durability::Deferred)?;
            }
            IndexBackend::Kv { .. } => {}
        }
        Ok(())
    }
}
