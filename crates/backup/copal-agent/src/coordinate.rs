//! Runs a job on all agents of a fleet: asks what each would back up, tells all who takes part, waits, and adds it up.
//!
//! Whoever coordinates does no work of the job: if it dies, the agents go on to the end.

use crate::{
    agent::{self, PlanInfo},
    asker::Member,
    channel::Secret,
    members::partition_bits,
    scheme::{Scheme, stages},
};
use agent::commands::{Command, Run, call, hex};
use copal_backup::{CancelFlag, Repository};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// How often agents are asked how far they are.
const LOOK: Duration = Duration::from_millis(500);
/// An agent that does not answer for so long counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// Which job.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// `auto`, or a number.
    pub rounds: String,
    /// Longest time for an answer of an owner that has been asked by all it waits for.
    pub timeout: Duration,
    /// The product's way, or one that it stands beside.
    pub scheme: Scheme,
}

/// Why a job does not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// Nobody is there.
    #[error(
        "no agent of this repository can be reached{reasons}; start `copal agent` on each host, `copal agent ls` shows them"
    )]
    Nobody {
        /// Why not, of each that was tried.
        reasons: String,
    },
    /// A VM would be backed up by two hosts.
    #[error("VM {vm} is in the plans of {first} and {second}; take it out of one of them")]
    VmTwice {
        /// The VM.
        vm: String,
        /// An agent.
        first: String,
        /// Another one.
        second: String,
    },
    /// No agent knows the job.
    #[error("no agent that can be reached knows such a job{reasons}")]
    Unknown {
        /// Why not, of each that was tried.
        reasons: String,
    },
    /// One does not take part.
    #[error("{0}")]
    Refused(String),
    /// The repository.
    #[error(transparent)]
    Repository(#[from] copal_backup::Error),
    /// The system has no randomness.
    #[error("no random numbers: {0}")]
    Random(std::io::Error),
}

/// What a job did.
#[derive(Clone, Debug)]
pub struct JobReport {
    /// Its id, as 32 hex digits.
    pub job: String,
    /// Rounds it had.
    pub rounds: u32,
    /// What each agent said at last; of one that was lost, what it had said before.
    pub agents: Vec<AgentReport>,
    /// From beginning to end.
    pub took: Duration,
}

/// What an agent did in a job.
#[derive(Clone, Debug)]
pub struct AgentReport {
    /// Its name.
    pub name: String,
    /// Its last status.
    pub status: Value,
    /// Why nothing more is known.
    pub lost: Option<String>,
}

impl AgentReport {
    fn is_over(&self) -> bool {
        self.lost.is_some() || self.status["done"] == true
    }

    /// Adds what it did in the next stage.
    fn add(&mut self, next: AgentReport) {
        let (now, then) = (&mut self.status, next.status);
        if let (Some(vms), Some(more)) = (now["vms"].as_array_mut(), then["vms"].as_array()) {
            vms.extend(more.iter().cloned());
        }
        for name in ["message_bytes", "dropped_answers"] {
            let of = |status: &Value| status[name].as_u64().unwrap_or(0);
            now[name] = (of(now) + of(&then)).into();
        }
        let seconds = |status: &Value| status["seconds"].as_f64().unwrap_or(0.0);
        now["seconds"] = (seconds(now) + seconds(&then)).into();
        now["peak_memory_bytes"] = then["peak_memory_bytes"].clone();
        self.lost = next.lost;
    }

    /// Its VMs.
    pub fn vms(&self) -> &[Value] {
        self.status["vms"].as_array().map_or(&[], Vec::as_slice)
    }
}

impl JobReport {
    /// Nothing is known yet.
    fn of(begun: &Begun) -> JobReport {
        let agents = begun.members.iter().map(|member| AgentReport {
            name: member.name.clone(),
            status: json!({}),
            lost: None,
        });
        JobReport {
            job: begun.job.clone(),
            rounds: begun.rounds,
            agents: agents.collect(),
            took: Duration::ZERO,
        }
    }

    /// Adds what the same agents did in the next stage.
    fn add_stage(&mut self, stage: JobReport) {
        self.rounds += stage.rounds;
        self.took += stage.took;
        for (agent, next) in self.agents.iter_mut().zip(stage.agents) {
            agent.add(next);
        }
    }

    /// Whether every VM has a new snapshot.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let is_done = |vm: &Value| vm["state"] == "done";
        let whole = |agent: &AgentReport| agent.lost.is_none() && agent.vms().iter().all(is_done);
        self.agents.iter().all(whole)
    }
}

