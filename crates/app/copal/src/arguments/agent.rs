//! What can be typed about agents: `copal agent`, `copal job`, `copal pds`.

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
An agent runs on each host of VMs. It backs up what its plan names when `copal job run` says so, asks the other agents which \
chunks they have, and answers for its share of them. A plan is {\"v\":1,\"vms\":[{\"vm\":\"web\",\"disks\":{\"sda\":\"/dev/vg/web\"}}]}; \
it is read anew for each job. It prints one line `ready NAME ADDRESS` and ends on SIGTERM. On a repository in a directory one \
process runs all agents, and the jobs too, since nobody else can open it: give several names and as many plans, and --once or --every.

Examples:
  copal agent --name h1 --key h1.key --state state --listen 10.0.0.1:7500 --plan h1.json
  copal agent --name h1,h2 --state state --plan h1.json,h2.json --once
  copal agent ls"
)]
pub(crate) struct Agent {
    #[command(subcommand)]
    pub(crate) word: Option<AgentWord>,
    /// Its name, one of its own in the repository; several, separated by commas, on a repository in a
    /// directory
    #[arg(long, value_name = "NAME", value_delimiter = ',', required = true)]
    pub(crate) name: Vec<String>,
    /// The plan file of each
    #[arg(long, value_name = "FILE", value_delimiter = ',', required = true)]
    pub(crate) plan: Vec<PathBuf>,
    /// Directory for what it keeps, which may be deleted while it does not run; each of several agents has a
    /// directory in it
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) state: Option<PathBuf>,
    /// Where it listens for other agents; several agents listen at ports of their own
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Where others reach it, if not where it listens
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Most bytes a second that it reads from disks; 0: as many as there are
    #[arg(long, value_name = "SIZE", default_value = "60M", value_parser = human::parse_bytes)]
    pub(crate) limit_read: u64,
    /// Most bytes a second that it stores; 0: as many as there are
    #[arg(long, value_name = "SIZE", default_value = "40M", value_parser = human::parse_bytes)]
    pub(crate) limit_upload: u64,
    /// Run one job on all agents as soon as these are ready, say what it did, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Run a job on all agents at once and then every so often, such as 24h
    #[arg(long, value_name = "DURATION", value_parser = human::parse_duration, conflicts_with = "once")]
    pub(crate) every: Option<Duration>,
    #[command(flatten)]
    pub(crate) job: JobOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentWord {
    /// List the agents that were heard of
    #[command(after_help = "\
Example:
  copal agent ls")]
    Ls,
    /// Take an agent off the list of those that a job waits for
    #[command(after_help = "\
An agent is listed with the VMs of its plan from its first start on. A job names those that it cannot reach, and their VMs, and ends with \
exit code 1. Retire an agent when its host is gone for good. In a repository with role keys it takes one for delete.

Example:
  copal agent rm h2 --key ops.key")]
    Rm {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// `copal job`.
#[derive(Debug, Subcommand)]
pub(crate) enum JobWord {
    /// Back up all VMs of all agents' plans, together
    #[command(after_help = "\
The agents go through rounds: in each, every host reads some of its VMs, asks the others which chunks they have, and stores what \
nobody has. What several VMs have is stored once, for all. At the end VMs give up chunks that became popular after they had asked: that \
takes a key that may delete, on the hosts, or here together with --wait; with other keys the result counts those chunks. Without --wait it \
ends when all agents have begun, and `copal job status` tells the rest. Exit code 1: a VM has no new snapshot; the others have.

Examples:
  copal job run --wait
  copal job run --rounds 4 --wait --json")]
    Run(JobRun),
    /// Say how far the newest job is, or what it did
    #[command(after_help = "\
With --wait it ends when the job does, with the exit code of `copal job run --wait`.

Examples:
  copal job status
  copal job status --wait --json")]
    Status(JobStatus),
}

#[derive(Debug, Args)]
pub(crate) struct JobStatus {
    /// Id of the job, as `copal job run` has told it; without it, the newest
    #[arg(value_name = "JOB")]
    pub(crate) job: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JobRun {
    /// All agents that can be reached. A job always takes them all, so the flag may be left out
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) options: JobOptions,
}

/// How a job is run.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobOptions {
    /// In how many rounds: a number, or auto (one for each two minutes of reading, 12 at most, more where
    /// memory or a disk in parts demands it)
    #[arg(long, value_name = "NUMBER", default_value = "auto", value_parser = parse_rounds)]
    pub(crate) rounds: String,
    /// Longest time for an answer; what nobody answers is stored for its VM alone, and counted as unresolved
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
    /// How duplicates are found; the others are for comparison, and store more or take longer
    #[arg(long, value_name = "SCHEME", value_enum, default_value_t = SchemeWord::Collaborative)]
    pub(crate) scheme: SchemeWord,
}

/// `--scheme`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SchemeWord {
    /// Nobody is asked, and segments that changed are stored whole; delete such snapshots with --method local
    DirtyBit,
    /// Hosts ask each other in stages of one VM each, and all wait for the slowest; takes --wait
    Synchronous,
    /// Hosts ask each other in rounds, and wait for nobody who is late
    Collaborative,
}

/// `copal pds`.
#[derive(Debug, Subcommand)]
pub(crate) enum PdsWord {
    /// Say how many chunks are popular, and what they take
    #[command(after_help = "\
Example:
  copal pds status")]
    Status,
    /// Find chunks that several VMs store each for itself, and store them once
    #[command(after_help = "\
Such chunks are left where VMs were backed up at different times, or agents did not answer. All agents that can be reached are asked about \
what each VM has; no disk is read. Once a month is often enough. A VM that is being backed up is passed over.

Examples:
  copal pds cleanup
  copal pds cleanup --vm web --key ops.key")]
    Cleanup(PdsCleanup),
    /// Remove popular chunks that no snapshot needs any more
    #[command(after_help = "\
A deletion leaves popular chunks, since other VMs may need them. This reads what all snapshots need, and removes the packs of which none \
needs a chunk. While VMs are being backed up nothing is decided, so run it when no job does; once a month is often enough. It may be \
interrupted: what was found stays where it is, and the next run goes on.

Examples:
  copal pds prune --dry-run
  copal pds prune --key ops.key")]
    Prune(PdsPrune),
}

#[derive(Debug, Args)]
pub(crate) struct PdsPrune {
    /// Say what would go, change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PdsCleanup {
    /// This VM only, by name or UUID
    #[arg(long, value_name = "NAME")]
    pub(crate) vm: Option<String>,
    /// Longest time for an answer of an agent; what none answers stays as it is
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
}

fn parse_rounds(typed: &str) -> Result<String, String> {
    let parsed = typed.parse::<RoundCount>();
    parsed.map(|_| typed.to_owned()).map_err(|error| error.to_string())
}
