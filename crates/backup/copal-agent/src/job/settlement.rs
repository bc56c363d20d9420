//! Settlement of chunks that a job stored twice, or their count, by the process that waits for the job.
//!
//! Design: docs/design/backup.md#rounds
//!
//! Agents whose keys have the delete role settle their VMs themselves (`agent::settlement`). This module asks
//! about the VMs of the others, one after the other, once all hosts have stored. A handle with the delete
//! role gives up chunks that are popular now; another handle counts them. A VM that cannot be settled is no
//! failure of the job: its snapshot is valid.

use crate::agent::{FleetClient, SettledVm, VmStatus};
use crate::job::job_report::{AgentReport, JobReport};
use copal_backup::{CancelFlag, CleanUpOptions, Collaboration, Repository, Role, Silent, peers::Writer};
use std::{path::Path, time::Duration};

/// The asking host, and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct SettleOptions<'a> {
    /// The name of this host.
    pub name: &'a str,
    /// A directory for waiting requests.
    pub spool: &'a Path,
    /// Longest wait for an answer.
    pub timeout: Duration,
    /// Most memory for the chunks of one query.
    pub memory_bytes: u64,
}

/// The result of settling a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSettlement {
    /// Chunks that VMs replaced by popular ones.
    pub moved: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Chunks of these that became popular only then.
    pub stored_popular: u64,
    /// Stored bytes that a deletion frees.
    pub freed_bytes: u64,
    /// Chunks that several VMs store separately, and that could be popular.
    pub twice: u64,
    /// Bytes of them.
    pub twice_bytes: u64,
    /// Chunks of several VMs that the fraction of popular chunks has no space for.
    pub refused: u64,
    /// VMs that were not asked about, or not completely.
    pub unsettled: Vec<String>,
    /// The first reason for that.
    pub reason: Option<String>,
}

impl JobSettlement {
    /// The settlement in a job's report.
    #[must_use]
    pub fn of(report: &JobReport) -> JobSettlement {
        let mut settlement = JobSettlement::default();
        let has_gain = has_gain(report);
        for vm in report.agents.iter().flat_map(AgentReport::vms) {
            settlement.add(vm, has_gain);
        }
        settlement
    }

    fn add(&mut self, vm: &VmStatus, has_gain: bool) {
        let Some(settled) = &vm.settled else {
            self.refused += vm.progress.refused;
            if has_gain && vm.snapshot_to_settle().is_some() {
                self.unsettled.push(vm.vm.clone());
                self.reason = self.reason.take().or_else(|| vm.settle_error.clone());
            }
            return;
        };
        self.refused += settled.refused;
        if settled.dry_run {
            self.twice += settled.moved;
            self.twice_bytes += settled.moved_bytes;
        } else {
            self.moved += settled.moved;
            self.moved_bytes += settled.moved_bytes;
            self.stored_popular += settled.stored_popular;
            self.freed_bytes += settled.freed_bytes;
        }
    }
}

/// Whether VMs of the job stored chunks for themselves that may be popular now: an agent reports so, or can
/// no longer report.
fn has_gain(report: &JobReport) -> bool {
    let may = |agent: &AgentReport| match agent.status.as_ref().and_then(|status| status.gain) {
        Some(has_gain) => has_gain || agent.lost.is_some(),
        None => false,
    };
    report.agents.iter().any(may)
}

