//! The chunk index: where is the frame of this id? One exact index for the whole repository.
//!
//! Two maps: id (16 bytes) -> pack and slot (11 bytes), and pack -> what is known about it.
//! Invariants
//! - It holds nothing that the packs do not: it can be thrown away and built again from footers.
//! - A row is entered after its pack is durable and removed before its pack is deleted, so a row whose
//!   pack has an entry leads to a frame. A row without such a pack means nothing and is a miss.
//! - Memory is the engine's, which has a budget of its own.
//!
//! Decision: docs/decisions/2026-11-21-exact-index-and-mark.md

use crate::error::{Error, Result};
use crate::pack::{PackKind, PackNumber};
use crate::repository::IndexHome;
use crate::volumes::Home;
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_kv::{Durability, Keyspace, KeyspaceOptions};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use uuid::Uuid;

const CHUNKS: &str = "backup-chunks";
const PACKS: &str = "backup-packs";
/// Rows of one batch to the engine.
const BATCH_ROWS: usize = 2048;
/// Packs whose entries are kept at hand.
const CACHED_PACKS: usize = 1024;

/// Where the index says a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexRow {
    pub(crate) pack: PackNumber,
    pub(crate) slot: u32,
}

/// What the index knows about a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackEntry {
    pub(crate) home: Home,
    pub(crate) volume: u32,
    pub(crate) frames: u32,
    pub(crate) file_bytes: u64,
}

/// The index of an open repository; shared between threads.
pub(crate) struct Index {
    backend: Backend,
    /// Entries of packs asked for lately.
    cached: Mutex<HashMap<PackNumber, PackEntry>>,
}

enum Backend {
    Kv {
        store: copal_kv::Store,
        chunks: Keyspace,
        packs: Keyspace,
    },
    Memory(Mutex<Maps>),
}

#[derive(Default)]
struct Maps {
    chunks: HashMap<[u8; 16], IndexRow>,
    packs: BTreeMap<PackNumber, PackEntry>,
}

impl Index {
    pub(crate) fn open(home: &IndexHome) -> Result<Index> {
        let backend = match home {
            IndexHome::Memory => Backend::Memory(Mutex::new(Maps::default())),
            IndexHome::Kv(store) => {
                let open = |name| store.keyspace(name, KeyspaceOptions::default());
                Backend::Kv {
                    chunks: open(CHUNKS)?,
                    packs: open(PACKS)?,
                    store: store.clone(),
                }
            }
        };
        Ok(Index {
            backend,
            cached: Mutex::new(HashMap::new()),
        })
    }

    /// The row of an id whose pack has an entry.
    pub(crate) fn find(&self, id: &[u8; 16]) -> Result<Option<(IndexRow, PackEntry)>> {
        let row = match &self.backend {
            Backend::Memory(maps) => maps.lock().chunks.get(id).copied(),
            Backend::Kv { chunks, .. } => match chunks.get(id)? {
                Some(value) => Some(decode_row(&value)?),
                None => None,
            },
        };
        let Some(row) = row else { return Ok(None) };
        Ok(self.pack(row.pack)?.map(|entry| (row, entry)))
    }

    /// The entry of a pack.
    pub(crate) fn pack(&self, pack: PackNumber) -> Result<Option<PackEntry>> {
        let kv = match &self.backend {
            Backend::Memory(maps) => return Ok(maps.lock().packs.get(&pack).copied()),
            Backend::Kv { packs, .. } => packs,
        };
        if let Some(&entry) = self.cached.lock().get(&pack) {
            return Ok(Some(entry));
        }
        let Some(value) = kv.get(&pack.0.to_be_bytes())? else {
            return Ok(None);
        };
        let entry = decode_pack(&value)?;
        let mut cached = self.cached.lock();
        if cached.len() >= CACHED_PACKS {
            cached.clear();
        }
        cached.insert(pack, entry);
        Ok(Some(entry))
    }

    /// Enters a durable pack and its rows. Rows of the same ids are replaced.
    ///
    /// The pack's entry comes last: a crash in between leaves rows that mean nothing.
    pub(crate) fn add_pack(
        &self,
        pack: PackNumber,
        entry: PackEntry,
        ids: impl Iterator<Item = [u8; 16]>,
        durability: Durability,
    ) -> Result<()> {
        match &self.backend {
            Backend::Memory(maps) => {
                let mut maps = maps.lock();
                for (slot, id) in ids.enumerate() {
                    maps.chunks.insert(
                        id,
                        IndexRow {
                            pack,
                            slot: slot as u32,
                        },
                    );
                }
                maps.packs.insert(pack, entry);
            }
            Backend::Kv { store, chunks, packs } => {
                let mut batch = store.batch();
                for (slot, id) in ids.enumerate() {
                    batch.put(
                        chunks,
                        &id,
                        encode_row(IndexRow {
                            pack,
                            slot: slot as u32,
                        }),
                    );
                    if (slot + 1).is_multiple_of(BATCH_ROWS) {
                        std::mem::replace(&mut batch, store.batch()).commit(Durability::Deferred)?;
                    }
                }
                batch.put(packs, &pack.0.to_be_bytes(), encode_pack(&entry));
                batch.commit(durability)?;
            }
        }
        Ok(())
    }

