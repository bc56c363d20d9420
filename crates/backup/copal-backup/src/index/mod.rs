//! The chunk index: where is the frame of this id? Exact.
//!
//! Two maps: id (16 bytes) -> pack and slot (11 bytes), newest first where an id has several frames, and pack
//! -> what is known about it. In the layout solo there is one index for the whole repository. In a fleet each
//! VM has its own, and the domain another: ids stand behind the VM they are of, and a look-up names it, so
//! nobody finds, and refers to, what another VM may remove (BAK-16).
//! Invariants
//! - It holds nothing that the packs do not: it can be thrown away and built again from footers (BAK-9).
//! - A row is entered after its pack is durable and removed before its pack is deleted, so a row whose
//!   pack has an entry leads to a frame. A row without such a pack means nothing and is a miss.
//! - A frame that was found damaged leads nowhere any more (`damaged`), so the next backup stores its chunk
//!   anew (BAK-10).
//! - Memory is the engine's, which has a budget of its own.
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

use crate::packs::pack::{PackNumber, Spot};
use crate::packs::volumes::Home;
use crate::request::Layout;
use crate::request::error::Result;
use crate::rules::broken::{self, Flaw};
use bytes::Bytes;
use copal_kv::{Durability, Keyspace, KeyspaceOptions};
use parking_lot::Mutex;
use rows::{RowKey, bad, encode_pack, encode_rows, newest_first};
pub(crate) use rows::{decode_pack, decode_rows};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::atomic::AtomicBool;
use uuid::Uuid;

const CHUNKS: &str = "backup-chunks";
const PACKS: &str = "backup-packs";
/// Beside the packs: the epoch of the catalog all of whose packs have entries.
const EPOCH: &[u8] = b"epoch";
/// Rows of one batch to the engine.
const BATCH_ROWS: usize = 2048;
/// Packs whose entries are kept at hand.
const CACHED_PACKS: usize = 1024;

/// Where the chunk index lives. It holds nothing that the packs do not: delete it at will.
#[derive(Clone)]
pub enum IndexHome {
    /// In keyspaces of this engine, whose names begin with `backup-`.
    Kv(copal_kv::Store),
    /// In memory, built from pack footers at each open: for small repositories and read-only media.
    Memory,
}

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

impl PackEntry {
    /// Where a row of this pack leads.
    pub(crate) fn spot(&self, row: IndexRow) -> Spot {
        Spot { home: self.home, volume: self.volume, pack: row.pack, slot: row.slot }
    }
}

/// The index of an open repository; shared between threads.
pub(crate) struct Index {
    backend: Backend,
    /// Whether each VM has an index of its own.
    is_scoped: bool,
    /// Entries of packs asked for lately.
    cached: Mutex<HashMap<PackNumber, PackEntry>>,
    /// Whether any frame is noted as damaged.
    has_damaged: AtomicBool,
}

enum Backend {
    Kv {
        store: copal_kv::Store,
        chunks: Keyspace,
        packs: Keyspace,
        /// Notes of damage; `None` in a store that is open for reading and has none.
        damaged: Option<Keyspace>,
    },
    Memory(Mutex<Maps>),
}

#[derive(Default)]
struct Maps {
    chunks: HashMap<RowKey, Vec<IndexRow>>,
    packs: BTreeMap<PackNumber, PackEntry>,
    damaged: BTreeSet<(PackNumber, u32)>,
    moved: HashMap<Uuid, Vec<[u8; 32]>>,
}

/// What becomes of the rows that the ids of a new pack have already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Older {
    /// They go: whoever writes the pack has seen to their frames, or knows that there are none.
    Replaced,
    /// They stay behind the new ones: a pack was found, and nobody knows which frame is the better one.
    Kept,
}

impl Index {
    pub(crate) fn open(home: &IndexHome, layout: Layout) -> Result<Index> {
        let backend = match home {
            IndexHome::Memory => Backend::Memory(Mutex::new(Maps::default())),
            IndexHome::Kv(store) => {
                let open = |name| store.keyspace(name, KeyspaceOptions::default());
                Backend::Kv {
                    chunks: open(CHUNKS)?,
                    packs: open(PACKS)?,
                    damaged: damaged::keyspace(store)?,
                    store: store.clone(),
                }
            }
        };
        let index = Index {
            backend,
            is_scoped: layout.is_fleet(),
            cached: Mutex::new(HashMap::new()),
            has_damaged: AtomicBool::new(false),
        };
        index.look_for_damaged()?;
        Ok(index)
    }

