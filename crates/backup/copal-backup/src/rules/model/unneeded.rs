//! Model of the removal of unneeded popular packs: condemned, counted in every log, removed.

use super::cleanup::Sweep;
use super::setup::{Setup, Weak};
use super::state::{Append, Job, Log, State};
use crate::catalog::record::Record;
use crate::packs::pack::PackNumber;
use crate::rules::broken::{self, Flaw};
use crate::steps::popular_removal::{Counting, condemnable, counting, verdict};
use std::collections::{BTreeMap, BTreeSet};

/// Phase of a removal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removal {
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
pub(super) struct Unneeded {
    pub(super) at: Removal,
    condemned: BTreeMap<PackNumber, u64>,
    /// A session was open when its log got the record.
    waits: bool,
}

impl Unneeded {
    pub(super) fn new() -> Unneeded {
        Unneeded { at: Removal::Begun, condemned: BTreeMap::new(), waits: false }
    }
}

impl State {
    /// The record that the removal is about to append.
    pub(super) fn append_of_unneeded(&self, setup: &Setup, job: &Unneeded) -> Option<Append> {
        match &job.at {
            Removal::Begun | Removal::Counts(..) => None,
            Removal::Condemns(packs) => {
                let packs = packs.clone();
                Some(self.next(Log::Popular, Record::Condemned { packs }))
            }
            Removal::Marks(_) if setup.is_weak(Weak::CountsUnmarked) => None,
            Removal::Marks(vm) => match counting(&self.vms[*vm]) {
                Counting::Retired => None,
                Counting::Append { .. } => Some(self.next(Log::Vm(*vm), Record::Counted)),
            },
            Removal::Decides(needed) => {
                let record = verdict(&self.popular, &job.condemned, needed)?;
                Some(self.next(Log::Popular, record))
            }
        }
    }

    fn needed_by(&self, vm: usize) -> BTreeSet<PackNumber> {
        let state = &self.vms[vm];
        if state.is_retired {
            return BTreeSet::new();
        }
        let manifests = state
            .published
            .iter()
            .chain(state.forgotten.iter().filter(|_| !broken::by(Flaw::CountsPublishedOnly)))
            .filter_map(|one| self.store.manifests.get(&one.snapshot));
        let mut needed: BTreeSet<PackNumber> =
            manifests.flat_map(|manifest| manifest.refs.iter().map(|(_, pack)| *pack)).collect();
        if !broken::by(Flaw::CountsWithoutMoved) {
            let lists = state.moved.iter().filter_map(|list| self.store.moved.get(&(vm, list.number)));
            needed.extend(lists.flat_map(|list| list.values().copied()));
        }
        needed
    }

    /// The next step.
    pub(super) fn go_on_with_unneeded(&mut self, setup: &Setup, mut job: Unneeded) -> Job {
        let open = match &job.at {
            Removal::Marks(vm) => match counting(&self.vms[*vm]) {
                Counting::Retired => false,
                Counting::Append { open } => !open.is_empty(),
            },
            _ => false,
        };
        let append = self.append_of_unneeded(setup, &job);
        let has_more = append.is_some();
        if let Some(append) = append {
            self.append(&append);
        }
        job.at = match job.at {
            Removal::Begun => {
                let all = (0..self.vms.len()).map(|vm| self.needed_by(vm));
                let needed = all.fold(BTreeSet::new(), |sum, one| sum.union(&one).copied().collect());
                match condemnable(&self.popular, &needed) {
                    packs if packs.is_empty() => self.behind_condemned(&mut job),
                    packs => Removal::Condemns(packs),
                }
            }
            Removal::Condemns(_) => self.behind_condemned(&mut job),
            Removal::Marks(vm) => {
                job.waits |= open;
                match vm + 1 < self.vms.len() {
                    true => Removal::Marks(vm + 1),
                    false if job.waits => return Job::Idle,
                    false => Removal::Counts(0, BTreeSet::new()),
                }
            }
            Removal::Counts(vm, mut needed) => {
                needed.extend(self.needed_by(vm));
                match vm + 1 < self.vms.len() {
                    true => Removal::Counts(vm + 1, needed),
                    false => Removal::Decides(needed),
                }
            }
            Removal::Decides(needed) if has_more => Removal::Decides(needed),
            Removal::Decides(_) => return Job::Sweep(Sweep::new()),
        };
        if job.at == Removal::Marks(0) && job.condemned.is_empty() {
            return Job::Idle;
        }
        Job::Unneeded(job)
    }

    fn behind_condemned(&self, job: &mut Unneeded) -> Removal {
        job.condemned = self.popular.condemned().collect();
        Removal::Marks(0)
    }
}
