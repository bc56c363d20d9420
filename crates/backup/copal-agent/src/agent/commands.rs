//! Executes the commands that an agent receives.
//!
//! Not here: the requests and their replies (`requests`), the execution of a job (`job`).

use super::{
    job::{HostJob, JobHost, JobTerms},
    job_agents::JobAgents,
    liveness::alive,
    planned_rounds::PlannedRounds,
    requests::{
        AcceptedReply, AgentCommand, AgentInfo, AgentRequest, PlanInfo, PlanRequest, RunRequest, StoredInfo,
        StoredRequest, call, hex, id_of, info,
    },
    settlement,
};
use crate::asker::FleetMember;
use crate::fleet::control;
use crate::fleet::control::{CommandOutcome, CommandService, refusal};
use crate::fleet::network::FleetNetwork;
use crate::plan::scheme::DedupScheme;
use crate::rounds::RoundCount;
use copal_backup::{ListedAgent, Repository};
use parking_lot::Mutex;
use std::{path::PathBuf, sync::Arc, thread::JoinHandle, time::Duration};

/// Number of jobs whose outcome is kept.
const MOST_JOBS: usize = 16;

/// Executes the commands that an agent receives.
pub(crate) struct CommandHandler {
    host: Arc<JobHost>,
    plan: Option<PathBuf>,
    memory_bytes: u64,
    jobs: Mutex<JobTable>,
    /// VMs with which this agent is listed.
    listed: Mutex<Option<Vec<String>>>,
}

#[derive(Default)]
struct JobTable {
    /// The newest job is the last.
    known: Vec<Arc<HostJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl JobTable {
    fn running(&self) -> Option<&Arc<HostJob>> {
        self.known.last().filter(|job| !job.is_done())
    }

    fn find(&self, id: &str) -> Option<&Arc<HostJob>> {
        self.known.iter().find(|job| hex(&job.id()) == id)
    }
}

impl CommandHandler {
    pub(crate) fn new(host: Arc<JobHost>, plan: Option<PathBuf>, memory_bytes: u64) -> CommandHandler {
        CommandHandler { host, plan, memory_bytes, jobs: Mutex::default(), listed: Mutex::default() }
    }

