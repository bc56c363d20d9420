//! Which popular packs somebody needs.

use crate::catalog::popular::{Fate, PopularPack, PopularState};
use crate::catalog::vm::{Published, VmState};
use crate::delete::mark::Marks;
use crate::index::moved_frames;
use crate::packs::pack::PackNumber;
use crate::packs::volumes::Home;
use crate::request::Vm;
use crate::request::error::{Error, Result};
use crate::request::peers::ShortId;
use crate::request::progress::{CancelFlag, Progress, Stage};
use crate::rules::broken::{self, Flaw};
use crate::sessions::parts::Parts;
use crate::snapshot::manifest::Manifest;
use std::collections::{BTreeSet, HashMap};

/// Packs that have a frame to which a snapshot refers, or to which a chunk has moved; of those that are
/// condemned, also where that chunk has another frame.
/// # Errors
/// `Cancelled`; `Damaged`: what is needed cannot be told; those of the store.
pub(super) fn needed(
    parts: &Parts,
    popular: &PopularState,
    progress: &dyn Progress,
    cancel: &CancelFlag,
) -> Result<BTreeSet<PackNumber>> {
    let pack_store = parts.pack_store();
    let mut present: Vec<PackNumber> = popular.packs.iter().map(|pack| pack.pack).collect();
    present.sort_unstable();
    let mut needed = BTreeSet::new();
    let condemned = ids_of(parts, popular)?;
    let mut marks = Marks::of_others(pack_store, &present, condemned.clone())?;
    progress.stage(Stage::Walk, "", 0);
    for vm in parts.directory().all()? {
        let state = parts.vm_state(vm.uuid)?;
        // It goes with all that it has.
        if state.is_retired {
            continue;
        }
        marks.vm(&manifests(parts, &vm, &state)?, progress, cancel)?;
        for list in &state.moved {
            if broken::by(Flaw::CountsWithoutMoved) {
                break;
            }
            let moved = moved_frames::read(pack_store, vm.uuid, list)?;
            needed.extend(moved.packs().iter().map(|(pack, _)| *pack));
            needed.extend(moved.frames().iter().filter_map(|frame| condemned.get(&frame.id)));
        }
    }
    needed.extend(present.iter().filter(|pack| marks.live_frames(**pack) > 0));
    Ok(needed)
}

/// Ids of the packs that are condemned: of two popular frames of a chunk one may be damaged, and then the
/// other one is needed.
fn ids_of(parts: &Parts, popular: &PopularState) -> Result<HashMap<ShortId, PackNumber>> {
    let mut ids = HashMap::new();
    let condemned = |pack: &&PopularPack| matches!(pack.fate, Fate::Condemned(_));
    for pack in popular.packs.iter().filter(condemned) {
        match parts.pack_store().footer(Home::Shared, pack.volume, pack.pack) {
            Ok(Some((footer, _))) => ids.extend(footer.rows.iter().map(|row| (row.id, pack.pack))),
            Ok(None) => {}
            // Nobody is led to it.
            Err(error) if error.is_corruption() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ids)
}

/// Of all snapshots, oldest first, forgotten ones too: a session that opened behind the record in its VM's
/// log has what its base has, and that may be forgotten by now.
fn manifests(parts: &Parts, vm: &Vm, state: &VmState) -> Result<Vec<Manifest>> {
    let manifest =
        |published: &Published| parts.manifest(vm.uuid, published).map_err(|error| told(error, published));
    let forgotten = state.forgotten.iter().filter(|_| !broken::by(Flaw::CountsPublishedOnly));
    let mut all: Vec<&Published> = state.published.iter().chain(forgotten).collect();
    all.sort_unstable_by_key(|one| one.sequence);
    all.into_iter().map(manifest).collect()
}

fn told(error: Error, published: &Published) -> Error {
    match error {
        Error::Damaged { what, detail } => Error::Damaged {
            what,
            detail: format!(
                "{detail}; what it needs is not known, so no popular chunk was removed: `copal forget {}` and `copal delete` let \
                 that go on",
                published.snapshot.short()
            ),
        },
        error => error,
    }
}
