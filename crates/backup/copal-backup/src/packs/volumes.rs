//! The volumes of a repository: what they are called, and opening them by number.
//!
//! | volume | holds |
//! |---|---|
//! | `cat-<domain>` | key slots, catalog logs |
//! | `pds-<domain>.<n>` | packs of chunks that VMs share |
//! | `vm-<uuid>.c<n>` | fleet: packs of chunks of one VM |
//! | `vm-<uuid>.<n>` | packs of recipes of one VM |
//! | `vm-<uuid>.meta` | manifests of one VM |
//!
//! A numbered volume is closed once it holds 4 GiB or 256 packs, and continued in the next number.

use crate::packs::pack::PackKind;
use crate::request::error::{Error, Result};
use copal_volume::{ReadOptions, VolumeError, VolumeId, VolumeOptions, VolumeStore};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use uuid::Uuid;

/// A numbered volume is continued in the next once it holds this much.
const CLOSED_AT_BYTES: u64 = 4 << 30;
/// Or this many packs: whoever looks how full it is looks at each.
const CLOSED_AT_PACKS: usize = 256;
/// Names asked for at once when listing.
const PAGE: usize = 1000;
/// Names asked for first: of most prefixes there are few, and behind those come others.
const FIRST_PAGE: usize = 4;

/// Whose packs, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Home {
    /// Chunks of the domain: in the layout solo all there are, in a fleet the popular ones.
    Shared,
    /// Chunks of one VM, which no other refers to.
    Private(Uuid),
    /// Recipes of one VM.
    Recipes(Uuid),
}

impl Home {
    pub(crate) fn kind(self) -> PackKind {
        match self {
            Home::Shared => PackKind::Shared,
            Home::Private(_) => PackKind::Private,
            Home::Recipes(_) => PackKind::Recipes,
        }
    }

    /// The VM all of it belongs to; `None`: the domain.
    pub(crate) fn vm(self) -> Option<Uuid> {
        match self {
            Home::Shared => None,
            Home::Private(vm) | Home::Recipes(vm) => Some(vm),
        }
    }

    /// Whether chunks lie there.
    pub(crate) fn has_chunks(self) -> bool {
        self.kind().has_chunks()
    }

    /// The home of packs of this kind; `vm` counts for those that belong to one.
    pub(crate) fn of(kind: PackKind, vm: Uuid) -> Home {
        match kind {
            PackKind::Shared => Home::Shared,
            PackKind::Private => Home::Private(vm),
            PackKind::Recipes => Home::Recipes(vm),
        }
    }

    /// The home that a volume is named after; `None` for the domain's and for volumes of other things.
    fn of_volume(name: &str) -> Option<Home> {
        let (vm, rest) = name.strip_prefix("vm-")?.split_once('.')?;
        let vm = Uuid::try_parse(vm).ok()?;
        match rest.strip_prefix('c') {
            Some(number) => number.parse::<u32>().ok().map(|_| Home::Private(vm)),
            // Manifests, too: a VM with nothing else is one that there is.
            None => Some(Home::Recipes(vm)),
        }
    }
}

/// Opens and makes the volumes of one domain.
pub(crate) struct Volumes {
    pub(crate) store: Arc<dyn VolumeStore>,
    pub(crate) domain: Uuid,
    open: Mutex<HashMap<(Home, u32), VolumeId>>,
}

impl Volumes {
    pub(crate) fn new(store: Arc<dyn VolumeStore>, domain: Uuid) -> Volumes {
        Volumes { store, domain, open: Mutex::new(HashMap::new()) }
    }

    fn prefix(&self, home: Home) -> String {
        match home {
            Home::Shared => format!("pds-{}.", self.domain.simple()),
            Home::Private(vm) => format!("vm-{}.c", vm.simple()),
            Home::Recipes(vm) => format!("vm-{}.", vm.simple()),
        }
    }

    fn name(&self, home: Home, number: u32) -> String {
        format!("{}{number}", self.prefix(home))
    }

