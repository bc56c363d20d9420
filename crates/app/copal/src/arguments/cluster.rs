//! Arguments of the commands on a cluster: its volumes, servers and groups.

use crate::human;
use clap::{Args, Subcommand, ValueEnum};
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
Healthy: every group has all its replicas in sync. Recovering: all servers are up, and some data is still being copied. \
Degraded: a server is down. Incomplete: some group has no replica in sync.

Examples:
  copal status
  copal status --wait healthy --timeout 60s
  copal status --json | jq .groups")]
pub(crate) struct StatusArgs {
    /// Longest wait, with --wait healthy
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal events")]
pub(crate) struct EventsArgs {
    /// Only events with a greater number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: u64,
}

#[derive(Debug, Args)]
pub(crate) struct FsArgs {
    /// Longest time for each operation
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) deadline: Duration,
    #[command(subcommand)]
    pub(crate) verb: FsCommand,
}

/// A volume and a file in it: two arguments, since file names may contain slashes.
#[derive(Debug, Args)]
pub(crate) struct FileArgs {
    /// Path of the volume
    #[arg(value_name = "VOLUME")]
    pub(crate) volume: String,
    /// Name of the file
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// Route of a file's bytes to the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransferWord {
    /// The faster one, by the client's measurements of its network
    Auto,
    /// From the client to each replica
    Parallel,
    /// From replica to replica
    Chain,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FsCommand {
    /// Create a volume
    #[command(after_help = "Example:\n  copal fs mkdir mail\n  copal fs mkdir mail/archive --quota 10G")]
    Mkdir {
        /// Path of the volume; its parent must exist
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Most bytes of the files in the volume
        #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
        quota: Option<u64>,
    },
    /// Create a file
    #[command(
        after_help = "Example:\n  copal fs put mail m1 /etc/hostname\n  tar c . | copal fs put mail home.tar -"
    )]
    Put {
        #[command(flatten)]
        file: FileArgs,
        /// Source file; `-`: standard input
        #[arg(value_name = "FILE")]
        from: PathBuf,
        /// Route of the bytes: to each replica (parallel), from replica to replica (chain), or the faster one
        /// (auto)
        #[arg(long, value_enum, default_value_t = TransferWord::Auto)]
        transfer: TransferWord,
    },
    /// Read a file
    #[command(after_help = "Example:\n  copal fs get mail m1 -")]
    Get {
        #[command(flatten)]
        file: FileArgs,
        /// Target, a new file; `-`: standard output
        #[arg(value_name = "FILE")]
        to: PathBuf,
        /// Return only content on which all replicas that are up agree; waits while a failing replica is detected
        #[arg(long)]
        strict: bool,
    },
    /// List the files of a volume, or the volumes below one
    #[command(after_help = "Example:\n  copal fs ls\n  copal fs ls mail")]
    Ls {
        /// Path of the volume (default: the root)
        #[arg(value_name = "VOLUME", default_value = "")]
        volume: String,
        /// Only names that begin with this text
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
    },
    /// Show size, id and checksum of a file
    #[command(after_help = "Example:\n  copal fs stat mail m1 --json")]
    Stat {
        #[command(flatten)]
        file: FileArgs,
        /// Return only content on which all replicas that are up agree; waits while a failing replica is detected
        #[arg(long)]
        strict: bool,
    },
    /// Delete a file
    #[command(after_help = "Example:\n  copal fs rm mail m1")]
    Rm {
        #[command(flatten)]
        file: FileArgs,
        /// Only if the file under this name has this id
        #[arg(long, value_name = "ID", value_parser = parse_fid)]
        fid: Option<u128>,
    },
    /// Remove a volume
    #[command(after_help = "Example:\n  copal fs rmdir mail --with-files")]
    Rmdir {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Remove its files, too
        #[arg(long)]
        with_files: bool,
    },
    /// Move a volume
    #[command(after_help = "Example:\n  copal fs mv mail letters")]
    Mv {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        from: String,
        /// New path of the volume
        #[arg(value_name = "TO")]
        to: String,
    },
    /// Show the group and the servers of a volume
    #[command(after_help = "Example:\n  copal fs where mail")]
    Where {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Name of a file in the volume; all files of a volume are on the same servers
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Decide the unknown outcome of a create
    #[command(after_help = "Example:\n  copal fs settle mail 0193f0c2a5b10000a1b2c3d4e5f60718 --abort")]
    Settle {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Id of the file
        #[arg(value_name = "ID", value_parser = parse_fid)]
        fid: u128,
        /// Delete the file rather than keep it
        #[arg(long)]
        abort: bool,
    },
    /// Run operations from standard input, one JSON line each, and print each result
    #[command(after_help = RUN_HELP)]
    Run {
        /// Number of concurrent operations
        #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
        parallel: u16,
    },
}

