//! Rules of the garbage collection of popular packs: which packs are condemned, spared and removed.
//!
//! The functions are pure: `popular::gc` reads the logs and appends the records.
//!
//! BAK-27: a popular pack is removed only if three conditions hold, in this order:
//! - A record in the log of popular packs has condemned the pack.
//! - All sessions that were open at that time have ended. A session that opens later has read the record, and
//!   so has a clean-up that gives up frames later. Neither adds a reference to the pack.
//! - A count of all references, begun after that, found none to the pack.
//!
//! Crash: a pack stays condemned and readable until a later run decides.

use crate::catalog::fields::SessionId;
use crate::catalog::popular::{PopularFate, PopularState};
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::vm::VmState;
use crate::packs::pack::PackNumber;
use crate::rules::broken::{self, Flaw};
use std::collections::{BTreeMap, BTreeSet};

/// Most packs condemned at once: a count keeps their ids in memory, and one record lists them.
pub(crate) const MOST_CONDEMNED: usize = 256;

/// The packs that may be condemned: those without a known reference.
pub(crate) fn condemnable(state: &PopularState, needed: &BTreeSet<PackNumber>) -> Vec<PackNumber> {
    let stays = state.packs.iter().filter(|pack| pack.fate == PopularFate::Stays && !pack.is_removed());
    let unneeded = stays.filter(|pack| !needed.contains(&pack.pack));
    unneeded.map(|pack| pack.pack).collect()
}

/// Obstacles to a count of a VM's references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CountStep {
    /// The VM is being removed with all its data, so it has no references.
    Retired,
    /// A record is to be appended behind everything that was read. These sessions may refer to packs that
    /// were condemned before it.
    Append { open: Vec<SessionId> },
}

/// Whether the references of the VM count, and which sessions must end before the count.
pub(crate) fn counting(state: &VmState) -> CountStep {
    match state.is_retired {
        true => CountStep::Retired,
        false => CountStep::Append {
            open: match broken::by(Flaw::CountsBesideSessions) {
                true => Vec::new(),
                false => state.open.clone(),
            },
        },
    }
}

/// The next record after a count: it spares needed packs, or marks the others as removed. `None`: no pack is
/// left to decide about. `condemned`: the packs that were condemned before the count began, each with the
/// number of the record that condemned it. A pack whose state has changed meanwhile is left alone.
pub(crate) fn verdict(
    state: &PopularState,
    condemned: &BTreeMap<PackNumber, u64>,
    needed: &BTreeSet<PackNumber>,
) -> Option<Record> {
    let still = |pack: &PackNumber, at: u64| {
        let known = state.pack(*pack);
        known.is_some_and(|known| known.fate == PopularFate::Condemned(at))
    };
    let of = |is_needed: bool| -> Vec<PackNumber> {
        let packs = condemned
            .iter()
            .filter(|(pack, at)| still(pack, **at))
            .filter(|(pack, _)| needed.contains(pack) == is_needed);
        packs.map(|(pack, _)| *pack).take(MAX_LISTED).collect()
    };
    match (of(true), of(false)) {
        (spared, gone) if spared.is_empty() && gone.is_empty() => None,
        (spared, gone) if spared.is_empty() => Some(Record::Gone { packs: gone }),
        (spared, _) => Some(Record::Spared { packs: spared }),
    }
}
