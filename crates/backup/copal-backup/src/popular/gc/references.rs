//! Counts the references of snapshots and lists of moved chunks to popular packs.

use crate::catalog::popular::{PopularFate, PopularPack, PopularState};
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::delete::mark::FrameMarks;
use crate::index::moved_frames;
use crate::packs::home::PackHome;
use crate::packs::pack::PackNumber;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use std::collections::{BTreeSet, HashMap};

/// Packs with a frame that a snapshot refers to, or that a list of moved chunks names. A condemned pack also
/// counts as needed if one of its chunks has a needed frame in another pack: one of the two frames may be
/// damaged.
/// # Errors
/// `Cancelled`; `Damaged`: the references cannot be read; errors of the store.
pub(super) fn needed(
    parts: &RepositoryParts,
    popular: &PopularState,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<BTreeSet<PackNumber>> {
    let pack_store = parts.pack_store();
    let mut present: Vec<PackNumber> = popular.packs.iter().map(|pack| pack.pack).collect();
    present.sort_unstable();
    let mut needed = BTreeSet::new();
    let condemned = ids_of(parts, popular)?;
    let mut marks = FrameMarks::of_others(pack_store, &present, condemned.clone())?;
    progress.stage(Stage::Walk, "", 0);
    for vm in parts.directory().all()? {
        loop {
            let state = parts.vm_state(vm.uuid)?;
            // The VM is being removed with all its data.
            if state.is_retired {
                break;
            }
            let walked = manifests(parts, &vm, &state).and_then(|all| marks.vm(&all, progress, cancel));
            match walked.and_then(|()| moved_packs(parts, &vm, &state, &condemned)) {
                Ok(moved) => {
                    needed.extend(moved);
                    break;
                }
                // A snapshot was freed during the walk. The marks for it only keep more.
                Err(error) if parts.is_overtaken(&error, vm.uuid, &state)? => {}
                Err(error) => return Err(error),
            }
        }
    }
    needed.extend(present.iter().filter(|pack| marks.live_frames(**pack) > 0));
    Ok(needed)
}

/// Packs to which chunks of the VM have moved, and condemned ones with a chunk that has moved.
fn moved_packs(
    parts: &RepositoryParts,
    vm: &Vm,
    state: &VmState,
    condemned: &HashMap<ShortId, PackNumber>,
) -> Result<Vec<PackNumber>> {
    let mut needed = Vec::new();
    for list in state.moved.iter().filter(|_| !broken::by(Flaw::CountsWithoutMoved)) {
        let moved = moved_frames::read(parts.pack_store(), vm.uuid, list)?;
        needed.extend(moved.packs().iter().map(|(pack, _)| *pack));
        needed.extend(moved.frames().iter().filter_map(|frame| condemned.get(&frame.id)));
    }
    Ok(needed)
}

/// Ids in condemned packs: of two popular frames of a chunk one may be damaged, and then the other one is
/// needed.
fn ids_of(parts: &RepositoryParts, popular: &PopularState) -> Result<HashMap<ShortId, PackNumber>> {
    let mut ids = HashMap::new();
    let condemned = |pack: &&PopularPack| matches!(pack.fate, PopularFate::Condemned(_));
    for pack in popular.packs.iter().filter(condemned) {
        match parts.pack_store().footer(PackHome::Shared, pack.volume, pack.pack) {
            Ok(Some((footer, _))) => ids.extend(footer.rows.iter().map(|row| (row.id, pack.pack))),
            Ok(None) => {}
            // A pack that cannot be read serves no reference.
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ids)
}

/// Manifests of all snapshots, oldest first, including forgotten ones. A session that opened behind the
/// record in its VM's log has the references of its base, which may be forgotten by now.
fn manifests(parts: &RepositoryParts, vm: &Vm, state: &VmState) -> Result<Vec<Manifest>> {
    let manifest = |published: &PublishedSnapshot| {
        parts.manifest(vm.uuid, published).map_err(|error| with_advice(error, published))
    };
    let forgotten = state.forgotten.iter().filter(|_| !broken::by(Flaw::CountsPublishedOnly));
    let mut all: Vec<&PublishedSnapshot> = state.published.iter().chain(forgotten).collect();
    all.sort_unstable_by_key(|one| one.sequence);
    all.into_iter().map(manifest).collect()
}

fn with_advice(error: Error, published: &PublishedSnapshot) -> Error {
    match error {
        Error::Damaged { what, detail } => Error::Damaged {
            what,
            detail: format!(
                "{detail}; its references are unknown, so no popular chunk was removed: run `copal forget {}` and `copal delete`, \
                 then repeat this command",
                published.snapshot.short()
            ),
        },
        error => error,
    }
}
