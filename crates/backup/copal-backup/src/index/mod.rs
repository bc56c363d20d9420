//! The chunk index: maps an id to the locations of its frames. Exact.
//!
//! Two maps:
//! - id (16 bytes) -> pack and slot (11 bytes), newest first if an id has several frames;
//! - pack -> its home, volume and sizes.
//!
//! In the layout solo there is one index for the whole repository. In a fleet each VM has its own, and the
//! domain another: the VM is a prefix of the key, and each look-up names it. So a backup never refers to a
//! frame that another VM may remove (BAK-16).
//! Invariants
//! - It holds only facts that the packs hold too: it can be deleted and rebuilt from footers (BAK-9).
//! - A row is added after its pack is durable and removed before its pack is deleted, so a row whose pack has
//!   an entry leads to a frame. A row without such a pack counts as a miss.
//! - A damaged frame has no row (`damaged`), so the next backup stores its chunk anew (BAK-10).
//! - Memory belongs to the engine, which has its own budget.
//!
//! Decision: docs/decisions/2026-11-21-exact-index-and-mark.md

mod damaged;
pub(crate) mod dead_frames;
pub(crate) mod list_file;
mod moved;
pub(crate) mod moved_frames;
pub(crate) mod reindex;
mod rows;
pub(crate) mod vm_index;

use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::Layout;
use crate::request::error::Result;
use crate::rules::broken::{self, Flaw};
use bytes::Bytes;
use copal_kv::{Durability, Keyspace, KeyspaceOptions};
use parking_lot::Mutex;
pub(crate) use rows::{IndexRow, PackEntry, decode_pack, decode_rows};
use rows::{RowKey, bad, encode_pack, encode_rows, newest_first};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use uuid::Uuid;

const CHUNKS: &str = "backup-chunks";
const PACKS: &str = "backup-packs";
/// Key beside the packs: the epoch of the catalog in which all packs had entries.
const EPOCH: &[u8] = b"epoch";
/// Rows of one batch to the engine.
const BATCH_ROWS: usize = 2048;
/// Pack entries in the cache.
const CACHED_PACKS: usize = 1024;

/// Place of the chunk index. It is a cache of the packs, so it may be deleted.
#[derive(Clone)]
pub enum IndexHome {
    /// Keyspaces of this engine whose names begin with `backup-`.
    Kv(copal_kv::Store),
    /// Memory, filled from pack footers at each opening: for small repositories and read-only media.
    Memory,
}

/// The index of an open repository; shared between threads.
pub(crate) struct ChunkIndex {
    backend: IndexBackend,
    /// Whether each VM has its own index.
    is_scoped: bool,
    /// Recently used pack entries.
    cached: Mutex<HashMap<PackNumber, PackEntry>>,
    /// Whether any frame is noted as damaged.
    has_damaged: AtomicBool,
}

enum IndexBackend {
    Kv {
        store: copal_kv::Store,
        chunks: Keyspace,
        packs: Keyspace,
        /// Notes of damage; `None` in a read-only store without any.
        damaged: Option<Keyspace>,
    },
    Memory(Mutex<IndexMaps>),
}

#[derive(Default)]
struct IndexMaps {
    chunks: HashMap<RowKey, Vec<IndexRow>>,
    packs: BTreeMap<PackNumber, PackEntry>,
    damaged: BTreeSet<(PackNumber, u32)>,
    moved: HashMap<Uuid, Vec<[u8; 32]>>,
}

/// Rows of the ids of a pack that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackRows {
    /// Each leads to this pack only: they are removed unread.
    Sole,
    /// Some may lead to other packs, or not to this one any more.
    BesideOthers,
}

/// Treatment of the older rows of the ids in a new pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OlderRows {
    /// Replaced: the writer of the pack has checked their frames, or knows that there are none.
    Replaced,
    /// Kept behind the new ones: the pack was found, and it is not known which frame is better.
    Kept,
}

