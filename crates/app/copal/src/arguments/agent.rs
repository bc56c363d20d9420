//! Arguments of the commands on agents: `copal agent`, `copal job`, `copal pds`.

use super::backend::BackendArgs;
use crate::human;
use clap::{Args, Subcommand, ValueEnum};
use copal_agent::rounds::RoundCount;
use std::{path::PathBuf, time::Duration};

/// `copal agent`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
An agent runs on each host of VMs. When `copal job run` starts a job, the agent backs up the VMs of its plan. It asks the other \
agents which chunks they have, and answers their questions for its share of the chunks. A plan is \
{\"v\":1,\"vms\":[{\"vm\":\"web\",\"disks\":{\"sda\":\"/dev/vg/web\"}}]}; the agent reads it again for each job. The agent prints one \
line `ready NAME ADDRESS` and ends on SIGTERM.

Only one process can open a repository in a directory, so that process runs all agents and the jobs: give several names, as many \
plans, and --once or --every.

For a repository in a cluster, the index is cached in a store in the state directory; --backend is for that store.

Examples:
  copal agent --name h1 --key h1.key --state state --listen 10.0.0.1:7500 --plan h1.json
  copal agent --name h1,h2 --state state --plan h1.json,h2.json --once
  copal agent ls"
)]
pub(crate) struct AgentArgs {
    #[command(subcommand)]
    pub(crate) word: Option<AgentCommand>,
    /// Name of the agent, unique in the repository; on a repository in a directory several names, separated
    /// by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub(crate) name: Vec<String>,
    /// Plan file of the agent; as many as names, separated by commas
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    pub(crate) plan: Vec<PathBuf>,
    /// Directory for local state, which may be deleted while the agent is stopped; each of several agents has
    /// a directory in it
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) state: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) backend: BackendArgs,
    /// Address at which other agents connect; each of several agents listens at a port of its own
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Address that other agents use, if it differs from the one of --listen
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Most bytes per second to read from disks; 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "60M", value_parser = human::parse_bytes)]
    pub(crate) limit_read: u64,
    /// Most bytes per second to store; 0 for no limit
    #[arg(long, value_name = "SIZE", default_value = "40M", value_parser = human::parse_bytes)]
    pub(crate) limit_upload: u64,
    /// Run one job on all agents once these are ready, print its result, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Run a job on all agents now, and then at this interval, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = human::parse_duration, conflicts_with = "once")]
    pub(crate) every: Option<Duration>,
    #[command(flatten)]
    pub(crate) job: JobOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// List the known agents
    #[command(after_help = "\
Example:
  copal agent ls")]
    Ls,
    /// Remove an agent from the list that a job waits for
    #[command(after_help = "\
From its first start on, an agent is listed with the VMs of its plan. A job names the listed agents that it cannot reach, and \
their VMs, and ends with exit code 1. Remove an agent when its host will not come back. In a repository with role keys, this takes \
a key that may delete.

Example:
  copal agent rm h2 --key ops.key")]
    Rm {
        /// Name of the agent
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `copal job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Back up all VMs in the plans of all agents
    #[command(after_help = "\
The agents work in rounds. In each round every host reads some of its VMs, asks the others which chunks they have, and stores the \
chunks that none has. A chunk of several VMs is stored once, for all of them. At the end each VM gives up its own copies of chunks \
that became popular after it had asked. This takes a key that may delete: on the hosts, or here together with --wait. With other \
keys the result counts those chunks.

Without --wait the command ends when all agents have started; `copal job status` shows the progress. Exit code 1: a VM has no new \
snapshot; the others have.

Examples:
  copal job run --wait
  copal job run --rounds 4 --wait --json")]
    Run(JobRun),
    /// Show the progress or the result of a job
    #[command(after_help = "\
With --wait the command ends when the job ends, with the exit code of `copal job run --wait`.

Examples:
  copal job status
  copal job status --wait --json")]
    Status(JobStatus),
}

#[derive(Debug, Args)]
pub(crate) struct JobStatus {
    /// Id of the job, as printed by `copal job run` (default: the newest job)
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobRun {
    /// Include all agents that can be reached. Every job does, so the flag may be left out
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) options: JobOptions,
}

/// How a job is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobOptions {
    /// Number of rounds, or auto: one for each two minutes of reading, at most 12, more where memory or a disk
    /// in parts requires it
    #[arg(long, value_name = "NUMBER", default_value = "auto", value_parser = parse_rounds)]
    pub(crate) rounds: String,
    /// Longest wait for an answer; chunks without an answer are stored for their VM alone, and counted as
    /// unresolved
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
    /// How to find duplicates; schemes other than the default are for comparison, and store more or take longer
    #[arg(long, value_name = "SCHEME", value_enum, default_value_t = SchemeWord::Collaborative)]
    pub(crate) scheme: SchemeWord,
}

/// `--scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemeWord {
    /// No agent is asked, and changed segments are stored completely; delete such snapshots with --method local
    DirtyBit,
    /// Hosts ask each other in stages of one VM each, and all wait for the slowest host; takes --wait
    Synchronous,
    /// Hosts ask each other in rounds, and do not wait for a late host
    Collaborative,
}

/// `copal pds`.
#[derive(Debug, Subcommand)]
pub(crate) enum PdsCommand {
    /// Show the number and size of the popular chunks
    #[command(after_help = "\
Example:
  copal pds status")]
    Status,
    /// Find chunks that several VMs store separately, and store them once
    #[command(after_help = "\
Such chunks remain where VMs were backed up at different times, or where agents did not answer. The command asks all agents that \
can be reached about the chunks of each VM; it reads no disk. Once a month is often enough. A VM that is being backed up is skipped.

Examples:
  copal pds cleanup
  copal pds cleanup --vm web --key ops.key")]
    Cleanup(PdsCleanup),
    /// Remove popular chunks that no snapshot refers to
    #[command(after_help = "\
A deletion leaves popular chunks in place, since other VMs may need them. This command reads the references of all snapshots, and \
removes the packs in which no chunk is referred to. It decides nothing while VMs are being backed up, so run it while no job runs; \
once a month is often enough. It may be interrupted: its findings are saved, and the next run continues from them.

Examples:
  copal pds prune --dry-run
  copal pds prune --key ops.key")]
    Prune(PdsPrune),
}

#[derive(Debug, Args)]
pub(crate) struct PdsPrune {
    /// Show the effect, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PdsCleanup {
    /// Only this VM (name or UUID)
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Longest wait for an answer of an agent; chunks without an answer stay as they are
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
}

fn parse_rounds(typed: &str) -> Result<String, String> {
    let parsed = typed.parse::<RoundCount>();
    parsed.map(|_| typed.to_owned()).map_err(|error| error.to_string())
}
