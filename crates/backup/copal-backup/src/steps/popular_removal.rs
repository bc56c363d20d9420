//! Popular packs that nobody needs any more: who may decide that, and when.
//!
//! - BAK-27: a pack goes once it was condemned, all sessions that were open then have ended, and a count of
//!   all that is needed, begun behind that, has not met it. Whoever opens a session, or gives up frames of a
//!   VM, behind a condemnation knows of it.

use crate::catalog::fields::SessionId;
use crate::catalog::popular::{Fate, PopularState};
use crate::catalog::record::{MAX_LISTED, Record};
use crate::catalog::vm::VmState;
use crate::packs::pack::PackNumber;
use crate::rules::broken::{self, Flaw};
use std::collections::{BTreeMap, BTreeSet};

/// So many are condemned at once: whoever counts keeps their ids, and a record has room for them.
pub(crate) const MOST_CONDEMNED: usize = 256;

/// Packs that may be condemned, of those that nobody was seen to need.
pub(crate) fn condemnable(state: &PopularState, needed: &BTreeSet<PackNumber>) -> Vec<PackNumber> {
    let stays = state.packs.iter().filter(|pack| pack.fate == Fate::Stays && !pack.is_going());
    let unneeded = stays.filter(|pack| !needed.contains(&pack.pack));
    unneeded.map(|pack| pack.pack).collect()
}

/// What stands in the way of a count of what a VM needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Counting {
    /// It needs nothing: it goes, with all that it has.
    Retired,
    /// A record is appended behind all that was read; these sessions may refer to what was condemned before
    /// it.
    Append { open: Vec<SessionId> },
}

pub(crate) fn counting(state: &VmState) -> Counting {
    match state.is_retired {
        true => Counting::Retired,
        false => Counting::Append {
            open: match broken::by(Flaw::CountsBesideSessions) {
                true => Vec::new(),
                false => state.open.clone(),
            },
        },
    }
}

/// The record by which what was counted comes about, if anything does: those that are needed are spared, the
/// others go. `condemned`: packs that were condemned before the count began, and when; what became of them
/// meanwhile is left as it is.
pub(crate) fn verdict(
    state: &PopularState,
    condemned: &BTreeMap<PackNumber, u64>,
    needed: &BTreeSet<PackNumber>,
) -> Option<Record> {
    let still = |pack: &PackNumber, at: u64| {
        let known = state.pack(*pack);
        known.is_some_and(|known| known.fate == Fate::Condemned(at))
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