impl ChunkIndex {
    /// Opens the index. Its rows have the keys of a solo repository until [`ChunkIndex::for_layout`] is called.
    pub(crate) fn open(home: &IndexHome) -> Result<ChunkIndex> {
        let backend = match home {
            IndexHome::Memory => IndexBackend::Memory(Mutex::new(IndexMaps::default())),
            IndexHome::Kv(store) => {
                let open = |name| store.keyspace(name, KeyspaceOptions::default());
                IndexBackend::Kv {
                    chunks: open(CHUNKS)?,
                    packs: open(PACKS)?,
                    damaged: damaged::keyspace(store)?,
                    store: store.clone(),
                }
            }
        };
        let index = ChunkIndex {
            backend,
            is_scoped: false,
            cached: Mutex::new(HashMap::new()),
            has_damaged: AtomicBool::new(false),
        };
        index.look_for_damaged()?;
        Ok(index)
    }

    /// The index with the keys of rows that the layout of its repository needs.
    pub(crate) fn for_layout(self, layout: Layout) -> ChunkIndex {
        ChunkIndex { is_scoped: layout.is_fleet(), ..self }
    }

    /// The key of an id among the frames of this home.
    fn key(&self, home: PackHome, id: &[u8; 16]) -> RowKey {
        RowKey {
            vm: (self.is_scoped && !broken::by(Flaw::OneIndex)).then(|| home.vm().unwrap_or_default()),
            id: *id,
        }
    }

    /// The newest location of an id whose pack has an entry.
    pub(crate) fn find(&self, home: PackHome, id: &[u8; 16]) -> Result<Option<(IndexRow, PackEntry)>> {
        Ok(self.places(home, id)?.into_iter().next())
    }

    /// All locations of an id whose packs have an entry, newest first.
    pub(crate) fn places(&self, home: PackHome, id: &[u8; 16]) -> Result<Vec<(IndexRow, PackEntry)>> {
        self.places_of(self.rows(&self.key(home, id))?)
    }

    /// The places that rows lead to: those whose packs have an entry, in the order of the rows.
    pub(crate) fn places_of(&self, rows: Vec<IndexRow>) -> Result<Vec<(IndexRow, PackEntry)>> {
        let mut places = Vec::with_capacity(rows.len());
        for row in rows {
            places.extend(self.pack(row.pack)?.map(|entry| (row, entry)));
        }
        Ok(places)
    }

    /// The rows of many ids, in their order, each newest first. The engine gets the keys sorted, so that it reads
    /// each block once, and neighbours together.
    pub(crate) fn rows_of(&self, home: PackHome, ids: &[[u8; 16]]) -> Result<Vec<Vec<IndexRow>>> {
        let IndexBackend::Kv { chunks, .. } = &self.backend else {
            return ids.iter().map(|id| self.rows(&self.key(home, id))).collect();
        };
        let mut sorted: Vec<(usize, &[u8; 16])> = ids.iter().enumerate().collect();
        sorted.sort_unstable_by_key(|(_, id)| *id);
        let keys: Vec<Vec<u8>> = sorted.iter().map(|(_, id)| self.key(home, id).bytes().to_vec()).collect();
        let mut rows = vec![Vec::new(); ids.len()];
        for ((at, _), value) in sorted.into_iter().zip(chunks.multi_get(&keys)) {
            if let Some(value) = value? {
                rows[at] = decode_rows(&value)?;
            }
        }
        Ok(rows)
    }

    fn rows(&self, key: &RowKey) -> Result<Vec<IndexRow>> {
        match &self.backend {
            IndexBackend::Memory(maps) => Ok(maps.lock().chunks.get(key).cloned().unwrap_or_default()),
            IndexBackend::Kv { chunks, .. } => match chunks.get(&key.bytes())? {
                Some(value) => decode_rows(&value),
                None => Ok(Vec::new()),
            },
        }
    }

