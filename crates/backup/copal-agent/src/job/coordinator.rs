//! Runs a job on all agents of a fleet: collects their plans, sends them the job's terms, waits, and sums
//! their reports.
//!
//! The coordinator does no work of the job: if it dies, the agents run the job to its end.
//!
//! Not here: the report of a job (`job_report`).

use crate::agent;
use crate::agent::{AgentStatus, PlanInfo};
use crate::asker::FleetMember;
use crate::asker::members::partition_bits;
use crate::fleet::network::FleetNetwork;
use crate::job::job_report::{AgentReport, JobReport, spoiling_hosts};
use crate::job::roster::{JobRoster, plan_of};
use crate::plan::missing_agent::MissingAgent;
use crate::plan::scheme::{DedupScheme, stages};
use crate::rounds::RoundCount;
use agent::requests::{
    AgentsRequest, CancelRequest, NewestRequest, PlanRequest, RunRequest, StatusRequest, call, hex, info,
};
use copal_backup::{CancelFlag, Repository};
use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

/// Longest interval between queries of progress.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// First interval; later ones grow.
const FIRST_INTERVAL: Duration = Duration::from_millis(20);
/// Most bytes of VM names in a command.
const MOST_NAMES_BYTES: usize = 400 << 10;
/// An agent that does not answer for this long counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Options of a job.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// `auto`, or a number.
    pub rounds: String,
    /// Longest wait for an owner that has received all requests it waits for.
    pub timeout: Duration,
    /// The scheme of deduplication.
    pub scheme: DedupScheme,
}

/// Reason why a job does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// No agent is reachable.
    #[error(
        "no agent of this repository can be reached{reasons}; start `copal agent` on each host, `copal agent ls` shows them"
    )]
    NoAgent {
        /// The reason for each agent that was tried.
        reasons: String,
    },
    /// A VM in the plans of two hosts.
    #[error("VM {vm} is in the plans of {first} and {second}; take it out of one of them")]
    VmTwice {
        /// The VM.
        vm: String,
        /// An agent.
        first: String,
        /// The other agent.
        second: String,
    },
    /// An agent needs more rounds than requested.
    #[error(
        "--rounds {asked} is too few: agent {agent} needs {needed}, since each part of a large disk takes a round of its own, and its \
         memory bounds the VMs and answers of one; give --rounds {needed} or more, or auto, or the agent a larger --memory"
    )]
    TooFewRounds {
        /// Requested number.
        asked: u32,
        /// An agent.
        agent: String,
        /// Needed number.
        needed: u32,
    },
    /// The scheme determines the rounds.
    #[error("--rounds is for the scheme collaborative: {scheme} has as many as it has VMs, so leave it out")]
    NoRounds {
        /// The scheme.
        scheme: &'static str,
    },
    /// No agent knows the job.
    #[error(
        "no agent that can be reached knows such a job{reasons}; `copal job run` begins one, `copal agent ls` shows the agents"
    )]
    Unknown {
        /// The reason for each agent that was tried.
        reasons: String,
    },
    /// An agent refuses to take part.
    #[error("{0}")]
    Refused(String),
    /// Error of the repository.
    #[error(transparent)]
    Repository(#[from] copal_backup::Error),
    /// The system provides no random numbers.
    #[error("no random numbers: {0}")]
    Random(std::io::Error),
}

/// A job that has begun on all its agents.
pub struct StartedJob {
    members: Vec<FleetMember>,
    network: FleetNetwork,
    job: String,
    rounds: u32,
    /// VMs of each member.
    plans: Vec<Vec<String>>,
    missing: Vec<MissingAgent>,
    /// Position in the log of popular packs at its beginning.
    popular_from: u64,
    /// Longest wait for checks of popular packs after its end.
    timeout: Duration,
    /// Members that cannot be found, with reasons.
    gone: Vec<(String, String)>,
}

impl StartedJob {
    /// Its id, as 32 hex digits.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Its number of rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Agents that should take part but do not.
    #[must_use]
    pub fn missing(&self) -> &[MissingAgent] {
        &self.missing
    }

    /// Names of the agents that take part.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// Queries the present progress.
    #[must_use]
    pub fn look(&self) -> JobReport {
        let mut report = self.report();
        let is_gone = |member: &FleetMember| self.gone.iter().any(|(name, _)| *name == member.name);
        for (member, agent) in self.members.iter().zip(&mut report.agents) {
            if is_gone(member) {
                continue;
            }
            match call(member, &self.network, StatusRequest { job: self.job.clone() }) {
                Ok(status) => agent.enter_status(status),
                Err(reason) => agent.lost = Some(reason),
            }
        }
        self.note_lost(&mut report);
        let seconds =
            report.agents.iter().filter_map(|agent| agent.status.as_ref()).map(|status| status.seconds);
        report.took = Duration::try_from_secs_f64(seconds.fold(0.0, f64::max)).unwrap_or_default();
        report
    }