const RUN_HELP: &str = "\
An input line is {\"id\":1,\"op\":\"put|get|stat|delete|list|mkdir|rmdir|settle\",\"volume\":\"mail\",\"name\":\"m3\",\
\"body_b64\":\"..\",\"fid\":\"..\",\"deadline_ms\":5000,\"consistency\":\"available|strict\"}; its result is \
{\"id\":1,\"ok\":true,\"fid\":\"..\",\"size\":3,\"crc32c\":1,\"start_ns\":1,\"end_ns\":2} or \
{\"id\":1,\"ok\":false,\"error\":\"exists\",\"message\":\"..\",\"start_ns\":1,\"end_ns\":2}. Times are of CLOCK_MONOTONIC. \
A get with \"body\":true returns the bytes as body_b64.

Example:
  echo '{\"id\":1,\"op\":\"stat\",\"volume\":\"mail\",\"name\":\"m1\"}' | copal fs run";

#[derive(Debug, Args)]
#[command(after_help = "\
Checks the cluster of --cluster or COPAL_CLUSTER from this machine; with --dir also the machine of a server. Each line states a \
finding and its remedy. Exit code 20: something is wrong.

Examples:
  copal doctor
  copal doctor --json | jq -r 'select(.state == \"bad\").message'")]
pub(crate) struct DoctorArgs {
    /// Directory of a master or a data server on this machine
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MetaCommand {
    /// Copy the database of a master, which may be running, into a new file
    #[command(after_help = "\
The files master.json and client.json beside the database never change: keep a copy of both, too.

Example:
  copal meta backup --dir /tmp/c/master /tmp/c/meta.kept")]
    Backup {
        /// Directory of the master
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// New file for the copy
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Restore a copy of the database into the directory of a stopped master
    #[command(after_help = "\
Versions of the map, terms and numbers of volumes continue far above those of the copy, so that none is used twice. Volumes \
created after the copy are lost. A master leads with this database only if it is started with --after-restore. It then asks all data \
servers for their state, so start them first; a server that does not answer later copies everything from others. Name with --away a \
server that answers, but was down when the old master ended.

Example:
  copal meta restore --dir /tmp/c/restored /tmp/c/meta.kept
  cp /tmp/c/master/master.json /tmp/c/restored/
  copal master --dir /tmp/c/restored --after-restore")]
    Restore {
        /// Directory of the master, which must be stopped
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// File with the copy
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Data server that was down when the old master ended (repeat)
        #[arg(long, value_name = "NAME")]
        away: Vec<String>,
    },
    /// Check that the tables of a master are consistent
    #[command(after_help = "Example:\n  copal meta check --dir /tmp/c/master")]
    Check {
        /// Directory of a master, which may be running
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// File with a copy of the database
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the servers
    #[command(after_help = "Example:\n  copal node ls --json | jq -r '.nodes[].name'")]
    Ls,
    /// Create a token with which one data server can join
    #[command(
        after_help = "Example:\n  copal data --dir D --name data4 --listen HOST:7404 --join \"$(copal node token)\""
    )]
    Token {
        /// For a further master, which receives the authority's key
        #[arg(long)]
        master: bool,
    },
    /// Declare a down server lost: its groups are copied from other servers now
    ///
    /// The server cannot return: its directory is of no further use.
    #[command(after_help = "Example:\n  copal node lost data3")]
    Lost {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Move all groups of a server to others; it serves them until the copies are in sync
    #[command(
        after_help = "The command and `copal status` show the obstacles. Remove the empty server with `copal node rm`.\n\nExample:\n  copal \
                      node drain data2 --dry-run\n  copal node drain data2\n  copal node drain data2 --undo"
    )]
    Drain {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Stop draining; groups that have moved stay where they are
        #[arg(long)]
        undo: bool,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a server that holds no group
    #[command(after_help = "Example:\n  copal node rm data2 --dry-run")]
    Rm {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Announce that a server will be down: meanwhile it does not count as lost
    #[command(
        after_help = "Its groups continue with the other replicas. --for 0s ends the maintenance.\n\nExample:\n  copal node maintenance data2 \
                      --for 30m"
    )]
    Maintenance {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Length of the maintenance, at most a day
        #[arg(long = "for", value_name = "DURATION", default_value = "30m", value_parser = human::parse_duration)]
        duration: Duration,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum DiskCommand {
    /// List the disks, their usage and free space
    #[command(
        after_help = "Copies and moves fill a disk up to 80 %, new files up to 95 %. For copies, the data on its way to a disk counts as used.\n\n\
                      Example:\n  copal disk ls\n  copal disk ls --json | jq -r '.disks[] | select(.used_percent > 85).name'"
    )]
    Ls,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// List groups and their replicas
    #[command(after_help = "Example:\n  copal group ls --degraded")]
    Ls {
        /// Only groups that lack a replica
        #[arg(long)]
        degraded: bool,
    },
    /// Show one group
    #[command(after_help = "Example:\n  copal group show 7")]
    Show {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
    },
    /// Explain why a group lacks a replica, and how it recovers
    #[command(
        after_help = "Shows since when and why replicas are not in sync, the next step, the obstacles and the expected end.\n\n\
                            Examples:\n  copal group ls --degraded\n  copal group why-degraded 7"
    )]
    WhyDegraded {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
    },
    /// Recover a group before others of the same urgency
    #[command(
        after_help = "Groups with fewer replicas in sync still come first, and so do groups that lost theirs a minute earlier.\n\nExample:\n  copal \
                      group boost 7"
    )]
    Boost {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
    },
    /// Move a replica of a group from one server to another
    #[command(
        after_help = "The old replica stays in sync until the new one is.\n\nExample:\n  copal group move 60 --from data1 --to data4 \
                      --dry-run\n  copal group move 60 --from data1 --to data4\n  copal group move 60 --cancel"
    )]
    Move {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
        /// Server of the old replica
        #[arg(long, value_name = "NAME", required_unless_present = "cancel", requires = "to")]
        from: Option<String>,
        /// Server of the new replica
        #[arg(long, value_name = "NAME", requires = "from")]
        to: Option<String>,
        /// Cancel a move in progress: the replica stays where it was
        #[arg(long, conflicts_with = "from")]
        cancel: bool,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Continue from one replica when none in sync will return: files may be lost
    #[command(
        name = "force-accept",
        after_help = "For a group that `copal status` shows as incomplete, and whose last replicas in sync will never return. First start \
                      every server that can be started: if a replica in sync returns, the group continues by itself and loses nothing. \
                      --dry-run shows the time since which operations may be lost; give that time with --lose-since. The order is recorded in \
                      `copal events`. Replicas that return later contribute the files that only they hold.\n\nExample:\n  copal group force-accept 7 --from data2 --dry-run\n  \
                      copal group force-accept 7 --from data2 --lose-since 2026-11-25T08:30:00Z"
    )]
    ForceAccept {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
        /// Server whose replica the group continues from
        #[arg(long, value_name = "NAME")]
        from: String,
        /// Accept the loss of operations acknowledged since this time: the time that --dry-run shows, an earlier
        /// one, or `everything`
        #[arg(long, value_name = "TIME", value_parser = lose_since)]
        lose_since: Option<u64>,
        /// Show the possible loss, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Compare the replicas of groups; exit code 20 if they differ or are damaged
    #[command(after_help = "Example:\n  copal group verify --all --deep")]
    Verify {
        /// Number of the group
        #[arg(value_name = "GROUP", required_unless_present = "all")]
        group: Option<u32>,
        /// All groups
        #[arg(long, conflicts_with = "group")]
        all: bool,
        /// Read every byte of the files
        #[arg(long)]
        deep: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum RebalanceCommand {
    /// Plan moves of groups that even out the disks
    #[command(
        after_help = "The plan brings disks above 85 % down to 80 %. It separates replicas of a group that share a rack or zone, where others \
                      have space. It then makes all disks about equally full. It fills no disk above 80 %.\n\n\
                      Example:\n  copal rebalance plan --out plan.json"
    )]
    Plan {
        /// File for the plan, as JSON
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Carry out exactly the moves of a plan; completed moves are skipped
    #[command(
        after_help = "A plan that would fill a disk above 80 %, or place replicas of a group in one rack, is refused completely.\n\nExample:\n  copal \
                      rebalance plan --out plan.json\n  copal rebalance apply plan.json --dry-run\n  copal rebalance apply plan.json"
    )]
    Apply {
        /// File with the plan
        #[arg(value_name = "FILE")]
        plan: PathBuf,
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Start no further moves until a plan is applied again; moves in progress continue
    #[command(after_help = "Example:\n  copal rebalance pause")]
    Pause {
        /// Show the effect, change nothing
        #[arg(long)]
        dry_run: bool,
    },
}

fn parse_fid(text: &str) -> Result<u128, String> {
    match text.len() == 32 {
        true => u128::from_str_radix(text, 16).map_err(|error| error.to_string()),
        false => Err("an id has 32 hexadecimal digits".to_owned()),
    }
}

/// A time in milliseconds since 1970; `everything` is 0.
fn lose_since(text: &str) -> Result<u64, String> {
    if text == "everything" {
        return Ok(0);
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "give a time such as 2026-11-25T08:30:00Z, or `everything`".to_owned())?;
    u64::try_from(time.as_millisecond()).map_err(|_| "give a time after 1970".to_owned())
}
