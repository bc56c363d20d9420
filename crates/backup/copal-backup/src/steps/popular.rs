//! Packs that all VMs share: who enters one, when it counts, and which go.
//!
//! - BAK-20: a pack counts for others than its writer's once another host has checked it.
//! - BAK-24: what goes is marked in the log first, by an entry without frames. A pack is entered once, so whoever wrote it finds
//!   either that mark, and refers to nothing of it, or had entered it before, and it stays.

use crate::broken::{self, Flaw};
use crate::catalog::fields::SessionId;
use crate::catalog::popular::{Fate, PopularPack, PopularState};
use crate::pack::PackNumber;
use crate::peers::Writer;
use std::collections::HashSet;

/// What becomes of a durable pack that is to be entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entering {
    Entered,
    /// Somebody took its writer for dead, and removes it.
    Going,
    /// There are as many popular chunks as can be counted.
    NoRoom,
    /// Its record is appended behind all that was read.
    Append {
        first_ordinal: u32,
    },
}

pub(crate) fn entering(state: &PopularState, pack: PackNumber, frames: u32) -> Entering {
    let first_ordinal = state.next_ordinal();
    match state.pack(pack) {
        Some(known) if known.is_going() => Entering::Going,
        Some(_) => Entering::Entered,
        None if state.has_room(first_ordinal, frames) => Entering::Append { first_ordinal },
        None => Entering::NoRoom,
    }
}

/// Whether any host may refer to frames of a pack, or give its own up for them.
pub(crate) fn counts(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack).filter(|known| stays(known));
    known.is_some_and(|known| known.checked_at.is_some() || broken::by(Flaw::CountsUnchecked))
}

/// Whether a host may refer to frames of a pack that it has not written in this session.
pub(crate) fn counts_for(state: &PopularState, pack: PackNumber, host: Writer) -> bool {
    let is_own = |writer| writer == host;
    counts(state, pack)
        || state
            .pack(pack)
            .is_some_and(|known| stays(known) && is_own(known.writer))
}

/// Whether it may be referred to anew (BAK-27).
fn stays(known: &PopularPack) -> bool {
    let is_condemned = matches!(known.fate, Fate::Condemned(_)) && !broken::by(Flaw::RefersToCondemned);
    !known.is_going() && !is_condemned
}

/// Whether somebody who has opened all of a pack says so.
pub(crate) fn needs_check(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack);
    known.is_some_and(|known| !known.is_going() && known.checked_at.is_none())
}

/// What becomes of a pack that was there before the logs of all VMs were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leftover {
    Stays,
    /// It is removed once an entry without frames stands behind all that was read.
    Mark {
        first_ordinal: u32,
    },
    /// It is removed.
    Going,
}

/// `open`: sessions that are open, by logs that were read before `state` was.
pub(crate) fn leftover(
    state: &PopularState,
    open: &HashSet<SessionId>,
    pack: PackNumber,
    session: &SessionId,
) -> Leftover {
    let first_ordinal = state.next_ordinal();
    match state.pack(pack) {
        Some(known) if known.is_going() => Leftover::Going,
        Some(_) => Leftover::Stays,
        None if open.contains(session) || !state.has_room(first_ordinal, 0) => Leftover::Stays,
        None if broken::by(Flaw::SweepsUnmarked) => Leftover::Going,
        None => Leftover::Mark { first_ordinal },
    }
}