    /// The report of a job of which nothing is known yet.
    fn report(&self) -> JobReport {
        let plans = self.plans.iter().map(Vec::as_slice).chain(std::iter::repeat(&[][..]));
        let agents =
            self.members.iter().zip(plans).map(|(member, vms)| AgentReport::waiting(&member.name, vms));
        JobReport {
            job: self.job.clone(),
            rounds: self.rounds,
            agents: agents.collect(),
            missing: self.missing.clone(),
            spoilers: Vec::new(),
            took: Duration::ZERO,
        }
    }

    fn note_lost(&self, report: &mut JobReport) {
        for (name, reason) in &self.gone {
            let mut agents = report.agents.iter_mut();
            if let Some(agent) = agents.find(|agent| agent.name == *name) {
                agent.lost = Some(reason.clone());
            }
        }
    }

    /// Names the hosts whose popular packs were found spoiled since the job began, once all packs are
    /// checked. It waits for that as long as for an answer. Blocks.
    /// # Errors
    /// Errors of the store.
    pub fn wait_for_checks(
        &self,
        repository: &Repository,
        report: &mut JobReport,
    ) -> copal_backup::Result<()> {
        let deadline = Instant::now() + self.timeout;
        let has_other = self.members.len() > 1;
        while has_other && Instant::now() < deadline && !repository.unchecked_popular()?.is_empty() {
            std::thread::park_timeout(POLL_INTERVAL);
        }
        self.note_spoilers(repository, report)
    }

    /// Like [`StartedJob::wait_for_checks`], without waiting.
    /// # Errors
    /// Errors of the store.
    pub fn note_spoilers(&self, repository: &Repository, report: &mut JobReport) -> copal_backup::Result<()> {
        let names = report.agents.iter().map(|agent| agent.name.as_str());
        let names: Vec<&str> = names.chain(report.missing.iter().map(|agent| agent.name.as_str())).collect();
        report.spoilers = spoiling_hosts(&repository.spoiled_popular(self.popular_from)?, &names);
        Ok(())
    }

    /// Waits until the job has ended; `tell` receives its progress. After a cancellation the job is ended on
    /// all agents, each at its next safe point. Blocks.
    pub fn wait(&self, cancel: &CancelFlag, tell: &mut dyn FnMut(&JobReport)) -> JobReport {
        wait(self, cancel, tell)
    }
}

/// Begins a job on all agents; a job in stages with the first stage.
/// # Errors
/// The job has not begun.
pub fn begin(repository: &Repository, options: &JobOptions) -> Result<StartedJob, JobError> {
    let network = FleetNetwork::of(repository)?;
    let roster = roster(repository, &network, options)?;
    let rounds = rounds_of(options, &roster)?;
    let popular_from = repository.newest_popular()?;
    begin_on(&roster, &network, options, (rounds, popular_from), Vec::new())
}

/// Runs a job in stages to its end: a stage begins only after all VMs of the previous one have ended. Blocks.
/// # Errors
/// A stage has not begun. The snapshots of earlier stages exist.
pub fn run_in_stages(
    repository: &Repository,
    options: &JobOptions,
    cancel: &CancelFlag,
    tell: &mut dyn FnMut(&JobReport),
) -> Result<JobReport, JobError> {
    let network = FleetNetwork::of(repository)?;
    let roster = roster(repository, &network, options)?;
    let vms: Vec<Vec<String>> = roster.plans.iter().map(|plan| plan.vms.clone()).collect();
    let popular_from = repository.newest_popular()?;
    let mut all: Option<JobReport> = None;
    let mut lost: BTreeMap<String, String> = BTreeMap::new();
    for only in stages(&vms) {
        // A host without a VM in the stage, or with a smaller one, also ends all of its rounds: others wait
        // for that.
        let plan = plan_request(options, &only);
        let mut stage = JobRoster { members: Vec::new(), missing: roster.missing.clone(), plans: Vec::new() };
        for member in &roster.members {
            if lost.contains_key(&member.name) {
                continue;
            }
            match plan_of(member, &network, &plan) {
                Ok(plan) => {
                    stage.members.push(member.clone());
                    stage.plans.push(plan);
                }
                // An agent that has died between two stages counts as one that dies in the job: the others
                // continue.
                Err(reason) if info(member, &network).is_err() => {
                    drop(lost.insert(member.name.clone(), reason))
                }
                Err(reason) => return Err(JobError::Refused(reason)),
            }
        }
        if stage.members.is_empty() {
            break;
        }
        let rounds = rounds_of(options, &stage)?;
        let begun = begin_on(&stage, &network, options, (rounds, popular_from), only)?;
        let mut report = begun.wait(cancel, tell);
        begun.wait_for_checks(repository, &mut report)?;
        for agent in &report.agents {
            lost.extend(agent.lost.clone().map(|reason| (agent.name.clone(), reason)));
        }
        match &mut all {
            Some(all) => all.add_stage(report),
            None => all = Some(report),
        }
        if cancel.is_cancelled() {
            break;
        }
    }
    let Some(mut all) = all else {
        return Err(match lost.is_empty() {
            true => JobError::Refused("the plans of the agents have no VM".to_owned()),
            false => {
                JobError::NoAgent { reasons: lost.values().map(|reason| format!(" ({reason})")).collect() }
            }
        });
    };
    for (member, vms) in roster.members.iter().zip(&vms) {
        if let Some(reason) = lost.get(&member.name) {
            all.lose(&member.name, vms, reason);
        }
    }
    Ok(all)
}

