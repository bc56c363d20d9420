//! Packs that all VMs share: who enters one, when it counts, and which go.
//!
//! - BAK-20: a pack counts for others than its writer's once another host has checked it.
//!   One that is known to be spoiled counts for nobody, its writer included.
//! - BAK-24: what goes is marked in the log first, by an entry without frames. A pack is entered once, so
//!   whoever wrote it finds either that mark, and refers to nothing of it, or had entered it before, and it
//!   stays.

use crate::catalog::fields::SessionId;
use crate::catalog::popular::{Fate, PopularPack, PopularState};
use crate::packs::pack::PackNumber;
use crate::request::peers::{HostKey, Writer};
use crate::rules::broken::{self, Flaw};
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

/// A host, as it finds its own packs: by its key where hosts sign, else by its name, which any host may say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnHost {
    pub(crate) writer: Writer,
    pub(crate) key: Option<HostKey>,
}

impl OwnHost {
    /// Whether it has written a pack.
    pub(crate) fn has_written(&self, state: &PopularState, known: &PopularPack) -> bool {
        match state.needs_hosts() {
            true => known.host.is_some() && known.host == self.key,
            false => known.writer == self.writer,
        }
    }
}

/// Whether a host may refer to frames of a pack that it has not written in this session.
pub(crate) fn counts_for(state: &PopularState, pack: PackNumber, host: OwnHost) -> bool {
    counts(state, pack)
        || state.pack(pack).is_some_and(|known| stays(known) && host.has_written(state, known))
}

/// Whether it may be referred to anew (BAK-20, BAK-27).
fn stays(known: &PopularPack) -> bool {
    let is_condemned = matches!(known.fate, Fate::Condemned(_)) && !broken::by(Flaw::RefersToCondemned);
    let is_spoiled = known.spoiled_at.is_some() && !broken::by(Flaw::RefersToSpoiled);
    !known.is_going() && !is_condemned && !is_spoiled
}

/// Whether somebody who has opened all of a pack says so.
pub(crate) fn needs_check(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack);
    known.is_some_and(|known| !known.is_going() && known.checked_at.is_none() && known.spoiled_at.is_none())
}

/// Whether somebody who has opened a pack, and found that it does not hold what it should, says so.
pub(crate) fn needs_verdict(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack);
    known.is_some_and(|known| !known.is_going() && known.spoiled_at.is_none())
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