    /// What the rows of an id are found by, among what lies in this home.
    fn key(&self, home: Home, id: &[u8; 16]) -> RowKey {
        RowKey {
            vm: (self.is_scoped && !broken::by(Flaw::OneIndex)).then(|| home.vm().unwrap_or_default()),
            id: *id,
        }
    }

    /// The newest place of an id whose pack has an entry.
    pub(crate) fn find(&self, home: Home, id: &[u8; 16]) -> Result<Option<(IndexRow, PackEntry)>> {
        Ok(self.places(home, id)?.into_iter().next())
    }

    /// All places of an id whose packs have an entry, newest first.
    pub(crate) fn places(&self, home: Home, id: &[u8; 16]) -> Result<Vec<(IndexRow, PackEntry)>> {
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

    /// The rows of many ids, in their order, each newest first. The engine reads their blocks side by side.
    pub(crate) fn rows_of(&self, home: Home, ids: &[[u8; 16]]) -> Result<Vec<Vec<IndexRow>>> {
        let keys = ids.iter().map(|id| self.key(home, id));
        let Backend::Kv { chunks, .. } = &self.backend else {
            return keys.map(|key| self.rows(&key)).collect();
        };
        let keys: Vec<Vec<u8>> = keys.map(|key| key.bytes().to_vec()).collect();
        let decode = |value: std::result::Result<Option<Bytes>, copal_kv::Error>| match value? {
            Some(value) => decode_rows(&value),
            None => Ok(Vec::new()),
        };
        chunks.multi_get(&keys).into_iter().map(decode).collect()
    }

    fn rows(&self, key: &RowKey) -> Result<Vec<IndexRow>> {
        match &self.backend {
            Backend::Memory(maps) => Ok(maps.lock().chunks.get(key).cloned().unwrap_or_default()),
            Backend::Kv { chunks, .. } => match chunks.get(&key.bytes())? {
                Some(value) => decode_rows(&value),
                None => Ok(Vec::new()),
            },
        }
    }

    /// How many frames of each pack are the only ones of their ids that are known. A pack of whose frames all
    /// are is led to by nothing but its own place. `vm`: in a fleet, whose index.
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
            Backend::Memory(maps) => {
                let maps = maps.lock();
                let of_vm = maps.chunks.iter().filter(|(key, _)| key.bytes().starts_with(prefix));
                of_vm.for_each(|(_, rows)| count(rows));
            }
            Backend::Kv { chunks, .. } => {
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

    /// Enters a durable pack and its rows, but for those of frames that are noted as damaged.
    ///
    /// The pack's entry comes last: a crash in between leaves rows that mean nothing.
    pub(crate) fn add_pack(
        &self,
        pack: PackNumber,
        entry: PackEntry,
        ids: impl Iterator<Item = [u8; 16]>,
        older: Older,
        durability: Durability,
    ) -> Result<()> {
        let damaged = self.damaged_slots(pack)?;
        let placed = ids.zip(0..).map(|(id, slot)| (self.key(entry.home, &id), IndexRow { pack, slot }));
        let placed = placed.filter(|(_, row)| !damaged.contains(&row.slot));
        match &self.backend {
            Backend::Memory(maps) => {
                let mut maps = maps.lock();
                for (key, row) in placed {
                    let known = maps.chunks.entry(key).or_default();
                    *known = newest_first(row, if older == Older::Kept { known } else { &[] });
                }
                maps.packs.insert(pack, entry);
            }
            Backend::Kv { store, chunks, packs, .. } => {
                let mut batch = store.batch();
                let mut in_batch = 0;
                for (key, row) in placed {
                    let known = if older == Older::Kept { self.rows(&key)? } else { Vec::new() };
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

    /// Forgets a pack: those of its rows that still lead to it, then its entry. Durable on return.
    ///
    /// A crash in between leaves a known pack whose dead frames are not found any more, which is what the
    /// next prune removes.
    pub(crate) fn remove_pack(
        &self,
        home: Home,
        pack: PackNumber,
        ids: impl Iterator<Item = [u8; 16]>,
    ) -> Result<()> {
        self.cached.lock().remove(&pack);
        self.forget_damaged(pack)?;
        let others = |rows: &[IndexRow]| -> Vec<IndexRow> {
            rows.iter().copied().filter(|row| row.pack != pack).collect()
        };
        match &self.backend {
            Backend::Memory(maps) => {
                let mut maps = maps.lock();
                maps.packs.remove(&pack);
                for id in ids {
                    let key = self.key(home, &id);
                    let left = maps.chunks.get(&key).map(|rows| others(rows));
                    match left {
                        Some(left) if left.is_empty() => drop(maps.chunks.remove(&key)),
                        Some(left) => drop(maps.chunks.insert(key, left)),
                        None => {}
                    }
                }
            }
            Backend::Kv { store, chunks, packs, .. } => {
                let mut batch = store.batch();
                let mut in_batch = 0;
                for id in ids {
                    let key = self.key(home, &id);
                    let rows = self.rows(&key)?;
                    let left = others(&rows);
                    if left.len() == rows.len() {
                        continue;
                    }
                    match left.is_empty() {
                        true => batch.delete(chunks, &key.bytes()),
                        false => batch.put(chunks, &key.bytes(), encode_rows(&left)),
                    };
                    in_batch += 1;
                    if in_batch == BATCH_ROWS {
                        std::mem::replace(&mut batch, store.batch()).commit(Durability::Deferred)?;
                        in_batch = 0;
                    }
                }
                batch.delete(packs, &pack.0.to_be_bytes());
                batch.commit(Durability::Device)?;
            }
        }
        Ok(())
    }

    /// Forgets some frames of a pack: their slots and ids. Durable with the next `sync`.
    /// # Errors
    /// `Index(ReadOnly)` where nothing can be changed.
    pub(crate) fn remove_frames(
        &self,
        home: Home,
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
            match &self.backend {
                Backend::Memory(maps) => {
                    let mut maps = maps.lock();
                    for (key, rows) in changed {
                        match rows.is_empty() {
                            true => drop(maps.chunks.remove(&key)),
                            false => drop(maps.chunks.insert(key, rows)),
                        }
                    }
                }
                Backend::Kv { store, chunks, .. } => {
                    let mut batch = store.batch();
                    for (key, rows) in &changed {
                        match rows.is_empty() {
                            true => batch.delete(chunks, &key.bytes()),
                            false => batch.put(chunks, &key.bytes(), encode_rows(rows)),
                        };
                    }
                    if !changed.is_empty() {
                        batch.commit(Durability::Deferred)?;
                    }
                }
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
                let all: Vec<_> = maps.lock().packs.iter().map(|(&pack, &entry)| (pack, entry)).collect();
                all.into_iter().try_for_each(|(pack, entry)| visit(pack, entry))
            }
            Backend::Kv { packs, .. } => {
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

    /// The epoch whose packs all have entries, and nobody else has; `None`: look at the packs.
    pub(crate) fn epoch(&self) -> Result<Option<u64>> {
        let Backend::Kv { packs, .. } = &self.backend else {
            return Ok(None);
        };
        let noted = packs.get(EPOCH)?;
        Ok(noted.and_then(|noted| noted.as_ref().try_into().map(u64::from_be_bytes).ok()))
    }

    /// Notes what [`Index::epoch`] answers. Never durable before what was entered until now.
    pub(crate) fn note_epoch(&self, epoch: u64) -> Result<()> {
        if let Backend::Kv { store, packs, .. } = &self.backend {
            let mut batch = store.batch();
            batch.put(packs, EPOCH, Bytes::copy_from_slice(&epoch.to_be_bytes()));
            batch.commit(Durability::Deferred)?;
        }
        Ok(())
    }

    /// Throws everything away but what is known of damage, which no footer tells.
    pub(crate) fn clear(&self) -> Result<()> {
        self.cached.lock().clear();
        match &self.backend {
            Backend::Memory(maps) => {
                let mut maps = maps.lock();
                maps.chunks.clear();
                maps.packs.clear();
                maps.moved.clear();
            }
            Backend::Kv { chunks, packs, .. } => {
                packs.purge_prefix(&[], Durability::Device)?;
                chunks.purge_prefix(&[], Durability::Device)?;
            }
        }
        Ok(())
    }

    /// Drops what is kept at hand: another handle may have changed it.
    pub(crate) fn forget_cached(&self) {
        self.cached.lock().clear();
    }

    /// What was entered so far survives a crash.
    pub(crate) fn sync(&self) -> Result<()> {
        if let Backend::Kv { store, .. } = &self.backend {
            store.sync()?;
        }
        Ok(())
    }
}