    /// For each pack, the number of its frames that are the only known ones of their ids. `vm`: the VM whose
    /// index is meant, in a fleet.
    pub(crate) fn sole_frames(&self, vm: Option<Uuid>) -> Result<HashMap<PackNumber, u32>> {
        let vm = vm.filter(|_| self.is_scoped).map(Uuid::into_bytes);
        let prefix = vm.as_ref().map_or(&[][..], |vm| &vm[..]);
        let mut sole = HashMap::new();
        let mut count = |rows: &[IndexRow]| {
            if let [row] = rows {
                *sole.entry(row.pack).or_insert(0) += 1;
            }
        };
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let maps = maps.lock();
                let of_vm = maps.chunks.iter().filter(|(key, _)| key.bytes().starts_with(prefix));
                of_vm.for_each(|(_, rows)| count(rows));
            }
            IndexBackend::Kv { chunks, .. } => {
                for item in chunks.prefix(prefix) {
                    count(&decode_rows(&item?.1)?);
                }
            }
        }
        Ok(sole)
    }

    /// The entry of a pack.
    pub(crate) fn pack(&self, pack: PackNumber) -> Result<Option<PackEntry>> {
        let kv = match &self.backend {
            IndexBackend::Memory(maps) => return Ok(maps.lock().packs.get(&pack).copied()),
            IndexBackend::Kv { packs, .. } => packs,
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

    /// Adds a durable pack and its rows, except those of frames that are noted as damaged.
    ///
    /// The pack's entry comes last: a crash in between leaves rows that have no effect.
    pub(crate) fn add_pack(
        &self,
        pack: PackNumber,
        entry: PackEntry,
        ids: impl Iterator<Item = [u8; 16]>,
        older: OlderRows,
        durability: Durability,
    ) -> Result<()> {
        let damaged = self.damaged_slots(pack)?;
        let placed = ids.zip(0..).map(|(id, slot)| (self.key(entry.home, &id), IndexRow { pack, slot }));
        let placed = placed.filter(|(_, row)| !damaged.contains(&row.slot));
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                for (key, row) in placed {
                    let known = maps.chunks.entry(key).or_default();
                    *known = newest_first(row, if older == OlderRows::Kept { known } else { &[] });
                }
                maps.packs.insert(pack, entry);
            }
            IndexBackend::Kv { store, chunks, packs, .. } => {
                let mut batch = store.batch();
                let mut in_batch = 0;
                for (key, row) in placed {
                    let known = if older == OlderRows::Kept { self.rows(&key)? } else { Vec::new() };
                    batch.put(chunks, &key.bytes(), encode_rows(&newest_first(row, &known)));
                    in_batch += 1;
                    if in_batch == BATCH_ROWS {
                        std::mem::replace(&mut batch, store.batch()).commit(Durability::Deferred)?;
                        in_batch = 0;
                    }
                }
                batch.put(packs, &pack.0.to_be_bytes(), encode_pack(&entry));
                batch.commit(durability)?;
            }
        }
        Ok(())
    }

    /// Removes a pack: the rows of `ids` that still lead to it, then its entry. Durable on return.
    ///
    /// A crash in between leaves a known pack whose dead frames are not found any more; the next prune
    /// removes it.
    pub(crate) fn remove_pack(
        &self,
        home: PackHome,
        pack: PackNumber,
        ids: &[[u8; 16]],
        rows: PackRows,
    ) -> Result<()> {
        for ids in ids.chunks(BATCH_ROWS) {
            // Look-ups of many ids read many blocks of the index.
            let known = match rows {
                PackRows::Sole => vec![vec![IndexRow { pack, slot: 0 }]; ids.len()],
                PackRows::BesideOthers => self.rows_of(home, ids)?,
            };
            let left = ids.iter().zip(known).filter_map(|(id, mut rows)| {
                let before = rows.len();
                rows.retain(|row| row.pack != pack);
                (rows.len() < before).then(|| (self.key(home, id), rows))
            });
            self.put_rows(&left.collect::<Vec<_>>())?;
        }
        self.remove_entry(pack)
    }

    /// Removes the entry of a pack: rows that still lead to it have no effect any more. Durable on return.
    pub(crate) fn remove_entry(&self, pack: PackNumber) -> Result<()> {
        self.cached.lock().remove(&pack);
        self.forget_damaged(pack)?;
        match &self.backend {
            IndexBackend::Memory(maps) => drop(maps.lock().packs.remove(&pack)),
            IndexBackend::Kv { store, packs, .. } => {
                let mut batch = store.batch();
                batch.delete(packs, &pack.0.to_be_bytes());
                batch.commit(Durability::Device)?;
            }
        }
        Ok(())
    }

    /// Removes the rows of some frames of a pack, given by slot and id. Durable with the next `sync`.
    /// # Errors
    /// `ChunkIndex(ReadOnly)` in a read-only store.
    pub(crate) fn remove_frames(
        &self,
        home: PackHome,
        pack: PackNumber,
        frames: &[(u32, [u8; 16])],
    ) -> Result<()> {
        for frames in frames.chunks(BATCH_ROWS) {
            let mut changed = Vec::new();
            for (slot, id) in frames {
                let key = self.key(home, id);
                let mut rows = self.rows(&key)?;
                let before = rows.len();
                rows.retain(|row| (row.pack, row.slot) != (pack, *slot));
                if rows.len() < before {
                    changed.push((key, rows));
                }
            }
            self.put_rows(&changed)?;
        }
        Ok(())
    }

    /// Sets the rows of ids; an id without rows is removed. Durable with the next `sync`, and never before earlier
    /// changes.
    fn put_rows(&self, changed: &[(RowKey, Vec<IndexRow>)]) -> Result<()> {
        if changed.is_empty() {
            return Ok(());
        }
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                for (key, rows) in changed {
                    match rows.is_empty() {
                        true => drop(maps.chunks.remove(key)),
                        false => drop(maps.chunks.insert(*key, rows.clone())),
                    }
                }
            }
            IndexBackend::Kv { store, chunks, .. } => {
                let mut batch = store.batch();
                for (key, rows) in changed {
                    match rows.is_empty() {
                        true => batch.delete(chunks, &key.bytes()),
                        false => batch.put(chunks, &key.bytes(), encode_rows(rows)),
                    };
                }
                batch.commit(Durability::Deferred)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` for each pack with an entry, ascending.
    pub(crate) fn for_each_pack(
        &self,
        mut visit: impl FnMut(PackNumber, PackEntry) -> Result<()>,
    ) -> Result<()> {
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let all: Vec<_> = maps.lock().packs.iter().map(|(&pack, &entry)| (pack, entry)).collect();
                all.into_iter().try_for_each(|(pack, entry)| visit(pack, entry))
            }
            IndexBackend::Kv { packs, .. } => {
                for item in packs.iter((Bound::Unbounded, Bound::Unbounded)) {
                    let (key, value) = item?;
                    if key.as_ref() == EPOCH || moved::is_note(key.as_ref()) {
                        continue;
                    }
                    let number =
                        key.as_ref().try_into().map(u64::from_be_bytes).map_err(|_| bad("a pack key"))?;
                    visit(PackNumber(number), decode_pack(&value)?)?;
                }
                Ok(())
            }
        }
    }

    /// The epoch in which exactly the existing packs have entries; `None`: the packs must be listed.
    pub(crate) fn epoch(&self) -> Result<Option<u64>> {
        let IndexBackend::Kv { packs, .. } = &self.backend else {
            return Ok(None);
        };
        let noted = packs.get(EPOCH)?;
        Ok(noted.and_then(|noted| noted.as_ref().try_into().map(u64::from_be_bytes).ok()))
    }

    /// Sets the result of [`ChunkIndex::epoch`]. Never durable before earlier changes.
    pub(crate) fn note_epoch(&self, epoch: u64) -> Result<()> {
        if let IndexBackend::Kv { store, packs, .. } = &self.backend {
            let mut batch = store.batch();
            batch.put(packs, EPOCH, Bytes::copy_from_slice(&epoch.to_be_bytes()));
            batch.commit(Durability::Deferred)?;
        }
        Ok(())
    }

    /// Removes everything except the notes of damage, which no footer holds.
    pub(crate) fn clear(&self) -> Result<()> {
        self.cached.lock().clear();
        match &self.backend {
            IndexBackend::Memory(maps) => {
                let mut maps = maps.lock();
                maps.chunks.clear();
                maps.packs.clear();
                maps.moved.clear();
            }
            IndexBackend::Kv { chunks, packs, .. } => {
                packs.purge_prefix(&[], Durability::Device)?;
                chunks.purge_prefix(&[], Durability::Device)?;
            }
        }
        Ok(())
    }

    /// Drops the cache: another handle may have changed the index.
    pub(crate) fn forget_cached(&self) {
        self.cached.lock().clear();
    }

    /// Makes all earlier changes durable.
    pub(crate) fn sync(&self) -> Result<()> {
        if let IndexBackend::Kv { store, .. } = &self.backend {
            store.sync()?;
        }
        Ok(())
    }
}
