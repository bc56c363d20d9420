//! Brings the index up to date with the packs there are: after a crash, after the cache was deleted, or
//! when a repository is opened without one.
//!
//! Packs the index does not know are entered from their footers; this is also how packs of a backup that
//! never finished are found again by the next one. Entries of packs that are gone are dropped.

use crate::catalog::record::PackPlace;
use crate::index::{Older, PackEntry};
use crate::packs::pack::PackNumber;
use crate::packs::pack_store::PackStore;
use crate::packs::volumes::{Home, for_each_file};
use crate::request::IndexSummary;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Stage};
use copal_kv::Durability;
use copal_volume::{FileInfo, VolumeId};
use uuid::Uuid;

/// One pack as it lies in its volume.
pub(crate) struct StoredPack {
    pub(crate) home: Home,
    pub(crate) volume: u32,
    pub(crate) vid: VolumeId,
    pub(crate) number: PackNumber,
    pub(crate) info: FileInfo,
}

impl StoredPack {
    /// Where it lies.
    pub(crate) fn place(&self) -> PackPlace {
        PackPlace { home: self.home, volume: self.volume, pack: self.number }
    }
}

/// Whose packs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// All there are.
    All,
    /// Those that belong to one VM.
    Vm(Uuid),
}

impl Whose {
    /// The homes there are, or may be.
    /// # Errors
    /// Those of the store.
    pub(crate) fn homes(self, pack_store: &PackStore) -> Result<Vec<Home>> {
        match self {
            Whose::All => pack_store.volumes.homes(),
            Whose::Vm(vm) => Ok(vec![Home::Private(vm), Home::Recipes(vm)]),
        }
    }

    /// The VM, if it is one.
    pub(crate) fn vm(self) -> Option<Uuid> {
        match self {
            Whose::All => None,
            Whose::Vm(vm) => Some(vm),
        }
    }

    fn has(self, home: Home) -> bool {
        match self {
            Whose::All => true,
            Whose::Vm(vm) => home.vm() == Some(vm),
        }
    }
}

/// Calls `visit` for each of these packs.
pub(crate) fn for_each_pack(
    pack_store: &PackStore,
    whose: Whose,
    mut visit: impl FnMut(StoredPack) -> Result<()>,
) -> Result<()> {
    let homes = whose.homes(pack_store)?;
    homes.into_iter().try_for_each(|home| for_each_pack_of(pack_store, home, &mut visit))
}

/// Calls `visit` for each pack of a home.
pub(crate) fn for_each_pack_of(
    pack_store: &PackStore,
    home: Home,
    mut visit: impl FnMut(StoredPack) -> Result<()>,
) -> Result<()> {
    for (volume, vid) in pack_store.volumes.numbers(home)? {
        for_each_file(&*pack_store.volumes.store, vid, b"", |name, info| {
            match PackNumber::from_file_name(name) {
                Some(number) => visit(StoredPack { home, volume, vid, number, info: info.clone() }),
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// Enters unknown packs and drops entries without a pack.
/// # Errors
/// `Cancelled`; those of the store and the index. A pack that cannot be read is counted, not an error.
pub(crate) fn reindex(
    pack_store: &PackStore,
    whose: Whose,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<IndexSummary> {
    let mut summary = IndexSummary::default();
    // Looked up before the packs are: one that a backup finishes meanwhile is in the index after it is in the
    // store, and is not taken for gone. 8 bytes per pack of 16 MiB here and below: half a megabyte per
    // terabyte stored.
    let mut known = Vec::new();
    pack_store.index.for_each_pack(|pack, entry| {
        if whose.has(entry.home) {
            known.push((pack, entry.home));
        }
        Ok(())
    })?;
    let mut present = Vec::new();
    let mut started = false;
    for_each_pack(pack_store, whose, |pack| {
        present.push(pack.number);
        if pack_store.index.pack(pack.number)?.is_some() {
            return Ok(());
        }
        if cancel.is_cancelled() {
            return Err(Error::Cancelled { kept_bytes: None });
        }
        if !started {
            progress.stage(Stage::Index, "", 0);
            started = true;
        }
        match enter(pack_store, pack.home, pack.volume, pack.number) {
            Ok(Some(rows)) => {
                summary.packs += 1;
                summary.rows += rows;
            }
            Ok(None) => return Ok(()),
            Err(error) if error.is_corruption() => {
                tracing::warn!(pack = %pack.number, %error, "not in the index");
                summary.damaged_packs += 1;
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        progress.advance(1);
        Ok(())
    })?;
    present.sort_unstable();
    known.retain(|(pack, _)| present.binary_search(pack).is_err());
    for (pack, home) in &known {
        pack_store.index.remove_pack(*home, *pack, std::iter::empty())?;
    }
    if summary.packs > 0 {
        pack_store.index.sync()?;
    }
    Ok(summary)
}

/// Enters a pack from its footer. Returns how many rows it has; `None`: it is not there.
/// # Errors
/// `Damaged`: its footer is. Those of the store and the index.
pub(crate) fn enter(
    pack_store: &PackStore,
    home: Home,
    volume: u32,
    number: PackNumber,
) -> Result<Option<u64>> {
    let Some((footer, _)) = pack_store.footer(home, volume, number)? else {
        return Ok(None);
    };
    let entry = PackEntry { home, volume, frames: footer.rows.len() as u32, file_bytes: footer.file_bytes };
    let ids = footer.rows.iter().map(|row| row.id);
    pack_store.index.add_pack(number, entry, ids, Older::Kept, Durability::Deferred)?;
    Ok(Some(footer.rows.len() as u64))
}