/// Settles the VMs of a job that no agent has settled, or counts the chunks that they store twice, and enters
/// the result in the report. `tell` receives each VM, its number, and the number of VMs. Failures are entered
/// in the report. Blocks.
pub fn settle(
    repository: &Repository,
    report: &mut JobReport,
    options: &SettleOptions<'_>,
    cancel: &CancelFlag,
    tell: &mut dyn FnMut(&str, usize, usize),
) {
    if !has_gain(report) {
        return;
    }
    let is_left = |vm: &&mut VmStatus| vm.settled.is_none() && vm.snapshot_to_settle().is_some();
    let vms = report.agents.iter_mut().flat_map(AgentReport::vms_mut);
    let mut left: Vec<&mut VmStatus> = vms.filter(is_left).collect();
    if left.is_empty() {
        return;
    }
    let failed = match FleetClient::connect(repository, options.name, options.spool, options.timeout) {
        Ok(Some(client)) => {
            let all = left.len();
            for (at, vm) in left.into_iter().enumerate() {
                if cancel.is_cancelled() {
                    vm.settle_error = Some("interrupted".to_owned());
                    continue;
                }
                tell(&vm.vm, at + 1, all);
                settle_vm(repository, &client, vm, options, cancel);
            }
            return;
        }
        Ok(None) => "no agent can be reached".to_owned(),
        Err(error) => error.to_string(),
    };
    left.iter_mut().for_each(|vm| vm.settle_error = Some(failed.clone()));
}

fn settle_vm(
    repository: &Repository,
    client: &FleetClient,
    vm: &mut VmStatus,
    options: &SettleOptions<'_>,
    cancel: &CancelFlag,
) {
    let others = Collaboration {
        peers: client,
        spool_directory: options.spool.to_owned(),
        writer: Writer::of(options.name),
        part_bytes: u64::MAX,
    };
    let clean_up = CleanUpOptions {
        memory_bytes: options.memory_bytes,
        snapshot: vm.snapshot_to_settle(),
        dry_run: !repository.roles().has(Role::Delete),
    };
    match repository.clean_up_vm(&vm.vm, &others, clean_up, &Silent, cancel) {
        Ok(summary) => vm.settled = Some(SettledVm::of(&summary, clean_up.dry_run)),
        Err(error) => vm.settle_error = Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{AgentStatus, VmFailure, VmState, status::sample};

    fn report(gain: Option<bool>, lost: bool, vms: Vec<VmStatus>) -> JobReport {
        let status = AgentStatus { gain, vms, ..AgentStatus::default() };
        JobReport {
            job: String::new(),
            rounds: 1,
            agents: vec![AgentReport {
                name: "h1".to_owned(),
                status: Some(status),
                waiting: Vec::new(),
                lost: lost.then(|| "gone".to_owned()),
            }],
            missing: Vec::new(),
            spoilers: Vec::new(),
            took: Duration::ZERO,
        }
    }

    fn settled(vm: VmStatus, settled: SettledVm) -> VmStatus {
        VmStatus { settled: Some(settled), ..vm }
    }

    #[test]
    fn vms_count_as_unsettled_where_there_may_be_something_to_give_up() {
        let counted = |dry_run, moved, moved_bytes, freed_bytes, refused| SettledVm {
            dry_run,
            moved,
            moved_bytes,
            freed_bytes,
            refused,
            ..SettledVm::default()
        };
        let failure = VmFailure { code: "source".to_owned(), error: "gone".to_owned() };
        let (mut web, mut db) = (sample::done("web", 3), sample::done("db", 3));
        (web.progress.refused, db.progress.refused) = (2, 9);
        let vms = vec![
            web,
            sample::done("idle", 0),
            sample::vm("bad", VmState::Failed(failure)),
            settled(db, counted(false, 5, 50, 40, 1)),
            settled(sample::done("mail", 3), counted(true, 7, 70, 60, 0)),
        ];
        let settled = JobSettlement::of(&report(Some(true), false, vms.clone()));
        let wanted = JobSettlement {
            moved: 5,
            moved_bytes: 50,
            freed_bytes: 40,
            twice: 7,
            twice_bytes: 70,
            refused: 3,
            unsettled: vec!["web".to_owned()],
            ..JobSettlement::default()
        };
        assert_eq!(settled, wanted);
        let of = |gain, lost| JobSettlement::of(&report(gain, lost, vms.clone())).unsettled.len();
        assert_eq!((of(Some(false), false), of(Some(false), true), of(None, true)), (0, 1, 0));
    }
}
