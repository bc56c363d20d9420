//! What an agent is told to do, and what it answers: JSON over the encrypted connection.

use super::{
    alive::alive,
    job::{Agreed, Host, Job},
    job_agents::JobAgents,
    leak_repairs::LeakRepair,
    planned::Planned,
    settling,
};
use crate::{
    asker::Member,
    control::{self, Control},
    missing_agent::MissingAgent,
    network::Network,
    rounds::RoundCount,
    scheme::Scheme,
};
use copal_backup::{ListedAgent, Repository};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{path::PathBuf, sync::Arc, thread::JoinHandle, time::Duration};

/// How long a command that carries out nothing takes at most.
pub(crate) const CALL: Duration = Duration::from_secs(10);
/// Jobs whose outcome is remembered.
const MOST_JOBS: usize = 16;

/// What an agent is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Who are you?
    Info,
    /// What would you back up, in how many rounds?
    Plan {
        rounds: String,
        /// Names of the VMs that are meant, of those in its plan; all, if there are none.
        #[serde(default)]
        only: Vec<String>,
    },
    /// Back it up, with these others.
    Run(Run),
    /// How far is the job?
    Status { job: String },
    /// Has the job stored all VMs of this agent?
    Stored { job: String },
    /// As `Status`, of the newest.
    Newest,
    /// Who has to do with the job?
    Agents { job: String },
    /// End the job.
    Cancel { job: String },
}

/// What all hosts of a job are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) job: String,
    /// Name and address of each agent.
    pub(crate) members: Vec<(String, String)>,
    pub(crate) participants: u32,
    pub(crate) partition_bits: u8,
    /// As `Plan` was asked.
    pub(crate) rounds: String,
    /// As many as the host with most has.
    pub(crate) all_rounds: u32,
    pub(crate) timeout_ms: u64,
    #[serde(default)]
    pub(crate) scheme: Scheme,
    /// Names of the VMs that are backed up, of those in the plans; all, if there are none.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// Names of the VMs of each member.
    #[serde(default)]
    pub(crate) plans: Vec<Vec<String>>,
    /// Agents that should take part and do not.
    #[serde(default)]
    pub(crate) missing: Vec<MissingAgent>,
    /// Position in the log of popular packs where the job began.
    #[serde(default)]
    pub(crate) popular_from: u64,
}

/// What an agent says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The job that it works on, as hex digits.
    pub job: Option<String>,
}

/// What an agent would back up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanInfo {
    /// Names of its VMs.
    pub vms: Vec<String>,
    /// Bytes that would be read.
    pub bytes: u64,
    /// In so many rounds.
    pub rounds: u32,
}

/// Carries out what an agent is told.
pub(crate) struct Commands {
    host: Arc<Host>,
    plan: Option<PathBuf>,
    memory_bytes: u64,
    jobs: Mutex<Jobs>,
    /// VMs with which this agent is listed.
    listed: Mutex<Option<Vec<String>>>,
}

#[derive(Default)]
struct Jobs {
    /// The newest is the last.
    known: Vec<Arc<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Jobs {
    fn running(&self) -> Option<&Arc<Job>> {
        self.known.last().filter(|job| !job.status().is_done)
    }

    fn find(&self, id: &str) -> Option<&Arc<Job>> {
        self.known.iter().find(|job| hex(&job.id()) == id)
    }
}

impl Commands {
    pub(crate) fn new(host: Arc<Host>, plan: Option<PathBuf>, memory_bytes: u64) -> Commands {
        Commands { host, plan, memory_bytes, jobs: Mutex::default(), listed: Mutex::default() }
    }

