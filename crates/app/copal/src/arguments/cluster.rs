//! What can be typed about a cluster: its processes, its volumes, its servers.

use crate::human;
use clap::{Args, Subcommand, ValueEnum};
use copal_server::HttpEndpoint;
use std::{path::PathBuf, time::Duration};

#[derive(Debug, Args)]
#[command(after_help = "\
The first start of a cluster takes --new: it makes the cluster's authority, and DIR/client.json for its clients. Later \
starts need only --dir. Several masters share a database, and one of them leads: the first takes --new and --meta, each \
further one --meta and --join with a token of `copal node token --master`.

Example:
  copal master --dir /srv/copal/master --listen 10.0.0.1:7400 --new")]
pub(crate) struct Master {
    /// Directory of the master: its database, its authority
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Where to listen: HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where others reach it, if not where it listens
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Make a new cluster
    #[arg(long)]
    pub(crate) new: bool,
    /// Database that several masters share: mysql://USER@HOST:PORT/DATABASE (default: a file in DIR, for one
    /// master)
    #[arg(long, value_name = "URL")]
    pub(crate) meta: Option<String>,
    /// File with the password of that database
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Token of `copal node token --master`, good once for ten minutes; `-` reads it from standard input
    #[arg(long, value_name = "TOKEN", requires = "meta", conflicts_with = "new")]
    pub(crate) join: Option<String>,
    /// Groups of volumes in a new cluster; their number never changes
    #[arg(long, value_name = "NUMBER", default_value_t = 64, requires = "new",
        value_parser = clap::value_parser!(u32).range(1..=1_048_575))]
    pub(crate) groups: u32,
    /// Copies of each group in a new cluster
    #[arg(long, value_name = "NUMBER", default_value_t = 3, requires = "new",
        value_parser = clap::value_parser!(u8).range(1..=7))]
    pub(crate) replicas: u8,
    /// Data servers that a new cluster waits for; its groups are spread over these. Servers that join later
    /// hold nothing until `copal rebalance apply`. Kept for later starts [default: as many as copies]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) first_servers: Option<u16>,
    /// Groups that are copied at once when servers are lost; kept for later starts [default: half as many as
    /// there are servers]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) copies_at_once: Option<u16>,
    /// Lead by a database that is a copy, or older than what data servers have heard of: go on above what was
    /// lost. All data servers are to run; of one that does not, what it holds is taken for old
    #[arg(long, conflicts_with_all = ["new", "join"])]
    pub(crate) after_restore: bool,
    #[command(flatten)]
    pub(crate) times: Times,
    #[command(flatten)]
    pub(crate) monitored: Monitored,
    #[command(flatten)]
    pub(crate) child: Child,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Times {
    /// A server that is away for so long is given up, and its groups are copied from others; kept for later
    /// starts [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = human::parse_duration)]
    pub(crate) permanent_after: Option<Duration>,
}

/// For whoever watches a process.
#[derive(Clone, Debug, Args)]
pub(crate) struct Monitored {
    /// Where to answer monitors over HTTP (/metrics, /health, /ready), or `none`; kept for later starts
    /// [default: on loopback, 200 ports behind its own]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) http: Option<HttpEndpoint>,
}

/// For processes that `copal serve` starts.
#[derive(Clone, Debug, Args)]
pub(crate) struct Child {
    /// End when the process that started this one ends, which has this number
    #[arg(long, hide = true, value_name = "PID")]
    pub(crate) end_with_parent: Option<u32>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The first start joins a cluster, with a token of `copal node token`. Later starts need only --dir.

Examples:
  copal data --dir /srv/copal/data1 --name data1 --listen 10.0.0.2:7401 --join \"$(copal node token)\"
  copal data --dir /srv/copal/data1 --rack r7 --zone north
  copal data --dir /srv/copal/data1 --listen 0.0.0.0:7401 --advertise 10.0.0.2:7401")]
pub(crate) struct Data {
    /// Directory of the server: its store, who it is
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Name of a new server, unique in the cluster
    #[arg(long, value_name = "NAME", requires = "join")]
    pub(crate) name: Option<String>,
    /// Where to listen: HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Where others reach it, if not where it listens; kept for later starts
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) advertise: Option<String>,
    /// Bytes a second that copies to and from others may take, kept for later starts (default: 200M, on a
    /// disk that turns 40M)
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) recovery_rate: Option<u64>,
    /// Token of `copal node token`, good once for ten minutes; `-` reads it from standard input
    #[arg(long, value_name = "TOKEN", requires = "name")]
    pub(crate) join: Option<String>,
    /// Most bytes that the store may take, kept for later starts (default: as far as its file system goes)
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) limit: Option<u64>,
    /// Rack in which it stands, a name in its zone: copies of a group lie in different racks. Kept for later
    /// starts; '' takes it back
    #[arg(long, value_name = "NAME", value_parser = parse_site)]
    pub(crate) rack: Option<String>,
    /// Zone in which it stands, of several racks: copies lie in different zones where there are enough. Kept
    /// for later starts; '' takes it back
    #[arg(long, value_name = "NAME", value_parser = parse_site)]
    pub(crate) zone: Option<String>,
    #[command(flatten)]
    pub(crate) monitored: Monitored,
    #[command(flatten)]
    pub(crate) child: Child,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A master and data servers as processes of their own on this machine, to try things on: a kill is a kill. Nothing is started \
