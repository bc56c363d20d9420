//! Brings the index up to date with the existing packs: after a crash, after the index was deleted, or when a
//! repository is opened without one.
//!
//! Packs that the index does not know are added from their footers. In this way a backup also finds the packs
//! of an earlier one that never finished. Entries of missing packs are dropped.

use crate::catalog::record::PackPlace;
use crate::index::{OlderRows, PackEntry};
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::packs::pack_store::{FOOTERS_AHEAD, PackStore};
use crate::packs::volumes::for_each_file;
use crate::request::IndexSummary;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use copal_kv::Durability;
use copal_volume::{FileInfo, VolumeId};
use uuid::Uuid;

/// A pack file in its volume.
pub(crate) struct StoredPack {
    pub(crate) home: PackHome,
    pub(crate) volume: u32,
    pub(crate) vid: VolumeId,
    pub(crate) number: PackNumber,
    pub(crate) info: FileInfo,
}

impl StoredPack {
    /// Its location.
    pub(crate) fn place(&self) -> PackPlace {
        PackPlace { home: self.home, volume: self.volume, pack: self.number }
    }
}

/// Scope of a walk over packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PackScope {
    /// All packs.
    All,
    /// The packs of one VM.
    Vm(Uuid),
}

impl PackScope {
    /// The homes in this scope; they may be empty.
    /// # Errors
    /// Errors of the store.
    pub(crate) fn homes(self, pack_store: &PackStore) -> Result<Vec<PackHome>> {
        match self {
            PackScope::All => pack_store.volumes.homes(),
            PackScope::Vm(vm) => Ok(vec![PackHome::Private(vm), PackHome::Recipes(vm)]),
        }
    }

    /// The VM, if the scope is one VM.
    pub(crate) fn vm(self) -> Option<Uuid> {
        match self {
            PackScope::All => None,
            PackScope::Vm(vm) => Some(vm),
        }
    }

    fn has(self, home: PackHome) -> bool {
        match self {
            PackScope::All => true,
            PackScope::Vm(vm) => home.vm() == Some(vm),
        }
    }
}

/// Calls `visit` for each pack in the scope.
pub(crate) fn for_each_pack(
    pack_store: &PackStore,
    whose: PackScope,
    mut visit: impl FnMut(StoredPack) -> Result<()>,
) -> Result<()> {
    let mut volumes = pack_store.volumes.of_packs(whose.vm())?.into_iter();
    volumes.try_for_each(|volume| for_each_pack_in(pack_store, volume, &mut visit))
}

/// Calls `visit` for each pack of a home.
pub(crate) fn for_each_pack_of(
    pack_store: &PackStore,
    home: PackHome,
    mut visit: impl FnMut(StoredPack) -> Result<()>,
) -> Result<()> {
    let mut volumes = pack_store.volumes.numbers(home)?.into_iter();
    volumes.try_for_each(|(number, vid)| for_each_pack_in(pack_store, (home, number, vid), &mut visit))
}

fn for_each_pack_in(
    pack_store: &PackStore,
    (home, volume, vid): (PackHome, u32, VolumeId),
    visit: &mut impl FnMut(StoredPack) -> Result<()>,
) -> Result<()> {
    for_each_file(&*pack_store.volumes.store, vid, b"", |name, info| match PackNumber::from_file_name(name) {
        Some(number) => visit(StoredPack { home, volume, vid, number, info: info.clone() }),
        None => Ok(()),
    })
}

/// Adds unknown packs and drops entries of missing packs.
/// # Errors
/// `Cancelled`; errors of the store and the index. An unreadable pack is counted and is no error.
pub(crate) fn reindex(
    pack_store: &PackStore,
    whose: PackScope,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<IndexSummary> {
    let mut summary = IndexSummary::default();
    // Known packs are listed before the stored ones. A pack that a backup finishes meanwhile enters the index
    // after the store, so it does not count as missing. 8 bytes per pack of 16 MiB here and below: half a
    // megabyte per terabyte stored.
    let mut known = Vec::new();
    pack_store.index.for_each_pack(|pack, entry| {
        if whose.has(entry.home) {
            known.push(pack);
        }
        Ok(())
    })?;
    let (mut present, mut unknown) = (Vec::new(), 0);
    for_each_pack(pack_store, whose, |pack| {
        present.push(pack.number);
        unknown += u64::from(pack_store.index.pack(pack.number)?.is_none());
        Ok(())
    })?;
    if unknown > 0 {
        progress.stage(Stage::Index, "", unknown);
        let mut unknown =
            UnknownPacks { pack_store, progress, cancel, packs: Vec::new(), summary: &mut summary };
        for_each_pack(pack_store, whose, |pack| match pack_store.index.pack(pack.number)? {
            Some(_) => Ok(()),
            None => unknown.add(pack),
        })?;
        unknown.enter_all()?;
    }
    present.sort_unstable();
    known.retain(|pack| present.binary_search(pack).is_err());
    for pack in &known {
        pack_store.index.remove_entry(*pack)?;
    }
    if summary.packs > 0 {
        pack_store.index.sync()?;
    }
    Ok(summary)
}

/// Packs that the index does not know. Their footers are read together.
struct UnknownPacks<'a> {
    pack_store: &'a PackStore,
    progress: &'a dyn Progress,
    cancel: &'a CancelFlag,
    packs: Vec<StoredPack>,
    summary: &'a mut IndexSummary,
}

impl UnknownPacks<'_> {
    fn add(&mut self, pack: StoredPack) -> Result<()> {
        self.packs.push(pack);
        if self.packs.len() < FOOTERS_AHEAD { Ok(()) } else { self.enter_all() }
    }

    fn enter_all(&mut self) -> Result<()> {
        let places = self.packs.iter().map(|pack| (pack.home, pack.volume, pack.number));
        self.pack_store.load_footers(places)?;
        for pack in self.packs.drain(..) {
            if self.cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            match enter(self.pack_store, pack.home, pack.volume, pack.number) {
                Ok(Some(rows)) => {
                    self.summary.packs += 1;
                    self.summary.rows += rows;
                    self.progress.advance(1);
                }
                Ok(None) => {}
                Err(error) if error.is_corruption() => {
                    tracing::warn!(pack = %pack.number, %error, "damaged pack left out of the index");
                    self.summary.damaged_packs += 1;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Adds a pack from its footer. Returns its number of rows; `None`: the pack is missing.
/// # Errors
/// `Damaged`: its footer is damaged. Errors of the store and the index.
pub(crate) fn enter(
    pack_store: &PackStore,
    home: PackHome,
    volume: u32,
    number: PackNumber,
) -> Result<Option<u64>> {
    let Some((footer, _)) = pack_store.footer(home, volume, number)? else {
        return Ok(None);
    };
    let entry = PackEntry { home, volume, frames: footer.rows.len() as u32, file_bytes: footer.file_bytes };
    let ids = footer.rows.iter().map(|row| row.id);
    pack_store.index.add_pack(number, entry, ids, OlderRows::Kept, Durability::Deferred)?;
    Ok(Some(footer.rows.len() as u64))
}
