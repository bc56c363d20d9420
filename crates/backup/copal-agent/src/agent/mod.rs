//! An agent: backs up the VMs of its host's plan, answers for its share of the popular chunks, and checks the
//! popular packs of other hosts.
//!
//! Threads: those of the server (`crate::server`), one that checks popular packs, one for heartbeats, one per
//! job and one per VM that is being backed up.

mod checker;
pub(crate) mod commands;
mod early_rounds;
mod job;
pub(crate) mod job_agents;
mod leak_repairs;
pub(crate) mod liveness;
mod owner;
mod patience;
mod peers;
mod planned_rounds;
pub(crate) mod report;
pub(crate) mod requests;
mod settlement;
pub(crate) mod status;
mod turns;

pub use client::FleetClient;
pub use leak_repairs::{LeakRepair, RepairOutcome, repair_leaks};
pub use liveness::alive;
pub use requests::{AgentInfo, PlanInfo};
pub use status::{
    AgentStatus, SettledVm, VmBackup, VmBytes, VmDisk, VmFailure, VmProgress, VmState, VmStatus,
};

mod client;

use crate::fleet::network::FleetNetwork;
use crate::limits::budget::{BudgetError, MemoryBudget};
use crate::limits::throttle::ByteThrottle;
use crate::plan::plan_file::PlanError;
use crate::server::{Server, ServerOptions};
use commands::CommandHandler;
use copal_backup::{Error, Holder, Layout, ListedAgent, Repository};
use job::JobHost;
use owner::PartitionOwner;
use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    thread::JoinHandle,
};

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Name, unique in the repository.
    pub name: String,
    /// Directory of the agent, created if missing. All its files may be deleted while the agent is stopped.
    pub state: PathBuf,
    /// Address to listen at, host:port; port 0 is any free port.
    pub listen: String,
    /// Address that others use; `None`: the listening address.
    pub advertise: Option<String>,
    /// Plan file, read again for each job. `None`: the agent only answers.
    pub plan: Option<PathBuf>,
    /// Memory limit of the process.
    pub memory_bytes: u64,
    /// Most bytes per second to read from disks; `None`: no limit.
    pub read_limit: Option<u64>,
    /// Most bytes per second to store.
    pub upload_limit: Option<u64>,
    /// Share in percent of a VM's bytes: VMs that leak more are repaired after a job, if the key may delete.
    /// `None`: no repairs. Only for an agent with its own process.
    pub leak_share_percent: Option<u8>,
}

/// Reason why an agent does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The layout has no agents.
    #[error(
        "agents need a repository of the layout fleet; this one is solo: make another with `copal init --layout fleet`"
    )]
    Solo,
    /// The memory limit is too low.
    #[error(transparent)]
    Memory(#[from] BudgetError),
    /// The plan file is refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Another agent has the name.
    #[error("an agent named {name} runs at {address}; give this one another --name, or end that one first")]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other listens.
        address: String,
    },
    /// Error of the agent's directory.
    #[error("cannot use {}: {error}; name a directory that this user may write with --state", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The address cannot be listened at.
    #[error("cannot listen at {0}; name a free address of this host with --listen")]
    Listen(io::Error),
    /// The system starts no thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Error of the repository.
    #[error(transparent)]
    Repository(#[from] Error),
}

/// A running agent.
pub struct Agent {
    server: Server,
    host: Arc<JobHost>,
    commands: Arc<CommandHandler>,
    checker: JoinHandle<()>,
    _beat: copal_backup::HeartbeatGuard,
}

impl Agent {
    /// Starts all threads. The agent ends when `stop` is set.
    /// # Errors
    /// The reason; no thread has started then.
    pub fn start(
        repository: Arc<Repository>,
        options: &AgentOptions,
        stop: Arc<AtomicBool>,
    ) -> Result<Agent, AgentError> {
        let Layout::Fleet { popular_millionths } = repository.info().layout else {
            return Err(AgentError::Solo);
        };
        MemoryBudget::of_process(options.memory_bytes)?;
        let mut planned_vms = Vec::new();
        if let Some(plan) = &options.plan {
            let planned = planned_rounds::PlannedRounds::read(
                plan,
                crate::rounds::RoundCount::Auto,
                options.memory_bytes,
                &[],
            )?;
            planned_vms.extend(planned.vms.into_iter().map(|vm| vm.vm));
        }
        let spool = options.state.join("spool");
        make_private(&options.state)?;
        make_private(&spool)?;
        let network = FleetNetwork::of(&repository)?;
        if let Some(other) = commands::namesake(&repository, &network, &options.name)? {
            return Err(AgentError::NameTaken { name: options.name.clone(), address: other });
        }
        let limits = (ByteThrottle::new(options.read_limit), ByteThrottle::new(options.upload_limit));
        let mut host = JobHost::new(
            &options.name,
            Arc::clone(&repository),
            network.clone(),
            spool,
            limits,
            Arc::clone(&stop),
        );
        host.leak_share_percent = options.leak_share_percent;
        let host = Arc::new(host);
        let owner = PartitionOwner::new(
            Arc::clone(&repository),
            options.state.join("partitions"),
            popular_millionths,
            Arc::clone(&host.early),
        );
        let commands =
            Arc::new(CommandHandler::new(Arc::clone(&host), options.plan.clone(), options.memory_bytes));
        let listening = ServerOptions::new(&options.listen, &options.name, network);
        let server = Server::start(listening, Arc::new(owner), commands.clone(), Arc::clone(&stop))
            .map_err(AgentError::Listen)?;
        let holder = Holder {
            name: options.name.clone(),
            address: options.advertise.clone().unwrap_or_else(|| server.address().to_string()),
        };
        // From now on others find the agent.
        let beat = repository.beat(&holder)?;
        let _ = host.holder.set(beat.holder());
        if options.plan.is_some() {
            repository.list_agent(&ListedAgent {
                name: options.name.clone(),
                holder: beat.holder(),
                vms: planned_vms,
                more_vms: 0,
            })?;
        }
        // No other agent answers under this name, so open sessions of earlier runs belong to this agent.
        for ended in repository.take_over(&options.name, beat.holder())? {
            tracing::warn!(vm = ended.vm.name, "backup of this VM left open by an earlier run was ended");
        }
        let checker = {
            let host = Arc::clone(&host);
            let named = std::thread::Builder::new().name("agent-check".into());
            named.spawn(move || checker::run(&host)).map_err(AgentError::Thread)?
        };
        Ok(Agent { server, host, commands, checker, _beat: beat })
    }

    /// Its listening address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.host.name
    }

    /// Waits until the agent was stopped and its work has ended: running backups end at their next safe point
    /// and publish nothing.
    pub fn wait(self) {
        self.server.wait();
        self.commands.join();
        let _ = self.checker.join();
    }
}

fn make_private(path: &Path) -> Result<(), AgentError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| AgentError::State { path: path.to_owned(), error })
}