    /// Waits for the jobs, which end when the host stops.
    pub(crate) fn join(&self) {
        self.jobs.lock().known.iter().for_each(|job| job.end_repairs());
        let threads = std::mem::take(&mut self.jobs.lock().threads);
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn carry_out(&self, command: AgentCommand) -> String {
        match command {
            AgentCommand::Info(request) => reply(request, |_| Ok(self.info())),
            AgentCommand::Plan(request) => reply(request, |request| self.plan(&request)),
            AgentCommand::Run(request) => reply(request, |request| self.run(request)),
            AgentCommand::Status(request) => reply(request, |request| Ok(self.job(&request.job)?.status())),
            AgentCommand::Stored(request) => reply(request, |request| {
                let job = self.job(&request.job)?;
                Ok(StoredInfo { stored: job.is_stored(), gain: job.has_gain() })
            }),
            AgentCommand::Newest(request) => reply(request, |_| {
                let newest = self.jobs.lock().known.last().cloned();
                let none = || format!("the agent {} has had no job since it was started", self.host.name);
                newest.map(|job| job.status()).ok_or_else(none)
            }),
            AgentCommand::Agents(request) => {
                reply(request, |request| Ok(self.job(&request.job)?.agents().clone()))
            }
            AgentCommand::Cancel(request) => reply(request, |request| {
                self.job(&request.job)?.cancel();
                Ok(AcceptedReply {})
            }),
        }
    }

    fn info(&self) -> AgentInfo {
        AgentInfo {
            name: self.host.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            job: self.jobs.lock().running().map(|job| hex(&job.id())),
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<PlanInfo, String> {
        let planned = self.planned(&request.rounds, &request.only)?;
        Ok(PlanInfo {
            bytes: planned.vms.iter().map(|vm| vm.bytes).sum(),
            rounds: planned.rounds.len() as u32,
            vms: planned.vms.into_iter().map(|vm| vm.vm).collect(),
        })
    }

    /// A job that is kept here.
    fn job(&self, id: &str) -> Result<Arc<HostJob>, String> {
        self.jobs.lock().find(id).cloned().ok_or_else(|| format!("no job {id} is known here"))
    }

    fn planned(&self, rounds: &str, only: &[String]) -> Result<PlannedRounds, String> {
        let rounds: RoundCount =
            rounds.parse().map_err(|error: crate::rounds::NotARoundCount| error.to_string())?;
        let plan = self.plan.as_ref().ok_or("it has no plan, and only answers")?;
        let planned =
            PlannedRounds::read(plan, rounds, self.memory_bytes, only).map_err(|error| error.to_string())?;
        if only.is_empty() {
            self.list(planned.vms.iter().map(|vm| vm.vm.clone()).collect());
        }
        Ok(planned)
    }

    /// Lists this agent with the VMs of its plan, if they changed. Until that succeeds, others see the
    /// earlier list.
    fn list(&self, vms: Vec<String>) {
        let mut listed = self.listed.lock();
        if listed.as_ref() == Some(&vms) {
            return;
        }
        let Some(holder) = self.host.holder.get() else {
            return;
        };
        let agent =
            ListedAgent { name: self.host.name.clone(), holder: *holder, vms: vms.clone(), more_vms: 0 };
        match self.host.repository.list_agent(&agent) {
            Ok(()) => *listed = Some(vms),
            Err(error) => tracing::warn!(%error, "agent not listed with the VMs of its plan"),
        }
    }

    fn run(&self, run: RunRequest) -> Result<AcceptedReply, String> {
        let planned = self.planned(&run.rounds, &run.only)?;
        let planned = match run.scheme {
            DedupScheme::Collaborative | DedupScheme::Synchronous => planned,
            // Without queries, no agent waits for answers.
            DedupScheme::DirtyBit => planned.one_at_a_time(),
        };
        let agreed = JobTerms {
            id: id_of(&run.job).ok_or("the job's id is not 32 hex digits")?,
            members: run
                .members
                .iter()
                .cloned()
                .map(|(name, address)| FleetMember { name, address })
                .collect(),
            participants: run.participants.max(1),
            partition_bits: run.partition_bits,
            rounds: run.all_rounds.max(planned.rounds.len() as u32),
            timeout: Duration::from_millis(run.timeout_ms),
            scheme: run.scheme,
            agents: JobAgents {
                members: run.members,
                plans: run.plans,
                missing: run.missing,
                popular_from: run.popular_from,
                timeout_ms: run.timeout_ms,
            },
        };
        let mut jobs = self.jobs.lock();
        if jobs.find(&run.job).is_some() {
            // A repeated request: the first reply was lost.
            return Ok(AcceptedReply {});
        }
        if let Some(running) = jobs.running() {
            return Err(format!(
                "the agent {} is running job {}; wait for it to end",
                self.host.name,
                hex(&running.id())
            ));
        }
        if self.host.ends() {
            return Err(format!("the agent {} is ending", self.host.name));
        }
        jobs.known.iter().for_each(|job| job.end_repairs());
        let job = HostJob::new(Arc::clone(&self.host), agreed).map_err(|error| error.to_string())?;
        let job = Arc::new(job);
        let running = Arc::clone(&job);
        let thread = std::thread::Builder::new().name("agent-job".into());
        let thread =
            thread.spawn(move || run_to_the_end(&running, planned)).map_err(|error| error.to_string())?;
        for done in jobs.threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = done.join();
        }
        jobs.threads.push(thread);
        jobs.known.push(job);
        if jobs.known.len() > MOST_JOBS {
            jobs.known.remove(0);
        }
        Ok(AcceptedReply {})
    }
}

/// Backs up and settles the VMs of this host.
fn run_to_the_end(job: &HostJob, planned: PlannedRounds) {
    job.run(planned);
    let network = &job.host().network;
    let ask = |other: &FleetMember| {
        let info = call(other, network, StoredRequest { job: hex(&job.id()) })?;
        Ok((info.stored, info.gain))
    };
    let is_settled = job.settles() && settlement::run(job, &ask);
    job.end(is_settled);
    job.repair();
}

/// Executes a request; returns its outcome as JSON.
fn reply<R: AgentRequest>(request: R, carry_out: impl FnOnce(R) -> Result<R::Reply, String>) -> String {
    let outcome = match carry_out(request) {
        Ok(reply) => CommandOutcome::Ok(reply),
        Err(reason) => CommandOutcome::Error(reason),
    };
    control::to_json(&outcome).unwrap_or_else(|error| refusal(&error.to_string()))
}

impl CommandService for CommandHandler {
    fn handle(&self, request: &[u8]) -> String {
        match serde_json::from_slice(request) {
            Ok(command) => self.carry_out(command),
            Err(error) if error.is_data() => {
                refusal(&format!("an agent of this version does not know the command: {error}"))
            }
            Err(error) => refusal(&format!("the command is not valid JSON: {error}")),
        }
    }
}

/// The address of another agent with that name, if one answers.
pub(crate) fn namesake(
    repository: &Repository,
    network: &FleetNetwork,
    name: &str,
) -> copal_backup::Result<Option<String>> {
    let mut others = alive(repository)?.into_iter().filter(|member| member.name == name);
    let other = others.find(|member| info(member, network).is_ok_and(|info| info.name == name));
    Ok(other.map(|member| member.address))
}
