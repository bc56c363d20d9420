//! Checks the conditions that hold in every state of the model.
//!
//! Invariants
//! - Every chunk of a published snapshot is readable, unless bad memory of the host that backed up this VM
//!   has spoiled it.
//! - Dead and live never overlap: chunks stay readable without dead frames and without listed packs.
//! - One Publish per sequence; the order by the store's stamps is that of the log, even if the stamps are
//!   behind.
//! - The list of dead frames in force exists.
//! - After a repair the stored frames are exactly those referred to.
//! - Removing a VM touches no other VM: only its own snapshots may be missing.

use super::state::FleetState;
use super::store::ModelRef;
use crate::catalog::fields::DeadList;
use crate::catalog::popular::PopularFate;
use crate::catalog::vm::VmState;
use crate::index::dead_frames::DeadFrames;

/// Returns the violation, if there is one.
pub(super) fn check(state: &FleetState) -> Result<(), String> {
    for (vm, log) in state.vms.iter().enumerate() {
        check_log(vm, log)?;
        if log.is_retired {
            continue;
        }
        let is_stored = |list: &DeadList| state.store.dead.contains_key(&(vm, list.number));
        if !log.dead.as_ref().is_none_or(is_stored) {
            return Err(format!("the list of dead frames in force of VM {vm} is missing"));
        }
        let view = VmView { state, vm, log, dead: state.store.dead_of(vm, log.dead.as_ref()) };
        for published in &log.published {
            let snapshot = published.snapshot;
            let Some(manifest) = state.store.manifests.get(&snapshot) else {
                return Err(format!("snapshot {snapshot} of VM {vm} has no manifest"));
            };
            for reference in &manifest.refs {
                if !view.is_readable(*reference) {
                    return Err(format!(
                        "chunk {reference:?} of snapshot {snapshot} of VM {vm} cannot be read"
                    ));
                }
                if !view.is_firm(*reference) {
                    return Err(format!(
                        "chunk {reference:?} of snapshot {snapshot} of VM {vm} is dead, or about to be removed"
                    ));
                }
            }
        }
    }
    match state.unrepaired {
        None => Ok(()),
        Some(what) => Err(what.into()),
    }
}

fn check_log(vm: usize, log: &VmState) -> Result<(), String> {
    let ascends = |key: fn(&crate::catalog::vm::PublishedSnapshot) -> u64| {
        log.published.iter().is_sorted_by(|one, next| key(one) < key(next))
    };
    if log.open.len() > 1 {
        return Err(format!("two sessions of VM {vm} are open"));
    }
    if !ascends(|one| one.sequence) || !ascends(|one| one.stored_ms) {
        return Err(format!("two snapshots of VM {vm} have one sequence, or one time"));
    }
    Ok(())
}

/// A VM as its readers see it.
struct VmView<'a> {
    state: &'a FleetState,
    vm: usize,
    log: &'a VmState,
    dead: DeadFrames,
}

impl VmView<'_> {
    fn is_popular(&self, (id, pack): ModelRef) -> bool {
        let store = &self.state.store;
        let moved = store.moved_to(self.vm, self.log, id);
        let is_own_fault = store.shared(pack).is_some_and(|pack| pack.spoilt_by == Some(self.vm));
        is_own_fault || store.opens(pack, id) || moved.is_some_and(|popular| store.opens(popular, id))
    }

    fn is_readable(&self, reference: ModelRef) -> bool {
        let mut own = self.state.store.own(self.vm);
        self.is_popular(reference) || own.any(|(_, pack)| pack.slot(reference.0).is_some())
    }

    /// Whether the chunk stays readable after all pending removals.
    fn is_firm(&self, reference: ModelRef) -> bool {
        let stays = |pack| {
            let is_removed = self.log.removing.iter().any(|place| place.pack == pack);
            !is_removed && !self.state.store.doomed.contains(&pack)
        };
        let mut own = self.state.store.own(self.vm).filter(|(number, _)| stays(*number));
        let is_live =
            own.any(|(number, pack)| pack.slot(reference.0).is_some_and(|slot| !self.dead.has(number, slot)));
        // A pack that is marked as removed in the log may vanish at any time.
        let is_gone = |pack| {
            let known = self.state.popular.pack(pack);
            known.is_some_and(|known| known.fate == PopularFate::Removed)
        };
        let moved = self.state.store.moved_to(self.vm, self.log, reference.0);
        is_live || (self.is_popular(reference) && !is_gone(reference.1) && !moved.is_some_and(is_gone))
    }
}