/// A job that all its agents have begun.
pub struct Begun {
    members: Vec<Member>,
    secret: Secret,
    job: String,
    rounds: u32,
}

impl Begun {
    /// Its id, as 32 hex digits.
    #[must_use]
    pub fn job(&self) -> &str {
        &self.job
    }

    /// Its rounds.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds
    }

    /// Names of the agents that take part.
    pub fn agents(&self) -> impl Iterator<Item = &str> {
        self.members.iter().map(|member| member.name.as_str())
    }

    /// How far it is now.
    #[must_use]
    pub fn look(&self) -> JobReport {
        let mut report = JobReport::of(self);
        for (member, agent) in self.members.iter().zip(&mut report.agents) {
            match call(
                member,
                &self.secret,
                &Command::Status {
                    job: self.job.clone(),
                },
            ) {
                Ok(status) => agent.status = status,
                Err(reason) => agent.lost = Some(reason),
            }
        }
        let seconds = report
            .agents
            .iter()
            .filter_map(|agent| agent.status["seconds"].as_f64());
        report.took = Duration::from_secs_f64(seconds.fold(0.0, f64::max));
        report
    }

    /// Waits until it has ended; `tell` hears how far it is. Cancelled, it is ended on all agents, which takes until each has
    /// come to a safe point. Blocks.
    pub fn wait(&self, cancel: &CancelFlag, tell: &mut dyn FnMut(&JobReport)) -> JobReport {
        wait(self, cancel, tell)
    }
}

/// Begins a job on all agents; one in stages, with the first.
/// # Errors
/// It has not begun.
pub fn begin(repository: &Repository, options: &JobOptions) -> Result<Begun, JobError> {
    let secret = Secret::new(*repository.agents_secret());
    let (members, plans) = plans(repository, &secret, options)?;
    no_vm_twice(&members, &plans)?;
    let rounds = most_rounds(&plans);
    begin_on(members, &secret, options, rounds, Vec::new())
}

/// Runs a job in stages, to its end: none begins before all VMs of the one before have ended. Blocks.
/// # Errors
/// A stage has not begun. What the stages before it stored is there.
pub fn run_in_stages(
    repository: &Repository,
    options: &JobOptions,
    cancel: &CancelFlag,
    tell: &mut dyn FnMut(&JobReport),
) -> Result<JobReport, JobError> {
    let secret = Secret::new(*repository.agents_secret());
    let (members, plans) = plans(repository, &secret, options)?;
    no_vm_twice(&members, &plans)?;
    let vms: Vec<Vec<String>> = plans.into_iter().map(|plan| plan.vms).collect();
    let mut all: Option<JobReport> = None;
    for only in stages(&vms) {
        // Whoever has no VM in the stage, or a smaller one, ends all of its rounds, too: others wait for that.
        let plans = members
            .iter()
            .map(|member| plan_of(member, &secret, options, &only));
        let rounds = most_rounds(&plans.collect::<Result<Vec<_>, _>>()?);
        let begun = begin_on(members.clone(), &secret, options, rounds, only)?;
        let report = begun.wait(cancel, tell);
        let is_over = cancel.is_cancelled() || report.agents.iter().any(|agent| agent.lost.is_some());
        match &mut all {
            Some(all) => all.add_stage(report),
            None => all = Some(report),
        }
        if is_over {
            break;
        }
    }
    all.ok_or_else(|| JobError::Refused("the plans of the agents have no VM".to_owned()))
}

/// Begins a job on these agents; `only` these VMs, if there are any.
fn begin_on(
    members: Vec<Member>,
    secret: &Secret,
    options: &JobOptions,
    rounds: u32,
    only: Vec<String>,
) -> Result<Begun, JobError> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|error| JobError::Random(std::io::Error::other(error)))?;
    let job = hex(&id);
    let run = Command::Run(Run {
        job: job.clone(),
        members: members
            .iter()
            .map(|member| (member.name.clone(), member.address.clone()))
            .collect(),
        participants: members.len() as u32,
        partition_bits: partition_bits(members.len()),
        rounds: options.rounds.clone(),
        all_rounds: rounds,
        timeout_ms: options.timeout.as_millis() as u64,
        scheme: options.scheme,
        only,
    });
    for (at, member) in members.iter().enumerate() {
        if let Err(reason) = call(member, secret, &run) {
            for begun in &members[..at] {
                let _ = call(begun, secret, &Command::Cancel { job: job.clone() });
            }
            return Err(JobError::Refused(reason));
        }
    }
    Ok(Begun {
        members,
        secret: secret.clone(),
        job,
        rounds,
    })
}

