//! Options of every command.

use super::discard::DiscardWord;
use crate::{
    failure::{Failure, Outcome},
    human,
};
use clap::Args;
use copal_backup::Repository;
use copal_node::StoreOptions;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// Condition that `--wait` waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WaitCondition {
    /// A store or VM in use by another process, or a job; at most this long.
    For(Duration),
    /// A state of the cluster.
    Until(String),
}

impl WaitCondition {
    fn parse(text: &str) -> Result<WaitCondition, String> {
        match text {
            "" => Ok(WaitCondition::For(Duration::MAX)),
            "healthy" | "recovering" | "degraded" | "incomplete" => Ok(WaitCondition::Until(text.to_owned())),
            _ => human::parse_duration(text).map(WaitCondition::For),
        }
    }
}

/// Options of every command, given before or after its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct CommonArgs {
    /// Directory, block device or address of the repository: copal://HOST:PORT/PATH, s3://BUCKET/PREFIX,
    /// az://ACCOUNT/CONTAINER/PREFIX, gs://BUCKET/PREFIX; hdfs://HOST:PORT/PATH in builds with HDFS
    #[arg(long, short, global = true, env = "COPAL_REPOSITORY", value_name = "DIR")]
    pub(crate) repo: Option<PathBuf>,
    /// Profile of the cluster: the file client.json, written by its master
    #[arg(long, global = true, env = "COPAL_CLUSTER", value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// File whose first line is the password
    #[arg(long, global = true, env = "COPAL_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Key file, instead of a password; it may restrict the rights (`copal key add`)
    #[arg(long, global = true, env = "COPAL_KEY_FILE", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Create or open a repository without encryption: every reader of its files can read the disks. Without
    /// this option such a repository is refused
    #[arg(long, global = true)]
    pub(crate) insecure_no_password: bool,
    /// Print JSON lines on standard output:
    /// {"v":1,"message_type":"status|verbose|item|summary|error|exit_error",...}
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing on success, except requested output (a listing, statistics, a dry run)
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Most memory that the process may use, at least 80M [default: 96M; on a data server the last value given]
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Number of threads that compute in parallel, such as --threads 4, up to 1024. Results do not depend on it
    /// [default: the number of processors; of `copal agent` 3]
    #[arg(long, global = true, env = "COPAL_THREADS", value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<usize>,
    /// Most bytes that the store file may grow to (default: the limit of its file system)
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) store_limit: Option<u64>,
    /// Open a store whose last acknowledged writes are damaged, and drop those writes
    #[arg(long, global = true)]
    pub(crate) accept_tail_loss: bool,
    /// Wait at most this long for a store or VM that another process is using: 90s, 10m, 2h; without a time,
    /// wait without limit (default: exit code 11)
    #[arg(long, global = true, env = "COPAL_WAIT", value_name = "DURATION", value_parser = WaitCondition::parse)]
    #[arg(num_args = 0..=1, default_missing_value = "")]
    pub(crate) wait: Option<WaitCondition>,
    /// Time after which a request to an object store (s3://, az://, gs://, hdfs://) is given up if no answer comes; 0s: one
    /// try [default: 15m]
    #[arg(long, global = true, value_name = "DURATION", value_parser = human::parse_duration)]
    pub(crate) retry_for: Option<Duration>,
    /// Directory in which commands on an object store keep its index and short objects for the next command; none: keep
    /// nothing [default: copal in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, global = true, env = "COPAL_CACHE", value_name = "DIR")]
    pub(crate) cache: Option<PathBuf>,
    /// Most bytes of the cache of one repository [default: 2G]
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) cache_limit: Option<u64>,
    /// File of the credentials of an object store, which only you may read (default: the environment and the files of the
    /// provider's tools). It is like ~/.aws/credentials for s3://, the account key for az://, the JSON of a key for gs://
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) credentials: Option<PathBuf>,
    /// Use pread and pwrite even if the kernel has io_uring
    #[arg(long, global = true)]
    pub(crate) no_io_uring: bool,
    /// Accept a repository on a copy-on-write file system (btrfs, ZFS), where preallocation reserves no space
    #[arg(long, global = true)]
    pub(crate) allow_cow: bool,
    /// Accept a repository on a file system in memory (tmpfs), which a reboot empties
    #[arg(long, global = true)]
    pub(crate) allow_volatile: bool,
    /// Read two places of the disk with one command if they are at most this far apart (default: 1M on a disk
    /// that turns, 64K elsewhere). For recordings on one kind of disk that are replayed on another
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes, hide_short_help = true)]
    pub(crate) read_gap: Option<u64>,
    /// Give the free space of a store on a block device back to the device, so that flash and thin volumes can use it
    #[arg(long, global = true, value_enum, default_value_t = DiscardWord::Auto, hide_short_help = true)]
    pub(crate) discard: DiscardWord,
    /// Write every look-up in the engine to a new file, one line per key, for the simulator of filter rules
    /// (`copal-sim rules --trace`). The file has as many lines as the backup has chunks
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) record_gets: Option<PathBuf>,
}

/// Most threads that `--threads` takes.
const MAX_THREADS: usize = 1024;

/// Threads that an agent computes with for one VM, beside one that reads and one that packs: the VMs of its host need the
/// processors. The paper's agent has three threads, too.
const AGENT_THREADS: usize = 1;

fn parse_threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(threads @ 1..=MAX_THREADS) => Ok(threads),
        _ => Err(format!("{text:?} is not a number of threads from 1 to {MAX_THREADS}, such as 4")),
    }
}

/// Memory budget of a process without `--memory`.
const MEMORY_BYTES: u64 = 96_000_000;

impl CommonArgs {
    /// Memory budget of the process.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or(MEMORY_BYTES)
    }

    /// The repository, with the number of threads that its operations compute with.
    pub(crate) fn with_threads(&self, repository: Repository) -> Repository {
        match self.threads {
            Some(threads) => repository.with_workers(threads),
            None => repository,
        }
    }

    /// The options of an agent, which uses few processors by default.
    pub(crate) fn of_agent(&self) -> CommonArgs {
        CommonArgs { threads: Some(self.threads.unwrap_or(AGENT_THREADS)), ..self.clone() }
    }

    /// Directory or device of the repository.
    /// # Errors
    /// None was given.
    pub(crate) fn repository(&self) -> Outcome<&Path> {
        let none = || Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY");
        self.repo.as_deref().ok_or_else(none)
    }

    /// Longest wait for a store that another process is using.
    /// # Errors
    /// `--wait` names a state of a cluster.
    pub(crate) fn wait_for_store(&self) -> Outcome<Duration> {
        match &self.wait {
            None => Ok(Duration::ZERO),
            Some(WaitCondition::For(limit)) => Ok(*limit),
            Some(WaitCondition::Until(health)) => Err(Failure::usage(format!(
                "--wait {health} is for `copal status` only; here --wait takes a time, such as 30m"
            ))),
        }
    }

    pub(crate) fn store_options(&self) -> StoreOptions {
        StoreOptions {
            limit_bytes: self.store_limit,
            accept_tail_loss: self.accept_tail_loss,
            force_pread: self.no_io_uring,
            allow_cow: self.allow_cow,
            allow_volatile: self.allow_volatile,
            gap_bytes: self.read_gap,
            discard: self.discard.into(),
        }
    }
}
