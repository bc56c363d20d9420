//! Options that every command takes.

use crate::{
    failure::{Failure, Outcome},
    human,
};
use clap::Args;
use copal_node::StoreOptions;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What `--wait` is for: what another one has or does, or a cluster that is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// So long, for what another process is using or doing.
    For(Duration),
    /// Until the cluster is so.
    Until(String),
}

impl Wait {
    fn parse(text: &str) -> Result<Wait, String> {
        match text {
            "" => Ok(Wait::For(Duration::MAX)),
            "healthy" | "recovering" | "degraded" | "incomplete" => Ok(Wait::Until(text.to_owned())),
            _ => human::parse_duration(text).map(Wait::For),
        }
    }
}

/// Options that every command takes, before or after its name.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Directory of the repository, or the block device that is one
    #[arg(long, short, global = true, env = "COPAL_REPOSITORY", value_name = "DIR")]
    pub(crate) repo: Option<PathBuf>,
    /// Profile of the cluster: the file client.json that its master has written
    #[arg(long, global = true, env = "COPAL_CLUSTER", value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
    /// File whose first line is the password
    #[arg(long, global = true, env = "COPAL_PASSWORD_FILE", value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// Key file, instead of a password; what may be done then is for the key to say (`copal key add`)
    #[arg(long, global = true, env = "COPAL_KEY_FILE", value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Make or open a repository without encryption: whoever reads the file reads the disks. Without this
    /// option such a one is refused
    #[arg(long, global = true)]
    pub(crate) insecure_no_password: bool,
    /// Speak JSON lines on standard output:
    /// {"v":1,"message_type":"status|verbose|item|summary|error|exit_error",...}
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print nothing on success, unless it was asked for (a listing, statistics, a dry run)
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// Most memory the process may take, at least 80M [default: 96M; of a data server what it was given last]
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Most bytes the store file may grow to (default: as far as its file system goes)
    #[arg(long, global = true, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) store_limit: Option<u64>,
    /// Open a store whose last acknowledged writes are damaged, without them
    #[arg(long, global = true)]
    pub(crate) accept_tail_loss: bool,
    /// Wait so long for a store, or a VM, that another process is using: 90s, 10m, 2h; without a time, for as
    /// long as it takes (default: exit code 11)
    #[arg(long, global = true, env = "COPAL_WAIT", value_name = "DURATION", value_parser = Wait::parse)]
    #[arg(num_args = 0..=1, default_missing_value = "")]
    pub(crate) wait: Option<Wait>,
    /// Use pread and pwrite even where the kernel offers io_uring
    #[arg(long, global = true)]
    pub(crate) no_io_uring: bool,
    /// Accept a repository on a copy-on-write file system (btrfs, ZFS), where preallocation promises nothing
    #[arg(long, global = true)]
    pub(crate) allow_cow: bool,
    /// Accept a repository on a file system in memory (tmpfs), which a reboot empties
    #[arg(long, global = true)]
    pub(crate) allow_volatile: bool,
    /// Write every look-up in the engine to a new file, for the simulator of filter rules (`copal-sim rules
    /// --trace`): a line for each key, as many as there are chunks
    #[arg(long, global = true, value_name = "FILE", hide_short_help = true)]
    pub(crate) record_gets: Option<PathBuf>,
}

/// Memory of a process that was told nothing.
const MEMORY_BYTES: u64 = 96_000_000;

impl Common {
    /// Most memory that the process may take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory.unwrap_or(MEMORY_BYTES)
    }

    /// The directory or device that was named.
    /// # Errors
    /// None was.
    pub(crate) fn repository(&self) -> Outcome<&Path> {
        let none = || Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY");
        self.repo.as_deref().ok_or_else(none)
    }

    /// How long to wait for what another process is using.
    /// # Errors
    /// It is told to wait for something else.
    pub(crate) fn wait_for_store(&self) -> Outcome<Duration> {
        match &self.wait {
            None => Ok(Duration::ZERO),
            Some(Wait::For(limit)) => Ok(*limit),
            Some(Wait::Until(health)) => Err(Failure::usage(format!(
                "--wait {health} goes with `copal status`; here it takes a time, such as 30m"
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
        }
    }
}