/// Finds a job again, or the newest, that agents which can be reached know.
/// # Errors
/// Nobody knows it.
pub fn find(repository: &Repository, job: Option<&str>) -> Result<Begun, JobError> {
    let secret = Secret::new(*repository.agents_secret());
    let mut known: Option<(Begun, u64)> = None;
    let mut reasons = String::new();
    for member in agent::alive(repository)? {
        let answer = match job {
            Some(job) => call(&member, &secret, &Command::Status { job: job.to_owned() }),
            None => call(&member, &secret, &Command::Newest),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(reason) => {
                reasons.push_str(&format!(" ({reason})"));
                continue;
            }
        };
        let (Some(id), Some(age_ms)) = (answer["job"].as_str(), answer["age_ms"].as_u64()) else {
            continue;
        };
        let rounds = answer["all_rounds"].as_u64().unwrap_or(1) as u32;
        match &mut known {
            Some((begun, _)) if begun.job == id => begun.members.push(member),
            Some((_, age)) if *age <= age_ms => {}
            _ => {
                let begun = Begun {
                    members: vec![member],
                    secret: secret.clone(),
                    job: id.to_owned(),
                    rounds,
                };
                known = Some((begun, age_ms));
            }
        }
    }
    known.map(|(begun, _)| begun).ok_or(JobError::Unknown { reasons })
}

/// Who can be reached, and what each would back up.
fn plans(
    repository: &Repository,
    secret: &Secret,
    options: &JobOptions,
) -> Result<(Vec<Member>, Vec<PlanInfo>), JobError> {
    let mut reasons = String::new();
    let mut members = Vec::new();
    let mut plans = Vec::new();
    for member in agent::alive(repository)? {
        if let Err(reason) = agent::commands::info(&member, secret) {
            tracing::warn!(reason, "takes no part");
            reasons.push_str(&format!(" ({reason})"));
            continue;
        }
        plans.push(plan_of(&member, secret, options, &[])?);
        members.push(member);
    }
    match members.is_empty() {
        true => Err(JobError::Nobody { reasons }),
        false => Ok((members, plans)),
    }
}

/// What an agent would back up; of that `only` these VMs, if there are any.
fn plan_of(
    member: &Member,
    secret: &Secret,
    options: &JobOptions,
    only: &[String],
) -> Result<PlanInfo, JobError> {
    let command = Command::Plan {
        rounds: options.rounds.clone(),
        only: only.to_vec(),
    };
    let plan = call(member, secret, &command).map_err(JobError::Refused)?;
    serde_json::from_value(plan).map_err(|error| JobError::Refused(format!("agent {}: {error}", member.name)))
}

fn most_rounds(plans: &[PlanInfo]) -> u32 {
    plans.iter().map(|plan| plan.rounds).max().unwrap_or(1)
}

fn no_vm_twice(members: &[Member], plans: &[PlanInfo]) -> Result<(), JobError> {
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

fn wait(begun: &Begun, cancel: &CancelFlag, tell: &mut dyn FnMut(&JobReport)) -> JobReport {
    let Begun {
        members, secret, job, ..
    } = begun;
    let began = Instant::now();
    let mut heard: Vec<Instant> = vec![began; members.len()];
    let mut is_cancelled = false;
    let mut report = JobReport::of(begun);
    while !report.agents.iter().all(AgentReport::is_over) {
        if cancel.is_cancelled() && !is_cancelled {
            is_cancelled = true;
            for member in members {
                let _ = call(member, secret, &Command::Cancel { job: job.clone() });
            }
        }
        std::thread::park_timeout(LOOK);
        for ((member, agent), heard) in members.iter().zip(&mut report.agents).zip(&mut heard) {
            if agent.is_over() {
                continue;
            }
            match call(member, secret, &Command::Status { job: job.clone() }) {
                Ok(status) => {
                    *heard = Instant::now();
                    agent.status = status;
                }
                Err(reason) if heard.elapsed() >= LOST_AFTER => agent.lost = Some(reason),
                Err(reason) => tracing::debug!(reason, "asked again"),
            }
        }
        report.took = began.elapsed();
        tell(&report);
    }
    report
}