again by itself; each line says how. Ctrl-C ends all of them.

Example:
  copal serve --dev --dir /tmp/c --servers 3
  export COPAL_CLUSTER=/tmp/c/client.json")]
pub(crate) struct Serve {
    /// A whole cluster on loopback; there is no other way to be served yet
    #[arg(long, required = true)]
    pub(crate) dev: bool,
    /// Directory of the cluster
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Data servers
    #[arg(long, value_name = "NUMBER", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) servers: u16,
    /// Data servers that the groups of a new cluster are spread over [default: all of them]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) first_servers: Option<u16>,
    /// Masters; more than one takes --meta
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=7))]
    pub(crate) masters: u16,
    /// Database that the masters share: mysql://USER@HOST:PORT/DATABASE
    #[arg(long, value_name = "URL")]
    pub(crate) meta: Option<String>,
    /// File with the password of that database
    #[arg(long, value_name = "FILE", requires = "meta")]
    pub(crate) meta_password_file: Option<PathBuf>,
    /// Port of the master; data servers have those behind it, further masters those from 70 behind it on
    #[arg(long, value_name = "PORT", default_value_t = 7400, value_parser = clap::value_parser!(u16).range(1..=65_000))]
    pub(crate) port: u16,
    /// Most bytes that each store may take
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) limit: Option<u64>,
    /// Bytes a second that copies to and from others may take on each server
    #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
    pub(crate) recovery_rate: Option<u64>,
    #[command(flatten)]
    pub(crate) times: Times,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Healthy: every group has all its copies. Recovering: all servers are there, and something is still copied. Degraded: a \
server is away. Incomplete: some group has no whole copy.

Examples:
  copal status
  copal status --wait healthy --timeout 60s
  copal status --json | jq .groups")]
pub(crate) struct Status {
    /// How long to wait, with --wait healthy
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = human::parse_duration)]
    pub(crate) timeout: Duration,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  copal events")]
pub(crate) struct Events {
    /// Only those behind this number
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) after: u64,
}

#[derive(Debug, Args)]
pub(crate) struct Fs {
    /// How long each operation may take
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = human::parse_duration)]
    pub(crate) deadline: Duration,
    #[command(subcommand)]
    pub(crate) verb: FsVerb,
}

