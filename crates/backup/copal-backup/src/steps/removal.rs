//! Rules for removing data of a VM: when a removal may begin, and when it gives way.
//!
//! - BAK-17: a removal appends its records directly behind the records that it read when it began, and never
//!   while a session is open.
//! - BAK-23: two removals of a VM never run side by side. Of two frames of a chunk, each of two prunes could
//!   keep the one that the other removes.

use crate::catalog::fold::LogEntry;
use crate::catalog::record::Record;
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::rules::broken::{self, Flaw};

/// How a prune of a VM begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PruneStart {
    /// A session is open and may be alive.
    GiveWay,
    /// Sessions of dead holders are open: they are fenced first.
    FenceFirst,
    /// Listed packs may still exist in part: they are removed first, or this prune could rely on one of them.
    FinishFirst,
    /// The prune may begin with this state.
    Go,
}

/// The first step of a prune of the VM. `is_alone`: this process is the only writer.
pub(crate) fn beginning(state: &VmState, is_alone: bool) -> PruneStart {
    match state.open.is_empty() {
        false if is_alone => PruneStart::FenceFirst,
        false => PruneStart::GiveWay,
        true if state.removing.is_empty() || broken::by(Flaw::CountsOnGoingPacks) => PruneStart::Go,
        true => PruneStart::FinishFirst,
    }
}

/// How a prune continues after an append that was reported as lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostAppend {
    /// Its record is in the log, and no later record matters.
    Stands,
    /// The prune appends again, behind the new records.
    Again,
    /// The state that it relied on has changed.
    GiveWay,
}

/// Decides about a lost append of `record`. `since`: the records from the attempted number on; empty: they were removed already.
pub(crate) fn lost(record: &Record, since: &[LogEntry]) -> LostAppend {
    // An equal record of another process removes the same.
    let (others, unless) = match since {
        [] => return LostAppend::GiveWay,
        [first, others @ ..] if first.record == *record => (others, LostAppend::Stands),
        others => (others, LostAppend::Again),
    };
    match others.iter().any(|entry| disturbs(&entry.record)) {
        true => LostAppend::GiveWay,
        false => unless,
    }
}

/// Whether a record invalidates the state that a prune has read.
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
        // Snapshots forgotten meanwhile keep their frames until the next prune.
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

/// Whether the VM's frames, or the whole VM, may be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VmUse {
    /// The VM is being removed.
    Retired,
    /// A session is open.
    Open,
    Idle,
}

pub(crate) fn in_use(state: &VmState) -> VmUse {
    match state.open.is_empty() {
        _ if state.is_retired => VmUse::Retired,
        false => VmUse::Open,
        true => VmUse::Idle,
    }
}

/// The snapshots right before and after one, among those that stay.
pub(crate) fn neighbours<'a>(
    one: &PublishedSnapshot,
    stay: &'a [PublishedSnapshot],
) -> impl Iterator<Item = &'a PublishedSnapshot> {
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
    fn a_prune_goes_on_after_harmless_records_and_gives_way_to_others() {
        let session = [1; 16];
        let own = Record::Removing { packs: Vec::new() };
        let forget = Record::Forget { snapshots: Vec::new() };
        let open = Record::Open { session, base: None };
        let removed = Record::Removed { packs: Vec::new() };
        for (records, wanted) in [
            (&[][..], LostAppend::GiveWay),
            (&[&forget], LostAppend::Again),
            (&[&own], LostAppend::Stands),
            (&[&own, &forget], LostAppend::Stands),
            (&[&own, &open], LostAppend::GiveWay),
            (&[&open], LostAppend::GiveWay),
            // An equal record behind another one belongs to another prune.
            (&[&forget, &own], LostAppend::GiveWay),
            (&[&removed], LostAppend::GiveWay),
        ] {
            let since = records.iter().zip(5..).map(|(record, number)| LogEntry {
                number,
                created_ms: 0,
                record: Record::clone(record),
            });
            let since: Vec<LogEntry> = since.collect();
            assert_eq!(lost(&own, &since), wanted, "{since:?}");
        }
    }
}