    /// The volume, if it exists.
    pub(crate) fn find(&self, home: Home, number: u32) -> Result<Option<VolumeId>> {
        if let Some(&vid) = self.open.lock().get(&(home, number)) {
            return Ok(Some(vid));
        }
        match self.store.open_volume(&self.name(home, number)) {
            Ok(vid) => {
                self.remember(home, number, vid);
                Ok(Some(vid))
            }
            Err(VolumeError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Drops what is kept at hand: volumes may have been removed and made anew.
    pub(crate) fn forget_cached(&self) {
        self.open.lock().clear();
    }

    fn remember(&self, home: Home, number: u32, vid: VolumeId) {
        let mut open = self.open.lock();
        // Repositories of thousands of VMs must not keep them all: start over, it is only a shortcut.
        if open.len() >= 4096 {
            open.clear();
        }
        open.insert((home, number), vid);
    }

    /// The volume that takes the next pack: the newest, or a new one if that is full.
    pub(crate) fn current(&self, home: Home) -> Result<(u32, VolumeId)> {
        let newest = self.numbers(home)?.into_iter().max();
        if let Some((number, vid)) = newest {
            // How full it is need not be known to the last pack.
            let packs = self.store.list(vid, b"", None, CLOSED_AT_PACKS, &ReadOptions::default())?;
            let bytes: u64 = packs.iter().map(|(_, info)| info.size).sum();
            if packs.len() < CLOSED_AT_PACKS && bytes < CLOSED_AT_BYTES {
                return Ok((number, vid));
            }
            return self.make(home, number + 1);
        }
        self.make(home, 0)
    }

    fn make(&self, home: Home, number: u32) -> Result<(u32, VolumeId)> {
        let options = VolumeOptions::default();
        let vid = match self.store.create_volume("", &self.name(home, number), &options) {
            Ok(vid) => vid,
            Err(VolumeError::VolumeExists { vid }) => vid,
            Err(error) => return Err(error.into()),
        };
        self.remember(home, number, vid);
        Ok((number, vid))
    }

    /// All volumes of packs of this home, by number.
    pub(crate) fn numbers(&self, home: Home) -> Result<Vec<(u32, VolumeId)>> {
        let prefix = self.prefix(home);
        let mut found = Vec::new();
        for_each_volume(&*self.store, &prefix, |name, vid| {
            if let Some(number) = name.strip_prefix(&prefix).and_then(|text| text.parse().ok()) {
                found.push((number, vid));
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// All homes there are, the domain's first, whether or not the catalog knows their VMs.
    pub(crate) fn homes(&self) -> Result<Vec<Home>> {
        let mut homes = BTreeSet::from([Home::Shared]);
        for_each_volume(&*self.store, "vm-", |name, _| {
            homes.extend(Home::of_volume(name));
            Ok(())
        })?;
        Ok(homes.into_iter().collect())
    }

    /// Removes a volume of packs that holds none any more.
    pub(crate) fn remove_empty(&self, home: Home, number: u32, vid: VolumeId) -> Result<()> {
        self.open.lock().remove(&(home, number));
        match self.store.remove_volume(vid, copal_volume::Remove::IfEmpty) {
            Ok(()) | Err(VolumeError::NotEmpty | VolumeError::VolumeGone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The volume of a VM's manifests, made if `make`.
    pub(crate) fn meta(&self, vm: Uuid, make: bool) -> Result<Option<VolumeId>> {
        open_or_make(&*self.store, &format!("vm-{}.meta", vm.simple()), make)
    }
}

/// The volume of that name at the root, made if `make` and missing.
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

/// Calls `visit` for every volume at the root whose name begins with `prefix`, in order.
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
        limit = (limit * 4).min(PAGE);
        let Some((last, _)) = page.last() else {
            return Ok(());
        };
        after.clone_from(last);
        for (name, vid) in &page {
            if name.starts_with(prefix) {
                visit(name, *vid)?;
            } else if name.as_str() > prefix {
                return Ok(());
            }
        }
    }
}

/// Calls `visit` for every file of a volume, in order of names.
///
/// Strictly: callers decide by what is not there. An entry of the index goes when its pack is not shown, a
/// snapshot's vectors and manifests are gone for good when none is shown, a repair counts as leaked what no
/// pack that is shown holds.
pub(crate) fn for_each_file(
    store: &dyn VolumeStore,
    vid: VolumeId,
    prefix: &[u8],
    mut visit: impl FnMut(&[u8], &copal_volume::FileInfo) -> Result<()>,
) -> Result<()> {
    let mut after: Option<bytes::Bytes> = None;
    loop {
        let page = store.list(vid, prefix, after.as_deref(), PAGE, &ReadOptions::STRICT)?;
        for (name, info) in &page {
            visit(name, info)?;
        }
        match page.into_iter().last() {
            Some((name, _)) => after = Some(name),
            None => return Ok(()),
        }
    }
}

/// Settles a create whose outcome is unknown: `true` when the file is there.
pub(crate) fn settled(store: &dyn VolumeStore, vid: VolumeId, fid: copal_volume::FileId) -> Result<bool> {
    use copal_volume::{Outcome, Settle};
    match store.settle(vid, fid, Settle::Commit) {
        Ok(outcome) => Ok(outcome == Outcome::Committed),
        Err(error) => Err(Error::from(error)),
    }
}