/// A volume and a file in it: two words, since names of files may hold slashes.
#[derive(Debug, Args)]
pub(crate) struct FileWords {
    /// Path of the volume
    #[arg(value_name = "VOLUME")]
    pub(crate) volume: String,
    /// Name of the file
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

/// How the bytes of a file go to its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransferWord {
    /// What is faster, by what the client measures of its network
    Auto,
    /// From here to each member
    Parallel,
    /// From member to member
    Chain,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FsVerb {
    /// Make a volume
    #[command(after_help = "Example:\n  copal fs mkdir mail\n  copal fs mkdir mail/archive --quota 10G")]
    Mkdir {
        /// Path of the volume; what is above it is there
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Most bytes of its files
        #[arg(long, value_name = "SIZE", value_parser = human::parse_bytes)]
        quota: Option<u64>,
    },
    /// Create a file
    #[command(
        after_help = "Example:\n  copal fs put mail m1 /etc/hostname\n  tar c . | copal fs put mail home.tar -"
    )]
    Put {
        #[command(flatten)]
        file: FileWords,
        /// What to put there; `-`: standard input
        #[arg(value_name = "FILE")]
        from: PathBuf,
        /// How bytes go to the members: to each (parallel), from member to member (chain), or what is faster
        /// (auto)
        #[arg(long, value_enum, default_value_t = TransferWord::Auto)]
        transfer: TransferWord,
    },
    /// Read a file
    #[command(after_help = "Example:\n  copal fs get mail m1 -")]
    Get {
        #[command(flatten)]
        file: FileWords,
        /// Where to write it, a new file; `-`: standard output
        #[arg(value_name = "FILE")]
        to: PathBuf,
        /// Only what all members that are up agree on; waits for one that is just failing
        #[arg(long)]
        strict: bool,
    },
    /// List the files of a volume, or the volumes below one
    #[command(after_help = "Example:\n  copal fs ls\n  copal fs ls mail")]
    Ls {
        /// Path of the volume; none: the volumes at the top
        #[arg(value_name = "VOLUME", default_value = "")]
        volume: String,
        /// Only names that begin so
        #[arg(long, value_name = "TEXT", default_value = "")]
        prefix: String,
    },
    /// Show the head of a file
    #[command(after_help = "Example:\n  copal fs stat mail m1 --json")]
    Stat {
        #[command(flatten)]
        file: FileWords,
        /// Only what all members that are up agree on; waits for one that is just failing
        #[arg(long)]
        strict: bool,
    },
    /// Delete a file
    #[command(after_help = "Example:\n  copal fs rm mail m1")]
    Rm {
        #[command(flatten)]
        file: FileWords,
        /// Only if the name means this very file
        #[arg(long, value_name = "ID", value_parser = parse_fid)]
        fid: Option<u128>,
    },
    /// Remove a volume
    #[command(after_help = "Example:\n  copal fs rmdir mail --with-files")]
    Rmdir {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// With all its files
        #[arg(long)]
        with_files: bool,
    },
    /// Move a volume
    #[command(after_help = "Example:\n  copal fs mv mail letters")]
    Mv {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        from: String,
        /// Its new path
        #[arg(value_name = "TO")]
        to: String,
    },
    /// Show who keeps a volume
    #[command(after_help = "Example:\n  copal fs where mail")]
    Where {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Name of a file in it; all of a volume lie together
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Decide a create whose outcome is unknown
    #[command(after_help = "Example:\n  copal fs settle mail 0193f0c2a5b10000a1b2c3d4e5f60718 --abort")]
    Settle {
        /// Path of the volume
        #[arg(value_name = "VOLUME")]
        volume: String,
        /// Id of the file
        #[arg(value_name = "ID", value_parser = parse_fid)]
        fid: u128,
        /// Rather bury it than keep it
        #[arg(long)]
        abort: bool,
    },
    /// Run operations from standard input, a line of JSON each, and answer each as it ends
    #[command(after_help = RUN_HELP)]
    Run {
        /// Operations at a time
        #[arg(long, value_name = "NUMBER", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=4096))]
        parallel: u16,
    },
}

const RUN_HELP: &str = "\
A line is {\"id\":1,\"op\":\"put|get|stat|delete|list|mkdir|rmdir|settle\",\"volume\":\"mail\",\"name\":\"m3\",\
\"body_b64\":\"..\",\"fid\":\"..\",\"deadline_ms\":5000,\"consistency\":\"available|strict\"}; its answer \
{\"id\":1,\"ok\":true,\"fid\":\"..\",\"size\":3,\"crc32c\":1,\"start_ns\":1,\"end_ns\":2} or \
{\"id\":1,\"ok\":false,\"error\":\"exists\",\"message\":\"..\",\"start_ns\":1,\"end_ns\":2}. Times are of CLOCK_MONOTONIC. \
A get with \"body\":true has the bytes as body_b64.

Example:
  echo '{\"id\":1,\"op\":\"stat\",\"volume\":\"mail\",\"name\":\"m1\"}' | copal fs run";

#[derive(Debug, Args)]
#[command(after_help = "\
Looks at the cluster of --cluster or COPAL_CLUSTER from this machine, and with --dir at the machine below a server. Each line \
says what was found and what to do; the exit code is 20 where something is bad.

Examples:
  copal doctor
  copal doctor --json | jq -r 'select(.state == \"bad\").message'")]
