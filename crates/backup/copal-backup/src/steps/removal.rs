//! What takes something away of a VM: when it may begin, and when it gives way.
//!
//! - BAK-17: it goes by what the log said when it began; its records stand behind that, and not beside a
//!   session.
//! - BAK-23: nor beside another one. Of two frames of a chunk each of two prunes may keep the other one.

use crate::catalog::fold::Entry;
use crate::catalog::record::Record;
use crate::catalog::vm::{Published, VmState};
use crate::rules::broken::{self, Flaw};

/// How a prune of a VM begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// A session is open and may be alive.
    GiveWay,
    /// Sessions are open whose holders are gone: they are ended first.
    FenceFirst,
    /// Packs were announced to go and may be there in part: they go first, or this prune would count on one
    /// of them.
    FinishFirst,
    /// By this state.
    Go,
}

/// `is_alone`: nobody else writes.
pub(crate) fn beginning(state: &VmState, is_alone: bool) -> Beginning {
    match state.open.is_empty() {
        false if is_alone => Beginning::FenceFirst,
        false => Beginning::GiveWay,
        true if state.removing.is_empty() || broken::by(Flaw::CountsOnGoingPacks) => Beginning::Go,
        true => Beginning::FinishFirst,
    }
}

/// What a prune does whose append was told to be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Its record stands, and nothing behind it matters.
    Stands,
    /// Once more, behind what was appended.
    Again,
    /// What it went by holds no more.
    GiveWay,
}

/// `since`: the records from the number that was taken; none: they are not there any more.
pub(crate) fn lost(record: &Record, since: &[Entry]) -> Lost {
    // Whoever appended an equal one removes the same.
    let (others, unless) = match since {
        [] => return Lost::GiveWay,
        [first, others @ ..] if first.record == *record => (others, Lost::Stands),
        others => (others, Lost::Again),
    };
    match others.iter().any(|entry| disturbs(&entry.record)) {
        true => Lost::GiveWay,
        false => unless,
    }
}

/// Whether what a prune has read holds no more behind a record.
fn disturbs(record: &Record) -> bool {
    match record {
        Record::Open { .. }
        | Record::OpenHeld { .. }
        | Record::Publish { .. }
        | Record::Moved { .. }
        | Record::Retired => !broken::by(Flaw::RemovesBesideSessions),
        Record::Freed { .. } | Record::Removing { .. } | Record::Removed { .. } => {
            !broken::by(Flaw::RemovesBesideRemovals)
        }
        // What was forgotten meanwhile keeps its frames until the next prune.
        Record::Forget { .. } | Record::Deleted { .. } => false,
        Record::Fence { .. } | Record::Verified { .. } | Record::Accepted { .. } | Record::Hold { .. } => {
            false
        }
        Record::Init { .. }
        | Record::InitFleet { .. }
        | Record::VmAdded { .. }
        | Record::VmRemoved { .. }
        | Record::Popular { .. }
        | Record::Checked { .. }
        | Record::Spoiled { .. }
        | Record::HostEntered { .. }
        | Record::HostRemoved { .. }
        | Record::Condemned { .. }
        | Record::Spared { .. }
        | Record::Gone { .. }
        | Record::Counted
        | Record::Beat { .. }
        | Record::AgentListed { .. }
        | Record::AgentRetired { .. }
        | Record::Roles
        | Record::Void { .. } => false,
    }
}

/// Whether somebody may give up frames of a VM, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is being removed.
    Retired,
    /// A session is open.
    Open,
    Idle,
}

pub(crate) fn in_use(state: &VmState) -> Use {
    match state.open.is_empty() {
        _ if state.is_retired => Use::Retired,
        false => Use::Open,
        true => Use::Idle,
    }
}

/// The snapshots right before and behind one, among those that stay.
pub(crate) fn neighbours<'a>(one: &Published, stay: &'a [Published]) -> impl Iterator<Item = &'a Published> {
    let sequence = one.sequence;
    let before = stay.iter().filter(move |other| other.sequence < sequence);
    let behind = stay.iter().filter(move |other| other.sequence > sequence);
    let before = before.max_by_key(|other| other.sequence);
    let behind = behind.min_by_key(|other| other.sequence);
    before.into_iter().chain(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prune_goes_on_behind_what_takes_nothing_and_gives_way_to_all_else() {
        let session = [1; 16];
        let own = Record::Removing { packs: Vec::new() };
        let forget = Record::Forget { snapshots: Vec::new() };
        let open = Record::Open { session, base: None };
        let removed = Record::Removed { packs: Vec::new() };
        for (records, wanted) in [
            (&[][..], Lost::GiveWay),
            (&[&forget], Lost::Again),
            (&[&own], Lost::Stands),
            (&[&own, &forget], Lost::Stands),
            (&[&own, &open], Lost::GiveWay),
            (&[&open], Lost::GiveWay),
            // One that came before it is another prune's, however equal.
            (&[&forget, &own], Lost::GiveWay),
            (&[&removed], Lost::GiveWay),
        ] {
            let since = records.iter().zip(5..).map(|(record, number)| Entry {
                number,
                created_ms: 0,
                record: Record::clone(record),
            });
            let since: Vec<Entry> = since.collect();
            assert_eq!(lost(&own, &since), wanted, "{since:?}");
        }
    }
}
