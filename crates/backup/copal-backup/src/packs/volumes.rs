//! The volumes of a repository: names, creation, listing.
//!
//! | volume | holds |
//! |---|---|
//! | `cat-<domain>` | key slots, catalog logs |
//! | `pds-<domain>.<n>` | packs of chunks that VMs share |
//! | `vm-<uuid>.c<n>` | fleet: packs of chunks of one VM |
//! | `vm-<uuid>.<n>` | packs of recipes of one VM |
//! | `vm-<uuid>.meta` | manifests of one VM |
//!
//! A numbered volume is full once it holds 4 GiB or 256 packs; the next pack goes to the next number.

use crate::packs::home::PackHome;
use crate::request::error::{Error, Result};
use copal_volume::{ReadOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// Bytes from which a numbered volume is full.
const CLOSED_AT_BYTES: u64 = 4 << 30;
/// Packs from which a numbered volume is full. The check lists the packs, so their number is bounded.
const CLOSED_AT_PACKS: usize = 256;
/// Names in one page of a listing.
const PAGE: usize = 1000;
/// Names in the first page: most prefixes have few volumes, and names of other prefixes follow.
const FIRST_PAGE: usize = 4;

/// Opens and creates the volumes of one domain.
pub(crate) struct RepositoryVolumes {
    pub(crate) store: Arc<dyn VolumeStore>,
    pub(crate) domain: Uuid,
    open: Mutex<HashMap<VolumeRole, VolumeId>>,
}

/// Use of a volume of the domain.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum VolumeRole {
    Packs(PackHome, u32),
    Manifests(Uuid),
}

impl RepositoryVolumes {
    pub(crate) fn new(store: Arc<dyn VolumeStore>, domain: Uuid) -> RepositoryVolumes {
        RepositoryVolumes { store, domain, open: Mutex::new(HashMap::new()) }
    }

    fn prefix(&self, home: PackHome) -> String {
        match home {
            PackHome::Shared => format!("pds-{}.", self.domain.simple()),
            PackHome::Private(vm) => format!("vm-{}.c", vm.simple()),
            PackHome::Recipes(vm) => format!("vm-{}.", vm.simple()),
        }
    }

    fn name(&self, home: PackHome, number: u32) -> String {
        format!("{}{number}", self.prefix(home))
    }