    /// Waits for the jobs, which end when the host stops.
    pub(crate) fn join(&self) {
        self.jobs.lock().known.iter().for_each(|job| job.end_repairs());
        let threads = std::mem::take(&mut self.jobs.lock().threads);
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn carry_out(&self, command: Command) -> Result<Value, String> {
        match command {
            Command::Info => {
                let info = AgentInfo {
                    name: self.host.name.clone(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    job: self.jobs.lock().running().map(|job| hex(&job.id())),
                };
                serde_json::to_value(info).map_err(|error| error.to_string())
            }
            Command::Plan { rounds, only } => {
                let planned = self.planned(&rounds, &only)?;
                let info = PlanInfo {
                    bytes: planned.vms.iter().map(|vm| vm.bytes).sum(),
                    rounds: planned.rounds.len() as u32,
                    vms: planned.vms.into_iter().map(|vm| vm.vm).collect(),
                };
                serde_json::to_value(info).map_err(|error| error.to_string())
            }
            Command::Run(run) => self.run(run),
            Command::Status { job } => {
                let known = self.jobs.lock().find(&job).cloned();
                known.map(|job| status(&job)).ok_or_else(|| unknown(&job))
            }
            Command::Stored { job } => {
                let known = self.jobs.lock().find(&job).cloned();
                let status = known.ok_or_else(|| unknown(&job))?.status();
                Ok(json!({ "stored": status.is_stored, "gain": status.has_gain }))
            }
            Command::Newest => {
                let newest = self.jobs.lock().known.last().cloned();
                let none = || format!("the agent {} has had no job since it was started", self.host.name);
                newest.map(|job| status(&job)).ok_or_else(none)
            }
            Command::Agents { job } => {
                let known = self.jobs.lock().find(&job).cloned().ok_or_else(|| unknown(&job))?;
                serde_json::to_value(known.agents()).map_err(|error| error.to_string())
            }
            Command::Cancel { job } => {
                let jobs = self.jobs.lock();
                let found = jobs.find(&job).ok_or_else(|| unknown(&job))?;
                found.cancel();
                Ok(json!({}))
            }
        }
    }

    fn planned(&self, rounds: &str, only: &[String]) -> Result<Planned, String> {
        let rounds: RoundCount =
            rounds.parse().map_err(|error: crate::rounds::NotARoundCount| error.to_string())?;
        let plan = self.plan.as_ref().ok_or("it has no plan, and only answers")?;
        let planned =
            Planned::read(plan, rounds, self.memory_bytes, only).map_err(|error| error.to_string())?;
        if only.is_empty() {
            self.list(planned.vms.iter().map(|vm| vm.vm.clone()).collect());
        }
        Ok(planned)
    }

    /// Lists this agent with the VMs of its plan, where those are others than before. Others know it as it
    /// was until that works.
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
            Err(error) => tracing::warn!(%error, "this agent cannot be listed with the VMs of its plan"),
        }
    }