/// Begins a job on these agents; only for the VMs in `only`, if there are any. An agent that has become
/// unreachable counts as lost from the beginning.
pub(crate) fn begin_on(
    roster: &JobRoster,
    network: &FleetNetwork,
    options: &JobOptions,
    (rounds, popular_from): (u32, u64),
    only: Vec<String>,
) -> Result<StartedJob, JobError> {
    let JobRoster { members, plans, missing } = roster;
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| JobError::Random(std::io::Error::other(error)))?;
    let job = hex(&id);
    let plans: Vec<Vec<String>> = plans.iter().map(|plan| plan.vms.clone()).collect();
    let run = RunRequest {
        job: job.clone(),
        members: members.iter().map(|member| (member.name.clone(), member.address.clone())).collect(),
        participants: members.len() as u32,
        partition_bits: partition_bits(members.len()),
        rounds: options.rounds.clone(),
        all_rounds: rounds,
        timeout_ms: options.timeout.as_millis() as u64,
        scheme: options.scheme,
        only,
        plans: match bytes_of(&plans) <= MOST_NAMES_BYTES {
            true => plans.clone(),
            // Later queries about the job then cover VMs that have begun.
            false => Vec::new(),
        },
        missing: missing.clone(),
        popular_from,
    };
    let mut gone: Vec<(String, String)> = Vec::new();
    for (at, member) in members.iter().enumerate() {
        let Err(reason) = call(member, network, run.clone()) else {
            continue;
        };
        // An agent that has died after it sent its plan counts as one that dies in the job: the others
        // continue.
        if info(member, network).is_err() {
            tracing::warn!(reason, "takes no part");
            gone.push((member.name.clone(), reason));
            continue;
        }
        for begun in &members[..at] {
            let _ = call(begun, network, CancelRequest { job: job.clone() });
        }
        return Err(JobError::Refused(reason));
    }
    if gone.len() == members.len() {
        let reasons = gone.iter().map(|(_, reason)| format!(" ({reason})")).collect();
        return Err(JobError::NoAgent { reasons });
    }
    Ok(StartedJob {
        members: members.clone(),
        network: network.clone(),
        job,
        rounds,
        plans,
        missing: missing.clone(),
        popular_from,
        timeout: options.timeout,
        gone,
    })
}

/// Finds a job, or the newest, by the reachable agents that know it. Its unreachable agents count as lost.
/// # Errors
/// No agent knows it.
pub fn find(repository: &Repository, job: Option<&str>) -> Result<StartedJob, JobError> {
    let network = FleetNetwork::of(repository)?;
    let mut newest: Option<(&FleetMember, AgentStatus)> = None;
    let mut reasons = BTreeMap::new();
    let alive = agent::alive(repository)?;
    for member in &alive {
        let answer = match job {
            Some(job) => call(member, &network, StatusRequest { job: job.to_owned() }),
            None => call(member, &network, NewestRequest {}),
        };
        match answer {
            Ok(status) => {
                if newest.as_ref().is_none_or(|(_, newest)| status.age_ms < newest.age_ms) {
                    newest = Some((member, status));
                }
            }
            Err(reason) => drop(reasons.insert(member.name.clone(), reason)),
        }
    }
    let Some((member, status)) = newest else {
        let reasons = reasons.values().map(|reason| format!(" ({reason})")).collect();
        return Err(JobError::Unknown { reasons });
    };
    let request = AgentsRequest { job: status.job.clone() };
    let known = call(member, &network, request).map_err(JobError::Refused)?;
    let mut begun = StartedJob {
        members: Vec::new(),
        network,
        job: status.job,
        rounds: status.all_rounds,
        plans: known.plans,
        missing: known.missing,
        popular_from: known.popular_from,
        timeout: Duration::from_millis(known.timeout_ms),
        gone: Vec::new(),
    };
    for (name, address) in known.members {
        let newest = alive.iter().find(|member| member.name == name);
        if newest.is_none() {
            let reason =
                reasons.remove(&name).unwrap_or_else(|| format!("agent {name} sends no heartbeats any more"));
            begun.gone.push((name.clone(), reason));
        }
        begun.members.push(newest.cloned().unwrap_or(FleetMember { name, address }));
    }
    Ok(begun)
}

