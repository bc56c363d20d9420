//! Rules for popular packs: when a pack may be entered in the log, checked, used and removed by a sweep.
//!
//! - BAK-20: hosts other than the writer may use a pack once another host has checked it. A pack that is
//!   known to be spoiled may be used by no host, its writer included.
//! - BAK-24: before a sweep removes a pack, it marks the pack in the log by an entry without frames. A pack is
//!   entered once. So the writer of the pack either finds this mark, and refers to nothing of the pack, or
//!   had entered the pack before, and the pack stays.

use crate::catalog::fields::SessionId;
use crate::catalog::popular::{PopularFate, PopularPack, PopularState};
use crate::packs::pack::PackNumber;
use crate::request::peers::{HostKey, Writer};
use crate::rules::broken::{self, Flaw};
use std::collections::HashSet;

/// Result of entering a durable pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EnterStep {
    Entered,
    /// Another process took the writer for dead, and removes the pack.
    BeingRemoved,
    /// No ordinals are left.
    NoRoom,
    /// Its record is to be appended behind everything that was read.
    Append {
        first_ordinal: u32,
    },
}

pub(crate) fn entering(state: &PopularState, pack: PackNumber, frames: u32) -> EnterStep {
    let first_ordinal = state.next_ordinal();
    match state.pack(pack) {
        Some(known) if known.is_removed() => EnterStep::BeingRemoved,
        Some(_) => EnterStep::Entered,
        None if state.has_room(first_ordinal, frames) => EnterStep::Append { first_ordinal },
        None => EnterStep::NoRoom,
    }
}

/// Whether every host may refer to frames of a pack, or give up its own frames for them.
pub(crate) fn counts(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack).filter(|known| stays(known));
    known.is_some_and(|known| known.checked_at.is_some() || broken::by(Flaw::CountsUnchecked))
}

/// Identity of a host, for finding its own packs: its key where hosts sign, else its name, which any host may
/// use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnHost {
    pub(crate) writer: Writer,
    pub(crate) key: Option<HostKey>,
}

impl OwnHost {
    /// Whether the host wrote a pack.
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

/// Whether the pack may be referred to anew (BAK-20, BAK-27).
fn stays(known: &PopularPack) -> bool {
    let is_condemned =
        matches!(known.fate, PopularFate::Condemned(_)) && !broken::by(Flaw::RefersToCondemned);
    let is_spoiled = known.spoiled_at.is_some() && !broken::by(Flaw::RefersToSpoiled);
    !known.is_removed() && !is_condemned && !is_spoiled
}

/// Whether a host that has opened all of a pack records the check.
pub(crate) fn needs_check(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack);
    known.is_some_and(|known| !known.is_removed() && known.checked_at.is_none() && known.spoiled_at.is_none())
}

/// Whether a host that has found wrong content in a pack records it as spoiled.
pub(crate) fn needs_verdict(state: &PopularState, pack: PackNumber) -> bool {
    let known = state.pack(pack);
    known.is_some_and(|known| !known.is_removed() && known.spoiled_at.is_none())
}

/// Treatment of a pack that existed before the logs of all VMs were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweepStep {
    Stays,
    /// It is removed once an entry without frames stands behind everything that was read.
    Mark {
        first_ordinal: u32,
    },
    /// It is removed.
    Remove,
}

/// Decides about a pack that a sweep found. `open`: sessions that were open in logs that were read before
/// `state`.
pub(crate) fn leftover(
    state: &PopularState,
    open: &HashSet<SessionId>,
    pack: PackNumber,
    session: &SessionId,
) -> SweepStep {
    let first_ordinal = state.next_ordinal();
    match state.pack(pack) {
        Some(known) if known.is_removed() => SweepStep::Remove,
        Some(_) => SweepStep::Stays,
        None if open.contains(session) || !state.has_room(first_ordinal, 0) => SweepStep::Stays,
        None if broken::by(Flaw::SweepsUnmarked) => SweepStep::Remove,
        None => SweepStep::Mark { first_ordinal },
    }
}