    fn run(&self, run: Run) -> Result<Value, String> {
        let planned = self.planned(&run.rounds, &run.only)?;
        let planned = match run.scheme {
            Scheme::Collaborative | Scheme::Synchronous => planned,
            // Nobody is asked, so nobody waits for answers.
            Scheme::DirtyBit => planned.one_at_a_time(),
        };
        let agreed = Agreed {
            id: id_of(&run.job).ok_or("the job's id is not 32 hex digits")?,
            members: run.members.iter().cloned().map(|(name, address)| Member { name, address }).collect(),
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
            // Told twice: the first answer was lost.
            return Ok(json!({}));
        }
        if let Some(running) = jobs.running() {
            return Err(format!(
                "the agent {} works on job {}; wait for it to end",
                self.host.name,
                hex(&running.id())
            ));
        }
        if self.host.ends() {
            return Err(format!("the agent {} is ending", self.host.name));
        }
        jobs.known.iter().for_each(|job| job.end_repairs());
        let job = Job::new(Arc::clone(&self.host), agreed).map_err(|error| error.to_string())?;
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
        Ok(json!({}))
    }
}

/// Backs up and settles the VMs of this host.
fn run_to_the_end(job: &Job, planned: Planned) {
    job.run(planned);
    let network = &job.host().network;
    let ask = |other: &Member| {
        let command = Command::Stored { job: hex(&job.id()) };
        let answer = call(other, network, &command)?;
        // One that does not say knows of some, maybe.
        Ok((answer["stored"] == true, answer["gain"] != false))
    };
    let is_settled = job.settles() && settling::run(job, &ask);
    job.end(is_settled);
    job.repair();
}

fn repair_json(repair: &LeakRepair) -> Value {
    match &repair.freed_bytes {
        Ok(freed_bytes) => json!({ "vm": repair.vm, "freed_bytes": freed_bytes }),
        Err(reason) => json!({ "vm": repair.vm, "error": reason }),
    }
}

/// How far a job is.
fn status(job: &Job) -> Value {
    let status = job.status();
    json!({
        "job": hex(&job.id()),
        "age_ms": status.age.as_millis() as u64,
        "all_rounds": status.all_rounds,
        "done": status.is_done,
        "stored": status.is_stored,
        "gain": job.settles().then_some(status.has_gain),
        "settled": status.is_settled,
        "round": status.round,
        "seconds": status.took.as_secs_f64(),
        "dropped_answers": status.dropped,
        "message_bytes": status.message_bytes,
        "peak_memory_bytes": peak_memory_bytes(),
        "repairs": status.repairs.iter().map(repair_json).collect::<Vec<_>>(),
        "vms": status.vms.iter().map(super::report::VmReport::to_json).collect::<Vec<_>>(),
    })
}

impl Control for Commands {
    fn handle(&self, request: Value) -> Value {
        let carried_out = serde_json::from_value(request)
            .map_err(|error| format!("an agent of this version does not understand that: {error}"))
            .and_then(|command| self.carry_out(command));
        match carried_out {
            Ok(answer) => json!({ "ok": answer }),
            Err(reason) => json!({ "error": reason }),
        }
    }
}

/// Tells an agent, and waits for the answer.
/// # Errors
/// A sentence: it cannot be reached, or why it does not.
pub(crate) fn call(member: &Member, network: &Network, command: &Command) -> Result<Value, String> {
    let request = serde_json::to_value(command).map_err(|error| error.to_string())?;
    let mut answer = control::call(&member.address, network, &request, CALL)
        .map_err(|error| format!("agent {}: {error}", member.name))?;
    match answer.get_mut("ok").map(Value::take) {
        Some(answer) => Ok(answer),
        None => {
            Err(format!("agent {}: {}", member.name, answer["error"].as_str().unwrap_or("it says nothing")))
        }
    }
}

/// Who an agent is.
/// # Errors
/// As [`call`].
pub(crate) fn info(member: &Member, network: &Network) -> Result<AgentInfo, String> {
    let answer = call(member, network, &Command::Info)?;
    serde_json::from_value(answer).map_err(|error| format!("agent {}: {error}", member.name))
}

/// Where another agent of that name listens, if one answers.
pub(crate) fn namesake(
    repository: &Repository,
    network: &Network,
    name: &str,
) -> copal_backup::Result<Option<String>> {
    let mut others = alive(repository)?.into_iter().filter(|member| member.name == name);
    let other = others.find(|member| info(member, network).is_ok_and(|info| info.name == name));
    Ok(other.map(|member| member.address))
}

fn unknown(job: &str) -> String {
    format!("no job {job} is known here")
}

/// As 32 hex digits.
pub(crate) fn hex(id: &[u8; 16]) -> String {
    uuid::Uuid::from_bytes(*id).simple().to_string()
}

/// An id from 32 hex digits.
pub(crate) fn id_of(hex: &str) -> Option<[u8; 16]> {
    let id = uuid::Uuid::try_parse(hex).ok()?;
    (hex.len() == 32).then(|| id.into_bytes())
}

/// The most memory this process has had, as the kernel counts it; 0 where it does not say.
fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}
