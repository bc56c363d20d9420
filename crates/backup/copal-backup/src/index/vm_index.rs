//! Brings the index of one VM of a fleet up to date: adds its packs, maps moved chunks to popular frames,
//! removes dead frames.
//!
//! Design: docs/design/backup.md#clean-up BAK-22
//!
//! Any host may add or remove packs of the VM, so the VM's log is read each time. Another host may rewrite
//! packs or move chunks while this one reads. So a reader that finds no frame repeats the look-up if the log
//! has grown.

use crate::catalog::Catalog;
use crate::catalog::fields::DeadList;
use crate::catalog::vm::VmState;
use crate::index::IndexRow;
use crate::index::dead_frames::{self, DeadFrames};
use crate::index::moved_frames;
use crate::index::reindex::{self, PackScope};
use crate::packs::home::PackHome;
use crate::packs::pack_store::{IndexUpdates, PackStore};
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Progress, Silent};
use crate::steps::frames::is_in_use;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use uuid::Uuid;

/// State of the indexes of VMs in this handle.
pub(crate) struct VmIndex {
    catalog: Arc<Catalog>,
    known: Mutex<HashMap<Uuid, KnownIndex>>,
    /// Serializes readers that look once more.
    refresh_lock: Mutex<()>,
}

/// State of the index of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct KnownIndex {
    /// End of its log before its packs were listed.
    next_number: u64,
    /// The list whose dead frames were removed from the index; `None` inside: no frame was dead.
    removed_dead: Option<Option<DeadList>>,
}

impl VmIndex {
    pub(crate) fn new(catalog: Arc<Catalog>) -> VmIndex {
        VmIndex { catalog, known: Mutex::default(), refresh_lock: Mutex::new(()) }
    }

    /// Forgets all state, because the index was cleared.
    pub(crate) fn forget(&self) {
        self.known.lock().clear();
    }

    /// Adds packs and moved chunks; removes dead frames.
    /// # Errors
    /// `Damaged`: a list of moved or dead frames is damaged. Errors of the store and the index.
    pub(crate) fn index(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<()> {
        loop {
            let list = self.index_live_and_dead(pack_store, vm, progress, cancel)?;
            let is_left_out = |known: &KnownIndex| known.removed_dead == Some(list);
            if self.known.lock().get(&vm).is_some_and(is_left_out) {
                return Ok(());
            }
            let dead = match dead_frames::read(pack_store, vm, list.as_ref()) {
                // Another process has replaced the list and deleted the old one.
                Err(error) if error.is_corruption() && self.catalog.vm(vm)?.dead != list => continue,
                dead => dead?,
            };
            remove_dead_rows(pack_store, &dead)?;
            self.known.lock().entry(vm).or_default().removed_dead = Some(list);
            return Ok(());
        }
    }

    /// Adds packs and moved chunks; dead frames may be among them. Returns the list of dead frames.
    /// # Errors
    /// As [`VmIndex::index`].
    pub(crate) fn index_live_and_dead(
        &self,
        pack_store: &PackStore,
        vm: Uuid,
        progress: &dyn Progress,
        cancel: &CancelFlag,
    ) -> Result<Option<DeadList>> {
        // An earlier end than the present one only makes a reader look once more.
        let next_number = self.catalog.known_vm(vm)?.next_number;
        writable(reindex::reindex(pack_store, PackScope::Vm(vm), progress, cancel))?;
        self.known.lock().entry(vm).or_default().next_number = next_number;
        self.apply_moved_lists(pack_store, vm)
    }

    /// Maps the ids of moved chunks to the popular frames. Returns the list of dead frames that belongs to
    /// them.
    /// # Errors
    /// As [`VmIndex::index`].
    pub(crate) fn apply_moved_lists(&self, pack_store: &PackStore, vm: Uuid) -> Result<Option<DeadList>> {
        loop {
            let state = self.catalog.vm(vm)?;
            match writable(apply_lists(pack_store, vm, &state)) {
                // Another clean-up has replaced the lists and deleted the old ones.
                Err(error) if error.is_corruption() && self.catalog.vm(vm)?.moved != state.moved => {}
                led => return led.map(|()| state.dead),
            }
        }
    }
}

impl IndexUpdates for VmIndex {
    fn is_known(&self, vm: Uuid) -> bool {
        self.known.lock().contains_key(&vm)
    }

    fn catch_up(&self, pack_store: &PackStore, vm: Uuid) -> Result<()> {
        let _looking = self.refresh_lock.lock();
        let next_number = self.catalog.vm(vm)?.next_number;
        let is_known = |known: &KnownIndex| known.next_number == next_number;
        if self.known.lock().get(&vm).is_some_and(is_known) {
            return Ok(());
        }
        pack_store.forget_cached();
        self.index(pack_store, vm, &Silent, &CancelFlag::new())
    }
}

/// Applies the lists of moved frames that the index does not have.
fn apply_lists(pack_store: &PackStore, vm: Uuid, state: &VmState) -> Result<()> {
    let index = &pack_store.index;
    let entered = index.moved_lists(vm)?;
    let hashes: Vec<[u8; 32]> = state.moved.iter().map(|list| list.hash).collect();
    if entered == hashes {
        return Ok(());
    }
    for list in state.moved.iter().filter(|list| !entered.contains(&list.hash)) {
        let moved = moved_frames::read(pack_store, vm, list)?;
        for (pack, volume) in moved.packs() {
            if index.pack(pack)?.is_none()
                && reindex::enter(pack_store, PackHome::Shared, volume, pack)?.is_none()
            {
                tracing::warn!(%pack, "moved chunks lead to a missing pack");
            }
        }
        let frames = moved.frames().iter();
        let rows = frames.map(|frame| {
            let (pack, slot) = (frame.pack, frame.slot);
            (frame.id, IndexRow { pack, slot })
        });
        index.add_locations(PackHome::Private(vm), rows)?;
    }
    index.note_moved_lists(vm, &hashes)
}

/// Removes dead frames from the index.
/// # Errors
/// Errors of the store and the index.
pub(crate) fn remove_dead_rows(pack_store: &PackStore, dead: &DeadFrames) -> Result<()> {
    for (home, volume, pack) in dead.packs() {
        let footer = match pack_store.footer(home, volume, pack) {
            Ok(Some((footer, _))) => footer,
            Ok(None) => continue,
            Err(error) if error.is_corruption() => continue,
            Err(error) => return Err(error),
        };
        let rows = footer.rows.iter().zip(0..).filter(|(_, slot)| !is_in_use(dead, pack, *slot));
        let rows: Vec<(u32, [u8; 16])> = rows.map(|(row, slot)| (slot, row.id)).collect();
        writable(pack_store.index.remove_frames(home, pack, &rows))?;
    }
    Ok(())
}

/// Ignores that the store is open for reading only: the index then stays as it is.
fn writable<T: Default>(outcome: Result<T>) -> Result<T> {
    match outcome {
        Err(Error::Index(copal_kv::Error::ReadOnly)) => Ok(T::default()),
        outcome => outcome,
    }
}