/// Collects the plans of all agents.
fn roster(
    repository: &Repository,
    network: &FleetNetwork,
    options: &JobOptions,
) -> Result<JobRoster, JobError> {
    let roster = JobRoster::call(repository, network, &plan_request(options, &[]))?;
    if roster.members.is_empty() {
        let reasons = roster.missing.iter().map(|missing| format!(" ({missing})")).collect();
        return Err(JobError::NoAgent { reasons });
    }
    no_vm_twice(&roster.members, &roster.plans)?;
    Ok(roster)
}

/// The request for an agent's plan; only for the VMs in `only`, if there are any.
fn plan_request(options: &JobOptions, only: &[String]) -> PlanRequest {
    PlanRequest { rounds: options.rounds.clone(), only: only.to_vec() }
}

/// Bytes of the names in a command.
fn bytes_of(plans: &[Vec<String>]) -> usize {
    plans.iter().flatten().map(|vm| vm.len() + 3).sum()
}

/// Number of rounds of all agents: the requested number, or that of the agent with the most.
fn rounds_of(options: &JobOptions, roster: &JobRoster) -> Result<u32, JobError> {
    let most = most_rounds(&roster.plans);
    let Ok(RoundCount::Exactly(asked)) = options.rounds.parse() else {
        return Ok(most);
    };
    match options.scheme {
        DedupScheme::Collaborative => {}
        DedupScheme::DirtyBit => return Err(JobError::NoRounds { scheme: "dirty-bit" }),
        DedupScheme::Synchronous => {
            return Err(JobError::NoRounds { scheme: "synchronous" });
        }
    }
    let of_plans = roster.members.iter().zip(&roster.plans);
    match of_plans.max_by_key(|(_, plan)| plan.rounds) {
        Some((member, plan)) if plan.rounds > asked => {
            Err(JobError::TooFewRounds { asked, agent: member.name.clone(), needed: plan.rounds })
        }
        _ => Ok(asked),
    }
}

fn most_rounds(plans: &[PlanInfo]) -> u32 {
    plans.iter().map(|plan| plan.rounds).max().unwrap_or(1)
}

fn no_vm_twice(members: &[FleetMember], plans: &[PlanInfo]) -> Result<(), JobError> {
    let mut planned: HashMap<&str, &str> = HashMap::new();
    for (member, plan) in members.iter().zip(plans) {
        for vm in &plan.vms {
            if let Some(first) = planned.insert(vm, &member.name) {
                return Err(JobError::VmTwice {
                    vm: vm.clone(),
                    first: first.to_owned(),
                    second: member.name.clone(),
                });
            }
        }
    }
    Ok(())
}

fn wait(begun: &StartedJob, cancel: &CancelFlag, tell: &mut dyn FnMut(&JobReport)) -> JobReport {
    let StartedJob { members, network, job, .. } = begun;
    let began = Instant::now();
    let mut last_replies: Vec<Instant> = vec![began; members.len()];
    let mut is_cancelled = false;
    let mut report = begun.report();
    begun.note_lost(&mut report);
    let mut pause = FIRST_INTERVAL;
    while !report.agents.iter().all(AgentReport::is_over) {
        if cancel.is_cancelled() && !is_cancelled {
            is_cancelled = true;
            for member in members {
                let _ = call(member, network, CancelRequest { job: job.clone() });
            }
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(POLL_INTERVAL);
        for ((member, agent), last_reply) in members.iter().zip(&mut report.agents).zip(&mut last_replies) {
            if agent.is_over() {
                continue;
            }
            match call(member, network, StatusRequest { job: job.clone() }) {
                Ok(status) => {
                    *last_reply = Instant::now();
                    agent.enter_status(status);
                }
                Err(reason) if last_reply.elapsed() >= LOST_AFTER => agent.lost = Some(reason),
                Err(reason) => tracing::debug!(reason, "asked again"),
            }
        }
        report.took = began.elapsed();
        tell(&report);
    }
    report
}
