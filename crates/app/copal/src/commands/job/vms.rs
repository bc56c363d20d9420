//! VMs of a job in the output: the reports of their agents, with facts from other sources.

use copal_agent::{
    agent::{SettledVm, VmBackup, VmFailure, VmProgress, VmState, VmStatus},
    job::job_report::{AgentReport, JobReport},
    plan::missing_agent::MissingAgent,
};
use serde::Serialize;

/// Fields of a VM; unknown ones are left out.
#[derive(Serialize)]
pub(super) struct VmFields<'a> {
    pub(super) vm: &'a str,
    pub(super) agent: &'a str,
    state: StateWord,
    #[serde(flatten)]
    progress: Option<&'a VmProgress>,
    #[serde(flatten)]
    pub(super) failure: Option<&'a VmFailure>,
    #[serde(flatten)]
    pub(super) backup: Option<&'a VmBackup>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settled: Option<&'a SettledVm>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settle_error: Option<&'a str>,
}

/// The state of a VM as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum StateWord {
    Waiting,
    Running,
    Failed,
    Done,
    /// Its agent was lost before it reported an end.
    Unknown,
    /// Its agent took no part.
    Missing,
}

impl<'a> VmFields<'a> {
    /// The VMs of a job.
    pub(super) fn of_job(report: &'a JobReport) -> Vec<VmFields<'a>> {
        let mut vms: Vec<VmFields<'a>> = report.agents.iter().flat_map(vms_of).collect();
        vms.extend(report.missing.iter().flat_map(missing_vms));
        vms
    }

    /// A VM of which only the name is known.
    fn named(vm: &'a str, agent: &'a str, state: StateWord) -> VmFields<'a> {
        VmFields {
            vm,
            agent,
            state,
            progress: None,
            failure: None,
            backup: None,
            settled: None,
            settle_error: None,
        }
    }

    fn of_status(vm: &'a VmStatus, agent: &'a AgentReport) -> VmFields<'a> {
        let (state, failure) = match &vm.state {
            VmState::Waiting => (StateWord::Waiting, None),
            VmState::Running => (StateWord::Running, None),
            VmState::Failed(failure) => (StateWord::Failed, Some(failure)),
            VmState::Done(_) => (StateWord::Done, None),
        };
        VmFields {
            state: state.of_agent(agent),
            progress: Some(&vm.progress),
            failure,
            backup: vm.backup(),
            settled: vm.settled.as_ref(),
            settle_error: vm.settle_error.as_deref(),
            ..VmFields::named(&vm.vm, &agent.name, state)
        }
    }

    /// Whether it has no new snapshot, and will get none in this job as far as is known.
    pub(super) fn has_failed(&self) -> bool {
        match self.state {
            StateWord::Done | StateWord::Waiting | StateWord::Running => false,
            StateWord::Failed | StateWord::Unknown | StateWord::Missing => true,
        }
    }
}

impl StateWord {
    /// The known state of a VM, given the last report of its agent and whether the agent was lost since.
    fn of_agent(self, agent: &AgentReport) -> StateWord {
        match self {
            StateWord::Done => StateWord::Done,
            _ if agent.lost.is_some() => StateWord::Unknown,
            state => state,
        }
    }
}

/// The VMs of an agent: those in its reports, then the rest of its plan.
fn vms_of(agent: &AgentReport) -> Vec<VmFields<'_>> {
    let with_status = agent.vms().iter().map(|vm| VmFields::of_status(vm, agent));
    let waiting = StateWord::Waiting.of_agent(agent);
    let rest = agent.waiting.iter().map(|vm| VmFields::named(vm, &agent.name, waiting));
    with_status.chain(rest).collect()
}

/// The VMs of an agent that took no part.
fn missing_vms(missing: &MissingAgent) -> Vec<VmFields<'_>> {
    missing.vms.iter().map(|vm| VmFields::named(vm, &missing.name, StateWord::Missing)).collect()
}
