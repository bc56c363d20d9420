//! Parts of VMs and their state in a job.

use super::super::hosts::Hosts;
use super::super::trace::Trace;
use copal_agent::rounds::{self, ANSWERS_BYTES, CHUNK_BYTES, PAGE_BYTES, RoundCount, RoundLimits, VmChanges};
use copal_backup::peers::ShortId;
use std::collections::{BTreeMap, BTreeSet};

/// Memory for answers when the user sets the number of rounds: unlimited, so that any round fits.
const ANSWERS_OF_ANY_ROUND: u64 = 1 << 40;

/// A run of pages of a VM, backed up in one round.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) host: usize,
    pub(super) vm: usize,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
    pub(super) bytes: f64,
    /// Range of its ids among those of the VM.
    pub(super) ids: std::ops::Range<u64>,
    /// Ids in requests to the owners, ascending, until all are answered.
    pub(super) asked: Vec<ShortId>,
    /// Number of them without an answer.
    pub(super) open: u64,
    /// Batches without an answer: index of the first id in `asked`, and number of ids.
    pub(super) unanswered: BTreeMap<usize, usize>,
    /// Ids to store as private chunks of the VM.
    pub(super) private: Vec<ShortId>,
    /// Ids to store as popular chunks.
    pub(super) popular: Vec<ShortId>,
    /// Ids that another host is storing.
    pub(super) carried: BTreeSet<ShortId>,
    /// Whether the carried ids are decided: all are there, or the time was over.
    pub(super) is_decided: bool,
}

/// Parts of all hosts, and the indexes of the parts of each host's rounds.
pub(super) fn plan(hosts: &Hosts<'_>, trace: &Trace, count: RoundCount) -> (Vec<Part>, Vec<Vec<Vec<usize>>>) {
    let limits = RoundLimits {
        rounds: count,
        answers_bytes: match count {
            RoundCount::Auto => ANSWERS_BYTES,
            RoundCount::Exactly(_) => ANSWERS_OF_ANY_ROUND,
        },
        chunk_bytes: CHUNK_BYTES,
    };
    let mut parts = Vec::new();
    let mut all = Vec::new();
    for (host, vms) in hosts.fleet.hosts.iter().enumerate() {
        let changes: Vec<VmChanges> = vms.iter().map(|&vm| changes(hosts, vm)).collect();
        let planned = rounds::plan(&changes, &limits).into_iter().map(|round| {
            let of_round = round.into_iter().map(|part| {
                let vm = vms[part.vm];
                let pages = changes[part.vm].pages.len();
                let ids = trace.ids_of(hosts.fleet.vms[vm].dirty_bytes);
                let at = |page: usize| ids * page as u64 / pages as u64;
                parts.push(Part {
                    host,
                    vm,
                    is_first: part.first_page == 0,
                    is_last: part.first_page + part.pages == pages,
                    bytes: part.changed_bytes as f64,
                    ids: at(part.first_page)..at(part.first_page + part.pages),
                    asked: Vec::new(),
                    open: 0,
                    unanswered: BTreeMap::new(),
                    private: Vec::new(),
                    popular: Vec::new(),
                    carried: BTreeSet::new(),
                    is_decided: false,
                });
                parts.len() - 1
            });
            of_round.collect()
        });
        all.push(planned.collect());
    }
    (parts, all)
}

/// Changed bytes of each page, spread evenly.
fn changes(hosts: &Hosts<'_>, vm: usize) -> VmChanges {
    let vm = hosts.fleet.vms[vm];
    let pages = (vm.bytes / PAGE_BYTES as f64).ceil().max(1.0) as u64;
    let dirty = vm.dirty_bytes as u64;
    let upto = |page: u64| (u128::from(dirty) * u128::from(page) / u128::from(pages)) as u64;
    VmChanges { pages: (0..pages).map(|page| upto(page + 1) - upto(page)).collect(), missed_windows: 0 }
}