    /// The volume, if it exists.
    pub(crate) fn find(&self, home: PackHome, number: u32) -> Result<Option<VolumeId>> {
        if let Some(&vid) = self.open.lock().get(&VolumeRole::Packs(home, number)) {
            return Ok(Some(vid));
        }
        match self.store.open_volume(&self.name(home, number)) {
            Ok(vid) => {
                self.remember(VolumeRole::Packs(home, number), vid);
                Ok(Some(vid))
            }
            Err(VolumeError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Drops cached volume ids: volumes may have been removed and created again.
    pub(crate) fn forget_cached(&self) {
        self.open.lock().clear();
    }

    fn remember(&self, role: VolumeRole, vid: VolumeId) {
        let mut open = self.open.lock();
        // A repository may have thousands of VMs, so the cache is bounded; it is only a shortcut.
        if open.len() >= 4096 {
            open.clear();
        }
        open.insert(role, vid);
    }

    /// The volume for the next pack: the newest, or a new one if that is full.
    pub(crate) fn current(&self, home: PackHome) -> Result<(u32, VolumeId)> {
        let newest = self.numbers(home)?.into_iter().max();
        if let Some((number, vid)) = newest {
            // An estimate is enough: a volume may hold a few packs more.
            let packs = self.store.list(vid, b"", None, CLOSED_AT_PACKS, &ReadOptions::default())?;
            let bytes: u64 = packs.iter().map(|(_, info)| info.size).sum();
            if packs.len() < CLOSED_AT_PACKS && bytes < CLOSED_AT_BYTES {
                return Ok((number, vid));
            }
            return self.make(home, number + 1);
        }
        self.make(home, 0)
    }

    fn make(&self, home: PackHome, number: u32) -> Result<(u32, VolumeId)> {
        let options = VolumeOptions::default();
        let vid = match self.store.create_volume("", &self.name(home, number), &options) {
            Ok(vid) => vid,
            Err(VolumeError::VolumeExists { vid }) => vid,
            Err(error) => return Err(error.into()),
        };
        self.remember(VolumeRole::Packs(home, number), vid);
        Ok((number, vid))
    }

    /// All volumes of packs of this home, by number.
    pub(crate) fn numbers(&self, home: PackHome) -> Result<Vec<(u32, VolumeId)>> {
        let prefix = self.prefix(home);
        let mut found = Vec::new();
        for_each_volume(&*self.store, &prefix, |name, vid| {
            if let Some(number) = name.strip_prefix(&prefix).and_then(|text| text.parse().ok()) {
                self.remember(VolumeRole::Packs(home, number), vid);
                found.push((number, vid));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// All volumes of packs of a VM, or of the repository, in the order of homes and numbers; one listing shows all volumes
    /// of VMs.
    pub(crate) fn of_packs(&self, vm: Option<Uuid>) -> Result<Vec<(PackHome, u32, VolumeId)>> {
        let mut found = Vec::new();
        if vm.is_none() {
            let shared = self.numbers(PackHome::Shared)?;
            found.extend(shared.into_iter().map(|(number, vid)| (PackHome::Shared, number, vid)));
        }
        let prefix = vm.map_or_else(|| "vm-".to_owned(), |vm| format!("vm-{}.", vm.simple()));
        for_each_volume(&*self.store, &prefix, |name, vid| {
            let home = PackHome::of_volume(name);
            let number = home.and_then(|home| name.strip_prefix(&self.prefix(home))?.parse().ok());
            if let Some((home, number)) = home.zip(number) {
                self.remember(VolumeRole::Packs(home, number), vid);
                found.push((home, number, vid));
            }
            Ok(())
        })?;
        found.sort_unstable_by_key(|(home, number, _)| (*home, *number));
        Ok(found)
    }

    /// All homes that have volumes, the shared one first, whether or not the catalog knows their VMs.
    pub(crate) fn homes(&self) -> Result<Vec<PackHome>> {
        let mut homes = BTreeSet::from([PackHome::Shared]);
        for_each_volume(&*self.store, "vm-", |name, _| {
            homes.extend(PackHome::of_volume(name));
            Ok(())
        })?;
        Ok(homes.into_iter().collect())
    }

    /// Removes a volume of packs if it is empty.
    pub(crate) fn remove_empty(&self, home: PackHome, number: u32, vid: VolumeId) -> Result<()> {
        self.open.lock().remove(&VolumeRole::Packs(home, number));
        match self.store.remove_volume(vid, copal_volume::RemoveMode::IfEmpty) {
            Ok(()) | Err(VolumeError::NotEmpty | VolumeError::VolumeGone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The volume of a VM's manifests, created if it is missing and `make` is set.
    pub(crate) fn meta(&self, vm: Uuid, make: bool) -> Result<Option<VolumeId>> {
        let role = VolumeRole::Manifests(vm);
        // A writer looks again: the VM may have been removed and added anew.
        if !make && let Some(&vid) = self.open.lock().get(&role) {
            return Ok(Some(vid));
        }
        let found = open_or_make(&*self.store, &format!("vm-{}.meta", vm.simple()), make)?;
        if let Some(vid) = found {
            self.remember(role, vid);
        }
        Ok(found)
    }
}

/// The volume of that name at the root, created if it is missing and `make` is set.
pub(crate) fn open_or_make(store: &dyn VolumeStore, name: &str, make: bool) -> Result<Option<VolumeId>> {
    match store.open_volume(name) {
        Ok(vid) => Ok(Some(vid)),
        Err(VolumeError::NotFound) if make => {
            // Without the catalog and its key slots nothing else can be read.
            let options =
                VolumeOptions { spare_copies: name.starts_with("cat-"), ..VolumeOptions::default() };
            match store.create_volume("", name, &options) {
                Ok(vid) | Err(VolumeError::VolumeExists { vid }) => Ok(Some(vid)),
                Err(error) => Err(error.into()),
            }
        }
        Err(VolumeError::NotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Calls `visit` for each volume at the root whose name begins with `prefix`, in order of names.
pub(crate) fn for_each_volume(
    store: &dyn VolumeStore,
    prefix: &str,
    mut visit: impl FnMut(&str, VolumeId) -> Result<()>,
) -> Result<()> {
    // Names ascend bytewise, so the walk starts just below the prefix and ends with it.
    let mut after = prefix.to_owned();
    after.pop();
    let mut limit = FIRST_PAGE;
    loop {
        let page = store.list_volumes(
            "",
            Some(&after).filter(|name| !name.is_empty()).map(String::as_str),
            limit,
        )?;
        let is_last = page.len() < limit;
        limit = (limit * 4).min(PAGE);
        for (name, vid) in &page {
            if name.starts_with(prefix) {
                visit(name, *vid)?;
            } else if name.as_str() > prefix {
                return Ok(());
            }
        }
        match page.into_iter().last() {
            Some((last, _)) if !is_last => after = last,
            _ => return Ok(()),
        }
    }
}

/// Calls `visit` for each file of a volume, in order of names.
///
/// The listing is strict, because callers act on absence:
/// - A pack that is not listed is removed from the index.
/// - Vectors and manifests of a snapshot that are not listed count as removed for good.
/// - A repair counts a frame as leaked if no listed pack holds it.
pub(crate) fn for_each_file(
    store: &dyn VolumeStore,
    vid: VolumeId,
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &copal_volume::FileInfo) -> Result<()>,
) -> Result<()> {
    let mut after: Option<bytes::Bytes> = None;
    loop {
        let page = store.list_page(vid, prefix, after.as_deref(), PAGE, &ReadOptions::STRICT)?;
        for (name, info) in &page.files {
            visit(name, info)?;
        }
        match page.files.into_iter().last() {
            Some((name, _)) if !page.is_last => after = Some(name),
            _ => return Ok(()),
        }
    }
}

/// Settles a create whose outcome is unknown: `true` if the file exists.
pub(crate) fn settled(store: &dyn VolumeStore, vid: VolumeId, fid: copal_volume::FileId) -> Result<bool> {
    use copal_volume::{SettleChoice, SettleOutcome};
    match store.settle(vid, fid, SettleChoice::Commit) {
        Ok(outcome) => Ok(outcome == SettleOutcome::Committed),
        Err(error) => Err(Error::from(error)),
    }
}
