//! Model of the removal of unneeded popular packs: condemned, counted in every log, removed.

use super::consolidate::SweepJob;
use super::setup::{ModelSetup, WeakRule};
use super::state::{FleetState, HostJob, ModelLog, PendingAppend};
use crate::catalog::record::Record;
use crate::packs::pack::PackNumber;
use crate::rules::broken::{self, Flaw};
use crate::steps::popular_removal::{CountStep, condemnable, counting, verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Phase of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RemovalPhase {
    Begun,
    Condemns(Vec<PackNumber>),
    /// It appends a record to the log of this VM.
    Marks(usize),
    /// It counts the references of this VM.
    Counts(usize, BTreeSet<PackNumber>),
    Decides(BTreeSet<PackNumber>),
}

/// A removal in progress.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RemovalJob {
    pub(super) at: RemovalPhase,
    condemned: BTreeMap<PackNumber, u64>,
    /// A session was open when its log got the record.
    waits: bool,
}

impl RemovalJob {
    pub(super) fn new() -> RemovalJob {
        RemovalJob { at: RemovalPhase::Begun, condemned: BTreeMap::new(), waits: false }
    }
}

/// The record that the removal is about to append.
pub(super) fn append_of_unneeded(
    fleet: &FleetState,
    setup: &ModelSetup,
    job: &RemovalJob,
) -> Option<PendingAppend> {
    match &job.at {
        RemovalPhase::Begun | RemovalPhase::Counts(..) => None,
        RemovalPhase::Condemns(packs) => {
            let packs = packs.clone();
            Some(fleet.next(ModelLog::Popular, Record::Condemned { packs }))
        }
        RemovalPhase::Marks(_) if setup.is_weak(WeakRule::CountsUnmarked) => None,
        RemovalPhase::Marks(vm) => match counting(&fleet.vms[*vm]) {
            CountStep::Retired => None,
            CountStep::Append { .. } => Some(fleet.next(ModelLog::Vm(*vm), Record::Counted)),
        },
        RemovalPhase::Decides(needed) => {
            let record = verdict(&fleet.popular, &job.condemned, needed)?;
            Some(fleet.next(ModelLog::Popular, record))
        }
    }
}

fn needed_by(fleet: &FleetState, vm: usize) -> BTreeSet<PackNumber> {
    let state = &fleet.vms[vm];
    if state.is_retired {
        return BTreeSet::new();
    }
    let manifests = state
        .published
        .iter()
        .chain(state.forgotten.iter().filter(|_| !broken::by(Flaw::CountsPublishedOnly)))
        .filter_map(|one| fleet.store.manifests.get(&one.snapshot));
    let mut needed: BTreeSet<PackNumber> =
        manifests.flat_map(|manifest| manifest.refs.iter().map(|(_, pack)| *pack)).collect();
    if !broken::by(Flaw::CountsWithoutMoved) {
        let lists = state.moved.iter().filter_map(|list| fleet.store.moved.get(&(vm, list.number)));
        needed.extend(lists.flat_map(|list| list.values().copied()));
    }
    needed
}

/// The next step.
pub(super) fn go_on_with_unneeded(
    fleet: &mut FleetState,
    setup: &ModelSetup,
    mut job: RemovalJob,
) -> HostJob {
    let open = match &job.at {
        RemovalPhase::Marks(vm) => match counting(&fleet.vms[*vm]) {
            CountStep::Retired => false,
            CountStep::Append { open } => !open.is_empty(),
        },
        _ => false,
    };
    let append = append_of_unneeded(fleet, setup, &job);
    let has_more = append.is_some();
    if let Some(append) = append {
        fleet.append(&append);
    }
    job.at = match job.at {
        RemovalPhase::Begun => {
            let all = (0..fleet.vms.len()).map(|vm| needed_by(fleet, vm));
            let needed = all.fold(BTreeSet::new(), |sum, one| sum.union(&one).copied().collect());
            match condemnable(&fleet.popular, &needed) {
                packs if packs.is_empty() => behind_condemned(fleet, &mut job),
                packs => RemovalPhase::Condemns(packs),
            }
        }
        RemovalPhase::Condemns(_) => behind_condemned(fleet, &mut job),
        RemovalPhase::Marks(vm) => {
            job.waits |= open;
            match vm + 1 < fleet.vms.len() {
                true => RemovalPhase::Marks(vm + 1),
                false if job.waits => return HostJob::Idle,
                false => RemovalPhase::Counts(0, BTreeSet::new()),
            }
        }
        RemovalPhase::Counts(vm, mut needed) => {
            needed.extend(needed_by(fleet, vm));
            match vm + 1 < fleet.vms.len() {
                true => RemovalPhase::Counts(vm + 1, needed),
                false => RemovalPhase::Decides(needed),
            }
        }
        RemovalPhase::Decides(needed) if has_more => RemovalPhase::Decides(needed),
        RemovalPhase::Decides(_) => return HostJob::Sweep(SweepJob::new()),
    };
    if job.at == RemovalPhase::Marks(0) && job.condemned.is_empty() {
        return HostJob::Idle;
    }
    HostJob::Unneeded(job)
}

fn behind_condemned(fleet: &FleetState, job: &mut RemovalJob) -> RemovalPhase {
    job.condemned = fleet.popular.condemned().collect();
    RemovalPhase::Marks(0)
}