pub(crate) struct Doctor {
    /// Directory of a master or a data server on this machine
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Meta {
    /// Copy the database of a master, which may be running, into a new file
    #[command(after_help = "\
What lies beside the database, master.json and client.json, changes never: keep a copy of both, too.

Example:
  copal meta backup --dir /tmp/c/master /tmp/c/meta.kept")]
    Backup {
        /// Directory of the master
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The copy, a new file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Put a copy back, for a master that is started with it
    #[command(after_help = "\
Versions of the map, terms and numbers of volumes go on far above those of the copy: none is given twice. Volumes made since \
then are not there any more. A master leads by it only with --after-restore: it asks all data servers what they hold, so they \
are to run before; one that does not answer takes everything over from others. A server that answers, and was away when the \
old master ended, is named here with --away.

Example:
  copal meta restore --dir /tmp/c/restored /tmp/c/meta.kept
  cp /tmp/c/master/master.json /tmp/c/restored/
  copal master --dir /tmp/c/restored --after-restore")]
    Restore {
        /// Directory of the master, which does not run
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// The copy
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// A data server that was away when the old master ended; may be given several times
        #[arg(long, value_name = "NAME")]
        away: Vec<String>,
    },
    /// Look whether the tables of a master agree with each other
    #[command(after_help = "Example:\n  copal meta check --dir /tmp/c/master")]
    Check {
        /// Directory of a master, which may be running
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// A copy
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// List the servers
    #[command(after_help = "Example:\n  copal node ls --json | jq -r '.nodes[].name'")]
    Ls,
    /// Draw a token with which one data server may join
    #[command(
        after_help = "Example:\n  copal data --dir D --name data4 --listen HOST:7404 --join \"$(copal node token)\""
    )]
    Token {
        /// For a further master, which gets the authority's key
        #[arg(long)]
        master: bool,
    },
    /// Give a server up that is away; its groups are copied from others now
    ///
    /// It is not let back in: its directory is of no more use.
    #[command(after_help = "Example:\n  copal node lost data3")]
    Lost {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Empty a server: its groups go to others, and it stays whole until they have them
    #[command(
        after_help = "What blocks it is told, here and by `copal status`. Empty, it is removed by `copal node rm`.\n\nExample:\n  copal \
                      node drain data2 --dry-run\n  copal node drain data2\n  copal node drain data2 --undo"
    )]
    Drain {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Stop emptying it; what has left stays where it is
        #[arg(long)]
        undo: bool,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Remove a server that holds no group
    #[command(after_help = "Example:\n  copal node rm data2 --dry-run")]
    Rm {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Announce that a server will be away: it is not given up meanwhile
    #[command(
        after_help = "Its groups go on with the members that stay. --for 0s takes it back.\n\nExample:\n  copal node maintenance data2 \
                      --for 30m"
    )]
    Maintenance {
        /// Name of the server
        #[arg(value_name = "NAME")]
        name: String,
        /// How long at most; a day is the longest
        #[arg(long = "for", value_name = "DURATION", default_value = "30m", value_parser = human::parse_duration)]
        duration: Duration,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Disk {
    /// List the disks, how full they are and what they still take
    #[command(
        after_help = "Copies and moves fill a disk up to 80 %, new files up to 95 %; what is on its way to it counts for copies.\n\n\
                      Example:\n  copal disk ls\n  copal disk ls --json | jq -r '.disks[] | select(.used_percent > 85).name'"
    )]
    Ls,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    /// List groups and their members
    #[command(after_help = "Example:\n  copal group ls --degraded")]
    Ls {
        /// Only those that lack a copy
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
    /// Tell why a group lacks a copy, and what is done about it
    #[command(
        after_help = "What happened to the members that are not whole and since when, what comes next, what blocks it, and when it ends.\n\n\
                            Examples:\n  copal group ls --degraded\n  copal group why-degraded 7"
    )]
    WhyDegraded {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
    },
    /// Let the copy of a group go before others that are as urgent
    #[command(
        after_help = "Groups with fewer whole copies still go first, and those that lost theirs a minute before.\n\nExample:\n  copal \
                      group boost 7"
    )]
    Boost {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
    },
    /// Move a copy of a group from one server to another
    #[command(
        after_help = "The copy that leaves stays whole until the other is.\n\nExample:\n  copal group move 60 --from data1 --to data4 \
                      --dry-run\n  copal group move 60 --from data1 --to data4\n  copal group move 60 --cancel"
    )]
    Move {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
        /// Server that it leaves
        #[arg(long, value_name = "NAME", required_unless_present = "cancel", requires = "to")]
        from: Option<String>,
        /// Server that it goes to
        #[arg(long, value_name = "NAME", requires = "from")]
        to: Option<String>,
        /// End a move that has not ended: the copy stays where it was
        #[arg(long, conflicts_with = "from")]
        cancel: bool,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Go on from what one member has, where no whole one comes back: files may be lost
    #[command(
        name = "force-accept",
        after_help = "For a group that `copal status` calls incomplete and whose last whole members never come back. Start every server \
                      that can be started first: a group whose whole member returns goes on by itself and loses nothing. --dry-run shows \
                      since when operations may be lost; the order takes that time as --lose-since, and stands in `copal events`. Members \
                      that come back later bring what only they have.\n\nExample:\n  copal group force-accept 7 --from data2 --dry-run\n  \
                      copal group force-accept 7 --from data2 --lose-since 2026-11-25T08:30:00Z"
    )]
    ForceAccept {
        /// Number of the group
        #[arg(value_name = "GROUP")]
        group: u32,
        /// Server whose copy is taken for everything
        #[arg(long, value_name = "NAME")]
        from: String,
        /// Operations acknowledged since then may be lost: the time that --dry-run shows or an earlier one,
        /// or `everything`
        #[arg(long, value_name = "TIME", value_parser = lose_since)]
        lose_since: Option<u64>,
        /// Show what may be lost
        #[arg(long)]
        dry_run: bool,
    },
    /// Compare the members of groups; exit code 20 where they differ or are damaged
    #[command(after_help = "Example:\n  copal group verify --all --deep")]
    Verify {
        /// Number of the group
        #[arg(value_name = "GROUP", required_unless_present = "all")]
        group: Option<u32>,
        /// All groups
        #[arg(long, conflicts_with = "group")]
        all: bool,
        /// Read every byte
        #[arg(long)]
        deep: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rebalance {
    /// Show which groups would move where, and write that as a plan
    #[command(
        after_help = "Disks above 85 % come down to 80 %; copies of a group that share a rack or zone, where others have room, are \
                      taken apart; then all disks become about equally full. No disk is filled above 80 %.\n\n\
                      Example:\n  copal rebalance plan --out plan.json"
    )]
    Plan {
        /// File to write the plan to, as JSON
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Carry a plan out, and nothing else; what of it is done is skipped
    #[command(
        after_help = "A plan that would fill a disk above 80 %, or bring copies of a group into one rack, is refused as a whole.\n\nExample:\n  copal \
                      rebalance plan --out plan.json\n  copal rebalance apply plan.json --dry-run\n  copal rebalance apply plan.json"
    )]
    Apply {
        /// The plan
        #[arg(value_name = "FILE")]
        plan: PathBuf,
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Begin no more moves until a plan is applied again; those under way go on
    #[command(after_help = "Example:\n  copal rebalance pause")]
    Pause {
        /// Show what would be done
        #[arg(long)]
        dry_run: bool,
    },
}

/// The name of a rack or a zone; nothing: none is told.
fn parse_site(name: &str) -> Result<String, String> {
    let is_good = name.is_empty() || copal_volume::check_volume_name(name).is_ok();
    match is_good && name.len() <= copal_server::SITE_NAME_BYTES {
        true => Ok(name.to_owned()),
        false => Err(format!(
            "the name of a rack or zone has {} bytes at most, without slashes",
            copal_server::SITE_NAME_BYTES
        )),
    }
}

fn parse_fid(text: &str) -> Result<u128, String> {
    match text.len() == 32 {
        true => u128::from_str_radix(text, 16).map_err(|error| error.to_string()),
        false => Err("an id has 32 hexadecimal digits".to_owned()),
    }
}

/// A time as milliseconds since 1970; `everything`: 0.
fn lose_since(text: &str) -> Result<u64, String> {
    if text == "everything" {
        return Ok(0);
    }
    let time: jiff::Timestamp =
        text.parse().map_err(|_| "give a time such as 2026-11-25T08:30:00Z, or `everything`".to_owned())?;
    u64::try_from(time.as_millisecond()).map_err(|_| "give a time after 1970".to_owned())
}