    /// Forgets a pack: those of its rows that still lead to it, then its entry. Durable on return.
    ///
    /// A crash in between leaves a known pack whose dead frames are not found any more, which is what the
    /// next prune removes.
    pub(crate) fn remove_pack(&self, pack: PackNumber, ids: impl Iterator<Item = [u8; 16]>) -> Result<()> {
        self.cached.lock().remove(&pack);
        match &self.backend {
            Backend::Memory(maps) => {
                let mut maps = maps.lock();
                maps.packs.remove(&pack);
                for id in ids {
                    if maps.chunks.get(&id).is_some_and(|row| row.pack == pack) {
                        maps.chunks.remove(&id);
                    }
                }
            }
            Backend::Kv { store, chunks, packs } => {
                let mut batch = store.batch();
                let mut rows = 0;
                for id in ids {
                    let Some(value) = chunks.get(&id)? else { continue };
                    if decode_row(&value)?.pack == pack {
                        batch.delete(chunks, &id);
                        rows += 1;
                    }
                    if rows == BATCH_ROWS {
                        std::mem::replace(&mut batch, store.batch()).commit(Durability::Deferred)?;
                        rows = 0;
                    }
                }
                batch.delete(packs, &pack.0.to_be_bytes());
                batch.commit(Durability::Device)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` for every pack with an entry, ascending.
    pub(crate) fn for_each_pack(
        &self,
        mut visit: impl FnMut(PackNumber, PackEntry) -> Result<()>,
    ) -> Result<()> {
        match &self.backend {
            Backend::Memory(maps) => {
                let all: Vec<_> = maps
                    .lock()
                    .packs
                    .iter()
                    .map(|(&pack, &entry)| (pack, entry))
                    .collect();
                all.into_iter().try_for_each(|(pack, entry)| visit(pack, entry))
            }
            Backend::Kv { packs, .. } => {
                for item in packs.iter((Bound::Unbounded, Bound::Unbounded)) {
                    let (key, value) = item?;
                    let number = key
                        .as_ref()
                        .try_into()
                        .map(u64::from_be_bytes)
                        .map_err(|_| bad("a pack key"))?;
                    visit(PackNumber(number), decode_pack(&value)?)?;
                }
                Ok(())
            }
        }
    }

    /// Throws everything away.
    pub(crate) fn clear(&self) -> Result<()> {
        self.cached.lock().clear();
        match &self.backend {
            Backend::Memory(maps) => *maps.lock() = Maps::default(),
            Backend::Kv { chunks, packs, .. } => {
                packs.purge_prefix(&[], Durability::Device)?;
                chunks.purge_prefix(&[], Durability::Device)?;
            }
        }
        Ok(())
    }

    /// What was entered so far survives a crash.
    pub(crate) fn sync(&self) -> Result<()> {
        if let Backend::Kv { store, .. } = &self.backend {
            store.sync()?;
        }
        Ok(())
    }
}

fn bad(what: &str) -> Error {
    Error::Damaged {
        what: "the chunk index".into(),
        detail: format!("{what} cannot be read; `copal repair index` rebuilds it"),
    }
}

fn encode_row(row: IndexRow) -> Bytes {
    let mut bytes = [0; 11];
    bytes[..8].copy_from_slice(&row.pack.0.to_be_bytes());
    bytes[8..].copy_from_slice(&row.slot.to_le_bytes()[..3]);
    Bytes::copy_from_slice(&bytes)
}

pub(crate) fn decode_row(value: &[u8]) -> Result<IndexRow> {
    let bytes: &[u8; 11] = value.try_into().map_err(|_| bad("a chunk row"))?;
    let mut pack = [0; 8];
    pack.copy_from_slice(&bytes[..8]);
    let slot = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], 0]);
    Ok(IndexRow {
        pack: PackNumber(u64::from_be_bytes(pack)),
        slot,
    })
}

fn encode_pack(entry: &PackEntry) -> Bytes {
    let mut bytes = Vec::with_capacity(33);
    bytes.put_u8(entry.home.kind().code());
    let vm = match entry.home {
        Home::Chunks => Uuid::nil(),
        Home::Recipes(vm) => vm,
    };
    bytes.put_bytes(vm.as_bytes());
    bytes.put_u32(entry.volume);
    bytes.put_u32(entry.frames);
    bytes.put_u64(entry.file_bytes);
    Bytes::from(bytes)
}

pub(crate) fn decode_pack(value: &[u8]) -> Result<PackEntry> {
    let mut input = Reader::new(value);
    let mut parse = || -> std::result::Result<_, copal_codec::DecodeError> {
        Ok((
            input.u8()?,
            input.array::<16>()?,
            input.u32()?,
            input.u32()?,
            input.u64()?,
        ))
    };
    let (kind, vm, volume, frames, file_bytes) = parse().map_err(|_| bad("a pack row"))?;
    let home = match PackKind::from_code(kind).ok_or_else(|| bad("a pack row"))? {
        PackKind::Chunks => Home::Chunks,
        PackKind::Recipes => Home::Recipes(Uuid::from_bytes(vm)),
    };
    Ok(PackEntry {
        home,
        volume,
        frames,
        file_bytes,
    })
}
